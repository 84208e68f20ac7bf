"""A folder for the time of a run, which the next run removes where this one was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
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


@contextlib.contextmanager
def scratch_folder() -> Generator[Path]:
    """Make a folder that is gone at the end of the block; remove those whose owners were killed.

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
            os.close(lock)


def _sweep() -> None:
    for left in _ROOT.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
            finally:
                os.close(lock)
