"""Which plants a verdict is on, and that it says so. About 4 s."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim2real.errors import InputError
from sim2real.sim.delays import DelaySpec
from sim2real.tasks import get_task
from sim2real_train.checkpoint import State, write_checkpoint
from sim2real_train.commands import EvaluateArgs, ExportArgs, run_evaluate, run_export
from sim2real_train.config import TrainConfig, training_ranges
from sim2real_train.environments import evaluate_on
from sim2real_train.plants import file_ref, nominal_plants, plants_of_file, plants_of_run, plants_of_task
from sim2real_train.policy import TorchPolicy
from sim2real_train.run_folder import RECORD
from sim2real_train.train_command import TrainArgs, config_of
from sim2real_train.worker import Worker
from tests.train.builders import TASK, keep, small_config
from tests.train.test_train_command import foot_friction

WALK = "go2-velocity-flat"


def saved(run: Path, config: TrainConfig) -> Worker:
    """The run folder of a policy that has learned nothing yet."""
    worker = Worker(config, 0, keep)
    state = State(
        schema_version=2,
        toolkit_version="0",
        config=config,
        iteration=0,
        wall_seconds=1.0,
        metrics=(),
        generators=({},),
        members={},
    )
    write_checkpoint(run / "checkpoint", state, worker.learner_state() | {"worker-0": {}})
    return worker


def judge(policy: Path, **options: Any) -> tuple[dict[str, Any], str]:
    outcome = run_evaluate(EvaluateArgs(policy=policy, starts=2, min_success=0.0, **options))
    return outcome.result, outcome.summary


def test_a_run_is_judged_on_what_it_trained_with_as_its_own_verdict_is(tmp_path: Path) -> None:
    """Ranges of a file, the delay of commands and measured delays, none of which anybody types again."""
    file = foot_friction(tmp_path)
    args = TrainArgs(task=WALK, randomization=file, num_envs=4, num_steps=4, hidden=(8,), command_delay=(0.0, 0.04))
    config = config_of(args)
    worker = saved(tmp_path / "run", config)
    result, summary = judge(tmp_path / "run")
    own = evaluate_on(config, TorchPolicy(worker.algorithm.actor), starts=2, seed=1, num_threads=1)
    assert result["mean_return"] == sum(own.returns) / 2
    told = result["plants"]
    count = len(training_ranges(config, get_task(WALK)).parameters)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (told.source, told.ranges, told.file.name, told.file.sha256) == ("run", count, file.name, sha256)
    assert f"judged on plants of the run's {count} ranges (randomization.json, SHA-256 {sha256[:12]}…, " in summary
    assert "commands 0 to 0.04 s late" in told.text
    assert f"policy: {tmp_path / 'run' / 'checkpoint'}, of iteration 0;" in summary
    # Others, and each says so.
    others = [judge(tmp_path / "run", **{option: True}) for option in ("nominal", "task_ranges")]
    assert [each["plants"].source for each, _ in others] == ["nominal", "task"]
    assert len({each["mean_return"] for each, _ in [*others, (result, summary)]}) == 3


def test_a_run_is_exported_as_it_is_judged(tmp_path: Path) -> None:
    """Both take the folder of a run, and both say what they took of it."""
    saved(tmp_path / "run", small_config())
    outcome = run_export(ExportArgs(checkpoint=tmp_path / "run", out=tmp_path / "policy.s2r"))
    taken = tmp_path / "run" / "checkpoint"
    assert (outcome.passed, outcome.result.checkpoint, outcome.result.iteration) == (True, taken, 0)
    assert outcome.summary.startswith(f"policy: {taken}, of iteration 0\n")
    result, summary = judge(tmp_path / "policy.s2r")
    assert result["plants"].source == "task"
    assert f"policy: bundle {tmp_path / 'policy.s2r'}; judged on the nominal plant, since" in summary


def test_plants_tell_where_they_came_from(tmp_path: Path) -> None:
    walk, own = get_task(WALK), len(get_task(WALK).ranges)
    assert nominal_plants().told().text == "the nominal plant"
    assert plants_of_task(walk).told().text == f"plants of the task's own {own} ranges"
    assert plants_of_task(get_task(TASK)).told().text == "the nominal plant, since the task has no ranges"
    file = foot_friction(tmp_path)
    named = f"randomization.json, SHA-256 {file_ref(file).sha256[:12]}…"
    assert plants_of_file(file, walk).told().text == f"plants of {own} ranges ({named}, the task's own of all else)"
    assert plants_of_run(small_config()).told().text == "plants of the run's 1 range (commands 0 to 0.02 s late)"
    late = plants_of_run(small_config(delays=DelaySpec())).told()
    assert (late.ranges, late.measured_delays) == (0, True)
    assert late.text == "the nominal plant, commands as late as measured"
    assert plants_of_run(small_config()).as_late_as_measured().told() == late
    assert plants_of_run(small_config(task="gym:Pendulum-v1")).told().source == "environment"


def test_only_one_option_says_which_plants() -> None:
    for options in ({"nominal": True, "randomization": Path("r.json")}, {"nominal": True, "task_ranges": True}):
        with pytest.raises(InputError, match=r"^--nominal and --.*: each says which plants are judged; keep one"):
            judge(Path("never-read"), **options)


def test_what_cannot_be_judged_is_told_with_what_can(tmp_path: Path) -> None:
    wanted = r"give a bundle \(policy.s2r\), the folder of a run, or one of its checkpoint folders"
    with pytest.raises(InputError, match=f"nothere: there is no such file or folder; {wanted}"):
        judge(tmp_path / "nothere")
    with pytest.raises(InputError, match=f"holds neither a checkpoint nor a bundle; {wanted}"):
        judge(tmp_path)
    (tmp_path / RECORD).write_bytes(msgspec.json.encode({}))
    with pytest.raises(InputError, match="is a run that has saved no checkpoint yet"):
        judge(tmp_path)
