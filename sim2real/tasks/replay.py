"""Run a dump of a diverged simulation again, from its oldest state, under the commands that it was given."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.errors import InputError
from sim2real.layout import POSITION
from sim2real.robots import same_robot
from sim2real.sim.delays import MAX_DELAY
from sim2real.sim.engines import ENGINES, make_sim
from sim2real.sim.plant import Plant
from sim2real.tasks.base import Task, unpublished
from sim2real.tasks.dump import Dump
from sim2real.tasks.env import FASTEST

__all__ = ["Replay", "replay"]

Array = npt.NDArray[np.float64]

_ON_THE_WAY: Final = (
    "plant.now",
    "plant.commands.in_force",
    "plant.commands.content",
    "plant.commands.arrival",
    "plant.commands.newest",
    "plant.signals.",
)
"""Of a plant's snapshot, what changes from step to step and follows from the commands."""
_MODEL: Final = "model."
"""Of an engine's snapshot, the fields of the model that environments have of their own."""
_COMMAND_DELAY: Final = "plant.commands.delay"
_ENCODER_OFFSET: Final = "plant.sensors.encoder_offset"
_PARAMETERS: Final = (
    *(_MODEL, _COMMAND_DELAY, _ENCODER_OFFSET, "gains"),
    *("plant.sensors.amount.", "plant.sensors.bias", "plant.sensors.mount"),
    *("drives.effort_limit", "drives.rotor_inertia"),
)
"""Of a plant's snapshot, what stays as it is whatever the robot does: numbers in every run."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Control steps are counted within the file, from 0."""

    steps: int
    """Control steps of the file."""
    from_start: bool
    """It goes back to where the episode began."""
    diverged_in: int | None
    """Control step in which the replay diverged; None: it did not. The run diverged in the last one."""
    exact_steps: int
    """Control steps, from the first on, after which the state was that of the file bit for bit."""
    resumed: tuple[int, ...]
    """Control steps before which the state was taken from the file: pushes, and at first where commands were late."""
    largest_velocity: list[float]
    """Largest absolute generalised velocity after each control step [m/s, rad/s]; not finite once it diverged."""
    not_finite_command: int | None
    """First control step whose command was not a number: then the policy is the cause, not the physics."""
    qpos: Array
    """Pose before each control step and after the last, shape (T + 1, nq)."""

    @property
    def exact(self) -> bool:
        """Whether all of it was repeated bit for bit."""
        return self.exact_steps == self.steps


def replay(dump: Dump, task: Task) -> Replay:
    """Run `dump` again.

    Args:
        dump: The file's content.
        task: Its task, with its robot.

    Raises:
        InputError: The task or its robot do not fit the file, or there is no engine of that name.
    """
    plant = _rebuild(dump, task)
    # What a plant draws for each message was drawn by another generator then.
    rng = np.random.default_rng(dump.facts.seed)
    steps = len(dump.command)
    late = 0 if dump.facts.from_start else int(np.ceil(_longest_delay(dump, task) / (plant.decimation * plant.sim.dt)))
    qpos, fastest = np.empty((steps + 1, plant.sim.qpos.shape[1])), np.empty(steps)
    resumed: list[int] = []
    wrong: list[int] = []
    for step in range(steps):
        if step and not _equals(plant, {name: values[step] for name, values in dump.state.items()}):
            if dump.written[step] or step <= late:
                _resume(plant, dump, step)
                resumed.append(step)
            else:
                wrong.append(step - 1)
        qpos[step] = plant.sim.qpos[0]
        with np.errstate(all="ignore"):
            plant.step(dump.command[step : step + 1], rng)
        fastest[step] = np.abs(plant.sim.qvel[0]).max()
    qpos[steps] = plant.sim.qpos[0]
    if not _equals(plant, {"qpos": dump.final_qpos, "qvel": dump.final_qvel}):
        wrong.append(steps - 1)
    # Written so that what is not a number counts as diverged, as in `TaskEnv`.
    diverged = np.flatnonzero(~((fastest < FASTEST) & np.isfinite(qpos[1:]).all(axis=1)))
    not_finite = np.flatnonzero(~np.isfinite(dump.command).all(axis=(1, 2)))
    return Replay(
        steps=steps,
        from_start=dump.facts.from_start,
        diverged_in=int(diverged[0]) if len(diverged) else None,
        exact_steps=wrong[0] if wrong else steps,
        resumed=tuple(resumed),
        largest_velocity=fastest.tolist(),
        not_finite_command=int(not_finite[0]) if len(not_finite) else None,
        qpos=qpos,
    )


def _longest_delay(dump: Dump, task: Task) -> float:
    """Return how long before the oldest state a command can have been sent that is still on its way there [s]."""
    if task.delays is not None and any(group.draws for group in task.delays.commands):
        return MAX_DELAY
    return float(np.max(dump.plant.get(_COMMAND_DELAY, 0.0)))


def _refused(dump: Dump, why: str) -> InputError:
    return InputError(f"dump {dump.path}: {why}")


