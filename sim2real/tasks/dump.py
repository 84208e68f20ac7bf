"""What led to a simulation that is no longer a number, in one file that ``sim2real replay`` runs again.

The file is an npz (`sim2real.npz`, so `numpy.load` opens it too) with one more member, ``dump.json``. Of its T control
steps, oldest first, it holds the whole state before each, and the command that the robot was given in it.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real import __version__
from sim2real.canonical_zip import pack, unpack
from sim2real.contract import PolicyContract
from sim2real.errors import BundleError, InputError
from sim2real.files import atomic_write, read_bytes
from sim2real.layout import COMMAND_ROWS, EFFORT, KD, KP
from sim2real.npz import read_npz, write_npz
from sim2real.sim.base import BatchedSim, EnvIds
from sim2real.sim.plant import Plant
from sim2real.tasks.base import Task, unpublished
from sim2real.validation import validate

__all__ = ["MOST_DUMPS", "Dump", "DumpFacts", "Episode", "StateRing", "read_dump", "write_dump"]

Array = npt.NDArray[np.float64]

MOST_DUMPS: Final = 20
"""Files that a folder takes; what diverges after them is counted and no more."""
_SCHEMA_VERSION: Final = 1
_FACTS: Final = "dump.json"
_STATE: Final = "state/"
_PLANT: Final = "plant/"
_TARGETS: Final = EFFORT + 1
"""The first rows of a command block, which are targets; the others, gains, are the contract's in every step."""
_SOLVER: Final = ("act", "qacc_warmstart")
"""Of what MuJoCo's next step depends on beside positions and velocities, the part that our models have."""
_KNOWN_STATE: Final = ("qpos", "qvel", *_SOLVER)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a run a simulation diverged."""

    env: int
    """Index of the environment."""
    step: int
    """Control step of its episode, from 0, in which it diverged."""
    seed: int
    """Seed of the environments' generator."""
    engine: str


class DumpFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a dump says beside its arrays."""

    schema_version: Literal[1]
    task: str
    robot: str
    engine: str
    seed: int
    env: int
    step: int
    """Control step of the episode, from 0, in which it diverged: the last one of the file."""
    from_start: bool
    """The file goes back to where the episode began."""
    parameters: dict[str, float]
    """The randomization that the episode had: what was set, by name or place. The exact physics is among the arrays."""
    contract: PolicyContract
    versions: dict[str, str]
    """Of sim2real, mujoco and numpy."""


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file."""

    path: Path
    """The file, for errors."""
    facts: DumpFacts
    state: dict[str, Array]
    """State before each control step: ``qpos``, shape (T, nq), ``qvel``, shape (T, nv), and the solver's own."""
    written: npt.NDArray[np.bool_]
    """Whether something outside of the physics, e.g. a push, changed that state, shape (T,)."""
    command: Array
    """Command block of each control step, shape (T, 5, J), contract order; may hold what is not a number."""
    final_qpos: Array
    """Where it ended, shape (nq,)."""
    final_qvel: Array
    """Velocities at the end, shape (nv,)."""
    plant: dict[str, npt.NDArray[Any]]
    """Of the plant's snapshot, the part of this environment: its physics, delays and drives; first axis 1."""


