"""Real simulators apart from real learners: what is learned, what is resumed, what dies. About 25 s."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from sim2real.errors import InputError
from sim2real_train.checkpoint import read_checkpoint
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.moments import merge
from sim2real_train.placement import Placement
from sim2real_train.placements import Machines, placed
from sim2real_train.trainer import Schedule, train
from tests.train.builders import children_named, small_config

MOST_ITERATIONS = 10_000
"""More than are ever made while a process starts."""
SCHEDULE = Schedule(iterations=2, save_every=1, evaluate_every=100, evaluate_starts=4)


def split_config(kind: str, **placement: Any) -> TrainConfig:
    where = PlacementConfig(kind=kind, **placement)  # pyright: ignore[reportArgumentType] the tests name them
    return small_config(num_workers=2, placement=where)


def iterate(placement: Placement) -> dict[str, float]:
    """One iteration as the controller does it; return the first learner's figures."""
    collected = placement.collect()
    figures = placement.learn(merge(placement.score()))
    placement.publish(merge(each.observations for each in collected))
    assert len(collected) == 2
    return figures[0]


def sims() -> list[psutil.Process]:
    """Simulator workers, found as a person finds them."""
    return children_named("ray::SimWorker")


def both(placement: Placement) -> list[psutil.Process]:
    """Iterate until both simulator workers are there; the first of them goes on alone until then."""
    for _ in range(MOST_ITERATIONS):
        iterate(placement)
        if len(found := sims()) == 2:
            return found
    raise AssertionError("the second simulator worker never came")


def test_overlapped_runs_are_equal_and_each_batch_but_the_first_is_one_update_old(tmp_path: Path) -> None:
    weights: list[bytes] = []
    ages: list[float] = []
    for _ in range(2):
        with placed(split_config("overlapped"), Machines(), dumps=tmp_path) as workers:
            for _ in range(3):
                iterate(workers)
                ages.append(workers.stages()["staleness_mean"])
            arrays = workers.learner()["weights"]
            weights.append(b"".join(array.tobytes() for array in arrays.values()))
    assert weights[0] == weights[1]
    assert ages == [0.0, 1.0, 1.0] * 2


def test_a_killed_simulator_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    """Case 24."""
    with placed(split_config("disaggregated", max_staleness=2), Machines(), dumps=tmp_path) as workers:
        first, second = both(workers)
        os.kill(first.pid, signal.SIGKILL)
        # The other one goes on alone until the new one is there.
        both(workers)
        stages = workers.stages()
        assert stages["replaced_workers"] == 1.0
        assert stages["staleness_max"] <= 2.0
        now = sims()
        assert second in now
        assert first not in now


def test_the_policy_may_act_in_a_server(tmp_path: Path) -> None:
    with placed(split_config("disaggregated", inference="server"), Machines(), dumps=tmp_path) as workers:
        for _ in range(3):
            assert iterate(workers)["kl"] < 0.1
        assert workers.stages()["staleness_max"] <= 1.0


@pytest.mark.parametrize("kind", [pytest.param("overlapped", marks=pytest.mark.slow), "disaggregated"])
def test_a_run_goes_on_from_its_checkpoint(kind: str, tmp_path: Path) -> None:
    config = split_config(kind)
    train(config, SCHEDULE, tmp_path)
    before = read_checkpoint(tmp_path / "checkpoint")
    longer = Schedule(iterations=3, save_every=1, evaluate_every=100, evaluate_starts=4)
    result = train(config, longer, tmp_path, resume=True)
    assert result.iterations == 3
    after = read_checkpoint(tmp_path / "checkpoint")
    assert int(before.arrays["learner"]["version"]) == 2
    assert int(after.arrays["learner"]["version"]) == 3


@pytest.mark.slow
def test_one_simulator_may_feed_two_learners(tmp_path: Path) -> None:
    config = small_config(num_workers=1, placement=PlacementConfig(kind="overlapped", learners=2))
    with placed(config, Machines(), dumps=tmp_path) as workers:
        for _ in range(2):
            iterate(workers)
        assert workers.stages()["simulation_env_steps_per_second"] > 0.0
    uneven = small_config(num_envs=9, num_workers=1, placement=PlacementConfig(kind="overlapped", learners=2))
    with pytest.raises(InputError, match="expected a multiple of 2"), placed(uneven, Machines(), dumps=tmp_path):
        pass


def test_a_cluster_that_nobody_runs_is_told_of_in_seconds(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="--address: nobody answers"),
        placed(split_config("disaggregated"), Machines(address="127.0.0.1:1"), dumps=tmp_path),
    ):
        pass


def test_more_workers_than_the_machine_could_run_are_refused_at_once(tmp_path: Path) -> None:
    config = small_config(num_envs=1000, num_workers=1000)
    with pytest.raises(InputError, match="1000 workers are asked for"), placed(config, Machines(), dumps=tmp_path):
        pass


def test_replicas_stay_on_one_machine(tmp_path: Path) -> None:
    config = split_config("disaggregated", learners=2)
    with (
        pytest.raises(InputError, match="expected one replica of the learner, got 2"),
        placed(config, Machines(address="127.0.0.1:1"), dumps=tmp_path),
    ):
        pass
