"""The ticker: absolute deadlines, counted losses, and no wall clock anywhere. About 3 s."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim2real
from sim2real import clock
from sim2real.clock import NS_PER_MS, NS_PER_S, Ticker, clock_id, now_ns

ROOT = Path(sim2real.__file__).parents[1]


class FakeTime:
    """A clock that moves when it is read, when somebody sleeps, and when work is done."""

    def __init__(self, start_ns: int, oversleeps_ns: list[int]) -> None:
        self.ns = start_ns
        self._oversleeps_ns = oversleeps_ns

    def now(self) -> int:
        self.ns += 1
        return self.ns

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        late_ns = self._oversleeps_ns.pop() if self._oversleeps_ns else 0
        self.ns += round(seconds * NS_PER_S) + late_ns


@given(
    period=st.integers(1000, 10**8),
    start=st.integers(-(10**12), 10**12) | st.none(),
    work=st.lists(st.integers(0, 10**9), min_size=1, max_size=50),
    oversleeps=st.lists(st.integers(0, 10**9), max_size=50),
    spin=st.integers(0, 10**6),
)
def test_ticks_keep_their_phase_and_losses_are_counted(
    period: int, start: int | None, work: list[int], oversleeps: list[int], spin: int
) -> None:
    fake = FakeTime(start_ns=5 * 10**11, oversleeps_ns=oversleeps)
    ticker = Ticker(period, start, spin_ns=spin, now=fake.now, sleep=fake.sleep)
    index, skipped = -1, 0
    for count, duration in enumerate(work, start=1):
        called_ns = fake.ns
        ticker.wait()
        assert ticker.start_ns is not None
        assert ticker.scheduled_ns == ticker.start_ns + ticker.index * period
        assert 0 <= ticker.woke_ns - ticker.scheduled_ns < period
        # Never a deadline that had passed before, hence never two ticks closer together than a period.
        assert ticker.scheduled_ns >= called_ns
        assert ticker.skipped == ticker.index - index - 1 >= 0
        skipped += ticker.skipped
        assert (ticker.ticks, ticker.total_skipped) == (count, skipped)
        assert ticker.ticks + ticker.total_skipped == ticker.index + 1
        index = ticker.index
        fake.ns += duration


@given(period=st.integers(1000, 10**8), work=st.lists(st.floats(0, 0.99), min_size=1, max_size=50))
def test_work_that_fits_loses_no_tick(period: int, work: list[float]) -> None:
    fake = FakeTime(start_ns=0, oversleeps_ns=[])
    ticker = Ticker(period, spin_ns=0, now=fake.now, sleep=fake.sleep)
    for share in work:
        ticker.wait()
        fake.ns += max(0, int(share * period) - 20)
    assert (ticker.ticks, ticker.total_skipped) == (len(work), 0)


@pytest.mark.parametrize(("work", "skipped"), [(1.0, 0), (1.01, 1), (1.99, 1), (2.01, 2), (10.5, 10)])
def test_an_overrun_costs_the_deadlines_it_passed(work: float, skipped: int) -> None:
    fake = FakeTime(start_ns=0, oversleeps_ns=[])
    ticker = Ticker(1_000_000, 100, spin_ns=0, now=fake.now, sleep=fake.sleep)
    ticker.wait()
    assert ticker.index == 0
    fake.ns = int(work * 1_000_000)
    ticker.wait()
    assert (ticker.index, ticker.skipped) == (skipped + 1, skipped)


def test_the_first_tick_is_number_0_and_comes_at_once() -> None:
    ticker = Ticker(NS_PER_S)
    assert ticker.index == -1
    before = now_ns()
    ticker.wait()
    assert (ticker.index, ticker.ticks, ticker.total_skipped) == (0, 1, 0)
    assert ticker.scheduled_ns == ticker.start_ns
    assert before <= ticker.scheduled_ns <= ticker.woke_ns <= now_ns()


@pytest.mark.parametrize("period_ns", [0, -1])
def test_a_period_is_positive(period_ns: int) -> None:
    with pytest.raises(ValueError, match="period_ns: expected an integer > 0"):
        Ticker(period_ns)


def test_real_ticks_are_on_time_and_cost_little() -> None:
    ticker = Ticker(10 * NS_PER_MS)
    process = psutil.Process()
    used = process.cpu_times()
    late: list[int] = []
    for _ in range(100):
        ticker.wait()
        late.append(ticker.woke_ns - ticker.scheduled_ns)
    busy = sum(process.cpu_times()[:2]) - sum(used[:2])
    # Spinning through 0.1 ms of each 10 ms is 1 % of a core; a ticker that spins all the time takes all of it.
    assert busy < 0.2
    # A plain sleep is 0.06 ms late at least; spinning ends that. Loose, since other work shares the machine.
    assert sorted(late)[len(late) // 2] < NS_PER_MS


def test_the_wall_clock_may_be_stepped_or_gone() -> None:
    # Stepping the real one would upset everything else on the machine. In its place every way that Python has of
    # reading it fails in the child, so a loop that depended on it could not come to its end.
    program = """
