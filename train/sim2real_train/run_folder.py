"""The folder of a run: what lies in it, and that it belongs to one training at a time.

run.json, metrics.jsonl             what made it, and what each iteration was like
tensorboard/                        the latter for TensorBoard
checkpoint/                         the last policy, and all that is needed to go on from it
best/                               the same of the policy that succeeded most often when it was measured
diverged/worker-0/                  what led to diverged simulations
.lock                               held by the process that writes to all of these
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Final

from sim2real.errors import InputError

__all__ = [
    "BEST",
    "CHECKPOINT",
    "DUMPS",
    "EVENTS",
    "METRICS",
    "RECORD",
    "STATE",
    "check_layout",
    "claimed",
    "clear",
    "is_member",
    "is_of_checkpoint",
    "writing",
]

RECORD: Final = "run.json"
METRICS: Final = "metrics.jsonl"
EVENTS: Final = "tensorboard"
CHECKPOINT: Final = "checkpoint"
BEST: Final = "best"
DUMPS: Final = "diverged"
STATE: Final = "state.json"
"""In the folder of a checkpoint; names its members."""

_LOCK: Final = ".lock"
_MEMBER: Final = r"\d{6,}\.(?:weights|learner|worker-\d+)\.safetensors"


def _files(*names: str) -> re.Pattern[str]:
    """Match files of these names, and what a killed writer left of one."""
    each = "|".join(names)
    return re.compile(rf"(?:{each})|\.(?:{each})\.[0-9a-f]+\.partial")


_OF_CHECKPOINT: Final = _files(r"state\.json", _MEMBER)
_WRITTEN: Final = {
    ".": _files(r"run\.json", r"metrics\.jsonl"),
    CHECKPOINT: _OF_CHECKPOINT,
    BEST: _OF_CHECKPOINT,
    EVENTS: _files(r"events\.out\.tfevents\..+"),
    f"{DUMPS}/worker-*": _files(r"diverged-\d+\.npz"),
}
"""Names of all files that a run writes, by the folders below its own; other files there are somebody else's."""


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


def check_layout(out: Path) -> None:
    """Check that whatever has the name of something that a run writes is of its kind.

    Found out before anything else is done: at the first save it would end the run, and a pipe would stop it for ever.

    Raises:
        InputError: A pipe, a device or a folder is in place of a file, or something else in place of a folder.
    """
    for name in (CHECKPOINT, BEST, DUMPS, EVENTS):
        if os.path.lexists(out / name) and not (out / name).is_dir():
            raise _misplaced(out / name, "a folder")
    for path in _written(out):
        if not path.is_file():
            raise _misplaced(path, "a plain file")


def _misplaced(path: Path, expected: str) -> InputError:
    return InputError(f"{path}: expected {expected}, got something else; move it away, or choose another --out")


def clear(out: Path) -> None:
    """Remove what an earlier run has written to `out`, so that nobody takes it for a part of the one that begins.

    Its `run.json` stays for `note_attempt`, which replaces it; files of other names stay, with the folders around them.

    Raises:
        InputError: Something cannot be removed.
    """
    with writing(out):
        for path in _written(out):
            if path.name != RECORD:
                path.unlink(missing_ok=True)
    for folder in (*out.glob(f"{DUMPS}/worker-*"), *(out / name for name in (CHECKPOINT, BEST, DUMPS, EVENTS))):
        with contextlib.suppress(OSError):  # it is not there, or it holds what is somebody else's
            folder.rmdir()


def _written(out: Path) -> list[Path]:
    """Return what there is by the names of `_WRITTEN`."""
    with writing(out):
        return [
            entry
            for where, names in _WRITTEN.items()
            for folder in (out.glob(where) if where != "." else (out,))
            if folder.is_dir()
            for entry in folder.iterdir()
            if names.fullmatch(entry.name)
        ]


def is_member(name: str) -> bool:
    """Whether a file beside a `state.json` has the name of a part of a checkpoint."""
    return re.fullmatch(_MEMBER, name) is not None


def is_of_checkpoint(name: str) -> bool:
    """Whether a file has the name of a member, of `state.json`, or of what a killed writer left of either."""
    return _OF_CHECKPOINT.fullmatch(name) is not None


@contextlib.contextmanager
def writing(out: Path) -> Generator[None]:
    """Say which folder could not be written to.

    Raises:
        InputError: In place of an `OSError` of the block.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free space, or choose another --out" if full else "choose another --out"
        raise InputError(f"{out}: cannot be written to ({error.strerror or error}); {advice}") from error
