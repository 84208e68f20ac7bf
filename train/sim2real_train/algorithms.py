"""Which algorithm a run asks for, with the networks that its environments need."""

from __future__ import annotations

import numpy as np
import torch

from sim2real_train.algorithm import Algorithm, Average
from sim2real_train.config import TrainConfig
from sim2real_train.distill import DistillConfig, DistillLearner, Student
from sim2real_train.environments import columns_of, mirror_of
from sim2real_train.models import ActorCritic
from sim2real_train.ppo import PpoLearner
from sim2real_train.sac import SacConfig, SacLearner
from sim2real_train.sac_model import SacModel
from sim2real_train.teacher import load_teacher

__all__ = ["make_algorithm"]

_ORDER = 1
"""Spawn key that tells the learner's draws from the environments'."""


def make_algorithm(
    config: TrainConfig,
    sizes: tuple[int, int, int],
    *,
    rank: int,
    average: Average,
    device: torch.device | None = None,
) -> Algorithm:
    """Return a replica of the run's learner.

    Args:
        config: The run.
        sizes: Widths of the observation, of what the critic sees and of the action.
        rank: Which of the replicas this is: all have the same weights, and draws of their own.
        average: Replaces a flat vector by its mean over all replicas, in place.
        device: Where it learns, apart from what acts; None: on the CPU, with the very weights that act.

    Raises:
        InputError: The networks do not fit the environments, or the teacher is of another task.
    """
    # The same weights on every replica: the only draws that use the run's seed itself.
    torch.manual_seed(config.seed)
    seed = int(np.random.SeedSequence(config.seed, spawn_key=(rank, 0, _ORDER)).generate_state(1)[0])
    algorithm, columns = config.algorithm, columns_of(config)
    if isinstance(algorithm, SacConfig):
        sac = SacModel(config.model, *sizes, columns, atoms=algorithm.atoms, initial_alpha=algorithm.initial_alpha)
        return SacLearner(sac, algorithm, average, observation_size=sizes[1], seed=seed, device=device)
    if isinstance(algorithm, DistillConfig):
        student = Student(config.model, sizes[0], sizes[2], teacher_share=algorithm.share(0), columns=columns)
        teacher = load_teacher(algorithm.teacher, config, sizes)
        return DistillLearner(student, teacher, algorithm, average, observation_size=sizes[1], seed=seed, device=device)
    model = ActorCritic(config.model, *sizes, columns)
    mirror = mirror_of(config)
    return PpoLearner(model, algorithm, average, observation_size=sizes[1], seed=seed, mirror=mirror, device=device)
