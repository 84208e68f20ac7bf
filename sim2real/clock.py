"""Monotonic time and the ticker of absolute deadlines.

Nothing here, and nothing that runs in a loop, reads the wall clock: it may be stepped by an hour at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["NS_PER_MS", "NS_PER_S", "Ticker", "clock_id", "now_ns"]

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000

now_ns: Callable[[], int] = time.monotonic_ns
"""Return the monotonic time [ns]; comparable between processes that have the same `clock_id`."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE: Final = Path("/proc/self/timens_offsets")


def clock_id() -> str:
    """Return a name of the clock that `now_ns` reads, equal in two processes exactly when they share that clock.

    It is the kernel's boot id and the monotonic offset of the time namespace, because two containers on one host may
    see different monotonic times. Empty where the system does not tell: an empty name never equals another clock's.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return ""
    try:
        offsets = _TIME_NAMESPACE.read_text().splitlines()
    except OSError:
        # A kernel without time namespaces has only one monotonic clock.
        return boot
    monotonic = " ".join(word for line in offsets if line.startswith("monotonic") for word in line.split()[1:])
    return boot if monotonic in ("", "0 0") else f"{boot} {monotonic}"


class Ticker:
    """Ticks at the absolute deadlines start + index × period, and never anywhere else.

    Work that runs past a deadline loses that tick: it is skipped and counted. The phase is never moved, so a late tick
    is not followed by others at a shorter distance, and no tick is made up for later. `wait` therefore always returns
    with 0 ≤ woke − scheduled < period, and `ticks + total_skipped == index + 1`.

    Attributes, all updated by `wait`:
        index: Number of the current tick; -1 before the first.
        scheduled_ns: Its deadline, start + index × period.
        woke_ns: When `wait` returned.
        skipped: Ticks that were lost just before it.
        ticks: Ticks returned so far.
        total_skipped: Ticks lost so far.
    """

    __slots__ = (
        "_now",
        "_sleep",
        "_spin_ns",
        "index",
        "period_ns",
        "scheduled_ns",
        "skipped",
        "start_ns",
        "ticks",
        "total_skipped",
        "woke_ns",
    )

    def __init__(
        self,
        period_ns: int,
        start_ns: int | None = None,
        *,
        spin_ns: int = 100_000,
        now: Callable[[], int] = now_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Make a ticker.

        Args:
            period_ns: Distance between deadlines [ns].
            start_ns: Deadline of tick 0 on the clock `now` [ns]; None: the moment of the first `wait`, which then
                returns at once.
            spin_ns: How long before a deadline sleeping ends and spinning begins [ns]. A sleep ends about 60 µs late
                (timer slack, wake-up); spinning through that costs spin_ns / period_ns of one core.
            now: Clock to read [ns].
            sleep: Sleeps for seconds on that clock. `time.sleep` measures on the monotonic clock, goes on after a
                signal that was handled, and lets KeyboardInterrupt through.
        """
        if period_ns <= 0:
            raise ValueError(f"period_ns: expected an integer > 0, got {period_ns}")
        self.period_ns = period_ns
        self.start_ns = start_ns
        self.index = -1
        self.scheduled_ns = 0
        self.woke_ns = 0
        self.skipped = 0
        self.ticks = 0
        self.total_skipped = 0
        self._spin_ns = spin_ns
        self._now = now
        self._sleep = sleep

    def wait(self) -> None:
        """Return at the next deadline that has not passed yet, with the attributes set to that tick."""
        now = self._now()
        if self.start_ns is None:
            self.start_ns = now
        start, period = self.start_ns, self.period_ns
        index = self.index + 1
        while True:
            # ⌈(now − start) / period⌉ is the first deadline that is not in the past.
            index = max(index, -((start - now) // period))
            scheduled = start + index * period
            now = self._until(scheduled)
            if now - scheduled < period:
                break
            # Suspended for more than a period while waiting: this tick is lost as well.
            index += 1
        self.skipped = index - self.index - 1
        self.total_skipped += self.skipped
        self.ticks += 1
        self.index = index
        self.scheduled_ns = scheduled
        self.woke_ns = now

    def _until(self, deadline_ns: int) -> int:
        """Sleep, then spin, until the deadline; return the time at which it was seen to have passed."""
        now = self._now()
        while (left := deadline_ns - now) > 0:
            if left > self._spin_ns:
                self._sleep((left - self._spin_ns) * 1e-9)
            now = self._now()
        return now
