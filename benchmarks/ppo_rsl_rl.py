"""rsl_rl's `OnPolicyRunner` over EnvPool."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Final

import torch
from ppo_envpool import Cheetahs
from ppo_settings import (
    CLIP,
    DISCOUNT,
    EPOCHS,
    GAE_LAMBDA,
    HIDDEN,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    MINIBATCHES,
    NUM_ENVS,
    NUM_STEPS,
    VALUE_WEIGHT,
    Learn,
)
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

__all__ = ["trainer"]

NETWORK: Final[dict[str, Any]] = {
    "class_name": "MLPModel",
    "hidden_dims": list(HIDDEN),
    "activation": "tanh",
    "obs_normalization": True,
}
CONFIG: Final[dict[str, Any]] = {
    "num_steps_per_env": NUM_STEPS,
    "save_interval": 1000,
    "check_for_nan": False,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": NETWORK | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
    "critic": NETWORK,
    "algorithm": {
        "class_name": "PPO",
        "num_learning_epochs": EPOCHS,
        "num_mini_batches": MINIBATCHES,
        "clip_param": CLIP,
        "gamma": DISCOUNT,
        "lam": GAE_LAMBDA,
        "value_loss_coef": VALUE_WEIGHT,
        "entropy_coef": 0.0,
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": MAX_GRAD_NORM,
        "schedule": "fixed",
    },
}


class CheetahVecEnv(VecEnv):
    """EnvPool's environments as rsl_rl sees them."""

    def __init__(self) -> None:
        self.cheetahs = Cheetahs()
        self.num_envs = NUM_ENVS
        self.num_actions = self.cheetahs.action_size
        self.max_episode_length = 1000
        self.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.long)
        self.device = "cpu"
        self.cfg = {}
        self._observations = self._group(self.cheetahs.reset())

    def get_observations(self) -> TensorDict:
        """Return the newest observations."""
        return self._observations

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Return observations, rewards, where episodes ended, and where only a time limit ended them."""
        result = self.cheetahs.step(actions.numpy())
        done = torch.from_numpy(result.terminated | result.truncated)
        self.episode_length_buf = (self.episode_length_buf + 1) * ~done
        self._observations = self._group(result.observation)
        time_outs = torch.from_numpy(result.truncated)
        return self._observations, torch.from_numpy(result.reward), done, {"time_outs": time_outs}

    def _group(self, observation: Any) -> TensorDict:
        return TensorDict({"policy": torch.from_numpy(observation)}, batch_size=[NUM_ENVS])


@contextlib.contextmanager
def trainer() -> Generator[Learn]:
    """Give what learns for so many iterations."""
    torch.manual_seed(0)
    runner = OnPolicyRunner(CheetahVecEnv(), CONFIG, log_dir=None, device="cpu")
    # It would look at the state of the repository that it is installed in whenever `learn` is called.
    runner.logger.git_status_repos.clear()
    yield runner.learn
