"""The drives of a batch of robots: from command blocks to the efforts on the joints, once per physics step.

An engine computes the PD law and the effort limit of an ideal drive inside its own step; any other drive is computed
here and handed to the engine as plain effort:

    PD law or network → torque–speed line → effort limit → friction → backlash → link
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from sim2real.robots import RobotJoint
from sim2real.robots.drives import PARAMETERS, DriveNetwork, check_parameter
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.drive_network import LearnedActuators
from sim2real.sim.drive_parts import Backlash, GearFriction, MotorLimit, spread

__all__ = ["DriveModel"]

Array = npt.NDArray[np.float64]

_PREFIX = "drives."


class DriveModel:
    """The drives of `num_envs` robots. Everything is per joint and per environment.

    Nothing here bounds the effort on a link: friction and the impact at the end of a gap come on top of what the
    motor's limits leave, so an engine must not clip it again.

    Args:
        joints: Actuated joints in the simulator's order.
        effort_limits: What each motor can apply at most [N·m], in the same order.
        num_envs: Number of environments N.
        dt: Physics step [s].

    Attributes:
        ideal: Whether every drive is the PD law and an effort limit: leave it to the engine, which does it faster.
        motor_effort: Live efforts of the motors in the last step [N·m], shape (N, J): behind their limits, before
            friction and backlash; what a robot that measures current reports.

    Raises:
        InputError: A network cannot be used.
        MissingExtraError: A drive has a network, and onnxruntime is not installed.
    """

    def __init__(self, joints: Sequence[RobotJoint], effort_limits: Sequence[float], num_envs: int, dt: float) -> None:
        drives = [joint.drive for joint in joints]
        self.joint_names = tuple(joint.name for joint in joints)
        self.num_envs = num_envs
        self.ideal = all(drive.ideal for drive in drives)
        self._limit = spread(effort_limits, num_envs)
        self._floor = -self._limit
        self._inertia = spread([drive.rotor_inertia or 1.0 for drive in drives], num_envs)
        has_motor = any(drive.motor for drive in drives)
        has_friction = any(drive.friction for drive in drives)
        has_backlash = any(drive.backlash for drive in drives)
        self._motor = MotorLimit(drives, num_envs) if has_motor else None
        self._friction = GearFriction(drives, self._inertia, dt) if has_friction else None
        self._backlash = Backlash(drives, self._inertia, dt) if has_backlash else None
        self._networks = _load_networks([drive.network for drive in drives], num_envs)
        self._fresh = np.ones(num_envs, np.bool_)
        self._any_fresh = True
        self.motor_effort = np.zeros_like(self._limit)
        self._joint_vel = np.empty_like(self._limit)
        self._effort = np.empty_like(self._limit)
        self._term = np.empty_like(self._limit)
        self._parameters = {} if self.ideal else self._list_parameters(joints)

    def effort(self, command: Array, joint_pos: Array, joint_vel: Array, out: Array) -> None:
        """Compute what acts on the links in the coming physics step, and advance the drives by it.

        Args:
            command: Command blocks in force, shape (N, 5, J).
            joint_pos: Positions of the links now [rad], shape (N, J).
            joint_vel: Velocities of the links now [rad/s], shape (N, J).
            out: Efforts [N·m], shape (N, J).
        """
        # A robot whose simulation has left the real numbers has its own row, and nobody is told of it here.
        with np.errstate(over="ignore", invalid="ignore"):
            first = self._begin_episodes(joint_pos, joint_vel)
            position, velocity = self._at_rotor(joint_pos, joint_vel)
            self._control(command, position, velocity)
            for network in self._networks:
                network.apply(command, position, velocity, first, self._effort)
            self._limit_effort(velocity)
            if self._friction is not None:
                self._friction.apply(velocity, self.motor_effort, self._effort)
            else:
                np.copyto(self.motor_effort, self._effort)
            if self._backlash is not None:
                self._backlash.transmit(command[:, KP], command[:, KD], self._effort)
        np.copyto(out, self._effort)

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Begin new episodes in `env_ids` (None: all) with the state that the next `effort` is given.

        Rotors begin amid their gap and at their link's velocity, friction at rest, networks with a history of what they
        see first. Parameters stay.
        """
        self._fresh[slice(None) if env_ids is None else env_ids] = True
        self._any_fresh = True

    def read_encoders(self, joint_pos: Array, joint_vel: Array) -> None:
        """Turn links' positions [rad] and velocities [rad/s], shape (N, J), into their rotors' in place.

        They differ by what is left of the backlash; the PD law sees the rotor's.
        """
        if self._backlash is not None:
            if self._any_fresh:
                self._backlash.start(self._fresh, joint_pos, joint_vel)
            self._backlash.read(joint_pos, joint_vel)

    def randomize(self, field: str, joint: str, values: Array, env_ids: EnvIds | None = None) -> None:
        """Set a parameter of a joint's drive to one value per environment of `env_ids` (None: all), shape (n,).

        `field` is a name of `sim2real.robots.drives.PARAMETERS`, e.g. ``motor.stall_effort``. Static friction below
        Coulomb friction counts as equal to it.

        Raises:
            InputError: There is no such joint or parameter, the joint has no such part, or a value is not allowed.
        """
        column = self._find(field, joint)
        rows = slice(None) if env_ids is None else env_ids
        expected = self.num_envs if env_ids is None else len(env_ids)
        if values.shape != (expected,):
            raise InputError(f"drive.{field}/{joint}: expected values of shape ({expected},), got {values.shape}")
        check_parameter(field, values)
        column[rows] = values
        self._derive()

    def snapshot(self) -> Snapshot:
        """Return a copy of all state and parameters."""
        return {_PREFIX + name: array.astype(np.float64) for name, array in self._arrays().items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from what `snapshot` returned."""
        for name, array in self._arrays().items():
            array[:] = snapshot[_PREFIX + name]
        self._any_fresh = bool(self._fresh.any())
        self._derive()

    def _begin_episodes(self, joint_pos: Array, joint_vel: Array) -> npt.NDArray[np.bool_] | None:
        """Start all parts where an episode begins; return the mask of these environments, None if there are none."""
        if not self._any_fresh:
            return None
        first = self._fresh.copy()
        self.motor_effort[first] = 0.0
        if self._friction is not None:
            self._friction.start(first, joint_vel)
        if self._backlash is not None:
            self._backlash.start(first, joint_pos, joint_vel)
        self._fresh[:] = False
        self._any_fresh = False
        return first

    def _at_rotor(self, joint_pos: Array, joint_vel: Array) -> tuple[Array, Array]:
        """Return the rotors' positions and velocities, given the links'."""
        # numpy runs through what lies in one piece twice as fast as through columns of something wider.
        np.copyto(self._joint_vel, joint_vel)
        if self._backlash is None:
            return joint_pos, self._joint_vel
        self._backlash.meet(joint_pos, self._joint_vel)
        if self._friction is not None:
            self._friction.forget_jump(self._backlash.landed, self._backlash.velocity)
        return self._backlash.position, self._backlash.velocity

    def _control(self, command: Array, position: Array, velocity: Array) -> None:
        """Compute kp (position − q) + kd (velocity − qd) + effort, in this order."""
        np.subtract(command[:, POSITION], position, out=self._effort)
        self._effort *= command[:, KP]
        np.subtract(command[:, VELOCITY], velocity, out=self._term)
        self._term *= command[:, KD]
        self._effort += self._term
        self._effort += command[:, EFFORT]

    def _limit_effort(self, velocity: Array) -> None:
        if self._motor is not None:
            self._motor.apply(velocity, self._floor, self._limit, self._effort)
        else:
            np.minimum(self._effort, self._limit, out=self._effort)
            np.maximum(self._effort, self._floor, out=self._effort)

    def _find(self, field: str, joint: str) -> Array:
        """Return the live values of a parameter, shape (N,), or say what is wrong with its name."""
        place = self._parameters.get((field, joint))
        if place is not None:
            return place
        if field not in PARAMETERS:
            raise InputError(f"drive.{field}/{joint}: unknown parameter; {_near(field, PARAMETERS)}")
        if joint not in self.joint_names:
            raise InputError(f"drive.{field}/{joint}: unknown joint; {_near(joint, self.joint_names)}")
        owners = [name for known, name in self._parameters if known == field]
        having = ", ".join(owners) or "none"
        raise InputError(f"drive.{field}/{joint}: not a part of the joint's drive; joints that have it: {having}")

    def _list_parameters(self, joints: Sequence[RobotJoint]) -> dict[tuple[str, str], Array]:
        """Find the column of each parameter that a joint has, by field and joint."""
        found: dict[tuple[str, str], Array] = {}
        for index, joint in enumerate(joints):
            drive = joint.drive
            parts = (
                (True, {"effort_limit": self._limit}),
                (drive.rotor_inertia is not None, {"rotor_inertia": self._inertia}),
                (drive.motor is not None, self._motor.parameters if self._motor else {}),
                (drive.friction is not None, self._friction.parameters if self._friction else {}),
                (drive.backlash > 0.0, self._backlash.parameters if self._backlash else {}),
            )
            for has, parameters in parts:
                if has:
                    found |= {(field, joint.name): values[:, index] for field, values in parameters.items()}
        for network in self._networks:
            for column, index in enumerate(network.joints):
                for field, values in network.parameters.items():
                    found[field, joints[index].name] = values[:, column]
        return found

    def _arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Everything that the next steps depend on, live, by name."""
        if self.ideal:
            return {}
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "fresh": self._fresh,
            "motor_effort": self.motor_effort,
            "effort_limit": self._limit,
            "rotor_inertia": self._inertia,
        }
        for part in (self._motor, self._friction, self._backlash):
            if part is not None:
                arrays |= part.state | part.parameters
        for number, network in enumerate(self._networks):
            arrays |= {f"{name}[{number}]": array for name, array in (network.state | network.parameters).items()}
        return arrays

    def _derive(self) -> None:
        """Compute what follows from parameters that were written to."""
        np.negative(self._limit, out=self._floor)
        for part in (self._motor, self._friction, self._backlash):
            if part is not None:
                part.derive()


def _load_networks(networks: Sequence[DriveNetwork | None], num_envs: int) -> list[LearnedActuators]:
    """Load each model once for all joints that name it."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, network in enumerate(networks):
        if network is not None:
            groups.setdefault((str(network.path), network.history), []).append(index)
    return [
        LearnedActuators([network for index in group if (network := networks[index])], group, num_envs)
        for group in groups.values()
    ]


def _near(name: str, allowed: Iterable[str]) -> str:
    """Return what else `name` might have been."""
    names = list(allowed)
    close = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"allowed: {', '.join(names)}"
