"""`run.json`: what made a run, one entry for each time that it was begun or gone on with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, Literal

import msgspec

from sim2real import __version__
from sim2real.errors import InputError
from sim2real.files import atomic_write
from sim2real_train.config import TrainConfig

__all__ = ["Attempt", "Git", "RunRecord", "note_attempt", "read_record"]

_FILE: Final = "run.json"
_PACKAGES: Final = ("numpy", "torch", "ray", "mujoco", "msgspec", "mujoco-warp", "newton")
_GIT_SECONDS: Final = 5.0


class Git(msgspec.Struct, frozen=True, kw_only=True):
    """The repository that the command was given in."""

    commit: str
    changed: tuple[str, ...]
    """Files that differ from the commit, as ``git status --porcelain`` lists them."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One process that worked on the run."""

    began: str
    """UTC, ISO 8601."""
    command: tuple[str, ...]
    from_iteration: int
    """0, or the iteration of the checkpoint that it went on from."""
    git: Git | None
    """None: not in a repository, or there is no git."""
    toolkit_version: str
    python: str
    packages: dict[str, str]
    """Versions of what computes the results."""
    platform: str
    cpus: int
    """That the process may use."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema_version: Literal[1]
    config: TrainConfig
    """Seeds included."""
    attempts: tuple[Attempt, ...]


def note_attempt(out: Path, config: TrainConfig, from_iteration: int) -> None:
    """Add this process to the record of the run in `out`; a run that begins has a new one.

    Raises:
        InputError: The file cannot be written, or the one that is there cannot be read.
    """
    before = read_record(out).attempts if from_iteration else ()
    record = RunRecord(schema_version=1, config=config, attempts=(*before, _attempt(from_iteration)))
    with atomic_write(out / _FILE) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(out: Path) -> RunRecord:
    """Return the record of the run in `out`.

    Raises:
        InputError: It is missing or damaged.
    """
    path = out / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the folder of a run") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; restore it from a copy") from error


def _attempt(from_iteration: int) -> Attempt:
    return Attempt(
        began=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        from_iteration=from_iteration,
        git=_git(),
        toolkit_version=__version__,
        python=platform.python_version(),
        packages={name: version for name in _PACKAGES if (version := _version(name)) is not None},
        platform=platform.platform(),
        cpus=len(os.sched_getaffinity(0)),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> Git | None:
    commit = _run_git("rev-parse", "HEAD")
    changed = _run_git("status", "--porcelain")
    if commit is None or changed is None:
        return None
    return Git(commit=commit.strip(), changed=tuple(changed.splitlines()))


def _run_git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
