"""What rewards, terminations and critics look at: the true motion of N simulated robots, free of noise and delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.sim.base import BatchedSim
from sim2real.sim.rotation import down, rotate_inverse

__all__ = ["Array", "Flags", "Motion", "MotionState"]

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_Value = TypeVar("_Value")
_CONTACT_FORCE: Final = 1.0
"""Least force [N] of a foot that stands on the ground."""


class _Once(Generic[_Value]):
    """A property that is computed at most once per control step, and only if somebody asks."""

    def __init__(self, compute: Callable[[Motion], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, motion: Motion, owner: type[Motion]) -> _Value:
        # From now on the motion's own attribute of this name is found first.
        value = motion.__dict__[self._name] = self._compute(motion)
        return value


class MotionState:
    """The simulation, and what must be remembered from one control step to the next. All arrays are live.

    Attributes:
        sim: The simulation.
        control_period: [s].
        action: What the policies asked for in this step, shape (N, A), float32.
        previous_action: What they asked for one step before, shape (N, A), float32.
        previous_joint_pos: Joint positions one step before [rad], contract order, shape (N, J).
        previous_joint_vel: Joint velocities one step before [rad/s], contract order, shape (N, J).
        command: Operator inputs in force, contract order, shape (N, C).
        air_time: Time [s] since each foot left the ground, 0 while it stands, shape (N, F).
        landed_after: Time [s] that each foot had been in the air when it landed in this step, else 0, shape (N, F).
        origin: Where the episode began, x and y in the world [m], shape (N, 2).
        time: Time since the episode began [s], shape (N,).
    """

    def __init__(self, contract: PolicyContract, sim: BatchedSim, command: Array) -> None:
        num_envs, joints = sim.num_envs, len(contract.joints)
        self.sim = sim
        self.control_period = contract.timing.control_period_ns * 1e-9
        order = [sim.joint_names.index(name) for name in contract.joint_names]
        self.joint_order = None if order == list(range(len(sim.joint_names))) else np.array(order, np.intp)
        self.action = np.zeros((num_envs, contract.model.action_size), np.float32)
        self.previous_action = np.zeros_like(self.action)
        self.previous_joint_pos = np.zeros((num_envs, joints))
        self.previous_joint_vel = np.zeros((num_envs, joints))
        self.command = command
        self.air_time = np.zeros((num_envs, len(sim.robot.feet)))
        self.landed_after = np.zeros_like(self.air_time)
        self.origin = np.zeros((num_envs, 2))
        self.time = np.zeros(num_envs)

    def in_order(self, values: Array) -> Array:
        """Return values of the simulation's joints, shape (N, J'), in contract order, shape (N, J)."""
        return values if self.joint_order is None else values[:, self.joint_order]

    def before_step(self, action: npt.NDArray[np.float32]) -> None:
        """Remember what the next step is compared with."""
        self.previous_action[:] = self.action
        self.action[:] = action
        self.previous_joint_pos[:] = self.in_order(self.sim.joint_pos)
        self.previous_joint_vel[:] = self.in_order(self.sim.joint_vel)

    def after_step(self, feet_contact: Flags) -> None:
        """Take into account which feet stand on something after the step, shape (N, F)."""
        self.time += self.control_period
        np.multiply(self.air_time, feet_contact, out=self.landed_after)
        self.air_time += self.control_period
        self.air_time *= ~feet_contact

    def start(self, rows: npt.NDArray[np.intp]) -> None:
        """Begin an episode in `rows`; the simulation is in its start state."""
        for remembered in (self.action, self.previous_action, self.air_time, self.landed_after, self.time):
            remembered[rows] = 0
        if self.sim.robot.base == "floating":
            self.origin[rows] = self.sim.qpos[rows, :2]
        self.previous_joint_pos[rows] = self.in_order(self.sim.joint_pos)[rows]
        self.previous_joint_vel[rows] = self.in_order(self.sim.joint_vel)[rows]

    _KEPT: Final = (
        *("action", "previous_action", "previous_joint_pos", "previous_joint_vel"),
        *("air_time", "landed_after", "origin", "time"),
    )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of everything that later steps depend on; the simulation is somebody else's."""
        return {name: getattr(self, name).copy() for name in self._KEPT}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue exactly from what `state` returned."""
        for name in self._KEPT:
            getattr(self, name)[:] = state[name]


class Motion:
    """The motion of all environments in the present control step, or of some of them.

    Every property is computed when it is first asked for. Joints are in contract order, on the robot's axes.

    Args:
        state: Where it comes from.
        rows: The environments; None: all.
    """

    # What was computed lies in __dict__, alone.
    __slots__ = ("__dict__", "_rows", "_sim", "_state")

    def __init__(self, state: MotionState, rows: npt.NDArray[np.intp] | None = None) -> None:
        self._state = state
        self._sim = state.sim
        self._rows = rows

    def renew(self) -> None:
        """Forget what was computed: the simulation has moved."""
        self.__dict__.clear()

    def _take(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._rows is None else values[self._rows]

    @property
    def control_period(self) -> float:
        """Time of one control step [s]."""
        return self._state.control_period

    @_Once
    def joint_pos(self) -> Array:
        """Joint positions [rad], shape (N, J)."""
        return self._take(self._state.in_order(self._sim.joint_pos))

    @_Once
    def joint_travel(self) -> Array:
        """How far the joints have moved in the control step [rad], shape (N, J)."""
        return self.joint_pos - self._take(self._state.previous_joint_pos)

    @_Once
    def joint_vel(self) -> Array:
        """Joint velocities [rad/s], shape (N, J)."""
        return self._take(self._state.in_order(self._sim.joint_vel))

    @_Once
    def joint_acc(self) -> Array:
        """Mean joint accelerations over the control step [rad/s²], shape (N, J)."""
        return (self.joint_vel - self._take(self._state.previous_joint_vel)) / self.control_period

    @_Once
    def joint_effort(self) -> Array:
        """Efforts that the actuators applied in the last physics step [N·m], shape (N, J)."""
        return self._take(self._state.in_order(self._sim.joint_effort))

    @_Once
    def base_pos(self) -> Array:
        """Position of a floating base in the world [m], shape (N, 3)."""
        return self._take(self._sim.qpos[:, :3])

    @_Once
    def base_quat(self) -> Array:
        """Orientation of a floating base, wxyz, shape (N, 4)."""
        return self._take(self._sim.qpos[:, 3:7])

    @_Once
    def base_lin_vel(self) -> Array:
        """Velocity of a floating base in its own axes [m/s], shape (N, 3)."""
        return rotate_inverse(self.base_quat, self._take(self._sim.qvel[:, :3]))

    @_Once
    def base_ang_vel(self) -> Array:
        """Angular velocity of a floating base in its own axes [rad/s], shape (N, 3)."""
        return self._take(self._sim.qvel[:, 3:6])

    @_Once
    def projected_gravity(self) -> Array:
        """Unit vector of gravity in the base's axes: (0, 0, −1) where it stands upright, shape (N, 3)."""
        return down(self.base_quat)

    @_Once
    def base_height(self) -> Array:
        """Height of a floating base above the ground below it [m], shape (N,)."""
        x, y, z = self.base_pos.T
        return z - self._sim.scene.ground_height(x, y)

    @_Once
    def feet_force(self) -> Array:
        """Contact force on each foot [N], shape (N, F)."""
        return self._take(self._sim.feet_force)

    @_Once
    def feet_contact(self) -> Flags:
        """Whether each foot stands on something, shape (N, F)."""
        return self.feet_force > _CONTACT_FORCE

    @_Once
    def feet_pos(self) -> Array:
        """Centres of the feet in the world [m], shape (N, F, 3)."""
        return self._take(self._sim.feet_pos)

    @property
    def air_time(self) -> Array:
        """Time [s] since each foot left the ground, 0 while it stands, shape (N, F)."""
        return self._take(self._state.air_time)

    @property
    def landed_after(self) -> Array:
        """Time [s] that each foot had been in the air when it landed in this step, else 0, shape (N, F)."""
        return self._take(self._state.landed_after)

    def ground_height(self, x: Array, y: Array) -> Array:
        """Return the ground's height [m] at positions in the world [m]."""
        return self._sim.scene.ground_height(x, y)

    def site_pos(self, name: str) -> Array:
        """Return the position of a site in the world [m], shape (N, 3)."""
        return self._take(self._sim.site_pos(name))

    @property
    def action(self) -> npt.NDArray[np.float32]:
        """What the policy asked for in this step, shape (N, A)."""
        return self._take(self._state.action)

    @property
    def previous_action(self) -> npt.NDArray[np.float32]:
        """What it asked for one step before, shape (N, A)."""
        return self._take(self._state.previous_action)

    @property
    def command(self) -> Array:
        """Operator inputs in force in this step, contract order, shape (N, C)."""
        return self._take(self._state.command)

    @property
    def origin(self) -> Array:
        """Where the episode began, x and y in the world [m], shape (N, 2)."""
        return self._take(self._state.origin)

    @property
    def time(self) -> Array:
        """Time since the episode began [s], shape (N,)."""
        return self._take(self._state.time)
