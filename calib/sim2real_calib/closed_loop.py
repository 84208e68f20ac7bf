"""A float32 policy and a quantized one in the same worlds: what few bits cost where it counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.acceptance import Figure, Paired
from sim2real.contract import Model
from sim2real.randomization import RandomizationFile
from sim2real.tasks import Task
from sim2real.tasks.episodes import Episodes, run_episodes, wilson_interval
from sim2real_calib.batch_policy import OnnxBatch

__all__ = ["RULE_OF_THREE", "Comparison", "Driven", "compare", "drive", "verdict"]

Array = npt.NDArray[np.float32]
RULE_OF_THREE: Final = 3.0
"""What was not seen in n episodes happens, with 95 % confidence, in less than 3 of n."""
_NORMAL: Final = 1.959964
"""Quantile of the normal distribution that leaves 2.5 % beyond."""


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy's episodes came to."""

    episodes: Episodes
    jerk: list[float]
    """Mean square second difference of the actions, of each environment."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both policies, measure by measure."""

    success: Paired
    falls: Paired
    returns: Paired
    jerk: Paired
    terms: dict[str, Paired]


class _Watched:
    """A policy whose actions are watched for how they shake."""

    def __init__(self, policy: OnnxBatch, progress: Callable[[], object]) -> None:
        self._policy, self._progress = policy, progress
        self._last: list[Array] = []
        self._sum: npt.NDArray[np.float64] = np.zeros(0)
        self._steps = 0

    def reset(self, num_envs: int) -> None:
        self._policy.reset(num_envs)
        self._sum = np.zeros(num_envs)

    def act(self, observation: Array) -> Array:
        action = self._policy.act(observation)
        if len(self._last) == 2:
            before, last = self._last
            # What is no number ends the episode, as a fall, and is no jerk.
            with np.errstate(invalid="ignore"):
                change = action.astype(np.float64) - 2.0 * last + before
            self._sum += np.square(np.where(np.isfinite(change), change, 0.0)).sum(axis=1)
            self._steps += 1
        self._last = [*self._last[-1:], action]
        self._progress()
        return action

    def jerk(self) -> list[float]:
        return (self._sum / max(1, self._steps)).tolist()


def drive(
    onnx_file: bytes,
    names: Model,
    task: Task,
    *,
    starts: int,
    seed: int,
    randomization: RandomizationFile | None,
    progress: Callable[[], object],
) -> Driven:
    """Run whole episodes of a policy; the same `seed` gives the same starts, plants, noise and pushes to every policy.

    Args:
        onnx_file: The policy.
        names: The contract's model.
        task: What it is judged by.
        starts: Number of episodes.
        seed: Seeds everything that is drawn.
        randomization: Ranges that each episode's plant is drawn from; None: the nominal plant.
        progress: Called after each control step.
    """
    policy = _Watched(OnnxBatch(onnx_file, names), progress)
    episodes = run_episodes(policy, task, starts=starts, seed=seed, randomization=randomization)
    return Driven(episodes=episodes, jerk=policy.jerk())


def compare(float32: Driven, quantized: Driven) -> Comparison:
    """Return both policies' figures, and how each episode changed."""
    one, other = float32.episodes, quantized.episodes
    return Comparison(
        success=_shares(one.success, other.success),
        falls=_shares(one.ended_early, other.ended_early),
        returns=_means(one.returns, other.returns),
        jerk=_means(float32.jerk, quantized.jerk),
        terms={name: _means(one.terms[name], other.terms[name]) for name in one.terms},
    )


def verdict(found: Comparison, max_loss: float) -> tuple[bool, str]:
    """Return whether a comparison passes, and why, in one sentence.

    With 95 % confidence, no more than `max_loss` of the episodes may fail or fall that did not, and the mean return may
    not be lower by more than that share of itself.
    """
    size = max(abs(found.returns.float32.mean), 1e-12)
    losses = {
        "success": -found.success.change.low,
        "falls": found.falls.change.high,
        "return": -found.returns.change.low / size,
    }
    worst = max(losses, key=lambda name: losses[name])
    told = f"with 95 % confidence it loses at most {max(losses[worst], 0.0):.2%} of {worst}, {max_loss:.2%} is allowed"
    return all(loss <= max_loss for loss in losses.values()), told


def _shares(one: list[bool], other: list[bool]) -> Paired:
    def share(flags: list[bool]) -> Figure:
        low, high = wilson_interval(sum(flags), len(flags))
        return Figure(mean=sum(flags) / len(flags), low=low, high=high)

    change = _mean(np.array(other, np.float64) - np.array(one, np.float64))
    spread = max(change.high - change.mean, RULE_OF_THREE / len(one))
    change = Figure(mean=change.mean, low=change.mean - spread, high=change.mean + spread)
    return Paired(float32=share(one), quantized=share(other), change=change)


def _means(one: list[float], other: list[float]) -> Paired:
    before, after = np.array(one), np.array(other)
    return Paired(float32=_mean(before), quantized=_mean(after), change=_mean(after - before))


def _mean(values: npt.NDArray[np.float64]) -> Figure:
    """Return the mean and its interval by the normal distribution: there are hundreds of episodes."""
    mean = float(values.mean())
    spread = _NORMAL * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Figure(mean=mean, low=mean - spread, high=mean + spread)
