from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sim2real.errors import InputError
from sim2real_hil.demo import DemoArgs, run_demo
from tests.hil.conftest import Process

Start = Callable[..., Process]


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match="holds something else than a demo; choose"):
        run_demo(DemoArgs(out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "mine"


def test_ctrl_c_ends_the_step_and_a_new_demo_begins_with_an_empty_folder(command: Start, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    run = command("demo", "--out", str(out))
    run.until(r"calibrate: +\d+%")
    (step,) = psutil.Process(run.popen.pid).children()
    run.popen.send_signal(signal.SIGINT)
    code, _, told = run.end(10)
    assert code == 2
    assert told.startswith("interrupted: ")
    assert not psutil.pid_exists(step.pid)

    # What is ours goes, what somebody put beside it stays.
    (out / "policy.s2r").write_text("old")
    (out / "train").mkdir()
    (out / "train" / "old").write_text("old")
    (out / "notes.txt").write_text("mine")
    again = command("demo", "--out", str(out))
    again.until(r"sim2real calib ")
    assert not (out / "policy.s2r").exists()
    assert not (out / "train").exists()
    assert (out / "notes.txt").read_text() == "mine"
    again.popen.send_signal(signal.SIGINT)
    again.end(10)


def test_two_demos_do_not_share_a_folder(command: Start) -> None:
    first = command("demo", "--out", "demo")
    first.until(r"sim2real calib ")
    code, _, told = command("demo", "--out", "demo").end(30)
    assert code == 2
    assert told == "error: demo: another demo is at work in it; wait for its end or choose another folder with --out"
    first.popen.kill()
    first.popen.wait(10)
    # However the first one ended, the folder is free again.
    again = command("demo", "--out", "demo")
    again.until(r"sim2real calib ")
    again.popen.send_signal(signal.SIGINT)
    again.end(10)


def test_a_step_that_cannot_do_its_work_ends_the_demo_with_its_own_words(
    command: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM2REAL_DATA", str(tmp_path / "nowhere"))
    code, _, told = command("demo", "--out", "demo").end(60)
    assert code == 2
    assert told.startswith("error: sim2real calib fit pendulum ended with exit code 2: ")
    assert "system_identification_measured.csv" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_step_leaves_its_part_in_the_report(
    command: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIM2REAL_DATA", raising=False)
    code, stdout, _ = command("demo", "--fast", "--out", "demo", "--json").end(580)
    result = json.loads(stdout)
    assert code == 1, "trained for two iterations only"
    assert list(result["step_elapsed_s"]) == [
        "calibrate",
        "train",
        "evaluate",
        "export",
        "verify",
        "lockstep",
        "realtime",
    ]
    verdicts = {verdict["name"]: verdict["passed"] for verdict in result["verdicts"]}
    assert verdicts["success on nominal plants"] is False
    assert verdicts["ipc equals in-process"] is True
    assert verdicts["tcp equals in-process"] is True
    parity = [passed for name, passed in verdicts.items() if name.startswith("parity between")]
    assert len(parity) >= 3
    assert all(parity)
    out = tmp_path / "demo"
    for name in ("randomization.json", "policy.s2r", "report.html", "report.json", "junit.xml", "train", "hil"):
        assert (out / name).exists()
    titles = [section["title"] for section in json.loads((out / "report.json").read_text())["sections"]]
    assert titles == [
        "Calibration",
        "Training",
        "Evaluation",
        "Parity",
        "Lockstep",
        "Latency",
        "Swing-up",
        "Provenance",
    ]
