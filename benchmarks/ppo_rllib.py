"""RLlib's PPO, new API stack: two env runners step Gymnasium's environments, the learner is in this process.

It takes 83 steps of its optimiser in an iteration, where the others take 80: of each environment it adds a row, for the
value of the last observation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Final

from ppo_settings import (
    CLIP,
    DISCOUNT,
    ENV_ID,
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

# Before Ray: it decides which addresses Ray listens on.
from sim2real_train.cluster import local_cluster  # isort: split

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

__all__ = ["trainer"]

RUNNERS: Final = 2


@contextlib.contextmanager
def trainer() -> Generator[Learn]:
    """Give what learns for so many iterations."""
    config = (
        PPOConfig()
        .environment(ENV_ID)
        .env_runners(
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=NUM_ENVS // RUNNERS,
            rollout_fragment_length=NUM_STEPS,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False, free_log_std=True
            )
        )
        .training(
            train_batch_size_per_learner=SAMPLES,
            minibatch_size=SAMPLES // MINIBATCHES,
            num_epochs=EPOCHS,
            lr=LEARNING_RATE,
            gamma=DISCOUNT,
            lambda_=GAE_LAMBDA,
            clip_param=CLIP,
            vf_loss_coeff=VALUE_WEIGHT,
            entropy_coeff=0.0,
            use_kl_loss=False,
            grad_clip=MAX_GRAD_NORM,
        )
    )
    with local_cluster(RUNNERS + 1):
        algorithm = config.build_algo()

        def learn(iterations: int) -> None:
            for _ in range(iterations):
                algorithm.train()

        yield learn
        algorithm.stop()
