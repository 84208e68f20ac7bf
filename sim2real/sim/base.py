"""The protocol that every batched simulator follows."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real.sim.scene import Scene

__all__ = ["BatchedSim", "EnvIds", "Snapshot"]

Snapshot = dict[str, npt.NDArray[np.float64]]
"""Everything that the next steps depend on: name → array whose first axis is the environment."""

EnvIds = npt.NDArray[np.intp]


class BatchedSim(Protocol):
    """`num_envs` copies of one robot, stepped together. Arrays are live: a write is the state at the next step.

    Generalised coordinates are MuJoCo's in every engine: a floating base comes first, its position [m] and quaternion
    (wxyz) in `qpos`, its linear velocity in world axes [m/s] and angular velocity in its own axes [rad/s] in `qvel`.

    Attributes:
        robot: The robot.
        scene: What surrounds it.
        num_envs: Number of environments N.
        dt: Physics step [s].
        joint_names: Actuated joints in the order of `joint_pos`, `joint_vel`, `joint_effort` and command blocks.
        qpos: Generalised positions, shape (N, nq).
        qvel: Generalised velocities, shape (N, nv).
        ctrl: Actuator inputs, shape (N, nu).
    """

    robot: Robot
    scene: Scene
    num_envs: int
    dt: float
    joint_names: tuple[str, ...]
    qpos: npt.NDArray[np.float64]
    qvel: npt.NDArray[np.float64]
    ctrl: npt.NDArray[np.float64]

    @property
    def joint_pos(self) -> npt.NDArray[np.float64]:
        """Positions of the actuated joints [rad], shape (N, J)."""
        ...

    @property
    def joint_vel(self) -> npt.NDArray[np.float64]:
        """Velocities of the actuated joints [rad/s], shape (N, J)."""
        ...

    @property
    def joint_effort(self) -> npt.NDArray[np.float64]:
        """Efforts that the actuators applied in the last physics step [N·m], shape (N, J)."""
        ...

    @property
    def feet_force(self) -> npt.NDArray[np.float64]:
        """Magnitude of the contact force on each of the robot's `feet` [N], shape (N, F), one physics step old."""
        ...

    @property
    def feet_pos(self) -> npt.NDArray[np.float64]:
        """Centres of the robot's `feet` in the world [m], shape (N, F, 3), one physics step old."""
        ...

    def site_pos(self, name: str) -> npt.NDArray[np.float64]:
        """Return the live position of a site in the world [m], shape (N, 3), one physics step old."""
        ...

    def sensor(self, name: str) -> npt.NDArray[np.float64]:
        """Return the live, read-only output of the MJCF's sensor `name`, shape (N, width)."""
        ...

    def set_command(self, command: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Hold command blocks, shape (n, 5, J) in `joint_names` order, until the next call.

        The actuators apply kp (position − q) + kd (velocity − qd) + effort at every physics step.
        """
        ...

    def step(self, n: int = 1) -> None:
        """Advance every environment by n physics steps.

        One whose state is no longer finite stays so, visibly, and does not disturb the others.
        """
        ...

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Put environments into the model's initial state; randomized parameters stay.

        Outputs (efforts, feet, sites, sensors) mean nothing until `refresh` or `step`.
        """
        ...

    def refresh(self, env_ids: EnvIds | None = None) -> None:
        """Make efforts, feet, sites and sensors agree with a state that was written to; the state stays as it is."""
        ...

    def randomize(self, param: str, values: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Set a physical parameter to one value per environment, shape (n,).

        `param` is the robot's name for it, or the place of any model field, e.g. ``geom_friction/FL_foot[0]``.

        Raises:
            InputError: There is no such parameter or place; the message lists near names.
        """
        ...

    def nominal(self, place: str) -> float:
        """Return what the robot's model holds at a place, whatever was randomized.

        Raises:
            InputError: There is no such place; the message lists near names.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return a copy of all state and parameters."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from a snapshot."""
        ...
