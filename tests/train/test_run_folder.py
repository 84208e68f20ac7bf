from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim2real.errors import InputError
from sim2real_train.metrics import MetricsLog
from sim2real_train.run_folder import claimed
from sim2real_train.trainer import Schedule, train
from tests.train.builders import metrics, small_config

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


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "metrics.jsonl")
    with (
        pytest.raises(InputError, match="No space left on device"),
        MetricsLog(tmp_path, (), total=1, env_steps=1) as log,
    ):
        log.add(metrics(1))
