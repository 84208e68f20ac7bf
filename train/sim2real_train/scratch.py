"""A folder for the time of a run and of the processes that live in it; the next run clears up where one was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from sim2real.errors import InputError

__all__ = ["scratch_folder"]

_ROOT: Final = Path("/tmp")
"""Unix sockets lie in the folder, and their paths may have 107 characters: not below a long TMPDIR."""
_PREFIX: Final = "s2r-"
_LOCK: Final = "owner"
_PATIENCE: Final = 5.0
"""How long [s] a process that is killed may take to end; one that waits for a disk takes longer."""


@contextlib.contextmanager
def scratch_folder() -> Generator[Path]:
    """Make a folder that is gone at the end of the block; remove those whose owners were killed.

    Processes whose working directory it is end with it: some of Ray's outlive the one that should have ended them, and
    would write to the folder again.

    Raises:
        InputError: There is no place for it.
    """
    _sweep()
    try:
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_ROOT, ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{_ROOT}: cannot be written to ({error.strerror}), and Ray's sockets lie there") from error
    with temporary as name:
        folder = Path(name)
        lock = os.open(folder / f".{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Held by the kernel for as long as this process lives, and seen by others only once it is.
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f".{_LOCK}").rename(folder / _LOCK)
            yield folder
        finally:
            _end_processes(folder)
            os.close(lock)


def _sweep() -> None:
    for left in _ROOT.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_processes(left.parent)
                shutil.rmtree(left.parent, ignore_errors=True)
            finally:
                os.close(lock)


def _end_processes(folder: Path) -> None:
    """End all processes but this one that live in a folder; where there is no /proc, nobody can tell."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # gone, or somebody else's
            if link.readlink() == folder and int(link.parent.name) != os.getpid():
                _end(int(link.parent.name))


def _end(pid: int) -> None:
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], _PATIENCE)
    finally:
        os.close(process)
