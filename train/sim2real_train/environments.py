"""What a run learns in: environments of its task, or a foreign vector environment."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.tasks import Task, TaskEnv, VectorEnv, get_task
from sim2real.tasks.base import unpublished
from sim2real.tasks.gym_tasks import GymTaskEnv, is_foreign
from sim2real.tasks.mirror import mirror_maps
from sim2real.tasks.ranges import check_robot
from sim2real_train.config import TrainConfig, training_ranges
from sim2real_train.evaluate import BatchPolicy, Episodes, Evaluation, judge, run_episodes, run_foreign_episodes
from sim2real_train.models import encoder_columns
from sim2real_train.ppo import PpoConfig
from sim2real_train.reflection import Reflections
from sim2real_train.terms import check_terms, with_ends, with_weights

__all__ = ["check_task", "columns_of", "evaluate_on", "mirror_of", "sizes_of", "task_of_run", "training_env", "verdict"]

_MOST_FOREIGN: Final = 64
"""Episodes of one measurement in foreign environments."""
_FOREIGN_CRITERION: Final = "the episode lasts to its time limit"


def check_task(config: TrainConfig) -> None:
    """Check that there is such a task, that its robot can have the physics, and that networks find what they read.

    Raises:
        InputError: Not so; or physics is configured for a foreign environment, which has its own.
    """
    if is_foreign(config.task):
        if config.engine != "mujoco":
            raise InputError(f"{config.task}: has its own physics; leave out --engine")
        for option in ("robot", "randomization", "delays"):
            if getattr(config, option) is not None:
                raise InputError(
                    f"{config.task}: has its own physics; leave out --{'latency' if option == 'delays' else option}"
                )
        for field in ("rewards", "terminations"):
            if getattr(config, field):
                raise InputError(f"{config.task}: has its own {field}; leave out --set {field}.NAME")
        if config.model.privileged:
            raise InputError(f"{config.task}: no teachers are trained in foreign environments; leave out --privileged")
        mirror_of(config)
        GymTaskEnv.check(config.task)
        return
    task = task_of_run(config)
    if config.model.privileged and not task.critic:
        raise InputError(f"{config.task}: a critic sees no more than the policy; leave out --privileged")
    check_robot(training_ranges(config, task), task.robot, task.scene)
    check_terms(config, task)
    columns_of(config)
    mirror_of(config)


def training_env(
    config: TrainConfig, num_envs: int, *, seed: int, num_threads: int, dumps: Path | None = None
) -> VectorEnv:
    """Return `num_envs` environments to learn in; what led to a diverged simulation goes to the folder `dumps`."""
    if is_foreign(config.task):
        return GymTaskEnv(config.task, num_envs, seed=seed, num_threads=num_threads)
    task = with_ends(config, task_of_run(config))
    return TaskEnv(
        msgspec.structs.replace(
            task,
            start=task.training_start or task.start,
            events=task.events if task.training_events is None else task.training_events,
        ),
        num_envs,
        seed=seed,
        randomization=training_ranges(config, task),
        engine=config.engine,
        num_threads=num_threads,
        episode_length=task.training_episode_length,
        stagger=True,
        dump_folder=dumps,
    )


def sizes_of(config: TrainConfig) -> tuple[int, int, int]:
    """Return the widths of the observation, of what the critic sees and of the action."""
    with contextlib.closing(training_env(config, 1, seed=config.seed, num_threads=1)) as env:
        return env.observation_size, env.critic_observation_size, env.action_size


def columns_of(config: TrainConfig) -> npt.NDArray[np.intp] | None:
    """Return where the networks' encoder finds its term; None: they have none, or the environment is a foreign one.

    Raises:
        InputError: The task's observation has no such term.
    """
    if is_foreign(config.task):
        return None
    task = task_of_run(config)
    return encoder_columns(config.model, task.contract(unpublished(task)))


def mirror_of(config: TrainConfig) -> Reflections | None:
    """Return the images that an algorithm which asks for symmetry learns with; None: it does not ask.

    Raises:
        InputError: The task is not the same in a mirror, or it cannot be learned from.
    """
    if not isinstance(config.algorithm, PpoConfig) or config.algorithm.symmetry == "none":
        return None
    task = None if is_foreign(config.task) else task_of_run(config)
    if task is None or task.mirror is None:
        raise InputError(
            f"{config.task}: has no mirror (Task.mirror), so that nothing is symmetric; set algorithm.symmetry=none"
        )
    if config.model.recurrent != "none":
        raise InputError(
            "symmetry: the state of a memory has no image in a mirror; set algorithm.symmetry=none or "
            "model.recurrent=none"
        )
    return Reflections.of(mirror_maps(task.mirror, task.contract(unpublished(task)), tuple(task.critic)))


def evaluate_on(config: TrainConfig, policy: BatchPolicy, *, starts: int, seed: int, num_threads: int) -> Episodes:
    """Run one whole episode from each of `starts` random states, each on a plant of the training ranges."""
    if is_foreign(config.task):
        # Some of them hold 50 MB each.
        env = GymTaskEnv(config.task, min(starts, _MOST_FOREIGN), seed=seed, num_threads=num_threads)
        with contextlib.closing(env):
            return run_foreign_episodes(policy, env)
    task = task_of_run(config)
    return run_episodes(
        policy,
        task,
        starts=starts,
        seed=seed,
        randomization=training_ranges(config, task),
        num_threads=num_threads,
        privileged=config.model.privileged,
    )


def verdict(config: TrainConfig, parts: list[Episodes]) -> Evaluation:
    """Return the verdict over the episodes of all `parts`."""
    return judge(parts, _FOREIGN_CRITERION if is_foreign(config.task) else task_of_run(config).goal.text)


def task_of_run(config: TrainConfig) -> Task:
    """Return the task as a run's policies are judged: nothing that the run learns otherwise by changes the goal."""
    task = with_weights(config, get_task(config.task, config.robot))
    return task if config.delays is None else msgspec.structs.replace(task, delays=config.delays)
