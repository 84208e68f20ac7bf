"""The contract's view of a simulated robot: measurement vectors out, command blocks in, at the control rate.

The trainer's environments (N = 4096) and the bench's plant (N = 1) are this one class, so what a policy learned on and
what it is proved on cannot differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.layout import EFFORT, POSITION, SignalLayout, zero_commands
from sim2real.randomization import COMMAND_DELAY, DELAYS, OBSERVATION_DELAY
from sim2real.sim.base import BatchedSim, EnvIds, Snapshot
from sim2real.sim.delays import DelaySpec
from sim2real.sim.drives import DriveModel
from sim2real.sim.links import CommandLink, SignalLink
from sim2real.sim.rotation import down, rotate_inverse, unit
from sim2real.sim.sensors import SensorModel, SensorSpec

__all__ = ["Plant"]

Array = npt.NDArray[np.float64]

_DRIVE: Final = "drive."
_SENSOR: Final = "sensor."
_JOINT_SIGNALS: Final = ("joint_pos", "joint_vel", "joint_effort")


class Plant:
    """`num_envs` simulated robots as a policy meets them. Joints are matched by name.

    A control step is `step`, then `sense`. What is not in `sensors` and `delays` is exact and at once, and costs
    nothing; a generator is needed only where something is drawn. One generator's state, with `snapshot`, resumes
    exactly.

    Args:
        contract: The contract.
        sim: The simulation below, as `sim2real.sim.engines.make_sim` makes it.
        sensors: Errors of the measurements; None: they are exact.
        delays: What is late between policy and robot; None: nothing.

    Raises:
        InputError: A spec names a joint or signal that is not there; the message lists near names.

    Attributes:
        sim: The simulation below.
        layout: Where each signal lies in the measurement vector.
        decimation: Physics steps per control step.
        drives: The drives between commands and joints; ideal ones are the engine's.
    """

    def __init__(
        self,
        contract: PolicyContract,
        sim: BatchedSim,
        *,
        sensors: SensorSpec | None = None,
        delays: DelaySpec | None = None,
    ) -> None:
        self.sim = sim
        self.layout = SignalLayout(contract)
        self.decimation = contract.timing.decimation
        order = [sim.joint_names.index(name) for name in contract.joint_names]
        in_order = order == list(range(len(order)))
        self._from_sim = None if in_order else np.array(order, np.intp)
        self._to_sim = None if in_order else np.argsort(order)
        self._now = 0
        measured = [(name, self.layout.slices[name]) for name in self.layout.names if name not in _JOINT_SIGNALS]
        self._base = [(columns, _BASE_SIGNALS[name]) for name, columns in measured if self._is_state(name)]
        self._outputs = [(columns, sim.sensor(name)) for name, columns in measured if not self._is_state(name)]
        self.drives = self._make_drives(contract)
        self._effort = zero_commands(sim.num_envs, len(contract.joints))
        shape = (sim.num_envs, sim.dt, self.decimation)
        spec = delays or DelaySpec()
        self._commands = CommandLink(spec.commands, sim.joint_names, *shape)
        self._signals = SignalLink(spec.observations, self.layout.slices, *shape) if spec.observations else None
        period = contract.timing.control_period_ns * 1e-9
        self._sensors = None if sensors is None else SensorModel(sensors, self.layout, sim.num_envs, period)
        self._measured = np.zeros((sim.num_envs, self.layout.size))
        observed = {term.source for term in contract.observation.terms} & self.layout.slices.keys()
        self._observes_outputs = any(not self._is_state(name) for name in observed)

    def _make_drives(self, contract: PolicyContract) -> DriveModel:
        sim = self.sim
        limits = {joint.name: joint.effort_limit for joint in contract.joints}
        return DriveModel(sim.robot.joints, [limits[name] for name in sim.joint_names], sim.num_envs, sim.dt)

    @property
    def command_delay(self) -> Array:
        """Command delay in force, before jitter [s], shape (N, groups)."""
        return self._commands.delay

    def read(self, out: Array, env_ids: EnvIds | None = None) -> None:
        """Write the exact measurements of `env_ids` (None: all) into their rows of `out`, shape (N, S).

        They are in `SignalLayout` order, and what a perfect sensor in the real one's place would say: a joint's are its
        motor's, on the near side of its play.
        """
        part = out if env_ids is None else np.empty((len(env_ids), self.layout.size))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._measure(part, slice(None) if env_ids is None else env_ids)
        if env_ids is not None:
            out[env_ids] = part

    def _measure(self, out: Array, rows: slice | EnvIds) -> None:
        """Write the exact measurements of `rows` into `out`, shape (n, S).

        A simulation that has left the real numbers has its own row, and callers tell nobody of it.
        """
        sim, slices = self.sim, self.layout.slices
        for name, values in zip(_JOINT_SIGNALS, self._joints(), strict=True):
            chosen = values[rows]
            out[:, slices[name]] = chosen if self._from_sim is None else chosen[:, self._from_sim]
        if self._base:
            quat, velocity = unit(sim.qpos[rows, 3:7]), sim.qvel[rows, :6]
            for columns, compute in self._base:
                out[:, columns] = compute(quat, velocity)
        for columns, values in self._outputs:
            out[:, columns] = values[rows]

    def sense(self, out: Array, rng: np.random.Generator | None = None, env_ids: EnvIds | None = None) -> None:
        """Write what policies get into the rows `env_ids` (None: all) of `out`, shape (N, S), once per control step.

        A measurement is delayed, then the sensor's errors are put on it; a policy that has it already keeps it as it
        was. Without sensors and observation delays this is `read`.

        Raises:
            ValueError: Something is drawn, and there is no generator.
        """
        part = out if env_ids is None else np.empty((len(env_ids), self.layout.size))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._measure(part, slice(None) if env_ids is None else env_ids)
            if self._signals is not None:
                self._signals.fetch(part, self._now, env_ids, rng)
            if self._sensors is not None:
                self._sensors.apply(part, env_ids, rng)
            if self._signals is not None:
                self._signals.hold(part, env_ids)
        if env_ids is not None:
            out[env_ids] = part

    def reset(self, command: Array, env_ids: EnvIds | None = None, rng: np.random.Generator | None = None) -> None:
        """Begin episodes in `env_ids` (None: all), in the state that the simulation already has.

        Nothing is on its way any more, `command`, shape (N, 5, J), is in force, and delays, biases, offsets and the
        mounting of sensors are drawn. If policies observe outputs of the simulation (efforts, accelerations), they are
        made to agree with the state.

        Raises:
            ValueError: Something is drawn, and there is no generator.
        """
        rows = slice(None) if env_ids is None else env_ids
        if self._sensors is not None:
            self._sensors.reset(rows, rng)
        part = command[rows]
        self._commands.reset(self._for_actuators(part, rows, np.empty_like(part)), rows, rng)
        self.drives.reset(env_ids)
        self.drives.motor_effort[rows] = 0.0
        if self.drives.ideal:
            self._hold(env_ids)
        else:
            self.sim.set_command(np.zeros_like(self._effort[rows]), env_ids)
        if self._observes_outputs:
            self.sim.refresh(env_ids)
        if self._signals is not None:
            self.read(self._measured, env_ids)
            self._signals.reset(self._measured[rows], self._now, rows, rng)

    def step(self, command: Array, rng: np.random.Generator | None = None) -> None:
        """Advance one control period under `command`, shape (N, 5, J), each environment's after its delay.

        Raises:
            ValueError: Something is drawn, and there is no generator.
        """
        if self._signals is None and self._commands.is_idle(self._now):
            self._for_actuators(command, slice(None), self._commands.in_force)
            self._hold(None)
            self._advance(self.decimation)
            return
        self._commands.send(self._for_actuators(command, slice(None), np.empty_like(command)), self._now, rng)
        self._run(self.decimation)

    def drive(self, command: Array, steps: int) -> None:
        """Advance by physics steps under `command`, shape (N, 5, J), without delay: for a plant in real time."""
        self._for_actuators(command, slice(None), self._commands.in_force)
        self._hold(None)
        self._run(steps)

    def set_delay(self, delay: Array, env_ids: EnvIds | None = None) -> None:
        """Delay the commands of `env_ids` (None: all) by `delay` [s], shape (n,), rounded to physics steps.

        What is delayed is the command, not the torque. It holds from now on, in all groups of joints and in place of
        what a spec would draw; commands on their way keep their delay.

        Raises:
            InputError: A delay is negative, not finite or above `sim2real.sim.delays.MAX_DELAY`.
        """
        self._commands.set_delay(delay, slice(None) if env_ids is None else env_ids)

    def randomize(self, name: str, values: Array, env_ids: EnvIds | None = None) -> None:
        """Set a parameter to one value per environment of `env_ids` (None: all), shape (n,).

        Args:
            name: ``command_delay``; ``observation_delay`` (from the next episode on); ``drive.<parameter>/<joint>``;
                ``sensor.<error>/<signal>``, ``sensor.imu_tilt`` or ``sensor.encoder_offset``; else the simulation's.
            values: In the parameter's unit.
            env_ids: The environments.

        Raises:
            InputError: There is no such parameter; the message lists near names. Or a value is not allowed.
        """
        rows = slice(None) if env_ids is None else env_ids
        if name == COMMAND_DELAY:
            self._commands.set_delay(values, rows)
        elif name == OBSERVATION_DELAY:
            if self._signals is None:
                raise InputError(f"{name}: expected a plant whose DelaySpec has observations, which says what is late")
            self._signals.set_delay(values, rows)
        elif name.startswith(_DRIVE):
            field, _, joint = name.removeprefix(_DRIVE).partition("/")
            self.drives.randomize(field, joint, values, env_ids)
        elif name.startswith(_SENSOR):
            if self._sensors is None:
                raise InputError(f"{name}: expected a plant with a SensorSpec, which says what errors there are")
            self._sensors.randomize(name.removeprefix(_SENSOR), values, rows)
        else:
            self._randomize_sim(name, values, env_ids)

    def _randomize_sim(self, name: str, values: Array, env_ids: EnvIds | None) -> None:
        try:
            self.sim.randomize(name, values, env_ids)
        except InputError as error:
            near = difflib.get_close_matches(name, DELAYS, n=1)
            if not near:
                raise
            raise InputError(f"{error}; did you mean {near[0]}?") from error

    def _joints(self) -> tuple[Array, Array, Array]:
        """Positions, velocities and efforts as the joints' own sensors have them, in the simulation's order."""
        sim = self.sim
        if self.drives.ideal:
            return sim.joint_pos, sim.joint_vel, sim.joint_effort
        position, velocity = sim.joint_pos.copy(), sim.joint_vel.copy()
        self.drives.read_encoders(position, velocity)
        return position, velocity, self.drives.motor_effort

    def _is_state(self, name: str) -> bool:
        """Whether a signal follows from positions and velocities alone; others are outputs of the simulation."""
        if name in _BASE_SIGNALS:
            return self.sim.robot.base == "floating"
        return name in {"joint_pos", "joint_vel"}

    def _for_actuators(self, command: Array, rows: slice | EnvIds, out: Array) -> Array:
        """Write into `out` and return what the actuators of `rows` take for command blocks; shape (n, 5, J) all.

        They are in the simulation's order, and positions are as their encoders read them.
        """
        out[:] = command if self._to_sim is None else command[..., self._to_sim]
        if self._sensors is not None and self._sensors.offsets_encoders:
            offset = self._sensors.encoder_offset[rows]
            position = out[:, POSITION]
            position -= offset if self._to_sim is None else offset[:, self._to_sim]
        return out

    def _run(self, steps: int) -> None:
        """Advance by physics steps, and stop where a command arrives or a measurement must be kept."""
        end = self._now + steps
        due = set(self._commands.due(end))
        kept = set[int]() if self._signals is None else set(self._signals.record_at(self._now, steps))
        for stop in sorted(due | kept):
            self._advance(stop - self._now)
            if stop in kept and self._signals is not None:
                self.read(self._measured)
                self._signals.record(self._measured, stop)
            if stop in due:
                self._hold(self._commands.deliver(stop))
        self._advance(end - self._now)

    def _hold(self, env_ids: EnvIds | None) -> None:
        """Give the engine the commands in force, if it is the one that computes the drives."""
        if self.drives.ideal:
            in_force = self._commands.in_force
            self.sim.set_command(in_force if env_ids is None else in_force[env_ids], env_ids)

    def _advance(self, steps: int) -> None:
        """Advance by physics steps under the commands in force."""
        self._now += steps
        if self.drives.ideal:
            if steps:
                self.sim.step(steps)
            return
        for _ in range(steps):
            self.drives.effort(self._commands.in_force, self.sim.joint_pos, self.sim.joint_vel, self._effort[:, EFFORT])
            self.sim.set_command(self._effort)
            self.sim.step()

    def snapshot(self) -> Snapshot:
        """Return a copy of everything that the next steps depend on."""
        state = self.sim.snapshot() | self.drives.snapshot()
        state["plant.now"] = np.full(self.sim.num_envs, float(self._now))
        for prefix, part in self._parts():
            state |= {prefix + name: values for name, values in part.snapshot().items()}
        return state

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from what `snapshot` returned, of a plant made alike."""
        self.sim.restore(snapshot)
        self.drives.restore(snapshot)
        self._now = int(snapshot["plant.now"][0])
        for prefix, part in self._parts():
            part.restore(
                {name.removeprefix(prefix): array for name, array in snapshot.items() if name.startswith(prefix)}
            )

    def _parts(self) -> list[tuple[str, CommandLink | SignalLink | SensorModel]]:
        parts = (
            ("plant.commands.", self._commands),
            ("plant.signals.", self._signals),
            ("plant.sensors.", self._sensors),
        )
        return [(prefix, part) for prefix, part in parts if part is not None]


_BASE_SIGNALS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "base_quat": lambda quat, _: quat,
    "base_ang_vel": lambda _, velocity: velocity[:, 3:],
    "base_lin_vel": lambda quat, velocity: rotate_inverse(quat, velocity[:, :3]),
    "projected_gravity": lambda quat, _: down(quat),
}
"""What a floating base's attitude, shape (n, 4), and generalised velocity, shape (n, 6), say of it."""
