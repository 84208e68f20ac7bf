"""stable-baselines3's PPO over EnvPool."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import gymnasium
import numpy as np
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
    SAMPLES,
    VALUE_WEIGHT,
    Learn,
)
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

__all__ = ["trainer"]


class CheetahVecEnv(VecEnv):
    """EnvPool's environments as stable-baselines3 sees them."""

    def __init__(self) -> None:
        self.cheetahs = Cheetahs()
        size = self.cheetahs.reset().shape[1]
        super().__init__(
            NUM_ENVS,
            gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32),
            gymnasium.spaces.Box(-1.0, 1.0, (self.cheetahs.action_size,), np.float32),
        )
        self._actions = np.zeros((NUM_ENVS, self.cheetahs.action_size), np.float32)

    def reset(self) -> Any:
        """Begin anew everywhere."""
        return self.cheetahs.reset()

    def step_async(self, actions: Any) -> None:
        """Keep what `step_wait` applies."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Return observations, rewards, where episodes ended, and how."""
        result = self.cheetahs.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(NUM_ENVS)]
        for env_id, final in zip(result.done_ids.tolist(), result.final_observation, strict=True):
            infos[env_id] = {"terminal_observation": final, "TimeLimit.truncated": bool(result.truncated[env_id])}
        return result.observation, result.reward, result.terminated | result.truncated, infos

    def close(self) -> None:
        """Free the environments."""
        self.cheetahs.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Say nothing: asked for is only how things are drawn, and nothing is."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: the environments are not Python's.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refuse: the environments are not Python's.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Say that nothing is wrapped."""
        return [False] * self.num_envs


@contextlib.contextmanager
def trainer() -> Generator[Learn]:
    """Give what learns for so many iterations."""
    model = PPO(
        "MlpPolicy",
        CheetahVecEnv(),
        learning_rate=LEARNING_RATE,
        n_steps=NUM_STEPS,
        batch_size=SAMPLES // MINIBATCHES,
        n_epochs=EPOCHS,
        gamma=DISCOUNT,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        clip_range_vf=CLIP,
        ent_coef=0.0,
        vf_coef=VALUE_WEIGHT,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.Tanh},
        seed=0,
        device="cpu",
    )

    def learn(iterations: int) -> None:
        # Without an interval it prints nothing.
        model.learn(iterations * SAMPLES, log_interval=None, reset_num_timesteps=False)  # pyright: ignore[reportArgumentType]

    yield learn
