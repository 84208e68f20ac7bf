"""How long a worker may be silent, and what becomes of a real one that is. About 10 s."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.hang import HangLimit, Silence
from sim2real_train.placements import Machines, placed
from sim2real_train.watch import WorkerLostError
from tests.train.builders import children_named, small_config
from tests.train.processes import PATIENCE

SECONDS = st.floats(0.0, 1e5)


@given(st.lists(SECONDS, max_size=8))
def test_a_limit_is_generous_at_first_and_follows_the_slowest(taken: list[float]) -> None:
    hang = HangLimit()
    assert hang.of("collect") == hang.of("learn") == 600.0
    for seconds in taken:
        hang.took("collect", seconds)
        hang.took("learn", seconds)
    if taken:
        assert hang.of("collect") == max(60.0, 20.0 * max(taken))
        assert hang.of("learn") == max(600.0, 20.0 * max(taken))


@given(SECONDS, st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_episodes_have_more_time(seconds: float, few: int, many: int) -> None:
    hang = HangLimit()
    assert hang.of("evaluate", starts=many) == pytest.approx(600.0 * max(1.0, many / 256))
    hang.took("evaluate", seconds, starts=few)
    limit = hang.of("evaluate", starts=many)
    assert limit >= 600.0 * max(1.0, many / 256) * (1 - 1e-9)
    if many >= few:
        assert limit >= 20.0 * seconds * (1 - 1e-9)


def test_a_limit_of_ones_own_is_not_meant_for_measurements_and_checkpoints() -> None:
    hang = HangLimit(5.0)
    hang.took("collect", 100.0)
    assert [hang.of(work) for work in ("collect", "feed", "score", "learn", "publish")] == [5.0] * 5
    assert [hang.of(work) for work in ("start", "load", "save", "evaluate")] == [600.0] * 4


def test_time_in_which_this_process_was_stopped_does_not_count() -> None:
    """As when a person stops a run with all its workers, or the machine sleeps."""
    program = (
        "import sys, time\n"
        "from sim2real_train.hang import Silence\n"
        "silence, began = Silence(), time.monotonic()\n"
        "with silence.waiting():\n"
        "    print('waits', flush=True)\n"
        "    sys.stdin.read()\n"
        "print(silence.seconds, time.monotonic() - began)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        # Longer than what one wait may count.
        threading.Event().wait(1.5)
        process.send_signal(signal.SIGCONT)
        counted, passed = map(float, process.communicate("")[0].split())
    assert passed > 1.5
    assert counted == 1.0


def test_waits_add_up() -> None:
    silence = Silence()
    for _ in range(3):
        with silence.waiting():
            time.sleep(0.01)
    assert 0.03 <= silence.seconds < 3.0


def test_a_real_worker_that_hangs_is_lost(tmp_path: Path) -> None:
    with placed(small_config(num_workers=2), Machines(hang_limit=1.0), dumps=tmp_path) as workers:
        workers.collect()
        stopped = children_named("ray::Replica")[0]
        stopped.suspend()
        with pytest.raises(WorkerLostError, match=r"^worker [01] has not answered for 1 s \(it is stopped, or its"):
            workers.collect()
    stopped.wait(PATIENCE)
