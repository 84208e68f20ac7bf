"""Ray's own processes on this machine: when one of them dies, what runs on them ends at once, and says why.

By itself Ray waits for a minute and then ends the driver without a word (its control store died), or fails at whichever
call comes next (its scheduler died).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import threading
from collections.abc import Generator
from typing import Any, Final

from sim2real.errors import Sim2RealError

__all__ = ["WHY", "WorkerLostError", "watched"]

_NEEDED: Final = {"gcs_server": "control store", "raylet": "scheduler"}
"""Kinds of Ray's processes without which nothing runs."""


WHY: Final = "killed, out of memory, or ended by its environment"
"""What ends a worker; Ray does not tell which."""
_WAKE: Final = signal.SIGRTMAX
"""What interrupts the main thread; SIGINT is the person's, and ignored where a shell starts us in the background."""


class WorkerLostError(Sim2RealError):
    """A process that the run needs ended before its work was done, or does not answer.

    Args:
        message: As of every error.
        worker: Which one it was, as people name it; None: nobody knows, or one of Ray's own.

    Attributes:
        iteration: The one that the run was at, if it had begun to iterate.
    """

    def __init__(self, message: str, worker: str | None = None) -> None:
        super().__init__(message)
        self.worker = worker
        self.iteration: int | None = None


@contextlib.contextmanager
def watched() -> Generator[None]:
    """Interrupt the block when a process that this driver's Ray needs dies.

    Raises:
        WorkerLostError: One has died, whatever the block raised because of it.
    """
    watch = _Watch()
    try:
        yield
    except BaseException as error:
        with watch.quiet():
            lost = watch.lost()
        if lost is None:
            raise
        raise WorkerLostError(f"Ray's {lost} died (killed, or out of memory)") from error
    finally:
        with watch.quiet():
            watch.close()


class _Watch:
    """Waits for the end of Ray's processes in a thread, and interrupts the main thread then."""

    def __init__(self) -> None:
        node: Any = importlib.import_module("ray._private.worker")._global_node
        self._names = {
            os.pidfd_open(info.process.pid): name
            for kind, name in _NEEDED.items()
            for info in node.all_processes.get(kind, [])
        }
        self._closing, self._close = os.pipe()
        self._interrupts = threading.Event()
        # Only the main thread can be interrupted; another learns at its next call what has happened.
        if threading.current_thread() is threading.main_thread():
            signal.signal(_WAKE, signal.default_int_handler)
            self._interrupts.set()
        self._thread = threading.Thread(target=self._wait, name="ray-watch", daemon=True)
        self._thread.start()

    def lost(self) -> str | None:
        """Return what has died, if anything has."""
        ended = select.select(self._names, [], [], 0.0)[0]
        return self._names[ended[0]] if ended else None

    @contextlib.contextmanager
    def quiet(self) -> Generator[None]:
        """Interrupt no more: who runs the block knows, or asks."""
        self._interrupts.clear()
        # One that is under way already arrives here.
        with contextlib.suppress(KeyboardInterrupt):
            yield

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._close)
        self._thread.join()
        for descriptor in (*self._names, self._closing):
            os.close(descriptor)

    def _wait(self) -> None:
        select.select([*self._names, self._closing], [], [])
        if self.lost() is not None and self._interrupts.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)
