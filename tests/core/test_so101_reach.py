"""Reaching: every target can be reached, and what is said of the way there."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.sim.model import load_model
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.base import Array, unpublished
from sim2real.tasks.so101_reach import GRIPPER, HEADING, HEIGHT, RADIUS, TOLERANCE, draw_target
from tests.core.task_rig import actions

TASK = get_task("so101-reach")
CONTRACT = TASK.contract(unpublished(TASK))
LOW, HIGH = np.array([joint.position_limits or (-np.inf, np.inf) for joint in TASK.robot.joints]).T


class Arm:
    """Kinematics of the arm, by MuJoCo."""

    def __init__(self) -> None:
        self.model = load_model(TASK.robot, TASK.scene)[1]
        self.data = mujoco.MjData(self.model)
        self.site = self.model.site(GRIPPER).id
        self.jacobian = np.zeros((3, self.model.nv))

    def at(self, qpos: Array) -> Array:
        """Return where the gripper is [m]."""
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        return self.data.site_xpos[self.site].copy()

    def reach(self, target: Array, rng: np.random.Generator, *, within: float) -> Array | None:
        """Return positions within the limits that bring the gripper there: damped least squares from some poses."""
        for attempt in range(10):
            qpos = LOW + (HIGH - LOW) * (rng.random(len(LOW)) if attempt else 0.5)
            for _ in range(60):
                miss = target - self.at(qpos)
                if np.linalg.norm(miss) < within:
                    return qpos
                mujoco.mj_jacSite(self.model, self.data, self.jacobian, None, self.site)
                jacobian = self.jacobian
                step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 1e-3 * np.eye(3), miss)
                qpos = np.minimum(np.maximum(qpos + step, LOW), HIGH)
        return None


def test_every_target_can_be_reached_within_the_joints_limits() -> None:
    """To 5 mm, a quarter of what counts as there: gravity and friction take the rest."""
    arm, rng = Arm(), np.random.default_rng(0)
    targets = draw_target(rng, 200)
    missed = [target.tolist() for target in targets if arm.reach(target, rng, within=0.25 * TOLERANCE) is None]
    assert missed == []


def test_the_corners_of_the_range_can_be_reached() -> None:
    """What is drawn at random seldom lies there."""
    arm, rng = Arm(), np.random.default_rng(1)
    corners = [(r, a, h) for r in RADIUS for a in (-HEADING, 0.0, HEADING) for h in HEIGHT]
    for radius, heading, height in corners:
        target = np.array([radius * np.cos(heading), radius * np.sin(heading), height])
        assert arm.reach(target, rng, within=TOLERANCE) is not None, (radius, heading, height)


def test_targets_are_the_contract_s_commands() -> None:
    targets = draw_target(np.random.default_rng(0), 5000)
    assert [command.name for command in CONTRACT.commands] == ["x", "y", "z"]
    low, high = (np.array([getattr(command, side) for command in CONTRACT.commands]) for side in ("low", "high"))
    assert (targets >= low).all()
    assert (targets <= high).all()
    radius, heading = np.hypot(targets[:, 0], targets[:, 1]), np.arctan2(targets[:, 1], targets[:, 0])
    for values, (least, most) in ((radius, RADIUS), (heading, (-HEADING, HEADING)), (targets[:, 2], HEIGHT)):
        assert least <= values.min() < least + 0.01 * (most - least)
        assert most - 0.01 * (most - least) < values.max() <= most


def test_the_motors_bring_it_there_and_hold_it() -> None:
    """The real dynamics under actions that ask for the pose of the target, and for more where gravity pulls it off."""
    arm, rng = Arm(), np.random.default_rng(2)
    env = TaskEnv(TASK, 40, seed=1, noise=False)
    poses = [arm.reach(target, rng, within=1e-3) for target in env.observer.commands]
    wanted = np.array([pose for pose in poses if pose is not None])
    scale, offset = np.array(CONTRACT.action.scale), np.array(CONTRACT.action.offset)
    asked = wanted.copy()
    held = np.ones(40, np.bool_)
    for step in range(env.episode_steps - 1):
        env.step(((asked - offset) / scale).astype(np.float32))
        asked += 0.05 * (wanted - env.motion.joint_pos)
        held &= env.task.goal.holds(env.motion) | (step < 100)
    # One of many poses for a target may press the arm against itself.
    assert held.sum() >= 38
    assert np.median(env.task.rewards["near"].term(env.motion)) > 0.99


@pytest.fixture(scope="module")
def env() -> TaskEnv:
    return TaskEnv(TASK, 3, seed=0)


@given(seed=st.integers(0, 2**32 - 1))
def test_rewards_are_their_formulas(env: TaskEnv, seed: int) -> None:
    rng, arm = np.random.default_rng(seed), Arm()
    env.plant.sim.qpos[:] = rng.uniform(LOW, HIGH, (3, 6))
    env.plant.sim.qvel[:] = rng.normal(size=(3, 6))
    env.plant.sim.refresh()
    env.motion.renew()
    for row in range(3):
        distance = float(np.linalg.norm(arm.at(env.plant.sim.qpos[row]) - env.observer.commands[row]))
        expected = {
            "near": 1.0 / (1.0 + (distance / 0.1) ** 2),
            "close": 1.0 / (1.0 + (distance / 0.01) ** 2),
            "speed": float((env.plant.sim.qvel[row] ** 2).sum()),
        }
        for name, value in expected.items():
            assert TASK.rewards[name].term(env.motion)[row] == pytest.approx(value, rel=1e-9)
        assert TASK.goal.holds(env.motion)[row] == (distance <= 0.02)
        np.testing.assert_allclose(
            TASK.critic["miss"](env.motion)[row],
            4.0 * (arm.at(env.plant.sim.qpos[row]) - env.observer.commands[row]),
            atol=1e-12,
        )


def test_a_target_stays_for_the_whole_episode() -> None:
    env = TaskEnv(TASK, 3, seed=0)
    first = env.observer.commands.copy()
    for action in 0.1 * actions(env, env.episode_steps - 1):
        env.step(action)
        assert np.array_equal(env.observer.commands, first)
    env.step(np.zeros((3, 6), np.float32))
    assert not np.any(env.observer.commands == first)


def test_starts_are_within_half_of_the_way_to_the_limits() -> None:
    qpos, qvel = TASK.start(np.random.default_rng(0), 2000)
    default = np.array([joint.default_position for joint in TASK.robot.joints])
    assert not qvel.any()
    low, high = default + 0.5 * (LOW - default), default + 0.5 * (HIGH - default)
    assert (qpos >= low).all()
    assert (qpos <= high).all()
    np.testing.assert_allclose(qpos.min(axis=0), low, atol=0.02)
    np.testing.assert_allclose(qpos.max(axis=0), high, atol=0.02)


def test_no_action_asks_for_more_than_the_limits() -> None:
    scale, offset = np.array(CONTRACT.action.scale), np.array(CONTRACT.action.offset)
    np.testing.assert_allclose(offset - scale, LOW, atol=1e-12)
    np.testing.assert_allclose(offset + scale, HIGH, atol=1e-12)
