"""The rotary pendulum: a motor turns the arm; the pole at its end has none, and is to stand up."""

from pathlib import Path

import numpy as np

from sim2real.robots import Robot, RobotJoint
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import Goal, Reward, Task, contracts

JOINTS = ("arm", "pole")
TORQUE = 0.5  # [N·m] of the motor

ROBOT = Robot(
    name="furuta",
    mjcf=Path(__file__).with_name("furuta.xml"),
    joints=tuple(
        RobotJoint(name=name, position_limits=None, velocity_limit=60.0, effort_limit=TORQUE, default_position=0.0)
        for name in JOINTS
    ),
    parameters=(),
)


def contract(identity):
    """100 Hz: sines and cosines of both angles and their velocities in, the torque of the arm out."""
    joints = contracts.joints(ROBOT, "effort", passive=["pole"])
    return contracts.contract(
        identity,
        control_period_ns=10_000_000,
        decimation=4,
        joints=joints,
        terms=(
            contracts.term("sin", "joint_pos", joints=JOINTS, function="sin"),
            contracts.term("cos", "joint_pos", joints=JOINTS, function="cos"),
            contracts.term("velocity", "joint_vel", joints=JOINTS, scale=0.1),
        ),
        action=contracts.action(joints[:1], scale=[TORQUE]),
        safety=contracts.safety(
            hold_kp=[1.0, 0.0], hold_kd=[0.05, 0.0], damp_kd=[0.05, 0.001], position_margin=0.0, effort_margin=0.5
        ),
    )


def height(motion):
    """(1 − cos q) / 2 of the pole: 0 hanging, 1 upright."""
    return 0.5 - 0.5 * np.cos(motion.joint_pos[:, 1])


def spin(motion):
    """Σ (q̇ / 10 rad/s)²."""
    return np.square(0.1 * motion.joint_vel).sum(axis=1)


def start(rng, num):
    """Both angles anywhere, almost at rest."""
    return rng.uniform(-np.pi, np.pi, (num, 2)), rng.normal(0.0, 0.5, (num, 2))


TASK = Task(
    name="furuta-swingup",
    robot=ROBOT,
    summary="Swing the pole of the rotary pendulum up and keep it there.",
    contract=contract,
    rewards={"height": Reward(weight=1.0, term=height), "spin": Reward(weight=-0.05, term=spin)},
    terminations={"spun": lambda motion: np.abs(motion.joint_vel).max(axis=1) > 50.0},
    start=start,
    goal=Goal(text="upright within 25° from 3 s on", holds=lambda motion: height(motion) > 0.953, after=3.0, share=1.0),
    episode_length=6.0,
    training_episode_length=4.0,
    sensors=SensorSpec(signals={"joint_pos": SignalErrors(noise=0.001), "joint_vel": SignalErrors(noise=0.05)}),
)
