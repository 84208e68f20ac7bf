"""Which placement suits this run on these machines: measured stages, predicted steps, the best of them.

Measuring takes a few iterations of the run's own environments and networks, in processes as the workers': of three
sizes in as many processes as the machine has CPUs, then in one of them alone. What they learn is thrown away.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import ray
import torch

from sim2real_train.actors import answers, place
from sim2real_train.algorithms import make_algorithm
from sim2real_train.cluster import local_cluster, remote_cluster
from sim2real_train.collector import Collector
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.messages import tell
from sim2real_train.peers import join_peers
from sim2real_train.plan import (
    MARGIN,
    SIMPLEST_FIRST,
    Candidate,
    Choice,
    Curve,
    StageCurves,
    choose,
    enumerate_placements,
    predict,
)
from sim2real_train.rollout import Rollout

__all__ = ["beside", "comparison", "measure_curves", "pick", "with_placement"]

WARM_UP: Final = 1
REPEATS: Final = 5
SHARES: Final = (4, 2, 1)
"""Sizes that are measured: the run's environments, divided by these."""
STAGES: Final = ("simulate", "infer", "score", "update", "correct", "transfer")
MOST_PROBES: Final = 4
"""Workers that measure at the same time."""
REDUCTIONS: Final = 20
"""Averages of two replicas that are timed together."""


def pick(config: TrainConfig, *, address: str | None = None) -> Choice:
    """Measure the stages, and choose.

    Args:
        config: The run; its placement and number of workers are left out of account.
        address: Ray cluster that it will run in, where there is one replica of the learner; None: this machine.
    """
    here = len(os.sched_getaffinity(0))
    probes = min(here, MOST_PROBES) if address is None else 1
    cluster = local_cluster(probes) if address is None else remote_cluster(address, [(1, 0)])
    with cluster as folder:
        cpus = here if address is None else int(ray.cluster_resources().get("CPU", 1.0))
        curves = _measured(config, folder, cpus, probes)
    fitting = [
        candidate
        for candidate in enumerate_placements(cpus, 0, num_envs=config.num_envs)
        if address is None or candidate.learners == 1
    ]
    predictions = tuple(
        predict(candidate, {"cpu": curves}, num_envs=config.num_envs, cpus=cpus) for candidate in fitting
    )
    best = choose(predictions)
    return Choice(
        chosen=best.candidate, predicted_step_seconds=best.step_seconds, candidates=predictions, curves=curves
    )


def with_placement(config: TrainConfig, candidate: Candidate) -> TrainConfig:
    """Return the run as it is placed so; each worker's simulation has `candidate.threads`, which no result shows."""
    split = candidate.kind != "colocated"
    where = PlacementConfig(kind=candidate.kind, learners=candidate.learners if split else 1)
    return msgspec.structs.replace(config, num_workers=candidate.sims, placement=where)


def comparison(choice: Choice) -> str:
    """Return a table of the best prediction of each kind, and how it was chosen from, for people."""
    widths = "{:<14} {:>4} {:>8} {:>7} {:>8} {:>8} {:>8}"
    lines = [widths.format("placement", "sims", "learners", "threads", "step", "collect", "learn")]
    for kind in SIMPLEST_FIRST:
        of_kind = [each for each in choice.candidates if each.candidate.kind == kind]
        if not of_kind:
            continue
        chosen = [each for each in of_kind if each.candidate == choice.chosen]
        (best,) = chosen or [min(of_kind, key=lambda each: each.step_seconds)]
        where = best.candidate
        seconds = (f"{each:.3f} s" for each in (best.step_seconds, best.collect_seconds, best.learn_seconds))
        row = widths.format(kind, where.sims, where.learners, where.threads, *seconds)
        lines.append(f"{row} <- chosen" if chosen else row)
    lines.append(
        f"steps within {MARGIN:.0%} of the fastest count as equal, and the first kind of them in this table is chosen: "
        "its experience is the newest"
    )
    return "\n".join(lines)


def beside(choice: Choice) -> str:
    """Return a line with the prediction of the chosen placement beside the time that a step of it then took."""
    where, predicted, measured = choice.chosen, choice.predicted_step_seconds, choice.measured_step_seconds
    told = (
        f"placement auto: {where.kind} ({where.sims} to simulate, {where.learners} to learn): a step was predicted to "
        f"take {predicted:.3f} s"
    )
    return told if measured is None else f"{told}, took {measured:.3f} s ({measured / predicted - 1.0:+.0%})"


