"""How long a worker may be silent: one that hangs answers as little as one that died, and nobody tells of it."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["LOOK", "HangLimit", "Silence"]

LOOK: Final = 1.0
"""How often [s] a wait is looked at."""
_FIRST: Final = 600.0
"""Limit [s] of what has not been seen yet: it may compile, load or fetch something."""
_LEAST: Final = 60.0
"""Least limit [s] of collecting, which takes as long every time; whatever else has no less than the first time."""
_TIMES: Final = 20.0
"""Limit as a multiple of the longest time so far."""
_CHOSEN: Final = ("collect", "feed", "score", "learn", "publish")
"""Work that a limit of the user's own is meant for. A measurement of many episodes takes what it takes."""
_STARTS: Final = 256.0
"""Episodes of a measurement that the first limit is meant for; more have more time."""


class HangLimit:
    """Learns from the time that work took how long it may take the next time.

    Args:
        chosen: Limit [s] of collecting and learning, whatever they took so far; None: 20 times the longest, at least 60
            s to collect and 600 s for all else.
    """

    def __init__(self, chosen: float | None = None) -> None:
        self._chosen = chosen
        self._longest: dict[str, float] = {}

    def of(self, work: str, *, starts: int = 0) -> float:
        """Return how long [s] a worker may take; `starts` are the episodes of a measurement."""
        if self._chosen is not None and work in _CHOSEN:
            return self._chosen
        size = max(1.0, starts / _STARTS)
        if work not in self._longest:
            return _FIRST * size
        return max(_LEAST if work == "collect" else _FIRST * size, _TIMES * self._longest[work] * size)

    def took(self, work: str, seconds: float, *, starts: int = 0) -> None:
        """Count what a worker took."""
        self._longest[work] = max(self._longest.get(work, 0.0), seconds / max(1.0, starts / _STARTS))

    @contextmanager
    def timed(self, work: str, *, starts: int = 0) -> Generator[float]:
        """Count the time of the block, if it succeeds; yield its limit."""
        began = time.monotonic()
        yield self.of(work, starts=starts)
        self.took(work, time.monotonic() - began, starts=starts)


class Silence:
    """How long [s] this process has waited for an answer.

    Time in which it did not run itself does not count: workers were stopped too, with their terminal or their machine.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count the time of the block, which waits for `LOOK` at most."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds += min(time.monotonic() - began, LOOK)
