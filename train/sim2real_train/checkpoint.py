"""`checkpoint/`: a training run at the end of an iteration, to be continued from exactly.

    state.json                          `State`: configuration, counters, metrics so far, generators, the members below
    000040.weights.safetensors          the actor's and critic's parameters and the normaliser's constants
    000040.learner.safetensors          the optimiser's moments and the observations' moments
    000040.worker-0.safetensors         one for each worker: environments, generators, recurrent state

Members carry the iteration in their names, and `state.json` names them with size and SHA-256. Members are written
first, `state.json` last and by one rename, those of the iteration before are removed after it: killed at any moment,
the folder holds one whole checkpoint. The first one comes up with its folder, by one rename: members without a
`state.json` have lost it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real import __version__
from sim2real.errors import InputError
from sim2real.files import atomic_directory, atomic_write
from sim2real_train.config import TrainConfig
from sim2real_train.metrics import Metrics
from sim2real_train.run_folder import CHECKPOINT, STATE, is_member, is_of_checkpoint, writing

__all__ = [
    "Arrays",
    "Checkpoint",
    "Member",
    "State",
    "checkpoint_of",
    "has_checkpoint",
    "read_checkpoint",
    "sealed",
    "write_checkpoint",
]

Arrays = dict[str, npt.NDArray[Any]]


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file beside `state.json`."""

    file: str
    size: int
    sha256: str


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`state.json`: all of a checkpoint that is not an array."""

    schema_version: Literal[2]
    toolkit_version: str
    config: TrainConfig
    iteration: int
    """Iterations that are done."""
    wall_seconds: float
    """Time spent on them, all attempts together."""
    metrics: tuple[Metrics, ...]
    """One entry for each iteration."""
    generators: tuple[dict[str, Any], ...]
    """State of each worker's NumPy generator."""
    members: dict[str, Member]
    """By what they hold: ``weights``, ``learner``, ``worker-0``, ..."""
    sha256: str = ""
    """Of everything above, as JSON with this field empty; `write_checkpoint` fills it in."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in memory."""

    state: State
    arrays: dict[str, Arrays]
    """Keys as in `State.members`."""

    @property
    def weights_sha256(self) -> str:
        """Hex digest of the weights' file."""
        return self.state.members["weights"].sha256

    @property
    def workers(self) -> list[Arrays]:
        """Arrays of each worker, by rank."""
        return [self.arrays[f"worker-{rank}"] for rank in range(self.state.config.num_states)]


def has_checkpoint(folder: Path) -> bool:
    """Whether `folder` holds a checkpoint or parts of one."""
    # Unlike `Path.exists`, False also where the folder may not be searched or its name is too long.
    return os.path.lexists(folder / STATE) or bool(_members(folder))


def checkpoint_of(path: Path) -> Path:
    """Return the checkpoint folder that `path` is meant for: the last one of a run, or the folder `path` itself."""
    last = path / CHECKPOINT
    return last if has_checkpoint(last) else path


def _members(folder: Path) -> list[str]:
    """Return the names of all members, of whichever iteration."""
    try:
        return sorted(name for name in os.listdir(folder) if is_member(name))
    except OSError:
        return []


def write_checkpoint(folder: Path, state: State, arrays: Mapping[str, Arrays]) -> State:
    """Write a checkpoint over the one in `folder`; return `state` with its members named.

    Raises:
        InputError: It cannot be written; the one before is still whole.
    """
    if folder.exists():
        return _write_into(folder, state, arrays)
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial"):
        # By a writer that was killed at its first checkpoint.
        shutil.rmtree(left, ignore_errors=True)
    with atomic_directory(folder) as partial:
        return _write_into(partial, state, arrays)


def _write_into(folder: Path, state: State, arrays: Mapping[str, Arrays]) -> State:
    from safetensors.numpy import save

    members: dict[str, Member] = {}
    for role, tensors in arrays.items():
        content = save({name: np.asarray(array, order="C") for name, array in tensors.items()})
        file = _file_name(state.iteration, role)
        with atomic_write(folder / file) as partial:
            partial.write_bytes(content)
        members[role] = Member(file=file, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    state = sealed(msgspec.structs.replace(state, members=members))
    with atomic_write(folder / STATE) as partial:
        partial.write_bytes(msgspec.json.encode(state))
    _prune(folder, keep={STATE, *(member.file for member in members.values())})
    return state


def sealed(state: State) -> State:
    """Return `state` with the SHA-256 of its other fields."""
    content = msgspec.json.encode(msgspec.structs.replace(state, sha256=""))
    return msgspec.structs.replace(state, sha256=hashlib.sha256(content).hexdigest())


def _prune(folder: Path, keep: set[str]) -> None:
    """Remove members of other iterations, and what a killed writer left."""
    with writing(folder):
        for file in folder.iterdir():
            if is_of_checkpoint(file.name) and file.name not in keep:
                file.unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it.

    Raises:
        InputError: Missing, truncated, altered, or of another version; one line that says which file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if folder.is_file():
        raise InputError(
            f"{folder}: expected the folder of a run or of a checkpoint, got a file; a bundle holds what was "
            "exported, and not what is gone on from"
        )
    state = _read_state(folder)
    arrays: dict[str, Arrays] = {}
    for role, member in state.members.items():
        content = _read(folder / member.file)
        if len(content) != member.size or hashlib.sha256(content).hexdigest() != member.sha256:
            raise InputError(
                f"{folder / member.file}: expected {member.size} bytes of SHA-256 {member.sha256[:12]}…, got "
                f"{len(content)} others; it is truncated or altered: restore the folder from a copy, or train anew"
            )
        try:
            arrays[role] = load(content)
        except SafetensorError as error:
            raise InputError(f"{folder / member.file}: {error}; train anew") from error
    return Checkpoint(state=state, arrays=arrays)


def _read_state(folder: Path) -> State:
    path = folder / STATE
    if not os.path.lexists(path) and (members := _members(folder)):
        raise InputError(
            f"{path}: is missing beside {', '.join(members)}, which cannot be read without it: restore the folder from "
            "a copy, or train anew with another --out"
        )
    data = _read(path)
    try:
        state = msgspec.json.decode(data, type=State)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path}: {error}; it is truncated, altered or of another version than {__version__}: restore the folder "
            "from a copy, or train anew"
        ) from error
    if state != sealed(state):
        raise InputError(
            f"{path}: does not have the SHA-256 that it names: it is altered, or of a version with other settings than "
            "this one; restore the folder from a copy, or train anew"
        )
    _check_whole(path, state)
    return state


def _check_whole(path: Path, state: State) -> None:
    """Check that the parts of a state belong together."""
    roles = ("weights", "learner", *(f"worker-{rank}" for rank in range(state.config.num_states)))
    files = {role: _file_name(state.iteration, role) for role in roles}
    if {role: member.file for role, member in state.members.items()} != files:
        raise InputError(f"{path}: expected the members {', '.join(files.values())}; restore the folder from a copy")
    for field, expected in (("metrics", state.iteration), ("generators", state.config.num_states)):
        if (count := len(getattr(state, field))) != expected:
            raise InputError(f"{path}: expected {expected} {field}, got {count}; restore the folder from a copy")


def _file_name(iteration: int, role: str) -> str:
    return f"{iteration:06d}.{role}.safetensors"


def _read(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{path}: expected a regular file; restore the folder from a copy, or train anew")
            return file.read()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); give the folder of a run, or one of its checkpoint folders, "
            "e.g. OUT/best"
        ) from error
