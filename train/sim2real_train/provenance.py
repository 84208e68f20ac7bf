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
from sim2real.files import atomic_write, read_bytes
from sim2real_train.config import TrainConfig
from sim2real_train.messages import tell
from sim2real_train.plan import Choice
from sim2real_train.run_folder import RECORD, writing

__all__ = ["Attempt", "Git", "RunRecord", "note_attempt", "note_placement", "read_record"]

_PACKAGES: Final = ("numpy", "torch", "ray", "mujoco", "msgspec", "mujoco-warp", "newton")
_GIT_SECONDS: Final = 5.0
_GIT_PLACES: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


class Git(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at the time when the attempt began."""

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
    """That of the folder that the command was given in. None: there is none, or no git."""
    toolkit_version: str
    python: str
    packages: dict[str, str]
    """Versions of what computes the results."""
    platform: str
    cpus: int
    """That the process may use."""
    toolkit_git: Git | None = None
    """That of the toolkit itself, whose code `toolkit_version` alone does not tell. None: it was installed, not run
    from its repository."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema_version: Literal[1]
    config: TrainConfig
    """Seeds included."""
    attempts: tuple[Attempt, ...]
    placement: Choice | None = None
    """How ``--placement auto`` chose where it runs. None: somebody else did."""


def note_attempt(out: Path, config: TrainConfig, from_iteration: int, placement: Choice | None = None) -> None:
    """Add this process to the record of the run in `out`; a run that begins has a new one.

    A record that is lost or damaged is told and begun anew: what a run goes on from is its checkpoint.

    Args:
        out: Folder of the run.
        config: The run.
        from_iteration: 0, or the iteration of the checkpoint that it goes on from.
        placement: See `RunRecord`; None: as it was.

    Raises:
        InputError: The file cannot be written.
    """
    before = _earlier(out, goes_on=from_iteration > 0)
    attempt = _attempt(from_iteration)
    _write(
        out,
        RunRecord(
            schema_version=1,
            config=config,
            attempts=(attempt,) if before is None else (*before.attempts, attempt),
            placement=before.placement if placement is None and before is not None else placement,
        ),
    )


def note_placement(out: Path, placement: Choice) -> None:
    """Put what came of a placement into the record of the run in `out`, unless that was lost meanwhile, which is told.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        record = read_record(out)
    except InputError as error:
        tell(f"warning: {error}; what came of the placement is not in it")
        return
    _write(out, msgspec.structs.replace(record, placement=placement))


def _write(out: Path, record: RunRecord) -> None:
    with atomic_write(out / RECORD) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def _earlier(out: Path, *, goes_on: bool) -> RunRecord | None:
    """Return the record of a run that goes on; a file that is no such record is put aside."""
    path = out / RECORD
    if not os.path.lexists(path):
        if goes_on:
            tell(f"warning: {path} is missing; a new record begins")
        return None
    try:
        record = read_record(out)
    except InputError as error:
        aside = path.with_name(f"{RECORD}.damaged")
        with writing(out):
            path.replace(aside)
        tell(f"warning: {error}; it is kept as {aside.name}, and a new record begins")
        return None
    return record if goes_on else None


def read_record(out: Path) -> RunRecord:
    """Return the record of the run in `out`.

    Raises:
        InputError: It is missing or damaged.
    """
    path = out / RECORD
    data = read_bytes(path, "record of a run")
    try:
        return msgspec.json.decode(data, type=RunRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"record of a run {path}: is truncated, altered or of another version ({error})") from error


def _attempt(from_iteration: int) -> Attempt:
    return Attempt(
        began=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        from_iteration=from_iteration,
        git=_git(Path()),
        toolkit_git=_git(Path(__file__).parent, only_if_tracked=Path(__file__).name),
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


def _git(folder: Path, *, only_if_tracked: str | None = None) -> Git | None:
    """Return the repository around `folder`; None also where it does not track the file that has to be in it."""
    # An installed toolkit lies in an environment, and that often in the repository of whoever uses it.
    if only_if_tracked is not None and _run_git(folder, "ls-files", "--error-unmatch", "--", only_if_tracked) is None:
        return None
    commit = _run_git(folder, "rev-parse", "HEAD")
    changed = _run_git(folder, "status", "--porcelain")
    if commit is None or changed is None:
        return None
    return Git(commit=commit.strip(), changed=tuple(changed.splitlines()))


def _run_git(folder: Path, *words: str) -> str | None:
    # Set where git itself runs the command, e.g. in a hook; they would stand for any folder.
    variables = {name: value for name, value in os.environ.items() if name not in _GIT_PLACES}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
