"""How good a policy is: whole episodes from many random starts, with the deterministic action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.randomization import RandomizationFile
from sim2real.tasks import Task, TaskEnv, VectorEnv
from sim2real.tasks.goal import success, time_to_goal
from sim2real.tasks.ranges import check_robot

__all__ = [
    "BatchPolicy",
    "Episodes",
    "Evaluation",
    "evaluate",
    "judge",
    "run_episodes",
    "run_foreign_episodes",
    "wilson_interval",
]


_LONGEST_FOREIGN: Final = 10_000
"""Steps after which an episode without a time limit counts as lasting."""


class BatchPolicy(Protocol):
    """A policy that acts in N environments at once, with the memory of each."""

    def reset(self, num_envs: int) -> None:
        """Begin an episode in `num_envs` environments."""
        ...

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        ...


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over all starts."""

    starts: int
    successes: int
    success_rate: float
    success_interval: tuple[float, float]
    """95 % Wilson interval of the success rate."""
    mean_return: float
    """Mean sum of rewards of an episode."""
    median_time: float | None
    """Median time [s] from the start until the goal holds to the end; None: not within half of the episodes."""
    p95_time: float | None
    """The same for the 95th percentile; None: not within 95 % of the episodes."""
    criterion: str
    """What success asks for, in words."""
    ended_early: float
    """Share of the episodes that ended by themselves: a robot fell, a simulation diverged."""
    terms: dict[str, float]
    """Weighted terms of the reward per control step; nothing counts after an episode has ended."""


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


def evaluate(
    policy: BatchPolicy,
    task: Task,
    *,
    starts: int = 256,
    seed: int = 0,
    randomization: RandomizationFile | None = None,
    num_threads: int = 1,
    privileged: bool = False,
) -> Evaluation:
    """Run one whole episode from each of `starts` random states, each on a plant of its own, and judge them.

    Args:
        policy: What acts.
        task: What it is judged by.
        starts: Number of episodes.
        seed: Seeds starts, plants and measurement noise.
        randomization: Ranges that each episode's plant is drawn from; None: the robot's nominal parameters.
        num_threads: Threads that step the simulation.
        privileged: Whether the policy reads what a critic sees.

    Raises:
        InputError: The ranges are not those of the task's robot, or it cannot have them.
    """
    if randomization is not None:
        check_robot(randomization, task.robot, task.scene)
    episodes = run_episodes(
        policy,
        task,
        starts=starts,
        seed=seed,
        randomization=randomization,
        num_threads=num_threads,
        privileged=privileged,
    )
    return judge([episodes], task.goal.text)


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


def run_foreign_episodes(policy: BatchPolicy, env: VectorEnv) -> Episodes:
    """Run one episode in each environment of somebody else's; success is to last until its time limit."""
    policy.reset(env.num_envs)
    returns = np.zeros(env.num_envs)
    going = np.ones(env.num_envs, np.bool_)
    lasted = np.zeros(env.num_envs, np.bool_)
    for _ in range(_LONGEST_FOREIGN):
        if not going.any():
            break
        result = env.step(policy.act(env.observation))
        returns += result.reward * going
        lasted |= result.truncated & going
        going &= ~(result.terminated | result.truncated)
    lasted |= going
    times = np.where(lasted, 0.0, np.inf)
    return Episodes(
        success=lasted.tolist(),
        time_to_goal=times.tolist(),
        returns=returns.tolist(),
        ended_early=(~lasted).tolist(),
        terms={},
    )


def judge(parts: Sequence[Episodes], criterion: str) -> Evaluation:
    """Return the verdict over the episodes of all `parts`, judged by `criterion`."""
    success = [value for part in parts for value in part.success]
    times = np.array([value for part in parts for value in part.time_to_goal])
    return Evaluation(
        starts=len(success),
        successes=sum(success),
        success_rate=sum(success) / len(success),
        success_interval=wilson_interval(sum(success), len(success)),
        mean_return=float(np.mean([value for part in parts for value in part.returns])),
        median_time=_quantile(times, 0.5),
        p95_time=_quantile(times, 0.95),
        criterion=criterion,
        ended_early=float(np.mean([value for part in parts for value in part.ended_early])),
        terms={
            name: float(np.mean([value for part in parts for value in part.terms[name]])) for name in parts[0].terms
        },
    )


def _quantile(times: npt.NDArray[np.float64], share: float) -> float | None:
    """The smallest time that `share` of all episodes do not exceed."""
    value = float(np.sort(times)[math.ceil(share * len(times)) - 1])
    return value if math.isfinite(value) else None
