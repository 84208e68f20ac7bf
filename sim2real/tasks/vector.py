"""What a trainer needs of environments, whoever simulates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["StepResult", "VectorEnv"]

Array = npt.NDArray[np.float64]


class StepResult(msgspec.Struct):
    """What one step gives. Arrays are live: copy what must survive the next step."""

    observation: npt.NDArray[np.float32]
    """Shape (N, O); of the new episode where one ended."""
    critic_observation: npt.NDArray[np.float32]
    """What the critic sees, shape (N, Oc); `observation` itself where it sees nothing else."""
    reward: Array
    """Shape (N,)."""
    terminated: npt.NDArray[np.bool_]
    """The episode ended by itself: no value follows. Shape (N,)."""
    truncated: npt.NDArray[np.bool_]
    """The episode was cut off by the time limit: the value of its last observation follows. Shape (N,)."""
    done_ids: npt.NDArray[np.intp]
    """Environments whose episode ended, shape (n,)."""
    final_observation: npt.NDArray[np.float32]
    """Last observation of each ended episode, shape (n, O), in the order of `done_ids`."""
    final_critic_observation: npt.NDArray[np.float32]
    """What the critic saw last in each of them, shape (n, Oc)."""
    reward_terms: Array
    """Weighted terms that the reward is the sum of, shape (R, N), in the order of `VectorEnv.reward_names`."""


class VectorEnv(Protocol):
    """`num_envs` environments, stepped together; an ended episode starts anew within the same step.

    Attributes:
        num_envs: Number of environments N.
        observation_size: O.
        critic_observation_size: Oc, at least O.
        action_size: A.
        control_period: Time of one step [s]; not a number where nobody says.
        resumes_exactly: Whether `load_state` continues exactly; otherwise it begins new episodes.
        reward_names: Names of the terms of the reward.
        observation: The newest observations, shape (N, O); live.
        critic_observation: What the critic sees, shape (N, Oc); live.
    """

    num_envs: int
    observation_size: int
    critic_observation_size: int
    action_size: int
    control_period: float
    resumes_exactly: ClassVar[bool]
    reward_names: tuple[str, ...]

    @property
    def observation(self) -> npt.NDArray[np.float32]:
        """Newest observations, shape (N, O); live."""
        ...

    @property
    def critic_observation(self) -> npt.NDArray[np.float32]:
        """What the critic sees, shape (N, Oc); live."""
        ...

    def step(self, action: npt.NDArray[np.float32]) -> StepResult:
        """Apply actions, shape (N, A), for one step."""
        ...

    def term_means(self) -> dict[str, float]:
        """Return the mean of each term of the reward per step since the last call, and other figures to log."""
        ...

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return what later steps depend on: arrays by name, and a random generator's state as plain data."""
        ...

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]], generator: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        ...

    def close(self) -> None:
        """Let go of what the environments hold."""
        ...