import datetime, sys, time
import sim2real.wire_edge, sim2real.wire_plant
from concurrent.futures import ThreadPoolExecutor
from sim2real.clock import Ticker
from tests.core.wire_peers import HELLO, WAIT_NS, command_array, send, state_array, answer

class NoDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        raise AssertionError("the wall clock was read")
    utcnow = today = now

def fail(*_):
    raise AssertionError("the wall clock was read")

time.time = time.time_ns = time.localtime = time.gmtime = fail
datetime.datetime = NoDatetime
real = time.clock_gettime_ns
time.clock_gettime_ns = lambda clock: fail() if clock == time.CLOCK_REALTIME else real(clock)

with sim2real.wire_plant.PlantSocket("tcp://127.0.0.1:*", hello=HELLO) as plant:
    with sim2real.wire_edge.EdgeSocket(plant.endpoint, hello=HELLO) as edge, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(plant.accept, WAIT_NS)
        edge.connect(WAIT_NS)
        accepted.result()
        ticker = Ticker(5_000_000)
        for tick in range(20):
            ticker.wait()
            assert send(plant, tick)
            received = edge.receive_state(state_array(), WAIT_NS)
            answer(edge, received, command_array(), tick)
            assert plant.receive_command(command_array(), WAIT_NS).answered == tick
print(ticker.ticks)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("20\n", 0), done.stderr


def test_no_module_of_the_loop_names_the_wall_clock() -> None:
    for name in ("clock", "wire", "wire_messages", "wire_link", "wire_plant", "wire_edge", "histogram"):
        text = (ROOT / "sim2real" / f"{name}.py").read_text()
        for forbidden in ("time.time(", "time.time_ns", "datetime", "CLOCK_REALTIME"):
            assert forbidden not in text, f"{name}.py reads the wall clock: {forbidden}"


def test_ctrl_c_ends_a_wait() -> None:
    program = "from sim2real.clock import Ticker\nt = Ticker(60 * 10**9)\nt.wait()\nprint('up', flush=True)\nt.wait()\n"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, errors = child.communicate(timeout=30)
        assert b"KeyboardInterrupt" in errors
        assert time.monotonic() - started < 10


def test_a_clock_has_one_name_in_all_processes() -> None:
    program = "from sim2real.clock import clock_id; print(clock_id())"
    other = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == clock_id() != ""


def test_a_shifted_time_namespace_is_another_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = tmp_path / "timens_offsets"
    monkeypatch.setattr(clock, "_TIME_NAMESPACE", offsets)
    names: set[str] = set()
    for text in (
        "monotonic           0         0\nboottime            0         0\n",
        "monotonic         100         0\n",
    ):
        offsets.write_text(text)
        names.add(clock_id())
    offsets.unlink()
    names.add(clock_id())
    assert len(names) == 2
    monkeypatch.setattr(clock, "_BOOT_ID", tmp_path / "absent")
    assert clock_id() == ""
