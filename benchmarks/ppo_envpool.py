"""EnvPool's HalfCheetah for trainers that want an ended episode to begin anew within the step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ppo_settings import ENV_ID, NUM_ENVS, SIM_THREADS

from sim2real.extras import require

__all__ = ["Cheetahs", "Stepped", "make_cheetahs"]


class Stepped(NamedTuple):
    """What a step of all environments gave."""

    observation: npt.NDArray[np.float32]
    """Of the new episode where one ended, shape (N, O)."""
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    done_ids: npt.NDArray[np.intp]
    final_observation: npt.NDArray[np.float32]
    """Last ones of the episodes that ended, in the order of `done_ids`."""


def make_cheetahs() -> Any:
    """Return EnvPool's environments as they are: they begin anew with the step after the last one."""
    return require("envpool", "envpool").make(
        ENV_ID, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=SIM_THREADS, seed=0
    )


class Cheetahs:
    """The environments, begun anew within the step that ends them."""

    def __init__(self) -> None:
        self.envs = make_cheetahs()
        self.action_size = int(self.envs.action_space.shape[0])

    def reset(self) -> npt.NDArray[np.float32]:
        """Begin anew everywhere; return the observations."""
        return self.envs.reset()[0].astype(np.float32)

    def step(self, action: npt.NDArray[np.float32]) -> Stepped:
        """Apply actions, shape (N, A), cut off at the motors' limits."""
        observation, reward, terminated, truncated, _ = self.envs.step(
            np.clip(action, -1.0, 1.0).astype(self.envs.action_space.dtype)
        )
        observation = observation.astype(np.float32)
        done_ids = np.flatnonzero(terminated | truncated)
        final_observation = observation[done_ids]
        if len(done_ids):
            observation[done_ids] = self.envs.reset(done_ids.astype(np.int32))[0]
        return Stepped(observation, reward.astype(np.float32), terminated, truncated, done_ids, final_observation)
