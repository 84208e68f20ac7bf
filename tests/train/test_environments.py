"""What a run learns in: whose physics, whose delays, and what becomes of a simulation that diverges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY
from sim2real.sim.delays import DelaySpec, GroupDelay, Uniform
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.dump import read_dump
from sim2real_train.config import training_ranges
from sim2real_train.environments import check_task
from tests.train.builders import TASK, make_worker, small_config, task_env

MEASURED = DelaySpec(commands=(GroupDelay(delay=Uniform(low=0.03, high=0.04)),))


def test_measured_delays_take_the_place_of_configured_ones() -> None:
    config = small_config(delays=MEASURED)
    assert COMMAND_DELAY not in {each.name for each in training_ranges(config, get_task(TASK)).parameters}
    delays = task_env(make_worker(config)).plant.command_delay
    assert ((delays > 0.0275) & (delays < 0.0425)).all()
    configured = task_env(make_worker(small_config())).plant.command_delay
    assert (configured <= 0.0212).all()


def test_a_task_brings_ranges_of_its_own_where_no_calibration_names_them() -> None:
    task = get_task("go2-velocity-flat")
    names = {each.name for each in training_ranges(small_config(task=task.name), task).parameters}
    assert {"base_mass", "foot_friction", COMMAND_DELAY} <= names


def test_training_starts_where_the_task_says_and_judging_where_it_begins() -> None:
    """An acrobot learns from anywhere and is judged from hanging; a pendulum knows one start."""
    learned = task_env(make_worker(small_config(task="acrobot-swingup", num_envs=64))).plant.sim.qpos
    judged = TaskEnv(get_task("acrobot-swingup"), 64, seed=0).plant.sim.qpos
    assert np.abs(learned).max() > 2.5
    assert np.abs(judged).max() < 0.6
    pendulum = get_task(TASK)
    assert pendulum.training_start is None
    assert task_env(make_worker(small_config())).task.start is pendulum.start


def test_training_pushes_harder_than_judging() -> None:
    task = get_task("go2-velocity-flat")
    assert task.training_events is not None
    learned = task_env(make_worker(small_config(task=task.name)))
    assert learned.task.events == task.training_events
    assert learned.task.events != task.events == TaskEnv(task, 1, seed=0).task.events
    assert task_env(make_worker(small_config())).task.events == get_task(TASK).events == ()


@pytest.mark.parametrize(("change", "option"), [({"robot": "go2"}, "--robot"), ({"delays": MEASURED}, "--latency")])
def test_a_foreign_environment_has_its_own_physics(change: dict[str, object], option: str) -> None:
    with pytest.raises(InputError, match=f"gym:Pendulum-v1: has its own physics; leave out {option}"):
        check_task(small_config(task="gym:Pendulum-v1", **change))


def test_a_diverged_simulation_is_dumped_and_learning_goes_on(tmp_path: Path) -> None:
    """Case 26."""
    worker = make_worker(small_config(), dumps=tmp_path)
    worker.collect()
    task_env(worker).plant.sim.qvel[3] = np.nan
    collected = worker.collect()
    assert collected.terms["diverged"] == 1.0
    assert np.isfinite(worker.collector.rollout.rewards.numpy()).all()
    assert np.isfinite(worker.collector.rollout.observations.numpy()).all()
    (path,) = (tmp_path / "worker-0").iterdir()
    assert read_dump(path).facts.env == 3
