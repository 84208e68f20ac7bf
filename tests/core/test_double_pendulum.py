"""Acrobot and pendubot: the tip, the joint that nothing drives, and what is worth how much."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.layout import EFFORT
from sim2real.sim.engines import make_sim
from sim2real.sim.model import load_model
from sim2real.sim.scene import EMPTY
from sim2real.tasks import Task, TaskEnv, get_task
from sim2real.tasks.base import Array, Motion, unpublished
from sim2real.tasks.double_pendulum_model import NOMINAL
from sim2real.tasks.double_pendulum_swingup import GOAL_HEIGHT, TORQUE, start, tip_height, training_start
from sim2real.tasks.motion import MotionState
from tests.core.task_rig import actions

ACROBOT, PENDUBOT = get_task("acrobot-swingup"), get_task("pendubot-swingup")
DRIVEN = [(ACROBOT, 1), (PENDUBOT, 0)]
angles = st.floats(-10.0, 10.0)


def motion_at(positions: Array, velocities: Array | None = None) -> Motion:
    """Return the motion of arms in these positions [rad], shape (n, 2)."""
    contract = ACROBOT.contract(unpublished(ACROBOT))
    sim = make_sim(contract, len(positions), robot=ACROBOT.robot, scene=ACROBOT.scene)
    sim.qpos[:] = positions
    sim.qvel[:] = 0.0 if velocities is None else velocities
    sim.refresh()
    return Motion(MotionState(contract, sim, np.zeros((len(positions), 0))))


@given(st.lists(st.tuples(angles, angles), min_size=1, max_size=8))
def test_the_tip_is_as_high_as_mujoco_s_site(where: list[tuple[float, float]]) -> None:
    """Above the shoulder, whose place in the world is the model's."""
    model = load_model(ACROBOT.robot, EMPTY)[1]
    data = mujoco.MjData(model)
    height = tip_height(NOMINAL)(motion_at(np.array(where)))
    for q, found in zip(where, height, strict=True):
        data.qpos[:] = q
        mujoco.mj_forward(model, data)
        shoulder = data.joint("shoulder").xanchor[2]
        assert found == pytest.approx(data.site("tip").xpos[2] - shoulder, abs=1e-12)


@pytest.mark.parametrize(("task", "driven"), DRIVEN, ids=["acrobot", "pendubot"])
def test_the_passive_joint_never_gets_an_effort(task: Task, driven: int) -> None:
    """From a random policy that asks for too much, over episode ends: in the command and at the joint."""
    env = TaskEnv(task, 16, seed=1, episode_length=0.5)
    passive = 1 - driven
    largest = 0.0
    for action in 3.0 * actions(env, 120):
        env.step(action)
        command, effort = env.mapper.command, env.plant.sim.joint_effort
        assert not command[:, :, passive].any()
        assert not effort[:, passive].any()
        assert not np.delete(command[:, :, driven], EFFORT, axis=1).any()
        largest = max(largest, float(np.abs(effort[:, driven]).max()))
    assert largest == TORQUE


@given(st.floats(-np.pi, np.pi), st.floats(-np.pi, np.pi), st.floats(-20.0, 20.0), st.floats(-20.0, 20.0))
def test_rewards_are_their_formulas(first: float, second: float, slow: float, fast: float) -> None:
    motion = motion_at(np.array([[first, second]]), np.array([[slow, fast]]))
    tip = -0.2 * np.cos(first) - 0.3 * np.cos(first + second)
    state = np.array(
        [np.remainder(first, 2.0 * np.pi) - np.pi, np.remainder(second + np.pi, 2.0 * np.pi) - np.pi, slow, fast]
    )
    balance = 1.0 / (1.0 + state @ NOMINAL.cost_to_stand(1) @ state / 4.0)
    expected = {"height": ((tip + 0.5) / 1.0) ** 2, "balance": balance, "spin": (slow**2 + fast**2) / 100.0}
    for name, value in expected.items():
        assert ACROBOT.rewards[name].term(motion)[0] == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert ACROBOT.terminations["spun"](motion)[0] == (max(abs(slow), abs(fast)) > 20.0)
    assert ACROBOT.goal.holds(motion)[0] == (tip >= 0.5 * GOAL_HEIGHT)


def test_resting_upright_is_worth_the_most_whichever_way_it_got_there() -> None:
    upright = np.array([[np.pi, 0.0], [-np.pi, 0.0], [3.0 * np.pi, 2.0 * np.pi]])
    grid = np.stack(np.meshgrid(*[np.linspace(-np.pi, np.pi, 41)] * 2), axis=-1).reshape(-1, 2)
    hanging = np.zeros((1, 2))

    def worth(places: Array) -> Array:
        motion = motion_at(places)
        rewards = [ACROBOT.rewards[name] for name in ("height", "energy", "balance")]
        return sum((reward.weight * reward.term(motion) for reward in rewards), np.zeros(1))

    np.testing.assert_allclose(worth(upright), 4.0)
    assert worth(grid).max() <= 4.0 + 1e-9
    assert worth(hanging)[0] < 0.1


def test_a_spun_arm_ends_its_episode() -> None:
    env = TaskEnv(PENDUBOT, 3, seed=0, noise=False)
    env.plant.sim.qvel[1] = [0.0, 40.0]
    result = env.step(np.zeros((3, 1), np.float32))
    assert result.terminated.tolist() == [False, True, False]


def test_a_policy_is_judged_from_hanging() -> None:
    qpos, qvel = start(np.random.default_rng(0), 4000)
    assert qpos.std(axis=0) == pytest.approx(0.1, rel=0.05)
    assert qvel.std(axis=0) == pytest.approx(0.1, rel=0.05)
    assert not np.any(tip_height(NOMINAL)(motion_at(qpos, qvel)) > -0.4)


def test_it_learns_from_hanging_anywhere_and_upright() -> None:
    qpos, qvel = training_start(np.random.default_rng(0), 4000)
    tip = -0.2 * np.cos(qpos[:, 0]) - 0.3 * np.cos(qpos.sum(axis=1))
    slow = np.abs(qvel).max(axis=1) < 0.5
    hanging, upright = (tip < -0.45) & slow, (tip > 0.45) & (np.abs(qvel).max(axis=1) < 1.5)
    assert 0.25 < hanging.mean() < 0.35
    assert 0.35 < upright.mean() < 0.45
    assert np.abs(qpos).max() < np.pi + 0.6


def test_neither_is_driven_at_the_other_s_joint() -> None:
    for task, driven in DRIVEN:
        contract = task.contract(unpublished(task))
        joints = contract.joints
        assert contract.action.joints == (joints[driven].name,)
        assert [joint.command_mode for joint in joints] == ["passive" if i != driven else "effort" for i in (0, 1)]
        assert joints[driven].effort_limit == contract.action.scale[0] == TORQUE
        assert contract.timing.physics_step_ns == 2_000_000
        assert contract.timing.control_period_ns == 10_000_000
        assert task.episode_length == 10.0
