"""Our trainer's PPO over our `half_cheetah` task: the worker that `sim2real train` runs, in this process."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from half_cheetah import TASK
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
    SIM_THREADS,
    VALUE_WEIGHT,
    Learn,
)

from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.ppo import PpoConfig
from sim2real_train.worker import Worker

__all__ = ["trainer"]

CONFIG: Final = TrainConfig(
    task=TASK.name,
    robot=None,
    engine="mujoco",
    seed=0,
    num_envs=NUM_ENVS,
    num_workers=1,
    command_delay=(0.0, 0.0),
    delays=None,
    randomization=None,
    model=ModelConfig(hidden=HIDDEN, activation="tanh", initial_std=1.0),
    placement=PlacementConfig(),
    algorithm=PpoConfig(
        num_steps=NUM_STEPS,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        discount=DISCOUNT,
        gae_lambda=GAE_LAMBDA,
        clip=CLIP,
        # Of half of the mean squared error.
        value_coefficient=2.0 * VALUE_WEIGHT,
        entropy_coefficient=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        learning_rate=LEARNING_RATE,
        # Nothing that the policy does changes the rate or ends an iteration.
        learning_rate_bounds=(LEARNING_RATE, LEARNING_RATE),
        desired_kl=1e9,
    ),
)


@contextlib.contextmanager
def trainer() -> Generator[Learn]:
    """Give what learns for so many iterations."""
    with installed_task():
        worker = Worker(CONFIG, 0, lambda gradient: None, num_threads=SIM_THREADS)

    def learn(iterations: int) -> None:
        for _ in range(iterations):
            collected = worker.collect()
            worker.learn(merge([worker.score()]))
            worker.publish(collected.observations)

    yield learn


@contextlib.contextmanager
def installed_task() -> Generator[None]:
    """Let the task be found by its name, as that of an installed package is."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "half_cheetah-0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: half-cheetah\nVersion: 0\n")
        (package / "entry_points.txt").write_text(f"[sim2real.tasks]\n{TASK.name} = half_cheetah:TASK\n")
        sys.path.append(folder)
        yield
        sys.path.remove(folder)
