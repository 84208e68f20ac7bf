"""Swing the torque-limited pendulum up and hold it, from any state."""

from __future__ import annotations

from typing import Final

import numpy as np

from sim2real.contract import Identity, PolicyContract
from sim2real.robots.pendulum import ROBOT
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Flags, Goal, Motion, Reward, Task

__all__ = ["TASK"]

UPRIGHT_TOLERANCE: Final = 0.2
"""Largest distance [rad] from upright that counts as upright."""
SWING_UP_TIME: Final = 6.0
"""Time [s] by which the pendulum must be upright, to stay there until the episode ends."""
RUNAWAY_VELOCITY: Final = 15.0
"""Velocity [rad/s] at which an episode ends as a failure."""

_NATURAL_FREQUENCY_SQUARED: Final = 9.81 / 0.5
"""g / l [1/s²]."""


def upright_error(joint_pos: Array) -> Array:
    """Return the distance [rad] from upright, in [-π, π): q − π, wrapped."""
    return np.remainder(joint_pos, 2.0 * np.pi) - np.pi


def height(joint_pos: Array) -> Array:
    """(1 − cos q) / 2: 0 hanging, 1 upright."""
    return 0.5 - 0.5 * np.cos(joint_pos)


def energy(joint_pos: Array, joint_vel: Array) -> Array:
    """E / E_upright up to the energy of resting upright, (E_upright / E)² above it.

    E = ½ q̇² l / g + 1 − cos q, of the frictionless point mass: 1 where the rod would coast to upright and stop there.
    """
    ratio = 0.25 * np.square(joint_vel) / _NATURAL_FREQUENCY_SQUARED + height(joint_pos)
    return np.minimum(ratio, 1.0 / np.square(np.maximum(ratio, 1.0)))


def stillness(joint_pos: Array, joint_vel: Array) -> Array:
    """1 / (1 + (error / 0.15 rad)² + (velocity / 1 rad/s)²): 1 at rest upright; its tails lead there from afar."""
    return 1.0 / (1.0 + np.square(upright_error(joint_pos) / 0.15) + np.square(joint_vel))


def action_rate(motion: Motion) -> Array:
    """Σ (clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change.astype(np.float64)).sum(axis=1)


def contract(identity: Identity) -> PolicyContract:
    """Return the contract: 100 Hz, sine and cosine of the angle, velocity, last action; torque out."""
    joints = contracts.joints(ROBOT, "effort")
    names = [joint.name for joint in joints]
    return contracts.contract(
        identity,
        control_period_ns=10_000_000,
        decimation=4,
        joints=joints,
        terms=(
            contracts.term("sin_angle", "joint_pos", joints=names, function="sin"),
            contracts.term("cos_angle", "joint_pos", joints=names, function="cos"),
            contracts.term("velocity", "joint_vel", joints=names, scale=0.1),
            contracts.term("last_action", "last_action", joints=names, clip=(-1.0, 1.0)),
        ),
        action=contracts.action(joints, scale=[joint.effort_limit for joint in joints]),
        safety=contracts.safety(hold_kp=[10.0], hold_kd=[0.5], damp_kd=[0.5], position_margin=0.0, effort_margin=15.0),
    )


def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
    """Draw angles from the whole circle and velocities up to ±8 rad/s.

    A quarter hang almost still, and a quarter rest at any angle, where friction may hold the rod up.
    """
    qpos = rng.uniform(-np.pi, np.pi, (num, 1))
    qvel = rng.uniform(-8.0, 8.0, (num, 1))
    kind = rng.random((num, 1))
    return np.where(kind < 0.25, 0.05 * qpos, qpos), np.where(kind < 0.5, 0.05 * qvel, qvel)


def right_energy(motion: Motion) -> Array:
    """`energy`, and not height: on the way to the swing that leads up it does not fall below that of a held rod."""
    return energy(motion.joint_pos[:, 0], motion.joint_vel[:, 0])


def still_upright(motion: Motion) -> Array:
    """`stillness`."""
    return stillness(motion.joint_pos[:, 0], motion.joint_vel[:, 0])


def effort(motion: Motion) -> Array:
    """(clipped action)²: it makes a rest that torque holds worse than the swing."""
    return np.square(np.clip(motion.action[:, 0], -1.0, 1.0)).astype(np.float64)


def spun(motion: Motion) -> Flags:
    """Faster than swinging up ever needs (9 rad/s): the rod is being spun instead."""
    return np.abs(motion.joint_vel[:, 0]) > RUNAWAY_VELOCITY


def upright(motion: Motion) -> Flags:
    """Within `UPRIGHT_TOLERANCE` of upright."""
    return np.abs(upright_error(motion.joint_pos[:, 0])) <= UPRIGHT_TOLERANCE


TASK: Final = Task(
    name="pendulum-swingup",
    robot=ROBOT,
    summary="Swing the torque-limited pendulum (2.5 N·m, 100 Hz) up and hold it, from any state.",
    contract=contract,
    rewards={
        "energy": Reward(weight=1.0, term=right_energy),
        "stillness": Reward(weight=1.0, term=still_upright),
        "effort": Reward(weight=-0.1, term=effort),
        "action_rate": Reward(weight=-0.01, term=action_rate),
    },
    terminations={"spun": spun},
    start=start,
    goal=Goal(
        text=f"within {UPRIGHT_TOLERANCE} rad of upright from {SWING_UP_TIME:g} s at the latest to the end of 10 s",
        holds=upright,
        after=SWING_UP_TIME,
        share=1.0,
    ),
    episode_length=10.0,
    training_episode_length=4.0,
    sensors=SensorSpec(signals={"joint_pos": SignalErrors(noise=0.0015), "joint_vel": SignalErrors(noise=0.06)}),
)
