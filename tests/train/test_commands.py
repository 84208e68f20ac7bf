"""`sim2real train` as a user runs it: real processes, real Ray, killed at bad moments."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from sim2real.errors import InputError
from sim2real.robots import get_robot
from sim2real_train.checkpoint import State, read_checkpoint, write_checkpoint
from sim2real_train.commands import EvaluateArgs, ExportArgs, run_evaluate, run_export
from sim2real_train.models import ModelConfig
from sim2real_train.ppo import PpoConfig
from sim2real_train.train_command import TrainArgs, config_of, run_train
from tests.train.builders import TASK, children_named, metrics, small_config
from tests.train.processes import PATIENCE, SIM2REAL, ended_at_last, wait_for_iteration

SMALL = ("--num-envs", "8", "--num-steps", "16", "--hidden", "16", "--seed", "4", "--evaluate-starts", "8")
ENDLESS = (*SMALL, "--iterations", "1000000", "--save-every", "2")


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """Case 25: the folder of a user whose own files have our names."""
    for name in ("train", "edge", "sim2real", "sim2real_train"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported the wrong file')\n")
    return tmp_path


def start(folder: Path, out: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [SIM2REAL, "train", TASK, "--out", out, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As in a terminal, where Ctrl-C reaches every process of the foreground group.
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Wait for the end; return exit code, stdout, and the last line of stderr."""
    stdout, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, stdout.decode(), stderr.decode().replace("\r", "\n").strip().splitlines()[-1]


@pytest.fixture
def running(tmp_path: Path) -> Generator[subprocess.Popen[bytes]]:
    """A run on two workers that has saved at least one checkpoint and would go on for ever."""
    process = start(tmp_path, "run", *ENDLESS, "--workers", "2", "--restarts", "0")
    with ended_at_last(process):
        # The bar moves before the checkpoint of its iteration is written; that of the iteration before is there.
        wait_for_iteration(process, 4)
        yield process


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return children_named("ray::Replica", of=process.pid)


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not alive


