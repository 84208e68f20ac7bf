"""How good a policy is: whole episodes from many random starts, with the deterministic action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.randomization import RandomizationFile
from sim2real.tasks import Task, VectorEnv
from sim2real.tasks.episodes import BatchPolicy, Episodes, run_episodes, wilson_interval
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
