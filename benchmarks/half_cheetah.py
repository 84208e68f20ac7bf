"""Gymnasium's HalfCheetah-v5 as a task of this toolkit, on Gymnasium's own model: what a user would write.

Same frame skip (5 × 10 ms), torques, observation, reward, start states and time limit of 1,000 steps; `check_parity`
compares the two.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import gymnasium
import msgspec
import mujoco
import numpy as np

from sim2real.contract import Identity, PolicyContract
from sim2real.robots import Robot, RobotJoint
from sim2real.robots.mjcf import robot_from_mjcf
from sim2real.tasks import TaskEnv, contracts
from sim2real.tasks.base import Array, Flags, Goal, Motion, Reward, Task

__all__ = ["TASK", "check_parity"]

MODEL: Final = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "half_cheetah.xml"
ROOT: Final = ("rootx", "rootz", "rooty")
"""What moves the torso in its plane; nothing drives it."""
TOLERANCE: Final = 2e-6
"""Of observations and rewards, relative to the largest: observations are float32 here, and float64 in Gymnasium."""


def quiet() -> None:
    """Let nobody hear that the file scales its masses in a way of which MuJoCo 4 warns whenever it is compiled."""
    warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass'")
    config = mujoco.MjLogConfig.get()
    config.logto_file = config.logto_console = False
    config.set()


def cheetah() -> Robot:
    """Return the robot: the joints that move its torso, and those that the file's motors drive."""
    driven = robot_from_mjcf(MODEL, name="half_cheetah")
    torso = [
        RobotJoint(name=name, position_limits=None, velocity_limit=100.0, effort_limit=1.0, default_position=0.0)
        for name in ROOT
    ]
    return msgspec.structs.replace(driven, joints=(*torso, *driven.joints))


quiet()
ROBOT: Final = cheetah()


def contract(identity: Identity) -> PolicyContract:
    """All positions but the distance run, and all velocities, as they are; torques in shares of the gears out."""
    joints = contracts.joints(ROBOT, "effort", passive=ROOT)
    names = [joint.name for joint in joints]
    driven = [joint for joint in joints if joint.command_mode == "effort"]
    return contracts.contract(
        identity,
        control_period_ns=50_000_000,
        decimation=5,
        joints=joints,
        terms=(
            contracts.term("position", "joint_pos", joints=names[1:]),
            contracts.term("velocity", "joint_vel", joints=names),
        ),
        action=contracts.action(driven, scale=[joint.effort_limit for joint in driven]),
        safety=contracts.safety(
            hold_kp=[0.0] * len(joints),
            hold_kd=[0.0] * len(joints),
            damp_kd=[1.0] * len(joints),
            position_margin=0.0,
            effort_margin=0.0,
        ),
    )


def forward(motion: Motion) -> Array:
    """Mean velocity of the torso over the control step [m/s]."""
    return motion.joint_travel[:, 0] / motion.control_period


def control(motion: Motion) -> Array:
    """Σ action²."""
    return np.einsum("ij,ij->i", motion.action, motion.action)


def runs(motion: Motion) -> Flags:
    """Faster than 3 m/s."""
    return motion.joint_vel[:, 0] > 3.0


def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
    """Positions within ± 0.1 of the model's zero, and velocities about 0 with a standard deviation of 0.1."""
    return rng.uniform(-0.1, 0.1, (num, 9)), 0.1 * rng.standard_normal((num, 9))


TASK: Final = Task(
    name="half-cheetah",
    robot=ROBOT,
    summary="Run forward.",
    contract=contract,
    rewards={"forward": Reward(weight=1.0, term=forward), "control": Reward(weight=-0.1, term=control)},
    terminations={},
    start=start,
    goal=Goal(text="runs faster than 3 m/s in the second half of 50 s", holds=runs, after=25.0, share=0.9),
    episode_length=50.0,
    training_episode_length=50.0,
)


def check_parity(num_steps: int = 20, seed: int = 0) -> None:
    """Step both from the same state under the same random actions.

    Raises:
        AssertionError: An observation or a reward differs.
    """
    theirs: Any = gymnasium.make("HalfCheetah-v5").unwrapped
    theirs.reset(seed=seed)
    ours = TaskEnv(TASK, 1, seed=seed)
    sim = ours.plant.sim
    theirs.set_state(sim.qpos[0].copy(), sim.qvel[0].copy())
    rng = np.random.default_rng(seed)
    for _ in range(num_steps):
        action = rng.uniform(-1.0, 1.0, (1, 6)).astype(np.float32)
        expected, reward, *_ = theirs.step(action[0])
        result = ours.step(action)
        np.testing.assert_allclose(result.observation[0], expected, atol=TOLERANCE * np.abs(expected).max())
        np.testing.assert_allclose(result.reward[0], reward, atol=TOLERANCE * max(abs(reward), 1.0))
    theirs.close()
