"""Ctrl-C that begins the end of a run once, however often it is pressed."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType
from typing import Final

__all__ = ["Interrupts"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """Within this, the first signal raises `KeyboardInterrupt`, and those that come while the run ends do nothing.

    Whoever waits for an end presses Ctrl-C again, and the second `KeyboardInterrupt` would break off what the first has
    begun: processes and folders would stay behind. Signals that do not raise it keep their meaning; outside the main
    thread, which alone gets them, this does nothing.

    Args:
        patience: How long [s] an end may take before another signal breaks it off: one that hangs must not do so for
            ever.
    """

    def __init__(self, *, patience: float = 30.0) -> None:
        self._patience = patience
        self._ending: float | None = None
        self._held_back = False
        self._handled: list[int] = []

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._handled = [each for each in _SIGNALS if signal.getsignal(each) is signal.default_int_handler]
        for number in self._handled:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._handled:
            signal.signal(number, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._ending is not None and now < self._ending + self._patience:
            self._held_back = True
            return
        self._ending = now
        raise KeyboardInterrupt

    def arm(self) -> None:
        """Let the next signal end what follows.

        Raises:
            KeyboardInterrupt: One came while what went before had its end.
        """
        if self._held_back:
            raise KeyboardInterrupt
        self._ending = None

    @contextlib.contextmanager
    def then_held_back(self) -> Generator[None]:
        """Hold signals back once the block has ended, whichever way: what comes after it is the end in good order."""
        try:
            yield
        finally:
            self._ending = time.monotonic()
