from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sim2real.errors import InputError
from sim2real_train.metrics import MetricsLog
from sim2real_train.run_folder import claimed, clear
from sim2real_train.trainer import Schedule, train
from tests.train.builders import metrics, small_config

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys
from pathlib import Path
from sim2real_train.run_folder import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_training_into_the_same_folder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=r"^another training is writing to .*run; choose another --out or wait$"):
            train(small_config(), Schedule(iterations=1), out)
        # Killed, it cannot tidy up; nobody may be locked out by it.
        first.kill()
    with claimed(out):
        pass


@pytest.mark.parametrize("out", ["file", "file/below", "/dev/null/run", "/proc/run", "x" * 300])
def test_a_folder_that_cannot_be_is_refused_in_one_line(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot be written to") as caught:
        train(small_config(), Schedule(iterations=1), tmp_path / out)
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("taken", ["metrics.jsonl", "tensorboard"])
def test_metrics_that_cannot_be_written_are_told(tmp_path: Path, taken: str) -> None:
    if taken == "tensorboard":
        (tmp_path / taken).write_text("a file where a folder goes")
    else:
        (tmp_path / taken).mkdir()
    with pytest.raises(InputError, match="cannot be written to"):
        MetricsLog(tmp_path, (), total=1, env_steps=1)


FULL = """
import resource, signal, sys
from pathlib import Path
from sim2real.errors import InputError
from sim2real_train.metrics import MetricsLog
from tests.train.builders import metrics
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    with MetricsLog(Path(sys.argv[1]), (), total=1, env_steps=1) as log:
        log.add(metrics(1))
except InputError as error:
    print(error)
"""


def python(code: str, *words: str | Path, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=60,
    )


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    done = python(FULL, tmp_path / "run")
    assert done.stdout == f"{tmp_path / 'run'}: cannot be written to (File too large); choose another --out\n"
    assert "Traceback" not in done.stderr


TOLD = """
import sys
from pathlib import Path
from sim2real_train.messages import tell
from sim2real_train.metrics import MetricsLog
from tests.train.builders import metrics
with MetricsLog(Path(sys.argv[1]), (), total=3, env_steps=1) as log:
    for iteration in (1, 2, 3):
        tell("a warning")
        log.add(metrics(iteration))
print("done")
"""


@pytest.mark.parametrize("stderr", ["full", "nobody reads", "closed"])
def test_a_stderr_that_cannot_be_written_ends_nothing(stderr: str, tmp_path: Path) -> None:
    if stderr == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        read, descriptor = os.pipe()
        os.close(read)
    code = "import sys; sys.stderr.close()\n" + TOLD if stderr == "closed" else TOLD
    try:
        done = python(code, tmp_path, stderr=descriptor)
    finally:
        os.close(descriptor)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 3


def test_what_nobody_has_read_yet_is_lost_and_what_comes_later_is_not() -> None:
    """A reader that is slow is not gone."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    code = """
import sys
from sim2real_train.messages import tell
for _ in range(100):
    tell("x" * 10_000)
print("full", flush=True)
sys.stdin.readline()
for _ in range(3):
    tell("later")
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "full\n"
        os.close(write)
        while select.select([read], [], [], 0)[0]:
            os.read(read, 1 << 20)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == 0
    assert os.read(read, 1 << 20).endswith(b"later\nlater\nlater\n")
    os.close(read)


@pytest.mark.parametrize("instead", [None, "another"])
def test_a_folder_that_goes_away_is_told_at_the_next_iteration(instead: str | None, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with MetricsLog(out, (), total=2, env_steps=1) as log:
        log.add(metrics(1))
        out.rename(tmp_path / "moved")
        if instead is not None:
            out.mkdir()
        with pytest.raises(InputError, match=r"cannot be written to|was replaced by another folder") as caught:
            log.add(metrics(2))
    assert "\n" not in str(caught.value)
    assert len((tmp_path / "moved" / "metrics.jsonl").read_bytes().splitlines()) == 1


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    for past in ((), (metrics(1), metrics(2))):
        with MetricsLog(tmp_path, past, total=3, env_steps=1) as log:
            log.add(metrics(len(past) + 1))
            # While it goes on, too.
            read: Any = EventAccumulator(str(tmp_path / "tensorboard"))
            read.Reload()
    events = read.Scalars("mean_reward")
    assert [(event.step, event.value) for event in events] == [(1, 0.25), (2, 0.25), (3, 0.25)]
    assert [event.value for event in read.Scalars("reward/energy")] == [0.5] * 3


WRITTEN = (
    "metrics.jsonl",
    "run.json",
    ".run.json.0a1b2c3d.partial",
    "best/state.json",
    "best/000050.weights.safetensors",
    "best/.000060.worker-12.safetensors.0a1b2c3d.partial",
    "checkpoint/.state.json.0a1b2c3d.partial",
    "checkpoint/.000025.learner.safetensors.0a1b2c3d.partial",
    "diverged/worker-0/diverged-0.npz",
    "diverged/worker-1/.diverged-1.npz.0a1b2c3d.partial",
    "tensorboard/events.out.tfevents.1700000000.host.1.0",
)
"""What a run leaves that was killed before its first checkpoint."""
FOREIGN = ("notes.txt", "best/notes.txt", "checkpoint/weights.safetensors", "diverged/plot.npz", "tensorboard/x.log")


def lay(out: Path, names: Sequence[str]) -> None:
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)


def files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir())


def test_a_run_that_begins_removes_what_another_has_written_and_nothing_else(tmp_path: Path) -> None:
    lay(tmp_path / "mixed", (*WRITTEN, *FOREIGN))
    clear(tmp_path / "mixed")
    assert files(tmp_path / "mixed") == sorted((*FOREIGN, "run.json"))
    lay(tmp_path / "own", WRITTEN)
    clear(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["run.json"]


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.jsonl").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to(elsewhere / "mine.jsonl")
    clear(tmp_path / "run")
    assert files(tmp_path) == ["elsewhere/mine.jsonl"]


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket", "link to nothing"])
@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "metrics.jsonl",
        "checkpoint/state.json",
        "checkpoint/000001.learner.safetensors",
        "best/state.json",
        "tensorboard/events.out.tfevents.1",
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_no_plain_file_is_refused_before_anything_is_done(
    name: str, kind: str, resume: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    put(kind, path)
    with pytest.raises(InputError, match=rf"{path}: expected a plain file, got something else; move it away"):
        train(small_config(), Schedule(iterations=1), tmp_path, resume=resume)


def put(kind: str, path: Path) -> None:
    """Put something that is no plain file at `path`."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nothing")


@pytest.mark.parametrize("name", ["checkpoint", "best", "diverged", "tensorboard"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_where_a_folder_goes_is_refused_before_anything_is_done(name: str, resume: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"{tmp_path / name}: expected a folder, got something else; move it away"):
        train(small_config(), Schedule(iterations=1), tmp_path, resume=resume)
    assert files(tmp_path) == [".lock", name]