def _rebuild(dump: Dump, task: Task) -> Plant:
    """Return the plant of the dump, in its oldest state, with its physics, delays and drives."""
    facts = dump.facts
    if facts.task != task.name or not same_robot(facts.robot, task.robot.name):
        raise _refused(
            dump,
            f"is of task {facts.task} and robot {facts.robot}, got {task.name} and {task.robot.name}; "
            "name the robot with --robot",
        )
    if facts.engine not in ENGINES:
        raise _refused(dump, f"engine {facts.engine!r}: unknown here; expected one of {', '.join(ENGINES)}")
    own = task.contract(unpublished(task))
    if told := _difference(msgspec.structs.replace(facts.contract, identity=own.identity), own, "contract"):
        raise _refused(dump, f"{told}; the task or its robot has been changed since, or the file has")
    has_errors = any(name.startswith("plant.sensors.") for name in dump.plant)
    sim = make_sim(facts.contract, 1, robot=task.robot, engine=facts.engine, scene=task.scene)
    plant = Plant(facts.contract, sim, sensors=task.sensors if has_errors else None, delays=task.delays)
    if (sim.qpos.shape[1:], sim.qvel.shape[1:]) != (dump.final_qpos.shape, dump.final_qvel.shape):
        raise _refused(dump, f"its states do not fit robot {facts.robot}: it has been changed since")
    _check_solver(plant, dump)
    _restore(plant, dump)
    plant.drives.reset(None)
    _resume(plant, dump, 0)
    _begin(plant, dump)
    return plant


def _difference(found: object, own: object, path: str) -> str:
    """Return where `found` differs first from the task's `own`, and how; empty: nowhere."""
    if isinstance(found, msgspec.Struct) and isinstance(own, msgspec.Struct) and type(found) is type(own):
        pairs = [(f"{path}.{name}", getattr(found, name), getattr(own, name)) for name in own.__struct_fields__]
    elif isinstance(found, tuple) and isinstance(own, tuple):
        ours, theirs = cast("tuple[Any, ...]", own), cast("tuple[Any, ...]", found)
        if len(ours) != len(theirs):
            return f"{path}: the task's has {len(ours)} items, the file's {len(theirs)}"
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(theirs, ours, strict=True))]
    else:
        return "" if found == own else f"{path}: the task's is {own!r}, the file's {found!r}"
    return next(filter(None, (_difference(theirs, ours, where) for where, theirs, ours in pairs)), "")


def _check_solver(plant: Plant, dump: Dump) -> None:
    snapshot = plant.sim.snapshot()
    for name, values in dump.state.items():
        if name in snapshot and snapshot[name].shape[1:] != values.shape[1:]:
            raise _refused(
                dump, f"array 'state/{name}' has {values.shape[1]} values, expected {snapshot[name].shape[1]}"
            )


def _restore(plant: Plant, dump: Dump) -> None:
    """Give the plant every parameter that the dump's had: of the model, the delays, the sensors and the drives."""
    snapshot = plant.snapshot()
    given: dict[str, npt.NDArray[Any]] = {}
    for name, values in dump.plant.items():
        if name not in snapshot and not name.startswith(_MODEL):
            raise _refused(dump, f"array 'plant/{name}' is unknown to task {dump.facts.task}: changed since?")
        if name.startswith(_PARAMETERS) and not np.isfinite(values).all():
            raise _refused(dump, f"array 'plant/{name}' is not finite, as in no run")
        if not name.startswith(_ON_THE_WAY) and np.isfinite(values).all():
            given[name] = values.astype(np.float64)
    delay = given.get(_COMMAND_DELAY, np.zeros(1))
    if not (delay.min(initial=0.0) >= 0.0 and delay.max(initial=0.0) <= MAX_DELAY):
        raise _refused(dump, f"array 'plant/{_COMMAND_DELAY}': expected 0 to {MAX_DELAY} s, got {delay.tolist()}")
    _check_shapes(dump, given, {name: snapshot[name] for name in given if name in snapshot})
    try:
        plant.restore(snapshot | given)
    except (ValueError, AttributeError) as error:
        raise _refused(dump, f"its physics do not fit task {dump.facts.task}: changed since? ({error})") from error
    # Fields of the model have a shape once there is one for every environment; one number would fill any.
    _check_shapes(dump, given, plant.snapshot())


def _check_shapes(dump: Dump, given: dict[str, npt.NDArray[Any]], own: dict[str, Array]) -> None:
    for name, values in own.items():
        if name in given and given[name].shape != values.shape:
            raise _refused(
                dump,
                f"its physics do not fit task {dump.facts.task}: changed since? (array 'plant/{name}' has shape "
                f"{given[name].shape}, expected {values.shape})",
            )


def _begin(plant: Plant, dump: Dump) -> None:
    """Put in force what is in force when an episode begins: the joints' own positions, as `TaskEnv` does."""
    contract = dump.facts.contract
    signals = np.zeros((1, plant.layout.size))
    plant.read(signals)
    mapper = ActionMapper(contract, 1)
    mapper.reset(signals[:, plant.layout.slices["joint_pos"]])
    block = mapper.command.copy()
    if _ENCODER_OFFSET in dump.plant:
        block[:, POSITION] -= dump.plant[_ENCODER_OFFSET]
    block = block[..., [contract.joint_names.index(name) for name in plant.sim.joint_names]]
    snapshot = plant.snapshot()
    snapshot["plant.commands.in_force"] = block
    snapshot["plant.commands.content"] = np.broadcast_to(block[:, None], snapshot["plant.commands.content"].shape)
    plant.restore(snapshot)
    if plant.drives.ideal:
        plant.sim.set_command(block)


def _resume(plant: Plant, dump: Dump, step: int) -> None:
    """Put the simulation into the state of the file before `step`."""
    snapshot = plant.sim.snapshot()
    snapshot |= {name: values[step : step + 1].copy() for name, values in dump.state.items() if name in snapshot}
    plant.sim.restore(snapshot)


def _equals(plant: Plant, state: dict[str, Array]) -> bool:
    """Whether positions and velocities are those of `state`, bit for bit."""
    sim = plant.sim
    return sim.qpos[0].tobytes() == state["qpos"].tobytes() and sim.qvel[0].tobytes() == state["qvel"].tobytes()
