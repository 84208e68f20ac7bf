"""The protocol that every batched simulator follows."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["BatchedSim", "Snapshot"]

Snapshot = dict[str, npt.NDArray[np.float64]]
"""Everything that the next steps depend on: name → array whose first axis is the environment."""

EnvIds = npt.NDArray[np.intp]


class BatchedSim(Protocol):
    """`num_envs` copies of one robot, stepped together. Arrays are live: a write is the state at the next step.

    Attributes:
        num_envs: Number of environments N.
        dt: Physics step [s].
        joint_names: Actuated joints in the order of `joint_pos`, `joint_vel`, `joint_effort` and command blocks.
        qpos: Generalised positions, shape (N, nq).
        qvel: Generalised velocities, shape (N, nv).
        ctrl: Actuator inputs, shape (N, nu).
    """

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

    def sensor(self, name: str) -> npt.NDArray[np.float64]:
        """Return the live, read-only output of the sensor `name`, shape (N, width)."""
        ...

    def set_command(self, command: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Hold command blocks, shape (n, 5, J) in `joint_names` order, until the next call.

        The actuators apply kp (position − q) + kd (velocity − qd) + effort at every physics step.
        """
        ...

    def step(self, n: int = 1) -> None:
        """Advance every environment by n physics steps."""
        ...

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Put environments into the model's initial state; randomized parameters stay."""
        ...

    def refresh(self) -> None:
        """Make efforts and sensors agree with a state that was written to."""
        ...

    def randomize(self, param: str, values: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Set a physical parameter, by the robot's name for it, to one value per environment, shape (n,)."""
        ...

    def snapshot(self) -> Snapshot:
        """Return a copy of all state and parameters."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from a snapshot."""
        ...
