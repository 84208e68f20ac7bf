"""The batched environment: exact continuation, episode ends, success, and what training may rely on."""

from __future__ import annotations

import copy
import re

import numpy as np
import numpy.typing as npt
import pytest

from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile
from sim2real.tasks import TaskEnv, get_task, pendulum_swingup
from sim2real.tasks.base import Goal, task_names
from sim2real.tasks.commands import TasksArgs, run_tasks
from sim2real.tasks.goal import success, time_to_goal

TASK = get_task("pendulum-swingup")


def ranges() -> RandomizationFile:
    def parameter(name: str, low: float, high: float) -> ParameterRange:
        return ParameterRange(
            name=name,
            unit="",
            nominal=low,
            low=low,
            high=high,
            operation="set",
            distribution="uniform",
            identified=True,
            how="for a test",
            delays="command" if name == COMMAND_DELAY else None,
        )

    return RandomizationFile(
        schema_version=2,
        robot="pendulum",
        toolkit_version="0",
        parameters=(
            parameter("mass", 0.6, 0.8),
            parameter("frictionloss", 0.0, 0.4),
            parameter("damping", 0.05, 0.15),
            parameter(COMMAND_DELAY, 0.0, 0.02),
        ),
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )


def actions(steps: int, num_envs: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal((steps, num_envs, 1)).astype(np.float32)


def run(env: TaskEnv, sequence: npt.NDArray[np.float32]) -> list[tuple[bytes, bytes, bytes]]:
    """Every bit that a trainer sees."""
    seen: list[tuple[bytes, bytes, bytes]] = []
    for action in sequence:
        result = env.step(action)
        seen.append((result.observation.tobytes(), result.reward.tobytes(), result.final_observation.tobytes()))
    return seen


def test_same_seed_same_bits_and_another_seed_others() -> None:
    """Case 27."""
    sequence = actions(300, 8)
    first, second, other = (run(TaskEnv(TASK, 8, seed=s, randomization=ranges()), sequence) for s in (1, 1, 2))
    assert first == second
    assert first != other


def test_a_loaded_state_continues_exactly_over_episode_ends() -> None:
    """Case 23: physics, randomization, history, generator and episode ages are all in the state."""
    sequence = actions(1300, 8)
    env = TaskEnv(TASK, 8, seed=1, randomization=ranges(), stagger=True)
    run(env, sequence[:300])
    arrays, generator = copy.deepcopy(env.state())
    expected = run(env, sequence[300:])
    other = TaskEnv(TASK, 8, seed=99, randomization=ranges())
    other.load_state(arrays, generator)
    assert run(other, sequence[300:]) == expected


def test_threads_do_not_change_a_bit() -> None:
    sequence = actions(50, 32)
    one, two = (run(TaskEnv(TASK, 32, seed=3, randomization=ranges(), num_threads=n), sequence) for n in (1, 2))
    assert one == two


def test_time_limit_truncates_and_gives_the_last_observation_of_the_old_episode() -> None:
    env = TaskEnv(TASK, 3, seed=0, noise=False)
    env.episode_step[1] = env.episode_steps - 1
    result = env.step(np.zeros((3, 1), np.float32))
    assert result.truncated.tolist() == [False, True, False]
    assert not result.terminated.any()
    assert result.done_ids.tolist() == [1]
    assert env.episode_step.tolist() == [1, 0, 1]
    assert not np.array_equal(result.final_observation[0], result.observation[1])
    # The new episode's observation is that of its start state: nothing of the old one, and no last action.
    angle, velocity = env.motion.joint_pos[1, 0], env.motion.joint_vel[1, 0]
    expected = [np.sin(angle), np.cos(angle), 0.1 * velocity, 0.0]
    np.testing.assert_allclose(result.observation[1], expected, rtol=1e-6)


def test_the_policy_sees_noise_and_the_reward_does_not() -> None:
    noisy, clean = (TaskEnv(TASK, 64, seed=4, noise=noise) for noise in (True, False))
    noisy.plant.sim.qpos[:] = clean.plant.sim.qpos[:] = 1.0
    noisy.plant.sim.qvel[:] = clean.plant.sim.qvel[:] = 0.0
    zeros = np.zeros((64, 1), np.float32)
    a, b = noisy.step(zeros), clean.step(zeros)
    assert np.array_equal(a.reward, b.reward)
    spread = np.std(a.observation[:, 2]) / 0.1
    assert TASK.sensors is not None
    assert spread == pytest.approx(TASK.sensors.signals["joint_vel"].noise, rel=0.4)
    assert np.std(b.observation[:, 2]) == 0.0


def test_standing_still_upright_earns_the_most() -> None:
    angles = np.linspace(-np.pi, np.pi, 201)
    reward = pendulum_swingup.energy(angles, 0.0 * angles) + pendulum_swingup.stillness(angles, 0.0 * angles)
    assert reward[0] == reward[-1] == reward.max() == 2.0
    assert reward.argmin() == 100


def test_success_asks_for_every_step_after_six_seconds() -> None:
    held = np.zeros((1000, 4), np.bool_)
    held[599:] = True  # row 599 is the state after 6 s
    held[599, 2] = False  # one step late
    held[999, 3] = False  # falls at the very end
    held[:, 1] = True
    assert success(TASK.goal, held, 0.01).tolist() == [True, True, False, False]
    np.testing.assert_allclose(time_to_goal(held, 0.01), [6.0, 0.0, 6.01, np.inf])


def test_a_share_of_the_time_is_enough_where_the_goal_says_so() -> None:
    goal = Goal(text="", holds=lambda motion: motion.joint_pos[:, 0] > 0.0, after=0.0, share=0.8)
    held = np.arange(10)[:, None] < np.array([[10, 8, 7]])
    assert success(goal, held, 0.02).tolist() == [True, True, False]


def test_unknown_task_says_what_there_is() -> None:
    with pytest.raises(InputError, match=r"unknown; allowed: pendulum-swingup, .*; did you mean 'pendulum-swingup'"):
        get_task("pendulum-swing-up")


def test_tasks_command_describes_each_task() -> None:
    outcome = run_tasks(TasksArgs())
    assert outcome.passed
    assert outcome.result["tasks"][0]["control_rate_hz"] == 100.0
    assert "robot pendulum, 100 Hz, 4 observations, 1 action\n" in outcome.summary
    assert [row["name"] for row in outcome.result["tasks"]] == list(task_names())
    for row in outcome.result["tasks"]:
        assert re.fullmatch(r"[A-Z].{20,}\.", row["summary"]), row["name"]
        assert f"{row['name']}\n    {row['summary']}\n" in outcome.summary
