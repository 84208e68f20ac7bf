"""`sim2real train` where its folder, its stderr or its user do what they should not: real processes, real signals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sim2real_train.checkpoint import read_checkpoint
from sim2real_train.provenance import read_record
from tests.train.builders import TASK
from tests.train.processes import PATIENCE, SIM2REAL, ended_at_last, told, wait_for_iteration

WORDS = ("--num-envs", "8", "--num-steps", "16", "--hidden", "16", "--evaluate-starts", "8", "--restarts", "0")
ENDLESS = ("--iterations", "1000000", "--save-every", "2")


@contextmanager
def training(out: Path, *words: str, stderr: int = subprocess.PIPE) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [SIM2REAL, "train", TASK, "--out", str(out), *WORDS, *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    with ended_at_last(process):
        yield process


def end(process: subprocess.Popen[bytes]) -> tuple[int, list[str]]:
    """Wait for the end; return the exit code and the lines of stderr but for the progress bar's."""
    _, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, told(stderr, "train")


def test_a_run_begins_among_leftovers_and_without_a_stderr(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for name in ("best/state.json", "best/notes.txt", "diverged/worker-0/diverged-0.npz", "metrics.jsonl"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("of another run")
    full = os.open("/dev/full", os.O_WRONLY)
    with training(out, "--iterations", "2", stderr=full) as process:
        os.close(full)
        assert process.communicate(timeout=PATIENCE)[0].startswith(f"trained {TASK}: 2 iterations".encode())
        assert process.returncode == 0
    assert read_checkpoint(out / "checkpoint").state.iteration == 2
    assert [path.name for path in (out / "best").iterdir()] == ["notes.txt"]
    assert not (out / "diverged").exists()
    assert len((out / "metrics.jsonl").read_bytes().splitlines()) == 2


@pytest.mark.slow
def test_a_run_that_was_done_says_so_and_goes_on_without_its_record(tmp_path: Path) -> None:
    with training(tmp_path, "--iterations", "2") as process:
        assert end(process) == (0, [])
    record = tmp_path / "run.json"
    record.write_bytes(record.read_bytes()[:-20])
    with training(tmp_path, "--iterations", "2", "--resume") as process:
        code, lines = end(process)
    assert code == 0
    assert lines[0] == f"{tmp_path}: all 2 iterations were done already; its policy is evaluated once more"
    assert lines[1].startswith(f"warning: record of a run {record}: is truncated")
    assert len(lines) == 2
    assert [attempt.from_iteration for attempt in read_record(tmp_path).attempts] == [2]


@pytest.mark.slow
def test_a_run_whose_folder_is_removed_ends_with_one_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with training(out, "--iterations", "1000000") as process:
        wait_for_iteration(process, 2)
        shutil.rmtree(out)
        code, lines = end(process)
    assert code == 2
    assert lines == [f"error: {out}: cannot be written to (No such file or directory); choose another --out"]


def test_ctrl_c_pressed_again_and_again_changes_nothing(tmp_path: Path) -> None:
    with training(tmp_path / "run", *ENDLESS) as process:
        wait_for_iteration(process, 4)
        family = psutil.Process(process.pid).children(recursive=True)
        folders = {name for each in family for name in re.findall(r"/tmp/s2r-\w+", " ".join(each.cmdline()))}
        assert len(folders) == 1
        presses = 0
        while process.poll() is None and presses < PATIENCE / 0.05:
            process.send_signal(signal.SIGINT)
            presses += 1
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        code, lines = end(process)
    assert presses > 1
    assert code == 2
    iteration = read_checkpoint(tmp_path / "run" / "checkpoint").state.iteration
    assert lines == [
        f"error: interrupted; the checkpoint of iteration {iteration} is whole: the same command with --resume goes on "
        "from it"
    ]
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
    assert not any(Path(folder).exists() for folder in folders)