class StateRing:
    """The last control steps of N environments.

    Args:
        plant: What is simulated.
        length: Control steps to remember.
    """

    def __init__(self, plant: Plant, *, length: int = 100) -> None:
        sim = plant.sim
        self.plant = plant
        self._length = length
        self._solver = _solver_state(sim)
        live = {"qpos": sim.qpos, "qvel": sim.qvel, **self._solver}
        self._state = {name: np.zeros((length, *values.shape)) for name, values in live.items()}
        self._target = np.zeros((length, sim.num_envs, _TARGETS, len(sim.joint_names)))
        self._written = np.zeros((length, sim.num_envs), np.bool_)
        self._changed = np.zeros(sim.num_envs, np.bool_)
        self._count = 0
        self._age = np.zeros(sim.num_envs, np.int64)
        self._began = np.zeros(sim.num_envs, np.bool_)
        self._drawn: dict[str, Array] = {}

    def start(self, env_ids: EnvIds, drawn: Mapping[str, Array]) -> None:
        """Begin episodes in `env_ids`; `drawn` is the randomization that they have, each shape (n,)."""
        self._age[env_ids] = 0
        self._began[env_ids] = True
        self._changed[env_ids] = False
        for name, values in drawn.items():
            if name not in self._drawn:
                self._drawn[name] = np.full(len(self._age), np.nan)
            self._drawn[name][env_ids] = values

    def written(self, env_ids: EnvIds) -> None:
        """Note that something outside of the physics, e.g. a push, has changed the state of `env_ids`."""
        self._changed[env_ids] = True

    def append(self, command: Array) -> None:
        """Remember the present state and the command of the control step that begins, shape (N, 5, J)."""
        slot, sim = self._count % self._length, self.plant.sim
        self._state["qpos"][slot] = sim.qpos
        self._state["qvel"][slot] = sim.qvel
        for name, values in self._solver.items():
            self._state[name][slot] = values
        self._target[slot] = command[:, :_TARGETS]
        self._written[slot] = self._changed
        self._changed[:] = False
        self._count += 1
        self._age += 1

    def clear(self) -> None:
        """Forget everything: the simulation goes on from a state that was loaded."""
        self._age[:] = 0
        self._began[:] = False
        self._drawn.clear()

    def reaches_start(self, env: int) -> bool:
        """Return whether the episode of `env` began within what is remembered."""
        return bool(self._began[env]) and int(self._age[env]) <= self._length

    def parameters(self, env: int) -> dict[str, float]:
        """Return what was drawn for the episode of `env`, by name."""
        return {name: float(values[env]) for name, values in self._drawn.items()}

    def history(self, env: int) -> dict[str, npt.NDArray[Any]]:
        """Return the steps of the present episode of `env`: targets, shape (T, 3, J), states, and what was written."""
        steps = min(int(self._age[env]), self._length)
        slots = np.arange(self._count - steps, self._count) % self._length
        arrays: dict[str, npt.NDArray[Any]] = {
            _STATE + name: values[slots, env] for name, values in self._state.items()
        }
        return arrays | {"target": self._target[slots, env], "written": self._written[slots, env]}


def _solver_state(sim: BatchedSim) -> dict[str, Array]:
    """Live arrays of the `mujoco` engine without which its next step would differ in the last digits."""
    # Loads MuJoCo, which whoever holds a simulation has loaded.
    from sim2real.sim.mujoco import MujocoSim

    if not isinstance(sim, MujocoSim):
        return {}
    return {name: values for name in _SOLVER if (values := sim.batch.bind(name)).size}


def write_dump(folder: Path, ring: StateRing, task: Task, episode: Episode) -> Path | None:
    """Write the history of a simulation that has just diverged to ``diverged-<n>.npz``, whole or not at all.

    To be called before the environment is begun anew. A folder is for one process.

    Returns:
        The file, or None: the folder holds `MOST_DUMPS` already.

    Raises:
        InputError: The file cannot be written.
    """
    numbers = [
        int(match[1]) for path in folder.glob("diverged-*.npz") if (match := re.search(r"(\d+)\.npz$", path.name))
    ]
    if len(numbers) >= MOST_DUMPS:
        return None
    sim = ring.plant.sim
    arrays = ring.history(episode.env)
    arrays |= {"final_qpos": sim.qpos[episode.env], "final_qvel": sim.qvel[episode.env]}
    arrays |= {_PLANT + name: _row(values, episode.env, sim.num_envs) for name, values in ring.plant.snapshot().items()}
    facts = DumpFacts(
        schema_version=_SCHEMA_VERSION,
        task=task.name,
        robot=task.robot.name,
        engine=episode.engine,
        seed=episode.seed,
        env=episode.env,
        step=episode.step,
        from_start=ring.reaches_start(episode.env),
        parameters=ring.parameters(episode.env),
        contract=task.contract(unpublished(task)),
        versions={"sim2real": __version__} | {name: importlib.metadata.version(name) for name in ("mujoco", "numpy")},
    )
    path = folder / f"diverged-{max(numbers, default=-1) + 1}.npz"
    with atomic_write(path) as partial:
        partial.write_bytes(pack({**unpack(write_npz(arrays)), _FACTS: msgspec.json.encode(facts)}))
    return path


