"""What `sim2real train` says of itself and refuses, before anything is trained. About 5 s."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim2real.errors import InputError
from sim2real.parsing import HelpRequestedError, parse
from sim2real.tasks import get_task
from sim2real_train.commands import EvaluateArgs, ExportArgs
from sim2real_train.config import training_ranges
from sim2real_train.show import SCHEDULE, Shown
from sim2real_train.train_command import _FIELDS, TrainArgs, config_of, run_train  # pyright: ignore[reportPrivateUsage]


def shown(task: str, *options: str) -> tuple[Shown, str]:
    outcome = run_train(parse("train", TrainArgs, [task, "--show", *options]))
    assert isinstance(outcome.result, Shown)
    return outcome.result, outcome.summary


def test_show_tells_the_schedule_and_how_it_is_set() -> None:
    result, summary = shown("go2-velocity-flat", "--save-every", "7")
    rows = {row.name: row for row in result.fields}
    assert [name for name in rows if name.startswith("schedule.")] == [f"schedule.{field}" for field in SCHEDULE]
    assert (rows["schedule.iterations"].value, rows["schedule.save_every"].value) == (700, 7)
    assert rows["schedule.restarts"].allowed == "an integer >= 0 and <= 1e6"
    assert all(row.meaning for row in result.fields)
    assert "none by --set" in summary
    for field in SCHEDULE:
        option = f"--{field.replace('_', '-')}"
        with pytest.raises(
            InputError, match=f"--set: schedule.{field} is no setting of what is learned; give {option}"
        ):
            shown("go2-velocity-flat", "--set", f"schedule.{field}=1")


def test_show_tells_what_every_field_may_be() -> None:
    result, summary = shown("pendulum-swingup")
    allowed = {row.name: row.allowed for row in result.fields}
    assert allowed["algorithm.clip"] == "a number > 0 and <= 1e9"
    assert allowed["engine"] == "one of mujoco, mujoco_warp, newton"
    assert "algorithm.clip" in summary
    assert "(a number > 0 and <= 1e9)" in summary


def test_show_tells_the_ranges_that_training_draws_from(tmp_path: Path) -> None:
    """The task's own where no file is given, as training itself merges them with a file's."""
    for options in ((), ("--command-delay", "0.001", "0.03"), ("--randomization", str(foot_friction(tmp_path)))):
        result, summary = shown("go2-velocity-flat", *options)
        drawn = training_ranges(result.config, get_task("go2-velocity-flat")).parameters
        assert [(each.name, each.low, each.high, each.unit) for each in result.ranges] == [
            (each.name, each.low, each.high, each.unit) for each in drawn
        ]
        assert len(drawn) > 5
        assert "null" not in summary.partition("physics, drawn")[2]
        assert "randomization" not in {row.name.partition(".")[0] for row in result.fields}
    assert "foot_friction       0.3 to 1\n" in summary
    assert shown("gym:Pendulum-v1")[0].ranges == []


def foot_friction(folder: Path) -> Path:
    friction = {"name": "foot_friction", "unit": "1", "nominal": 0.8, "low": 0.3, "high": 1.0, "operation": "set"}
    rest = {"distribution": "uniform", "identified": False, "how": "wet floors", "delays": None}
    file = folder / "randomization.json"
    content: dict[str, Any] = {"schema_version": 2, "robot": "go2", "toolkit_version": "by hand", "covariance": None}
    content |= {"log_parameters": [], "logs": [], "fit_position_mae": 0.0, "held_out": []}
    file.write_text(json.dumps(content | {"parameters": [friction | rest]}))
    return file


@pytest.mark.parametrize("option", ["--workers", "--sim-threads", "--learners", "--max-staleness"])
def test_what_auto_chooses_cannot_be_given_too(option: str) -> None:
    with pytest.raises(InputError, match=f"^{option}: --placement auto chooses where all runs; leave it out"):
        shown("pendulum-swingup", "--placement", "auto", option, "1")


@pytest.mark.parametrize("assignment", ["num_workers=2", "placement.kind=overlapped"])
def test_what_auto_chooses_cannot_be_set_either(assignment: str) -> None:
    with pytest.raises(InputError, match="--set: --placement auto chooses num_workers and placement"):
        shown("pendulum-swingup", "--placement", "auto", "--set", assignment)


@pytest.mark.parametrize("kind", ["colocated", "overlapped", "auto"])
def test_workers_join_disaggregated_runs_alone(kind: str) -> None:
    with pytest.raises(InputError, match=f"--max-workers: means nothing with --placement {kind}; leave it out"):
        shown("pendulum-swingup", "--placement", kind, "--max-workers", "4")
    split = ("pendulum-swingup", "--placement", "disaggregated", "--workers", "2")
    assert shown(*split, "--max-workers", "4")[0].config.num_workers == 2
    with pytest.raises(InputError, match=r"--max-workers: expected 0 or at least --workers \(2\), got 1"):
        shown(*split, "--max-workers", "1")


@pytest.mark.parametrize(
    ("words", "told", "unloaded"),
    [
        (["train", "pendulum-swingupp", "--out", "o"], "unknown; allowed: ", {"torch", "ray"}),
        (["train", "pendulum-swingup", "--out", "o", "--iterations", "0"], "--iterations: ", {"torch", "ray"}),
        (["train", "pendulum-swingup", "--out", "o", "--algo", "a2c"], "--algo", {"torch", "ray"}),
        (["train", "pendulum-swingup"], "--out: expected the folder of the run", {"torch", "ray"}),
        (["train", "pendulum-swingup", "--out", "o", "--num-envs", "0"], "num_envs: ", {"ray"}),
        (["eval", "p", "--starts", "0"], "--starts: ", {"torch", "ray"}),
        (["export", "p", "--out", "o", "--seed", "-1"], "--seed: ", {"torch", "ray"}),
    ],
    ids=["task", "iterations", "algo", "out", "num-envs", "starts", "seed"],
)
def test_what_is_wrong_by_itself_is_told_before_heavy_libraries_are_loaded(
    words: list[str], told: str, unloaded: set[str]
) -> None:
    program = (
        f"import sys; from sim2real.cli import main; code = main({words}); "
        f"print(code, sorted({unloaded} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert told in done.stderr
    assert done.stdout == "2 []\n"


@pytest.mark.parametrize(
    ("command", "args"), [("train", TrainArgs), ("evaluate", EvaluateArgs), ("export", ExportArgs)]
)
def test_help_names_what_an_option_takes_and_what_it_is_without(command: str, args: type[Any]) -> None:
    with pytest.raises(HelpRequestedError) as asked:
        parse(command, args, ["--help"])
    text = asked.value.text
    assert "{None" not in text
    assert "(default: None)" not in text
    assert "STR" not in text
    assert "PATH" not in text


def test_options_that_are_left_out_take_the_presets() -> None:
    config = config_of(TrainArgs(task="pendulum-swingup", out=Path("never-made")))
    assert (config.num_workers, config.placement.kind) == (1, "colocated")


@pytest.mark.parametrize(
    ("options", "assignment", "told"),
    [
        (("--num-envs", "64"), "num_envs=32", "--set num_envs: --num-envs 64 says it already; keep one"),
        (("--seed", "0"), "seed=2", "--set seed: --seed 0 says it already; keep one"),
        (("--engine", "mujoco"), "engine=newton", "--set engine: --engine mujoco says it already"),
        (("--command-delay", "0", "0.02"), "command_delay=[0,0.01]", "--set command_delay: --command-delay 0.0 0.02 "),
        (("--workers", "2"), "num_workers=2", "--set num_workers: --workers 2 says it already"),
        (("--privileged",), "model.privileged=false", "--set model.privileged: --privileged says it already"),
        (("--hidden", "8", "8"), 'model={"hidden":[4]}', "--set model: --hidden 8 8 says it already"),
        (("--entropy", "0.1"), "algorithm.entropy_coefficient=0", "--set algorithm.entropy_coefficient: --entropy 0.1"),
        ((), "task=acrobot-swingup", r"--set task: TASK \(pendulum-swingup\) says it already"),
    ],
)
def test_no_setting_silently_outranks_an_option(options: tuple[str, ...], assignment: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        shown("pendulum-swingup", *options, "--set", assignment)


def test_what_no_option_says_is_set() -> None:
    result, _ = shown("pendulum-swingup", "--num-envs", "64", "--set", "seed=2", "model.hidden=[8]")
    assert (result.config.num_envs, result.config.seed, result.config.model.hidden) == (64, 2, (8,))


def test_every_setting_of_an_option_is_one() -> None:
    """What two ways say of a field is found by its name, which a renamed field would no longer have."""
    names = {field.name for algo in ("ppo", "sac") for field in shown("pendulum-swingup", "--algo", algo)[0].fields}
    fields = set(_FIELDS.values()) - {"algorithm.algo", "algorithm.teacher"}
    assert {field for field in fields if field not in names} == {"randomization"}
