from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from sim2real_train.auto import comparison, measure_curves, pick, with_placement
from sim2real_train.moments import merge
from sim2real_train.placements import Machines, placed
from sim2real_train.plan import enumerate_placements
from sim2real_train.ppo import PpoConfig
from tests.train.builders import small_config


def test_curves_are_of_the_runs_own_stages() -> None:
    few = measure_curves(small_config(num_envs=32, algorithm=PpoConfig(num_steps=16, epochs=1, minibatches=2)))
    assert few.simulate.sizes == (8.0, 16.0, 32.0)
    for curve in (few.simulate, few.infer, few.score, few.update, few.transfer):
        assert min(curve.seconds) > 0.0
    assert few.thread_gain == {1: 1.0}
    # Eight passes over the samples in place of one.
    more = measure_curves(small_config(num_envs=32, algorithm=PpoConfig(num_steps=16, epochs=8, minibatches=2)))
    assert more.update.at(32) > 2.0 * few.update.at(32)


def test_a_placement_is_picked_from_all_and_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = small_config(num_envs=24)
    choice = pick(config)
    assert "measuring simulation, inference and updates" in capfd.readouterr().err
    fitting = enumerate_placements(len(os.sched_getaffinity(0)), 0, num_envs=24)
    assert [each.candidate for each in choice.predictions] == fitting
    assert choice.chosen in choice.predictions
    placed_so = with_placement(config, choice.chosen.candidate)
    spent: list[float] = []
    with placed(placed_so, Machines(num_threads=choice.chosen.candidate.threads), dumps=tmp_path) as workers:
        for _ in range(4):
            began = time.perf_counter()
            collected = workers.collect()
            workers.learn(merge(workers.score()))
            workers.publish(merge(each.observations for each in collected))
            spent.append(time.perf_counter() - began)
    table = comparison(choice, statistics.median(spent)).splitlines()
    assert table[0].split() == ["placement", "sims", "learners", "threads", "step", "collect", "learn"]
    assert sum(line.endswith("<- chosen") for line in table) == 1
    assert table[-1].startswith("a step of the chosen one: predicted ")
