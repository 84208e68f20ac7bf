from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import msgspec
import pytest

from sim2real_train.auto import beside, comparison, measure_curves, pick
from sim2real_train.checkpoint import read_checkpoint
from sim2real_train.plan import enumerate_placements
from sim2real_train.ppo import PpoConfig
from sim2real_train.provenance import read_record
from sim2real_train.train_command import TrainArgs, run_train
from tests.train.builders import small_config


def test_curves_are_of_the_runs_own_stages() -> None:
    curves = measure_curves(small_config(num_envs=32, algorithm=PpoConfig(num_steps=16, epochs=1, minibatches=2)))
    assert curves.simulate.sizes == (8.0, 16.0, 32.0)
    for curve in (curves.simulate, curves.infer, curves.score, curves.update, curves.correct, curves.transfer):
        assert min(curve.seconds) > 0.0
    assert curves.thread_gain == {1: 1.0}


def test_a_placement_is_picked_from_all_that_fit() -> None:
    choice = pick(small_config(num_envs=24))
    fitting = enumerate_placements(len(os.sched_getaffinity(0)), 0, num_envs=24)
    assert [each.candidate for each in choice.candidates] == fitting
    assert choice.predicted_step_seconds in [
        each.step_seconds for each in choice.candidates if each.candidate == choice.chosen
    ]
    assert 0.0 <= choice.curves.hidden <= 1.0
    assert 0.0 < choice.curves.quiet <= 1.0
    *table, ties = comparison(choice).splitlines()
    assert table[0].split() == ["placement", "sims", "learners", "threads", "step", "collect", "learn"]
    assert sum(line.endswith("<- chosen") for line in table) == 1
    assert ties.startswith("steps within 3% of the fastest count as equal, and the first kind of them")
    assert beside(choice).endswith(" s")
    measured = msgspec.structs.replace(choice, measured_step_seconds=2.0 * choice.predicted_step_seconds)
    assert beside(measured).endswith("(+100%)")


@pytest.mark.slow
def test_the_command_tells_predicted_beside_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    args = TrainArgs(
        task="pendulum-swingup",
        out=tmp_path,
        placement="auto",
        iterations=3,
        num_envs=24,
        num_steps=16,
        hidden=(16,),
        evaluate_starts=4,
    )
    outcome = run_train(args)
    told = capfd.readouterr().err
    assert "measuring simulation, inference and updates" in told
    # The predictions once, before; what came of the chosen one beside its own, after.
    assert told.count("<- chosen") == 1
    assert "<- chosen" not in outcome.summary
    assert len(re.findall("a step was predicted to take .* s, took .* s ", outcome.summary)) == 1
    placement = msgspec.to_builtins(outcome.result.placement, str_keys=True)
    assert placement["chosen"] in [each["candidate"] for each in placement["candidates"]]
    assert placement["predicted_step_seconds"] > 0.0
    assert placement["measured_step_seconds"] > 0.0
    assert read_record(tmp_path).placement == outcome.result.placement
    before = read_checkpoint(tmp_path / "checkpoint").state.config
    # Another choice would be another run: what was chosen stays, and is told again.
    resumed = run_train(dataclasses.replace(args, iterations=4, resume=True))
    assert "measuring" not in capfd.readouterr().err
    after = read_checkpoint(tmp_path / "checkpoint").state
    assert (after.config, after.iteration) == (before, 4)
    kept = [msgspec.structs.replace(each.result.placement, measured_step_seconds=None) for each in (outcome, resumed)]
    assert kept[0] == kept[1]
