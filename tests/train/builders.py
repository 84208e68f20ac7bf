"""Small training runs for tests: seconds, not minutes, and every part real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sim2real.tasks import TaskEnv
from sim2real_train.config import TrainConfig
from sim2real_train.metrics import Metrics
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.ppo import PpoConfig, adapt_learning_rate
from sim2real_train.worker import Worker

TASK = "pendulum-swingup"


def small_config(**changes: Any) -> TrainConfig:
    """A run of a few environments; `changes` are fields of `TrainConfig`."""
    fields: dict[str, Any] = {
        "task": TASK,
        "robot": None,
        "engine": "mujoco",
        "seed": 3,
        "num_envs": 8,
        "num_workers": 1,
        "command_delay": (0.0, 0.02),
        "delays": None,
        "randomization": None,
        "model": ModelConfig(hidden=(16,), recurrent_size=8),
        "ppo": PpoConfig(num_steps=16, epochs=2, minibatches=2),
    }
    return TrainConfig(**(fields | changes))


def keep(gradient: torch.Tensor) -> None:
    """The gradient of one worker is the mean over all."""


def make_worker(config: TrainConfig, dumps: Path | None = None) -> Worker:
    """The only worker of `config`, in this process."""
    return Worker(config, 0, keep, dumps=dumps)


def task_env(worker: Worker) -> TaskEnv:
    """The environments of a worker that learns one of our tasks."""
    assert isinstance(worker.env, TaskEnv)
    return worker.env


def iterate(worker: Worker, learning_rate: float) -> float:
    """One iteration as the controller does it; return the next learning rate."""
    collected = worker.collect()
    advantages = merge([worker.score()])
    update = worker.learn(learning_rate, advantages)
    worker.publish(collected.observations)
    return adapt_learning_rate(learning_rate, update.kl, worker.config.ppo)


def metrics(iteration: int) -> Metrics:
    """Metrics that can be told apart by their iteration."""
    return Metrics(
        iteration=iteration,
        env_steps=128 * iteration,
        wall_seconds=0.5 * iteration,
        mean_reward=0.25,
        mean_return=None,
        learning_rate=1e-3,
        policy_loss=0.0,
        value_loss=0.0,
        entropy=0.0,
        kl=0.0,
        clip_fraction=0.0,
        grad_norm=0.0,
        action_std=1.0,
        minibatches=4,
        terms={"reward/energy": 0.5},
        success=None,
    )