def measure_curves(config: TrainConfig) -> StageCurves:
    """Measure the stages of one worker, in this process."""
    sizes = sorted({max(1, config.num_envs // share) for share in SHARES})
    points = _taken([_Probe(config, size) for size in sizes])
    seconds = {stage: tuple(point[stage] for point in points) for stage in STAGES}
    return _curves(tuple(map(float, sizes)), seconds, publish=points[-1]["publish"], spread=points[-1]["spread"])


class _Probe:
    """A worker of so many environments, alone with all of its network."""

    def __init__(
        self, config: TrainConfig, num_envs: int, *, num_threads: int = 1, groups: int = 1, learns: bool = True
    ) -> None:
        alone = msgspec.structs.replace(config, num_envs=num_envs, num_workers=1, placement=PlacementConfig())
        self._collector = Collector(alone, num_envs, rank=0, num_threads=num_threads, groups=groups)
        self._algorithm = make_algorithm(alone, self._collector.sizes, rank=0, average=_keep)
        self._learns = learns

    def iterate(self) -> dict[str, float]:
        """Return the time [s] of each stage of an iteration."""
        algorithm, rollout = self._algorithm, self._collector.rollout
        collected = self._collector.collect(algorithm.behaviour, algorithm.version)
        spent = {"simulate": collected.simulation_seconds, "infer": collected.inference_seconds}
        if not self._learns:
            return spent
        marks = [time.perf_counter()]
        rollout.version -= 1
        algorithm.score([rollout])
        marks.append(time.perf_counter())
        rollout.version += 1
        advantages = algorithm.score([rollout])
        marks.append(time.perf_counter())
        algorithm.learn(advantages)
        marks.append(time.perf_counter())
        Rollout.of(rollout.arrays())
        marks.append(time.perf_counter())
        algorithm.publish(collected.observations)
        for tensor in algorithm.behaviour.weights().values():
            tensor.numpy().copy()
        marks.append(time.perf_counter())
        older, *others = np.diff(marks).tolist()
        spent |= dict(zip(("score", "update", "transfer", "publish"), others, strict=True))
        return spent | {"correct": max(0.0, older - spent["score"])}

    def close(self) -> None:
        """Let go of the environments."""
        self._collector.close()


def _taken(probes: Sequence[_Probe]) -> list[dict[str, float]]:
    """Return each probe's time [s] of each stage, and the spread of collecting.

    They take turns, so that whatever disturbs the machine for a while disturbs all of them; and since it only ever
    makes them slower, the lower quartile is what they take.
    """
    rounds = [[probe.iterate() for probe in probes] for _ in range(WARM_UP + REPEATS)][WARM_UP:]
    found: list[dict[str, float]] = []
    for probe, points in zip(probes, zip(*rounds, strict=True), strict=True):
        probe.close()
        taken = {stage: float(np.quantile([point[stage] for point in points], 0.25)) for stage in points[0]}
        collect = [point["simulate"] + point["infer"] for point in points]
        found.append(taken | {"spread": statistics.pstdev(collect) / statistics.fmean(collect)})
    return found


class Alone(NamedTuple):
    """What one worker does with the machine to itself."""

    seconds: float
    """Of an iteration of all environments, with one thread."""
    gain: dict[int, float]
    """See `StageCurves.thread_gain`."""
    hidden: float
    """See `StageCurves.hidden`."""


class AutoProbe:
    """Measures where a worker would run."""

    def measure(self, config: TrainConfig) -> StageCurves:
        """See `measure_curves`."""
        torch.set_num_threads(1)
        return measure_curves(config)

    def alone(self, config: TrainConfig, cpus: int) -> Alone:
        """Measure while nobody else does."""
        torch.set_num_threads(1)
        threads = [2**power for power in range(1, cpus.bit_length())]
        half = max(1, config.num_envs // 2)
        groups = min(2, config.num_envs)
        one, *others = _taken(
            [
                _Probe(config, config.num_envs),
                _Probe(config, half, learns=False),
                _Probe(config, half * groups, groups=groups, learns=False),
                *(_Probe(config, config.num_envs, num_threads=count, learns=False) for count in threads),
            ]
        )
        separate, in_turns, *threaded = others
        gain = {count: each["simulate"] / one["simulate"] for count, each in zip(threads, threaded, strict=True)}
        saved = groups * _collecting(separate) - _collecting(in_turns)
        hidden = saved / (groups * min(separate["simulate"], separate["infer"]))
        return Alone(_iteration(one), {1: 1.0} | gain, min(max(hidden, 0.0), 1.0))

    def count(self, config: TrainConfig) -> tuple[int, int]:
        """Return how many vectors an update averages over the replicas, and how many numbers they have together."""
        sizes: list[int] = []
        few = msgspec.structs.replace(
            config, num_envs=min(config.num_envs, 8), num_workers=1, placement=PlacementConfig()
        )
        collector = Collector(few, few.num_envs, rank=0)
        algorithm = make_algorithm(few, collector.sizes, rank=0, average=lambda vector: sizes.append(vector.numel()))
        collector.collect(algorithm.behaviour)
        algorithm.learn(algorithm.score([collector.rollout]))
        collector.close()
        return len(sizes), sum(sizes)

    def average(self, rank: int, rendezvous: str, numbers: int) -> float:
        """Return how long [s] two replicas take to average a vector."""
        reduce = join_peers(rank, 2, rendezvous)
        vector = torch.zeros(numbers)
        reduce(vector)
        began = time.perf_counter()
        for _ in range(REDUCTIONS):
            reduce(vector)
        return (time.perf_counter() - began) / REDUCTIONS


def _measured(config: TrainConfig, folder: Path, cpus: int, count: int) -> StageCurves:
    """Let workers measure their stages at the same time, since they share memory, caches and a busy machine."""
    tell("placement auto: measuring simulation, inference and updates")
    probes = [place(AutoProbe, num_cpus=1) for _ in range(count)]
    curves = _mean(answers([probe.measure.remote(config) for probe in probes]))
    alone: Alone = answers([probes[0].alone.remote(config, cpus)])[0]
    together = _iteration({stage: getattr(curves, stage).seconds[-1] for stage in STAGES})
    quiet = min(1.0, alone.seconds / together) if count > 1 else 1.0
    average = curves.average
    if count > 1:
        vectors, numbers = answers([probes[0].count.remote(config)])[0]
        rendezvous = str(folder / f"peers-{uuid.uuid4().hex}")
        pair = enumerate(probes[:2])
        seconds = max(answers([probe.average.remote(rank, rendezvous, numbers // vectors) for rank, probe in pair]))
        # Replicas pass sums on from one to the next: each one more adds as long again.
        average = Curve(sizes=(1.0, 2.0), seconds=(0.0, vectors * seconds))
    for probe in probes:
        ray.kill(probe)
    return msgspec.structs.replace(curves, thread_gain=alone.gain, average=average, quiet=quiet, hidden=alone.hidden)


def _collecting(seconds: Mapping[str, float]) -> float:
    return seconds["simulate"] + seconds["infer"]


def _iteration(seconds: Mapping[str, float]) -> float:
    """Return how long an iteration of one colocated worker takes whose stages take so long [s]."""
    return _collecting(seconds) + seconds["score"] + seconds["update"]


def _mean(measured: list[StageCurves]) -> StageCurves:
    """Return the mean of what several workers measured of the same sizes."""
    seconds = {
        stage: tuple(np.mean([getattr(curves, stage).seconds for curves in measured], axis=0).tolist())
        for stage in STAGES
    }
    publish, spread = (float(np.mean([getattr(each, name) for each in measured])) for name in ("publish", "spread"))
    return _curves(measured[0].simulate.sizes, seconds, publish=publish, spread=spread)


def _curves(
    sizes: tuple[float, ...], seconds: Mapping[str, tuple[float, ...]], *, publish: float, spread: float
) -> StageCurves:
    simulate, infer, score, update, correct, transfer = (Curve(sizes=sizes, seconds=seconds[stage]) for stage in STAGES)
    return StageCurves(
        simulate=simulate,
        infer=infer,
        score=score,
        update=update,
        correct=correct,
        transfer=transfer,
        publish=publish,
        spread=spread,
    )


def _keep(vector: torch.Tensor) -> None:
    """One replica's is the mean already."""
