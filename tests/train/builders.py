"""Small training runs for tests: seconds, not minutes, and every part real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch

from sim2real.tasks import TaskEnv
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.metrics import Metrics
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.ppo import PpoConfig
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
        "placement": PlacementConfig(),
        "algorithm": PpoConfig(num_steps=16, epochs=2, minibatches=2),
    }
    return TrainConfig(**(fields | changes))


def children_named(name: str, *, of: int | None = None) -> list[psutil.Process]:
    """Living workers below process `of` (or this one), as a person finds them with ps."""
    return [child for child in psutil.Process(of).children(recursive=True) if name in " ".join(_words(child))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # gone since it was listed, or killed and not yet waited for by its parent
        return []


def keep(gradient: torch.Tensor) -> None:
    """The gradient of one worker is the mean over all."""


def make_worker(config: TrainConfig, dumps: Path | None = None) -> Worker:
    """The only worker of `config`, in this process."""
    return Worker(config, 0, keep, dumps=dumps)


def task_env(worker: Worker) -> TaskEnv:
    """The environments of a worker that learns one of our tasks."""
    (env,) = worker.collector.envs
    assert isinstance(env, TaskEnv)
    return env


def iterate(worker: Worker) -> float:
    """One iteration as the controller does it; returns the mean reward of what it learned from."""
    collected = worker.collect()
    worker.learn(merge([worker.score()]))
    worker.publish(collected.observations)
    return collected.mean_reward


def metrics(iteration: int) -> Metrics:
    """Metrics that can be told apart by their iteration."""
    return Metrics(
        iteration=iteration,
        env_steps=128 * iteration,
        wall_seconds=0.5 * iteration,
        mean_reward=0.25,
        mean_return=None,
        learning={"kl": 0.0},
        stages={"collect_seconds": 0.25},
        terms={"reward/energy": 0.5},
        success=None,
    )
