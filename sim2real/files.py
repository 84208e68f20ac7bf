"""Files that are either whole or not there: write beside the target, sync, rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

from sim2real.errors import InputError

__all__ = ["atomic_directory", "atomic_write", "read_bytes", "written_file"]


_MAX_BYTES: Final = 1 << 30


def read_bytes(path: Path, what: str) -> bytes:
    """Return the content of the file at `path`; `what` names it in the error, e.g. ``"randomization file"``.

    Raises:
        InputError: It cannot be read, is no plain file (a pipe or a device may never end), or is larger than 1 GiB.
    """
    try:
        # Not blocking: to open a pipe is to wait for somebody who writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{what} {path}: expected a plain file, got something else; give the path of a file")
            if status.st_size > _MAX_BYTES:
                raise InputError(
                    f"{what} {path}: expected at most {_MAX_BYTES} bytes, got {status.st_size}; give another file"
                )
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"{what} {path}: cannot be read ({error.strerror}); give the path of an existing file"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    # The same folder, hence the same file system: a rename across file systems is not atomic.
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def _failed(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path}: cannot be written ({error.strerror}); nothing was left behind: free space or choose another --out"
    )


def written_file(path: Path, name: str = "") -> Path:
    """Return the file that writing to `path` makes or replaces: `path`, or what the link there leads to.

    Args:
        path: Where to write.
        name: What the error begins with, e.g. ``"--out "``.

    Raises:
        InputError: A device, a pipe or a socket is there: a rename would take its place.
        OSError: It cannot be told what is there.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode
        # A folder is an error of its own to whoever writes.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(
                f"{name}{path}: expected the path of a plain file, got {_kind(mode)}; choose another place"
            )
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yield a path to write to; it becomes `path` when the block ends well and vanishes when it does not.

    Where a link is there, the file that it leads to is replaced, and the link stays.

    Raises:
        InputError: The file could not be written (no space, no permission, a folder, a device or a pipe in its place).
    """
    try:
        target = written_file(path)
        partial = _beside(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            _sync(partial)
            partial.replace(target)
            _sync(target.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        # Around the clean-up too: where a parent is a file, even unlink fails.
        raise _failed(path, error) from error


@contextlib.contextmanager
def atomic_directory(path: Path) -> Generator[Path]:
    """Yield an empty folder to fill; it takes the place of `path` when the block ends well.

    A folder already at `path` is kept until the new one is complete, then removed. Between the two renames there is
    an instant without either: `path` is then absent, never mixed.
    """
    partial = _beside(path)
    old = partial.with_suffix(".old")
    try:
        partial.mkdir(parents=True)
        yield partial
        for member in sorted(partial.rglob("*")):
            if member.is_file():
                _sync(member)
        if path.exists():
            path.rename(old)
        partial.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise _failed(path, error) from error
    finally:
        # Stopped between the two renames: what was there comes back.
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