def _row(values: npt.NDArray[Any], env: int, num_envs: int) -> npt.NDArray[Any]:
    """Return the part of `env` where the first axis is the environments, else all, as one of the types of an npz."""
    part = values[env : env + 1] if values.ndim and len(values) == num_envs else values
    return part if part.dtype.name in ("float64", "float32", "int64", "bool") else part.astype(np.float64)


def read_dump(path: Path) -> Dump:
    """Read the file.

    Raises:
        InputError: It cannot be read, is truncated, is something else, its parts do not fit each other, or it says what
            no run writes.
    """
    data = read_bytes(path, "dump")
    try:
        members = unpack(data)
        if _FACTS not in members:
            raise BundleError(f"it has no {_FACTS}")
        facts = msgspec.json.decode(members.pop(_FACTS), type=DumpFacts)
        validate(facts.contract)
        return _assemble(path, facts, read_npz(pack(members), finite=False))
    except (BundleError, msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"dump {path}: {error}; expected a whole file diverged-<n>.npz of a training run") from error


def _assemble(path: Path, facts: DumpFacts, arrays: dict[str, npt.NDArray[Any]]) -> Dump:
    for name, number in (("seed", facts.seed), ("env", facts.env), ("step", facts.step)):
        if number < 0:
            raise BundleError(f"{name}: expected at least 0, got {number}")
    target = _take(arrays, "target", (None, _TARGETS, len(facts.contract.joints)))
    steps = len(target)
    command = np.zeros((steps, COMMAND_ROWS, target.shape[2]))
    command[:, :_TARGETS] = target
    command[:, KP] = [joint.kp for joint in facts.contract.joints]
    command[:, KD] = [joint.kd for joint in facts.contract.joints]
    state = _states(arrays, steps)
    return Dump(
        path=path,
        facts=facts,
        state=state,
        written=_take(arrays, "written", (steps,), np.bool_),
        command=command,
        final_qpos=_take(arrays, "final_qpos", state["qpos"].shape[1:]),
        final_qvel=_take(arrays, "final_qvel", state["qvel"].shape[1:]),
        plant={name.removeprefix(_PLANT): values for name, values in arrays.items() if name.startswith(_PLANT)},
    )


def _states(arrays: Mapping[str, npt.NDArray[Any]], steps: int) -> dict[str, Array]:
    """Return the state before each step, by name; only what is before the last step may be no number."""
    names = dict.fromkeys(("qpos", "qvel"))
    names |= dict.fromkeys(name.removeprefix(_STATE) for name in arrays if name.startswith(_STATE))
    states: dict[str, Array] = {}
    for name in names:
        if name not in _KNOWN_STATE:
            raise BundleError(f"array {_STATE + name!r} is unknown, expected states of {', '.join(_KNOWN_STATE)}")
        states[name] = _take(arrays, _STATE + name, (steps, None))
        wrong = np.flatnonzero(~np.isfinite(states[name][:-1]).all(axis=1))
        if len(wrong):
            raise BundleError(f"array {_STATE + name!r} is not finite before step {wrong[0]} of {steps}: none ran on")
    return states


def _take(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, shape: tuple[int | None, ...], dtype: type = np.float64
) -> npt.NDArray[Any]:
    """Return an array that must be there, of `shape` and `dtype`; None fits any length but 0."""
    if name not in arrays:
        raise BundleError(f"it has no array {name!r}")
    found = arrays[name].shape
    fits = [have == want if want is not None else have > 0 for have, want in zip(found, shape, strict=False)]
    if len(found) != len(shape) or not all(fits):
        raise BundleError(f"array {name!r} has shape {found}, expected {shape}")
    if arrays[name].dtype != dtype:
        raise BundleError(f"array {name!r} is of {arrays[name].dtype}, expected {np.dtype(dtype)}")
    return arrays[name]
