"""What a control loop asks of its process: a quiet garbage collector, a processor, a priority, and a polite end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Generator
from types import FrameType
from typing import Final

from sim2real.errors import InputError
from sim2real.heap import frozen_heap

__all__ = ["StopRequest", "fifo_priority", "on_processor", "stop_on_signals", "with_priority", "without_collector"]

_MCL_CURRENT_AND_FUTURE: Final = 3
"""mlockall(2): all memory that is mapped, now and later."""
_LOW_FIFO: Final = 10
"""Above every ordinary process, below what a kernel with threaded interrupts gives those (50)."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether somebody asked for the end.

    Attributes:
        reason: Who; empty: nobody.
    """

    def __init__(self) -> None:
        self.reason = ""


@contextlib.contextmanager
def stop_on_signals() -> Generator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request that the loop heeds between two ticks, never inside one."""
    request = StopRequest()

    def note(number: int, _: FrameType | None) -> None:
        request.reason = f"asked to end by {signal.Signals(number).name}"

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def without_collector() -> Generator[None]:
    """Collect garbage once, then not again: the loop makes none, and a collection takes milliseconds."""
    enabled = gc.isenabled()
    with frozen_heap():
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


@contextlib.contextmanager
def on_processor(cpu: int | None) -> Generator[None]:
    """Keep the calling thread on one processor; None: leave it to the scheduler.

    Raises:
        InputError: There is no such processor, or it is not open to this process.
    """
    if cpu is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    if cpu not in allowed:
        raise InputError(f"--cpu {cpu}: expected one of {', '.join(map(str, sorted(allowed)))}, which are open to us")
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def fifo_priority() -> int | None:
    """Return a priority that `with_priority` grants this process, low among the realtime ones; None: it grants none."""
    try:
        with with_priority(_LOW_FIFO):
            return _LOW_FIFO
    except InputError:
        return None


@contextlib.contextmanager
def with_priority(priority: int | None) -> Generator[None]:
    """Run the calling thread under SCHED_FIFO, with all memory locked into RAM; None: as an ordinary thread.

    Raises:
        InputError: The priority does not exist, or the system does not grant it or the memory.
    """
    if priority is None:
        yield
        return
    low, high = os.sched_get_priority_min(os.SCHED_FIFO), os.sched_get_priority_max(os.SCHED_FIFO)
    if not low <= priority <= high:
        raise InputError(f"--realtime-priority {priority}: expected {low} to {high}")
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        # A child that inherited the priority could starve the loop.
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except PermissionError as error:
        raise InputError(
            f"--realtime-priority {priority}: not permitted; allow it with a line 'USER - rtprio {priority}' in "
            "/etc/security/limits.conf or the capability CAP_SYS_NICE, or leave the option out"
        ) from error
    try:
        if libc.mlockall(_MCL_CURRENT_AND_FUTURE):
            raise InputError(
                f"--realtime-priority {priority}: memory cannot be locked ({os.strerror(ctypes.get_errno())}); allow "
                "it with a line 'USER - memlock unlimited' in /etc/security/limits.conf, or leave the option out"
            )
        yield
    finally:
        libc.munlockall()
        os.sched_setscheduler(0, policy, parameters)