def assert_only_on_loopback(processes: list[psutil.Process]) -> None:
    """Who reaches a Ray port can run code on the machine."""
    listening = [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.slow
def test_train_then_resume_equals_train(hostile_folder: Path) -> None:
    """Cases 23, 25, 27: two iterations as a user's process and two more give the files of four in one go."""
    words = ("--workers", "1", "--iterations", "2", "--save-every", "2", "--evaluate-every", "2", "--json")
    code, stdout, last = finish(start(hostile_folder, "run", *SMALL, *words))
    assert code == 0, last
    result = msgspec.json.decode(stdout)
    assert result["iterations"] == 2
    assert result["evaluation"]["starts"] == 8
    assert result["curve"]["iteration"] == [1, 2]
    for out, resume in (("run", True), ("whole", False)):
        more: dict[str, Any] = {"save_every": 2, "evaluate_every": 2, "evaluate_starts": 8, "resume": resume}
        run_train(small_args(hostile_folder / out, seed=4, iterations=4, **more))
    whole, resumed = (read_checkpoint(hostile_folder / out / "checkpoint") for out in ("whole", "run"))
    assert whole.state.members == resumed.state.members  # their SHA-256
    assert whole.state.generators == resumed.state.generators
    assert [timeless(each) for each in whole.state.metrics] == [timeless(each) for each in resumed.state.metrics]
    lines = (hostile_folder / "run" / "metrics.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["iteration"] for line in lines] == [1, 2, 3, 4]
    assert len(list((hostile_folder / "run" / "tensorboard").iterdir())) == 1


def timeless(metrics: Any) -> dict[str, Any]:
    figures = msgspec.structs.asdict(metrics)
    return {name: value for name, value in figures.items() if name not in {"wall_seconds", "stages"}}


def test_ctrl_c_leaves_a_whole_checkpoint_and_says_how_to_go_on(
    running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    family = descendants(running)
    assert len(workers_of(running)) == 2
    assert_only_on_loopback(family)
    os.killpg(running.pid, signal.SIGINT)
    code, stdout, last = finish(running)
    assert code == 2
    assert stdout == ""
    iteration = read_checkpoint(tmp_path / "run" / "checkpoint").state.iteration
    assert iteration >= 2
    assert last == (
        f"error: interrupted; the checkpoint of iteration {iteration} is whole: the same command with --resume goes on "
        "from it"
    )
    assert_gone(family)
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_a_killed_worker_ends_the_run_with_one_line(running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    family = descendants(running)
    workers_of(running)[1].kill()
    code, stdout, last = finish(running)
    assert code == 2
    assert stdout == ""
    iteration = read_checkpoint(tmp_path / "run" / "checkpoint").state.iteration
    assert last.startswith("error: a worker process died")
    assert f"the checkpoint of iteration {iteration} is whole" in last
    assert_gone(family)


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_a_whole_checkpoint(
    running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    family = descendants(running)
    running.kill()
    running.communicate(timeout=PATIENCE)
    assert_gone(family)
    assert read_checkpoint(tmp_path / "run" / "checkpoint").state.iteration >= 2


def small_args(out: Path, **changes: Any) -> TrainArgs:
    fields: dict[str, Any] = {"num_envs": 8, "num_steps": 16, "hidden": (16,), "iterations": 2, "workers": 1}
    return TrainArgs(task=TASK, out=out, **(fields | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"iterations": 0}, "--iterations: expected a number at least 1 and at most 1e9, got 0"),
        ({"num_envs": 10**11}, "num_envs: expected an integer >= 1 and <= 1e6, got 100000000000"),
        ({"seed": -1}, "seed: expected an integer >= 0"),
        ({"num_envs": 9, "workers": 2}, r"num_envs: expected a multiple of num_workers \(2\), got 9"),
        ({"command_delay": (0.02, 0.0)}, "command_delay: expected low <= high"),
        ({"command_delay": (0.0, 9.0)}, "command_delay: expected a number >= 0 and <= 0.1, got 9.0"),
        ({"discount": 1.0}, "algorithm.discount: expected a number > 0 and < 1, got 1.0"),
        ({"learning_rate": float("nan")}, "algorithm.learning_rate: expected a number > 0 and <= 1, got nan"),
        ({"learning_rate": 1.5}, "algorithm.learning_rate: expected a number > 0 and <= 1, got 1.5"),
        ({"hidden": (16, 0)}, "model.hidden: expected an integer >= 1 and <= 65536, got 0"),
        ({"hidden": (10**12,)}, "model.hidden: expected an integer >= 1 and <= 65536, got 1000000000000"),
        ({"hidden": ()}, "model.hidden: expected 1 or more"),
        ({"recurrent": "gru", "algo": "sac"}, "model.recurrent: SAC learns from single steps"),
        ({"set": ("placement.learners=3",)}, "placement.learners: means nothing with placement.kind=colocated"),
        (
            {"set": ("placement.kind=overlapped", "placement.inference=server")},
            "placement.inference: means nothing with placement.kind=overlapped",
        ),
        ({"set": ("algorithm.learning_rate_bounds=[1e-3,1e-4]",)}, "learning_rate_bounds: expected low <= high"),
        ({"set": ("model.recurrent_critic=true",)}, "the critic's memory is of the actor's kind"),
        ({"set": ('model.encoder={"term":"nothing"}',)}, "the observation has no term 'nothing'"),
        ({"set": ("algorithm.clap=1",)}, "--set: no field named 'algorithm.clap'; did you mean algorithm.clip"),
        ({"randomization": Path("missing.json")}, "randomization file missing.json: cannot be read"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        run_train(small_args(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_an_unknown_task_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pendulum-swingup"):
        run_train(TrainArgs(task="pendulum-swingupp", out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_commands_that_read_a_checkpoint_say_so_when_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give the folder of a run, or one of its checkpoint folders"):
        run_export(ExportArgs(checkpoint=tmp_path, out=tmp_path / "policy.s2r"))
    with pytest.raises(InputError, match="--seed: expected an integer from 0"):
        run_export(ExportArgs(checkpoint=tmp_path, out=tmp_path / "policy.s2r", seed=-1))
    for starts in (0, 10**11):
        with pytest.raises(InputError, match="--starts: expected a number at least 1 and at most 1e6"):
            run_evaluate(EvaluateArgs(policy=tmp_path, starts=starts))
    with pytest.raises(InputError, match="--seed: expected an integer from 0"):
        run_evaluate(EvaluateArgs(policy=tmp_path, seed=-1))


def test_a_run_is_neither_overwritten_nor_resumed_under_other_settings(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoint"
    state = State(
        schema_version=2,
        toolkit_version="0",
        config=small_config(num_envs=8, algorithm=PpoConfig(num_steps=16), model=ModelConfig(hidden=(16,)), seed=0),
        iteration=2,
        wall_seconds=1.0,
        metrics=(metrics(1), metrics(2)),
        generators=({},),
        members={},
    )
    write_checkpoint(checkpoint, state, {"weights": {}, "learner": {}, "worker-0": {}})
    before = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    for args, told in (
        (small_args(tmp_path / "run"), "holds a run already; go on with it by --resume"),
        (small_args(tmp_path / "run", resume=True, seed=1), "other settings: seed was 0, now 1"),
        (small_args(tmp_path / "run", resume=True, discount=0.9), r"algorithm\.discount was 0\.98, now 0\.9"),
        (small_args(tmp_path / "run", resume=True, hidden=(8,)), r"model\.hidden was \(16,\), now \(8,\)"),
        (small_args(tmp_path / "run", resume=True, iterations=1), "is at iteration 2 already"),
    ):
        with pytest.raises(InputError, match=told):
            run_train(args)
    assert {file.name: file.read_bytes() for file in checkpoint.iterdir()} == before
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == [".lock", "checkpoint"]


def test_a_robot_of_ones_own_is_found_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in folders of their own, and a run may be gone on with from anywhere."""
    (tmp_path / "mine.xml").write_bytes(get_robot("pendulum").mjcf.read_bytes())
    monkeypatch.chdir(tmp_path)
    robot = config_of(small_args(tmp_path / "run", robot="./mine.xml")).robot
    assert robot is not None
    assert robot.partition("#")[0] == str(tmp_path / "mine.xml")


def test_a_run_goes_on_where_its_robot_s_file_was_moved_to(tmp_path: Path) -> None:
    (tmp_path / "mine.xml").write_bytes(get_robot("pendulum").mjcf.read_bytes())
    args = small_args(tmp_path / "run", robot=str(tmp_path / "mine.xml"), iterations=1)
    run_train(args)
    (tmp_path / "mine.xml").rename(tmp_path / "moved.xml")
    assert (
        run_train(dataclasses.replace(args, robot=str(tmp_path / "moved.xml"), resume=True, iterations=2)).passed
        is not None
    )
    assert read_checkpoint(tmp_path / "run" / "checkpoint").state.iteration == 2


def test_a_robot_whose_file_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    mine = tmp_path / "mine.xml"
    mine.write_bytes(get_robot("pendulum").mjcf.read_bytes())
    args = small_args(tmp_path / "run", robot=str(mine), iterations=1)
    run_train(args)
    mine.write_text(mine.read_text().replace("0.6755", "0.9"))
    with pytest.raises(
        InputError, match=r"other settings: robot was '.*mine\.xml#[0-9a-f]+', now '.*mine\.xml#[0-9a-f]+'"
    ):
        run_train(dataclasses.replace(args, resume=True, iterations=2))
    with pytest.raises(InputError, match="changed since; restore it"):
        run_evaluate(EvaluateArgs(tmp_path / "run"))
