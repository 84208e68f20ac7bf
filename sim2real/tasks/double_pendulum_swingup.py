"""Swing the double pendulum up with one motor: the elbow's (acrobot) or the shoulder's (pendubot).

As in the RealAIGym benchmark of underactuated double pendulums: 10 s, physics at 500 Hz, torques up to 6 N·m, upright
judged by the height of the tip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec
import numpy as np

from sim2real.contract import Identity, PolicyContract
from sim2real.robots.double_pendulum import ROBOT
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Flags, Goal, Motion, Reward, Task
from sim2real.tasks.starts import typical_ranges

__all__ = ["ACROBOT", "PENDUBOT"]

LENGTHS: Final = (0.2, 0.3)
"""Of the links [m]."""
TORQUE: Final = 6.0
"""Largest torque of the driven joint [N·m]."""
GOAL_HEIGHT: Final = 0.45
"""Height of the tip above the shoulder [m] from which the arm counts as upright; 0.5 is the highest."""
SWING_UP_TIME: Final = 5.0
"""Time [s] by which it must be upright, to stay there until the episode ends."""
RUNAWAY_VELOCITY: Final = 30.0
"""Joint velocity [rad/s] at which an episode ends as a failure."""


def tip_height(motion: Motion) -> Array:
    """−l₁ cos q₁ − l₂ cos(q₁ + q₂) [m], above the shoulder."""
    upper, lower = LENGTHS
    q = motion.joint_pos
    return -upper * np.cos(q[:, 0]) - lower * np.cos(q[:, 0] + q[:, 1])


def height(motion: Motion) -> Array:
    """Height of the tip, squared: 0 hanging, 1 upright."""
    reach = sum(LENGTHS)
    return np.square(0.5 + 0.5 * tip_height(motion) / reach)


def stillness(motion: Motion) -> Array:
    """1 / (1 + (e₁² + e₂²) / (0.3 rad)² + (q̇₁² + q̇₂²) / (3 rad/s)²), e from upright: 1 at rest there."""
    q, velocity = motion.joint_pos, motion.joint_vel
    first = np.remainder(q[:, 0], 2.0 * np.pi) - np.pi
    second = np.remainder(q[:, 1] + np.pi, 2.0 * np.pi) - np.pi
    away = (np.square(first) + np.square(second)) / 0.09
    return 1.0 / (1.0 + away + np.square(velocity).sum(axis=1) / 9.0)


def spin(motion: Motion) -> Array:
    """(q̇ / 10 rad/s)², summed over the joints."""
    return np.square(0.1 * motion.joint_vel).sum(axis=1)


def effort(motion: Motion) -> Array:
    """(clipped action)²."""
    return np.square(np.clip(motion.action[:, 0], -1.0, 1.0)).astype(np.float64)


def action_rate(motion: Motion) -> Array:
    """(clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change[:, 0]).astype(np.float64)


def spun(motion: Motion) -> Flags:
    """A joint turns faster than 30 rad/s: the arm is being spun instead."""
    return np.abs(motion.joint_vel).max(axis=1) > RUNAWAY_VELOCITY


def upright(motion: Motion) -> Flags:
    """The tip is above `GOAL_HEIGHT`."""
    return tip_height(motion) >= GOAL_HEIGHT


def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
    """Half hang almost still; a quarter are anywhere, and a quarter almost upright, both with some velocity."""
    kind = rng.random((num, 1))
    anywhere = rng.uniform(-np.pi, np.pi, (num, 2))
    near = rng.normal(0.0, 0.1, (num, 2))
    qpos = np.where(kind < 0.5, near, np.where(kind < 0.75, anywhere, near + np.array([np.pi, 0.0])))
    qvel = rng.normal(0.0, 1.0, (num, 2)) * np.where(kind < 0.5, 0.1, 1.0)
    return qpos, qvel


def contract_of(driven: Literal["shoulder", "elbow"]) -> Callable[[Identity], PolicyContract]:
    """Return the contract: 100 Hz, sines and cosines of both angles, velocities, last action; one torque out."""
    passive = [joint.name for joint in ROBOT.joints if joint.name != driven]
    joints = tuple(
        msgspec.structs.replace(joint, effort_limit=TORQUE) if joint.name == driven else joint
        for joint in contracts.joints(ROBOT, "effort", passive=passive)
    )
    names = [joint.name for joint in joints]
    actuated = [joint for joint in joints if joint.name == driven]

    def contract(identity: Identity) -> PolicyContract:
        return contracts.contract(
            identity,
            control_period_ns=10_000_000,
            decimation=5,
            joints=joints,
            terms=(
                contracts.term("sin_angle", "joint_pos", joints=names, function="sin"),
                contracts.term("cos_angle", "joint_pos", joints=names, function="cos"),
                contracts.term("velocity", "joint_vel", joints=names, scale=0.1),
                contracts.term("last_action", "last_action", joints=[driven], clip=(-1.0, 1.0)),
            ),
            action=contracts.action(actuated, scale=[TORQUE]),
            safety=contracts.safety(
                hold_kp=[10.0, 10.0],
                hold_kd=[0.5, 0.5],
                damp_kd=[0.3, 0.3],
                position_margin=0.0,
                effort_margin=15.0,
            ),
        )

    return contract


def _task(name: str, driven: Literal["shoulder", "elbow"]) -> Task:
    return Task(
        name=name,
        robot=ROBOT,
        summary=f"Swing the double pendulum up with the {driven}'s motor alone ({TORQUE:g} N·m, 100 Hz) and hold it.",
        contract=contract_of(driven),
        rewards={
            "height": Reward(weight=1.0, term=height),
            "stillness": Reward(weight=2.0, term=stillness),
            "spin": Reward(weight=-0.05, term=spin),
            "effort": Reward(weight=-0.05, term=effort),
            "action_rate": Reward(weight=-0.02, term=action_rate),
        },
        terminations={"spun": spun},
        start=start,
        goal=Goal(
            text=f"the tip is above {GOAL_HEIGHT} m from {SWING_UP_TIME:g} s at the latest to the end of 10 s",
            holds=upright,
            after=SWING_UP_TIME,
            share=1.0,
        ),
        episode_length=10.0,
        training_episode_length=5.0,
        critic={"exact_velocity": lambda motion: 0.1 * motion.joint_vel},
        sensors=SensorSpec(signals={"joint_pos": SignalErrors(noise=0.0005), "joint_vel": SignalErrors(noise=0.05)}),
        ranges=typical_ranges(
            ROBOT,
            ("upper_mass", "lower_mass", "shoulder_damping", "elbow_damping", "shoulder_armature", "elbow_armature"),
        ),
    )


ACROBOT: Final = _task("acrobot-swingup", "elbow")
PENDUBOT: Final = _task("pendubot-swingup", "shoulder")
