"""Searches for settings with Ray Tune. About 25 s: every trial is a training in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim2real.errors import InputError
from sim2real_train.provenance import read_record
from sim2real_train.tune import SearchFailedError, TuneArgs, TuneResult, parse_space, run_tune
from tests.train.builders import TASK

SMALL = ("--num-envs=8", "--num-steps=16", "--hidden=16", "--evaluate-every=1", "--evaluate-starts=4")


def args(out: Path, **changes: Any) -> TuneArgs:
    space = ("algorithm.learning_rate=log:1e-4..1e-2",)
    fields: dict[str, Any] = {"space": space, "trials": 2, "iterations": 2, "train_args": SMALL}
    return TuneArgs(task=TASK, out=out, **(fields | changes))


def test_trials_are_runs_and_the_best_comes_first(tmp_path: Path) -> None:
    result = run_tune(args(tmp_path / "search", metric="mean_reward", grace=1)).result
    assert isinstance(result, TuneResult)
    rewards = [trial.metric for trial in result.trials]
    assert len(rewards) == 2
    assert None not in rewards
    assert rewards == sorted(rewards, key=lambda value: value or 0.0, reverse=True)
    for trial in result.trials:
        assert trial.error is None
        drawn = trial.settings["algorithm.learning_rate"]
        assert 1e-4 <= drawn <= 1e-2
        assert read_record(trial.out).config.algorithm.learning_rate == drawn
    assert len({trial.out for trial in result.trials}) == 2
    written = msgspec.json.decode((tmp_path / "search" / "tune.json").read_bytes())
    assert [trial["metric"] for trial in written["trials"]] == rewards


def test_a_setting_that_cannot_be_is_told_by_the_training(tmp_path: Path) -> None:
    with pytest.raises(SearchFailedError, match=r"no field named 'algorithm\.clap'; did you mean algorithm\.clip"):
        run_tune(args(tmp_path / "search", space=("algorithm.clap=0.1..0.2",), trials=1))


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("algorithm.clip", "expected NAME=LOW..HIGH"),
        ("algorithm.clip=0.2..0.1", "expected LOW < HIGH"),
        ("algorithm.clip=log:0..0.1", "expected 0 < LOW < HIGH"),
        ("algorithm.clip=a..b", "expected two numbers"),
        ("algorithm.clip=nan..1", "expected LOW < HIGH"),
    ],
)
def test_what_is_no_space_is_told(assignment: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_space([assignment])


def test_a_field_is_drawn_once_and_something_is() -> None:
    with pytest.raises(InputError, match="named twice"):
        parse_space(["seed=0..1", "seed=2|3"])
    with pytest.raises(InputError, match="one field or more"):
        parse_space([])


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="is not empty"):
        run_tune(args(tmp_path))
