"""Whole episodes of a deterministic policy from many random starts, and what each of them came to."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.randomization import RandomizationFile
from sim2real.tasks.base import Task
from sim2real.tasks.env import TaskEnv
from sim2real.tasks.goal import success, time_to_goal

__all__ = ["BatchPolicy", "Episodes", "run_episodes", "wilson_interval"]


class BatchPolicy(Protocol):
    """A policy that acts in N environments at once, with the memory of each."""

    def reset(self, num_envs: int) -> None:
        """Begin an episode in `num_envs` environments."""
        ...

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        ...


class Episodes(msgspec.Struct, frozen=True, kw_only=True):
    """What each of some episodes came to; lists of equal length."""

    success: list[bool]
    time_to_goal: list[float]
    """Time [s] from which the goal holds to the end; infinite where it does not."""
    returns: list[float]
    """Sums of rewards."""
    ended_early: list[bool]
    """Whether it ended by itself, before the time limit."""
    terms: dict[str, list[float]]
    """Means of the terms of the reward per control step of a whole episode."""


def run_episodes(
    policy: BatchPolicy,
    task: Task,
    *,
    starts: int,
    seed: int,
    randomization: RandomizationFile | None,
    num_threads: int = 1,
    privileged: bool = False,
) -> Episodes:
    """Run the episodes of `evaluate`; a `privileged` policy reads what a critic sees."""
    env = TaskEnv(
        task,
        starts,
        seed=seed,
        randomization=randomization,
        num_threads=num_threads,
        # The judge looks at the last state too, which a restart would overwrite.
        episode_length=2.0 * task.episode_length,
    )
    if task.curriculum is not None:
        # Judged on every level alike, and not on the first, where training begins.
        env.levels[:] = np.arange(starts) % task.curriculum.levels
        env.reset()
    num_steps = round(task.episode_length / env.control_period)
    held = np.empty((num_steps, starts), np.bool_)
    returns = np.zeros(starts)
    terms = np.zeros((len(env.reward_names), starts))
    alive = np.ones(starts, np.bool_)
    policy.reset(starts)
    for step in range(num_steps):
        result = env.step(policy.act(env.critic_observation if privileged else env.observation))
        returns += result.reward * alive
        terms += result.reward_terms * alive
        alive &= ~result.terminated
        held[step] = task.goal.holds(env.motion)
    reached = success(task.goal, held, env.control_period) & alive
    times = np.where(alive, time_to_goal(held, env.control_period), np.inf)
    return Episodes(
        success=reached.tolist(),
        time_to_goal=times.tolist(),
        returns=returns.tolist(),
        ended_early=(~alive).tolist(),
        terms=dict(zip(env.reward_names, (terms / num_steps).tolist(), strict=True)),
    )


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion; `z` is the normal quantile, by default of 95 %.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    rate = successes / trials
    # (p + z²/2n ± z √(p (1 − p) / n + z²/4n²)) / (1 + z²/n)
    centre = rate + z * z / (2 * trials)
    margin = z * math.sqrt(rate * (1.0 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1.0 + z * z / trials
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)
