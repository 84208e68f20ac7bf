"""Where each part of training should run: from measured stages to predicted steps to a choice. Nothing runs here.

A step collects T control steps in each of N environments and learns from them. In one place its stages add up; apart
they overlap, and the longer side decides:

    T_sync  = simulate + infer + score + update
    T_async = max(simulate + infer, score + update) + exposed synchronisation

If every stage took 1 / n of the time on n workers, taking workers from one side for the other would gain nothing: the
work stays the same, and (W₁ + W₂) / n is the best of both. What is gained comes from stages that do not scale, from
waiting for the slowest, and from unlike hardware, hence from the measured curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
import numpy as np

from sim2real.errors import InputError

__all__ = [
    "Candidate",
    "Curve",
    "Prediction",
    "StageCurves",
    "choose",
    "enumerate_placements",
    "predict",
]

Kind = Literal["colocated", "overlapped", "disaggregated"]
Device = Literal["cpu", "gpu"]
_SIMPLEST_FIRST: Final[tuple[Kind, ...]] = ("colocated", "overlapped", "disaggregated")
"""What is learned from is newest in the first, and at most one version old and repeatable in the second."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds over a size: measured points, straight lines between and beyond them."""

    sizes: tuple[float, ...]
    """Rising."""
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the points.

        Raises:
            InputError: There are none, or they are not in order.
        """
        rising = all(left < right for left, right in zip(self.sizes, self.sizes[1:], strict=False))
        if not self.sizes or len(self.sizes) != len(self.seconds) or not rising or min(self.seconds) < 0.0:
            raise InputError(
                f"curve: expected rising sizes with a time each, got sizes {self.sizes}, seconds {self.seconds}"
            )

    def at(self, size: float) -> float:
        """Return the seconds at `size`; a single point is taken as proportional."""
        if len(self.sizes) == 1:
            return self.seconds[0] * size / self.sizes[0]
        # Noise may make a larger size seem cheaper; a line through such points would lead below zero.
        seconds = np.maximum.accumulate(self.seconds)
        right = int(np.clip(np.searchsorted(self.sizes, size), 1, len(self.sizes) - 1))
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (self.sizes[right] - self.sizes[left])
        return max(0.0, float(seconds[left] + slope * (size - self.sizes[left])))


_NOTHING: Final = Curve(sizes=(1.0,), seconds=(0.0,))


class StageCurves(msgspec.Struct, frozen=True, kw_only=True):
    """How long one worker of a kind takes for T steps of n environments, as curves over n."""

    simulate: Curve
    infer: Curve
    score: Curve
    update: Curve
    transfer: Curve = _NOTHING
    """To get a chunk of n environments from one process to another."""
    average: Curve = _NOTHING
    """To average all gradients of an update over n learners; of one, it is none."""
    publish: float = 0.0
    """To get the weights from a learner to the simulator workers [s]."""
    thread_gain: dict[int, float] = msgspec.field(default_factory=lambda: {1: 1.0})
    """Time of simulation with so many threads, as a share of the time with one."""
    spread: float = 0.0
    """Standard deviation of the time of simulation and inference, as a share of its mean."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A placement that fits."""

    kind: Kind
    sims: int
    """Workers that simulate."""
    learners: int
    """Workers that learn; the same ones if colocated."""
    device: Device = "cpu"
    """Of the learners."""
    threads: int = 1
    """Of each worker's simulation; CPUs that no other worker has."""

    @property
    def chunks_per_update(self) -> int:
        """Chunks that a step's experience is collected in, so that workers of both sides have equal shares."""
        return math.lcm(self.sims, self.learners)


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step takes."""

    candidate: Candidate
    step_seconds: float
    collect_seconds: float
    """Of simulation and inference, on the side of the simulators."""
    learn_seconds: float
    """Of everything else, on the side of the learners."""


def enumerate_placements(cpus: int, gpus: int, *, num_envs: int) -> list[Candidate]:
    """Return every placement that fits, also those that leave workers out, and one worker against all the rest.

    Args:
        cpus: CPUs that there are; every worker takes one, and its simulation those that are left over.
        gpus: GPUs that there are; every learner takes one, or none of them does.
        num_envs: Environments N, to be shared equally.
    """
    devices: list[tuple[Device, int]] = [("cpu", cpus)]
    if gpus:
        devices.append(("gpu", gpus))
    found = [
        Candidate(kind="colocated", sims=workers, learners=workers, device=device, threads=cpus // workers)
        for device, most in devices
        for workers in range(1, min(cpus, most) + 1)
        if num_envs % workers == 0
    ]
    found += [
        Candidate(kind=kind, sims=sims, learners=learners, device=device, threads=(cpus - learners) // sims)
        for device, most in devices
        for sims in range(1, cpus)
        for learners in range(1, min(cpus - sims, most) + 1)
        if num_envs % math.lcm(sims, learners) == 0
        for kind in ("overlapped", "disaggregated")
    ]
    return found


def predict(candidate: Candidate, curves: Mapping[Device, StageCurves], *, num_envs: int) -> Prediction:
    """Return how long a step takes.

    Args:
        candidate: Where the parts run.
        curves: Of workers without and, if there are, with a GPU; simulators apart from learners have none.
        num_envs: Environments N.
    """
    learner = curves[candidate.device]
    share = num_envs / candidate.learners
    average = learner.average.at(candidate.learners) if candidate.learners > 1 else 0.0
    learn = learner.score.at(share) + learner.update.at(share) + average
    if candidate.kind == "colocated":
        collect = _act(learner, share, candidate.threads) * _slowest(candidate.sims, learner.spread)
        step = collect + learn
    else:
        simulator = curves["cpu"]
        chunk = num_envs / candidate.chunks_per_update
        calls = candidate.chunks_per_update // candidate.sims
        collect = calls * _act(simulator, chunk, candidate.threads)
        learn += learner.transfer.at(share)
        if candidate.kind == "overlapped":
            # In lock step everybody waits for the slowest, and the next batch for the weights.
            collect *= _slowest(candidate.sims, simulator.spread)
            step = max(collect, learn) + learner.publish
        else:
            # Simulators go on with the weights that they have until newer ones are there.
            step = max(collect, learn) + max(0.0, learner.publish - collect)
    return Prediction(candidate=candidate, step_seconds=step, collect_seconds=collect, learn_seconds=learn)


def _act(curves: StageCurves, num_envs: float, threads: int) -> float:
    """Return how long T steps of so many environments take."""
    gain = curves.thread_gain[max(known for known in curves.thread_gain if known <= threads)]
    return gain * curves.simulate.at(num_envs) + curves.infer.at(num_envs)


def _slowest(workers: int, spread: float) -> float:
    """Return the mean of the slowest of some workers, in units of the mean of one.

    E max of n normal variables ≤ μ + σ √(2 ln n). Source: Boucheron, Lugosi, Massart, "Concentration inequalities"
    (2013), theorem 2.5.
    """
    return 1.0 + spread * math.sqrt(2.0 * math.log(workers))


def choose(predictions: Iterable[Prediction], *, margin: float = 0.03) -> Prediction:
    """Return the fastest; of those that are as fast up to `margin`, the one whose experience is newest.

    Args:
        predictions: One or more.
        margin: Share of the step that old experience must save to be worth it; predictions err by as much anyway.
    """
    known = list(predictions)
    best = min(each.step_seconds for each in known)
    # Sums of the same terms in another order differ in their last bits.
    near = [each for each in known if each.step_seconds <= best * (1.0 + margin) * (1.0 + 1e-9)]
    return min(
        near, key=lambda each: (_SIMPLEST_FIRST.index(each.candidate.kind), each.step_seconds, each.candidate.sims)
    )
