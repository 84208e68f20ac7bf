"""Whether a run can be made, found out before any of it is written or any process started."""

from __future__ import annotations

import torch

from sim2real_train.algorithms import make_algorithm
from sim2real_train.config import TrainConfig, check_config
from sim2real_train.environments import check_task, sizes_of

__all__ = ["check_run"]


def check_run(config: TrainConfig) -> None:
    """Check numbers, task and robot, and that the networks and their teacher fit them, by making one of each.

    Raises:
        InputError: The run cannot be made; the message says why.
    """
    check_config(config)
    check_task(config)
    with torch.random.fork_rng(devices=[]):
        make_algorithm(config, sizes_of(config), rank=0, average=_alone)


def _alone(gradient: torch.Tensor) -> None:
    """The mean of one."""
