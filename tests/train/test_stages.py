"""What a run says of its own time. About 5 s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from sim2real_train.chunks import Collected
from sim2real_train.cluster import local_cluster
from sim2real_train.disaggregated import Disaggregated
from sim2real_train.moments import Moments, merge
from sim2real_train.overlapped import Overlapped
from sim2real_train.sleepers import Naps, sleeping_learners, sleeping_sims
from sim2real_train.split import Pools
from sim2real_train.stages import Stages
from sim2real_train.watch import WHY


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def chunk(simulation: float, inference: float) -> Collected:
    return Collected(
        observations=Moments.of(np.zeros((1, 1))),
        mean_reward=0.0,
        episode_returns=[],
        terms={},
        simulation_seconds=simulation,
        inference_seconds=inference,
    )


def spend(stages: Stages, clock: Clock, stage: str, seconds: float) -> None:
    with stages.spend(stage):
        clock.now += seconds


def test_workers_that_do_both_are_idle_on_either_side_while_they_are_at_the_other() -> None:
    clock = Clock()
    stages = Stages(clock)
    spend(stages, clock, "collect", 3.0)
    for _ in range(2):
        stages.add(chunk(2.0, 1.0), env_steps=50)
    spend(stages, clock, "learn", 1.0)
    figures = stages.report(2)
    assert (figures["sim_idle"], figures["learner_idle"]) == (0.25, 0.75)
    assert (figures["simulation_seconds"], figures["inference_seconds"], figures["wall_seconds"]) == (2.0, 1.0, 4.0)
    assert (figures["env_steps_per_second"], figures["simulation_env_steps_per_second"]) == (25.0, 50.0)
    assert (figures["staleness_0"], figures["staleness_max"]) == (2.0, 0.0)


def test_simulators_apart_are_idle_only_when_they_have_no_chunk() -> None:
    """Whenever chunks finish: one is at work in every interval, and nothing is finished in the last."""
    clock = Clock()
    stages = Stages(clock)
    idle: list[float] = []
    for busy in (1.0, 3.0, 5.0):
        spend(stages, clock, "learn", 2.0)
        idle.append(stages.report(1, busy_seconds=busy)["sim_idle"])
    assert idle == [0.5, 0.0, 0.0]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Places for two workers that sleep."""
    with local_cluster(2):
        yield


def pools(naps: Naps) -> Pools:
    return Pools(
        sims=sleeping_sims(naps), learners=sleeping_learners(naps), num_sims=1, num_learners=1, chunks_per_update=1
    )


def test_a_simulator_at_work_is_not_idle_though_nothing_has_come_of_it_yet() -> None:
    """As in the last iteration of an overlapped run, whose next batch nobody waits for."""
    with contextlib.closing(Overlapped(pools(Naps(simulate=1.0, learn=0.4)))) as placement:
        (collected,) = placement.collect()
        placement.stages()
        placement.learn(merge(placement.score()))
        placement.publish(collected.observations)
        figures = placement.stages()
    assert figures["sim_idle"] < 0.2
    assert figures["learner_idle"] < 0.2


def test_each_line_tells_of_the_batch_that_it_learned() -> None:
    naps = Naps(simulate=0.02, infer=0.01, learn=0.06, env_steps=7)
    with contextlib.closing(Overlapped(pools(naps))) as placement:
        for _ in range(4):
            (collected,) = placement.collect()
            placement.learn(merge(placement.score()))
            placement.publish(collected.observations)
            figures = placement.stages()
            assert (figures["simulation_seconds"], figures["inference_seconds"]) == (0.02, 0.01)
            assert figures["env_steps_per_second"] == pytest.approx(7 / figures["wall_seconds"])
            assert 0.0 <= figures["sim_idle"] < 1.0


def test_a_worker_that_is_replaced_is_told_of_as_it_happens(capfd: pytest.CaptureFixture[str]) -> None:
    # Each ends itself over its third chunk.
    with contextlib.closing(Disaggregated(pools(Naps(dies_at=(-1, 2))), max_staleness=1)) as placement:
        while not placement.pool.replaced:
            (collected,) = placement.collect()
            placement.learn(merge(placement.score()))
            placement.publish(collected.observations)
        replaced = placement.pool.replaced
    told = [line for line in capfd.readouterr().err.splitlines() if "simulator worker" in line]
    assert told == [f"simulator worker 0 died ({WHY}) and was replaced; the run goes on"] * replaced
