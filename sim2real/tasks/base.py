"""What a task is, and the registry of the tasks that ship with the toolkit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real import plugins
from sim2real.contract import Identity, PolicyContract

__all__ = ["Motion", "Task", "get_task", "task_names", "unpublished"]

_BUILT_IN: Final = {"pendulum-swingup": "sim2real.tasks.pendulum_swingup:TASK"}

Array = npt.NDArray[np.float64]


class Motion(msgspec.Struct):
    """What rewards and terminations look at after one control step. Live arrays, N environments, robot-side axes."""

    joint_pos: Array
    """Joint positions [rad], contract order, shape (N, J); free of measurement noise."""
    joint_vel: Array
    """Joint velocities [rad/s], shape (N, J)."""
    action: npt.NDArray[np.float32]
    """What the policy asked for in this step, shape (N, A)."""
    previous_action: npt.NDArray[np.float32]
    """What it asked for one step before, shape (N, A)."""


class Task(Protocol):
    """One thing to learn on one robot."""

    @property
    def name(self) -> str:
        """Name on the command line."""
        ...

    @property
    def robot(self) -> str:
        """Name of the robot."""
        ...

    @property
    def summary(self) -> str:
        """One sentence for `sim2real tasks`."""
        ...

    @property
    def episode_length(self) -> float:
        """Time [s] after which an episode is cut off; not a failure: the value is bootstrapped."""
        ...

    @property
    def training_episode_length(self) -> float:
        """The same in training; shorter where most is to be learned soon after the start."""
        ...

    @property
    def success_criterion(self) -> str:
        """One sentence that says what `success` asks for."""
        ...

    @property
    def measurement_noise(self) -> Mapping[str, float]:
        """Standard deviation of the noise that training adds to a signal, in its unit."""
        ...

    def contract(self, identity: Identity) -> PolicyContract:
        """Return the contract of a policy for this task."""
        ...

    def identity(self, *, checkpoint_sha256: str, config_sha256: str) -> Identity:
        """Return the identity of a policy trained to these weights under this configuration."""
        ...

    def start(self, rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        """Draw start states: qpos, shape (num, nq), and qvel, shape (num, nv)."""
        ...

    def reward(self, motion: Motion, out: Array) -> None:
        """Write the reward of the step into `out`, shape (N,)."""
        ...

    def terminated(self, motion: Motion, out: npt.NDArray[np.bool_]) -> None:
        """Write whether the episode failed or ended in the step into `out`, shape (N,)."""
        ...

    def success(self, joint_pos: Array, control_period: float) -> npt.NDArray[np.bool_]:
        """Judge whole episodes: joint positions, shape (T, N, J), to True or False, shape (N,)."""
        ...

    def time_to_goal(self, joint_pos: Array, control_period: float) -> Array:
        """Return the time [s] from which the goal holds to the end, infinite where it does not: (T, N, J) to (N,)."""
        ...


def unpublished(task: Task) -> Identity:
    """Return the identity of a policy that has no checkpoint yet, for use while training."""
    return task.identity(checkpoint_sha256="0" * 64, config_sha256="0" * 64)


def task_names() -> tuple[str, ...]:
    """Return the names that `get_task` accepts: built in, then of installed packages (`sim2real.plugins`)."""
    return plugins.names("task", _BUILT_IN)


def get_task(name: str) -> Task:
    """Return the task called `name`.

    Raises:
        InputError: There is no such task.
    """
    task: Task = plugins.load("task", _BUILT_IN, name)
    return task
