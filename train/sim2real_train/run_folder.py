"""The folder of a run belongs to one training at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from sim2real.errors import InputError

__all__ = ["claimed", "writing"]

_LOCK: Final = ".lock"


@contextlib.contextmanager
def claimed(out: Path) -> Generator[None]:
    """Make the folder `out` and keep every other training from it until the block ends.

    The kernel holds the lock and drops it when the process ends, however it ends; the empty file stays, since a removed
    one could be locked by two.

    Raises:
        InputError: Another training is writing to it, or it cannot be written to.
    """
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        with writing(out):
            _lock(lock, out)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(f"another training is writing to {out}; choose another --out or wait") from error


@contextlib.contextmanager
def writing(out: Path) -> Generator[None]:
    """Say which folder could not be written to.

    Raises:
        InputError: In place of an `OSError` of the block.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written to ({error.strerror or error}); free space or choose another --out"
        ) from error
