"""Weights of rewards and ends of episodes that a run changes: what it learns by, never what it is judged by."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

from sim2real.errors import InputError
from sim2real.tasks import Reward, Task
from sim2real_train.config import TrainConfig

__all__ = ["check_terms", "with_ends", "with_weights"]


def check_terms(config: TrainConfig, task: Task) -> None:
    """Check that the task has the rewards and terminations that a run changes.

    Raises:
        InputError: It has not; near names are told, or all.
    """
    for field, known in (("rewards", task.rewards), ("terminations", task.terminations)):
        for name in getattr(config, field):
            if name not in known:
                raise InputError(f"{field}.{name}: {task.name} has no such term{_near(name, known)}")


def with_weights(config: TrainConfig, task: Task) -> Task:
    """Return the task with the run's weights of its rewards."""
    rewards = {
        name: Reward(weight=config.rewards.get(name, reward.weight), term=reward.term)
        for name, reward in task.rewards.items()
    }
    return msgspec.structs.replace(task, rewards=rewards) if config.rewards else task


def with_ends(config: TrainConfig, task: Task) -> Task:
    """Return the task without the terminations that the run has switched off."""
    kept = {name: ends for name, ends in task.terminations.items() if config.terminations.get(name, True)}
    return msgspec.structs.replace(task, terminations=kept)


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(names) or 'none'}"
