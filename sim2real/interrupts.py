"""Ctrl-C that begins the end of a command once, however often it is pressed.

Whoever waits for an end presses it again, and a second `KeyboardInterrupt` would break off what the first has begun:
processes and folders would stay behind, and the exit code would be that of a crash.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType
from typing import Final

__all__ = ["arm", "handle_once", "handled_once", "then_held_back"]

PATIENCE: Final = 30.0
"""How long [s] an end may take before another signal breaks it off: one that hangs must not do so for ever."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """Of the process, as its signal handlers are."""

    ending: float | None = None
    """When the end began, on the monotonic clock; None: it has not."""
    held_back: bool = False
    """Whether somebody wanted an end while there was one already."""


_state = _State()


def handle_once() -> list[signal.Signals]:
    """Let signals that raise `KeyboardInterrupt` do so once, and do nothing while the command ends because of it.

    Those that mean something else keep their meaning; outside the main thread, which alone gets them, this does
    nothing.

    Returns:
        The signals that did not do so before.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    _state.ending, _state.held_back = None, False
    changed = [number for number in _SIGNALS if signal.getsignal(number) is signal.default_int_handler]
    for number in changed:
        signal.signal(number, _interrupt)
    return changed


@contextlib.contextmanager
def handled_once() -> Generator[None]:
    """Do as `handle_once` says until the block ends; in a command, which does so anyway, nothing changes."""
    changed = handle_once()
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.default_int_handler)


def arm() -> None:
    """Let the next signal end what follows, though something has ended before.

    Raises:
        KeyboardInterrupt: Somebody wanted it to end meanwhile.
    """
    if _state.held_back:
        raise KeyboardInterrupt
    _state.ending = None


@contextlib.contextmanager
def then_held_back() -> Generator[None]:
    """Hold signals back once the block has ended, whichever way: what comes after it is an end in good order."""
    try:
        yield
    finally:
        _state.ending = time.monotonic()


def _interrupt(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _state.ending is not None and now < _state.ending + PATIENCE:
        _state.held_back = True
        return
    _state.ending = now
    raise KeyboardInterrupt


def _ignore() -> None:
    """The interpreter puts the system's handlers in place of ours as it exits: the next signal would kill it."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_IGN)


# Registered before the libraries that a command loads, hence called after what they have to do at the exit.
atexit.register(_ignore)
