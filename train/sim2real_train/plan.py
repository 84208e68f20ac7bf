"""Where each part of training should run: from measured stages to predicted steps to a choice. Nothing runs here.

A step collects T control steps in each of N environments and learns from them. In one place its stages add up; apart
they overlap, and the longer side decides:

    T_sync  = simulate + infer + score + update
    T_async = max(collect, score + correct + update) + exposed synchronisation

Apart, halves of a worker's environments take turns: one is simulated while the policy acts in the other. Of a pipeline
of two stages the slower one sets the pace, once it is full (the first two groups of RLinf's, arXiv 2509.15965):

    collect = simulate + infer - hidden min(simulate, infer)

with the sums over both halves. `hidden` is 1 if nothing hinders the stages, and measured, because they share an
interpreter, which runs for one of them at a time. What is hidden needs a CPU too. As long as the learners hold theirs,
a worker has those that are left for it (`beside`), and only while they wait all of them (`alone` <= `beside`):

    T_async = max(learn, learn + alone (1 - learn / beside)) + exposed synchronisation

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
    "MARGIN",
    "SIMPLEST_FIRST",
    "Candidate",
    "Choice",
    "Curve",
    "Prediction",
    "StageCurves",
    "choose",
    "enumerate_placements",
    "predict",
]

Kind = Literal["colocated", "overlapped", "disaggregated"]
Device = Literal["cpu", "gpu"]
SIMPLEST_FIRST: Final[tuple[Kind, ...]] = ("colocated", "overlapped", "disaggregated")
"""What is learned from is newest in the first, and at most one version old and repeatable in the second."""
MARGIN: Final = 0.03
"""Share of the step that old experience must save to be worth it; predictions err by as much anyway."""


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
        # A larger size that seems cheaper: something disturbed the smaller one, since nothing makes it faster.
        seconds = np.minimum.accumulate(self.seconds[::-1])[::-1]
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
    correct: Curve = _NOTHING
    """To score samples of older weights, on top of `score`."""
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
    quiet: float = 1.0
    """Time of a worker with nobody beside it, as a share of that of workers who share caches and memory."""
    hidden: float = 0.0
    """Where halves of the environments take turns: share of the shorter of simulation and inference that the longer
    hides."""


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
    """Of simulation and inference, on the side of the simulators while the other one is at work."""
    learn_seconds: float
    """Of everything else, on the side of the learners."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out, and what came of it."""

    chosen: Candidate
    predicted_step_seconds: float
    measured_step_seconds: float | None = None
    """Median of the run's iterations, measurements and checkpoints left out; None: it has made none yet."""
    candidates: tuple[Prediction, ...]
    """Of every placement that fits."""
    curves: StageCurves
    """Of the stages, as they were measured."""


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


def predict(
    candidate: Candidate, curves: Mapping[Device, StageCurves], *, num_envs: int, cpus: int | None = None
) -> Prediction:
    """Return how long a step takes.

    Args:
        candidate: Where the parts run.
        curves: Of workers without and, if there are, with a GPU; simulators apart from learners have none.
        num_envs: Environments N.
        cpus: CPUs that all workers share; None: as many as they could use.
    """
    learner = curves[candidate.device]
    share = num_envs / candidate.learners
    average = learner.average.at(candidate.learners) if candidate.learners > 1 else 0.0
    learn = learner.score.at(share) + learner.update.at(share) + average
    if candidate.kind == "colocated":
        collect = _act(learner, share, candidate.threads) * _slowest(candidate.sims, learner.spread)
        if candidate.sims == 1:
            collect, learn = learner.quiet * collect, learner.quiet * learn
        step = collect + learn
    else:
        simulator = curves["cpu"]
        chunk = num_envs / candidate.chunks_per_update
        calls = candidate.chunks_per_update // candidate.sims
        learn += learner.correct.at(share) + learner.transfer.at(share)
        collect, of_one_cpu = (calls * each for each in _act_in_turns(simulator, chunk, candidate.threads))
        if candidate.kind == "overlapped":
            # In lock step everybody waits for the slowest.
            slowest = _slowest(candidate.sims, simulator.spread)
            collect, of_one_cpu = slowest * collect, slowest * of_one_cpu
        alone = collect if cpus is None else max(collect, candidate.sims * of_one_cpu / cpus)
        collect = collect if cpus is None else max(collect, of_one_cpu / candidate.threads)
        step = max(learn, learn + alone * (1.0 - learn / collect)) if collect > 0.0 else learn
        # In lock step the next batch waits for the weights; else simulators go on with those that they have.
        step += learner.publish if candidate.kind == "overlapped" else max(0.0, learner.publish - collect)
    return Prediction(candidate=candidate, step_seconds=step, collect_seconds=collect, learn_seconds=learn)


def _act(curves: StageCurves, num_envs: float, threads: int) -> float:
    """Return how long T steps of so many environments take."""
    return _simulate(curves, num_envs, threads) + curves.infer.at(num_envs)


def _simulate(curves: StageCurves, num_envs: float, threads: int) -> float:
    gain = curves.thread_gain[max(known for known in curves.thread_gain if known <= threads)]
    return gain * curves.simulate.at(num_envs)


def _act_in_turns(curves: StageCurves, num_envs: float, threads: int) -> tuple[float, float]:
    """Return how long T steps of so many environments take whose halves take turns, and would take on one CPU."""
    parts, hidden = (2.0, curves.hidden) if num_envs >= 2.0 else (1.0, 0.0)
    simulate, of_one_cpu = (parts * _simulate(curves, num_envs / parts, count) for count in (threads, 1))
    infer = parts * curves.infer.at(num_envs / parts)
    return simulate + infer - hidden * min(simulate, infer), of_one_cpu + infer


def _slowest(workers: int, spread: float) -> float:
    """Return the mean of the slowest of some workers, in units of the mean of one.

    E max of n normal variables ≤ μ + σ √(2 ln n). Source: Boucheron, Lugosi, Massart, "Concentration inequalities"
    (2013), theorem 2.5.
    """
    return 1.0 + spread * math.sqrt(2.0 * math.log(workers))


def choose(predictions: Iterable[Prediction], *, margin: float = MARGIN) -> Prediction:
    """Return the fastest; of those that are as fast up to `margin`, the one whose experience is newest.

    Args:
        predictions: One or more.
        margin: Share of the step that old experience must save to be worth it.
    """
    known = list(predictions)
    best = min(each.step_seconds for each in known)
    # Sums of the same terms in another order differ in their last bits.
    near = [each for each in known if each.step_seconds <= best * (1.0 + margin) * (1.0 + 1e-9)]
    return min(
        near, key=lambda each: (SIMPLEST_FIRST.index(each.candidate.kind), each.step_seconds, each.candidate.sims)
    )
