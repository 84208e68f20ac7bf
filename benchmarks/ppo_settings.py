"""What all trainers that `bench_train_halfcheetah.py` compares have in common: the task, the network, the update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

__all__ = [
    "CLIP",
    "DISCOUNT",
    "ENV_ID",
    "EPOCHS",
    "GAE_LAMBDA",
    "HIDDEN",
    "LEARNING_RATE",
    "MAX_GRAD_NORM",
    "MINIBATCHES",
    "NUM_ENVS",
    "NUM_STEPS",
    "SAMPLES",
    "SIM_THREADS",
    "VALUE_WEIGHT",
    "Learn",
    "Trainer",
]

Learn = Callable[[int], object]
"""Collects and learns for so many iterations."""
Trainer = Callable[[], AbstractContextManager[Learn]]

ENV_ID: Final = "HalfCheetah-v5"
NUM_ENVS: Final = 64
NUM_STEPS: Final = 32
"""Control steps per environment and iteration."""
SAMPLES: Final = NUM_ENVS * NUM_STEPS
SIM_THREADS: Final = 2
EPOCHS: Final = 10
MINIBATCHES: Final = 8
HIDDEN: Final = (64, 64)
"""Of the actor and of the critic, which share nothing; tanh."""
LEARNING_RATE: Final = 3e-4
"""Constant, so that all take the same number of steps: none adapts it, and none ends a pass early."""
DISCOUNT: Final = 0.99
GAE_LAMBDA: Final = 0.95
CLIP: Final = 0.2
VALUE_WEIGHT: Final = 0.25
"""Of the mean squared error of values, beside the policy's objective; there is no bonus for entropy."""
MAX_GRAD_NORM: Final = 0.5
