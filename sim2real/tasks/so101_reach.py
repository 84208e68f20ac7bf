"""The SO-101 brings its gripper to where the operator says."""

from __future__ import annotations

from typing import Final

import numpy as np

from sim2real.contract import Command, Identity, PolicyContract
from sim2real.robots.so101 import ROBOT
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Commands, Flags, Goal, Motion, Reward, Task
from sim2real.tasks.starts import typical_ranges

__all__ = ["TASK"]

GRIPPER: Final = "gripper"
"""The site that is brought to the target."""
RADIUS: Final = (0.18, 0.34)
"""Nearest and farthest target [m] from the axis of the first joint."""
HEADING: Final = 1.2
"""Largest angle [rad] of a target to the left or right."""
HEIGHT: Final = (0.06, 0.28)
"""Lowest and highest target [m] above the table."""
TOLERANCE: Final = 0.02
"""Distance [m] from the target that counts as there."""


def miss(motion: Motion) -> Array:
    """|p − p*| [m]."""
    return np.linalg.norm(motion.site_pos(GRIPPER) - motion.command, axis=1)


def near(motion: Motion) -> Array:
    """1 / (1 + (|p − p*| / 0.1 m)²): leads there from afar."""
    return 1.0 / (1.0 + np.square(miss(motion) / 0.1))


def close(motion: Motion) -> Array:
    """1 / (1 + (|p − p*| / 0.01 m)²): worth having only at the target."""
    return 1.0 / (1.0 + np.square(miss(motion) / 0.01))


def speed(motion: Motion) -> Array:
    """Σ q̇² [(rad/s)²]."""
    return np.square(motion.joint_vel).sum(axis=1)


def action_rate(motion: Motion) -> Array:
    """Σ (clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change.astype(np.float64)).sum(axis=1)


def there(motion: Motion) -> Flags:
    """Within `TOLERANCE` of the target."""
    return miss(motion) <= TOLERANCE


def draw_target(rng: np.random.Generator, num: int) -> Array:
    """Draw targets [m], x forward and y to the left of the arm's foot, evenly over radius, heading and height."""
    radius, heading = rng.uniform(*RADIUS, num), rng.uniform(-HEADING, HEADING, num)
    return np.stack((radius * np.cos(heading), radius * np.sin(heading), rng.uniform(*HEIGHT, num)), axis=1)


_LOW: Final = np.array([joint.position_limits or (0.0, 0.0) for joint in ROBOT.joints])[:, 0]
_HIGH: Final = np.array([joint.position_limits or (0.0, 0.0) for joint in ROBOT.joints])[:, 1]


def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
    """Draw poses within half of each joint's range around its default, at rest."""
    default = np.array([joint.default_position for joint in ROBOT.joints])
    spread = rng.uniform(-0.5, 0.5, (num, len(default)))
    qpos = default + np.where(spread < 0.0, spread * (default - _LOW), spread * (_HIGH - default))
    return qpos, np.zeros_like(qpos)


def contract(identity: Identity) -> PolicyContract:
    """Return the contract: 50 Hz as the servo bus allows, joint positions, their past, the target; positions out."""
    joints = contracts.joints(ROBOT, "position")
    names = [joint.name for joint in joints]
    farthest = RADIUS[1]
    bounds = {"x": (-farthest, farthest), "y": (-farthest, farthest), "z": HEIGHT}
    middle = {"x": sum(RADIUS) / 2.0, "y": 0.0, "z": sum(HEIGHT) / 2.0}
    return contracts.contract(
        identity,
        control_period_ns=20_000_000,
        decimation=4,
        joints=joints,
        terms=(
            # The servo's own velocity lags by a period; positions of three steps say the same without lag.
            contracts.term("position", "joint_pos", joints=names, history=3),
            contracts.term("target", "command", width=3, scale=4.0),
            contracts.term("last_action", "last_action", joints=names, clip=(-1.0, 1.0)),
        ),
        action=contracts.action(
            joints,
            scale=[0.5 * (high - low) for low, high in zip(_LOW.tolist(), _HIGH.tolist(), strict=True)],
            offset=[0.5 * (high + low) for low, high in zip(_LOW.tolist(), _HIGH.tolist(), strict=True)],
        ),
        safety=contracts.safety(
            hold_kp=[joint.kp for joint in joints],
            hold_kd=[joint.kd for joint in joints],
            damp_kd=[0.5] * len(joints),
            position_margin=0.1,
            effort_margin=1.0,
        ),
        commands=tuple(
            Command(name=name, unit="m", low=low, high=high, initial=middle[name])
            for name, (low, high) in bounds.items()
        ),
    )


TASK: Final = Task(
    name="so101-reach",
    robot=ROBOT,
    summary="Bring the gripper of the SO-101 to a point in front of it, and keep it there.",
    contract=contract,
    rewards={
        "near": Reward(weight=1.0, term=near),
        "close": Reward(weight=1.0, term=close),
        "speed": Reward(weight=-0.005, term=speed),
        "action_rate": Reward(weight=-0.1, term=action_rate),
    },
    terminations={},
    start=start,
    goal=Goal(
        text=f"the gripper is within {TOLERANCE * 100:g} cm of the target from 2 s to the end of 4 s",
        holds=there,
        after=2.0,
        share=1.0,
    ),
    episode_length=4.0,
    training_episode_length=4.0,
    commands=Commands(draw=draw_target, period=(8.0, 8.0)),
    critic={
        "velocity": lambda motion: 0.2 * motion.joint_vel,
        "miss": lambda motion: 4.0 * (motion.site_pos(GRIPPER) - motion.command),
    },
    sensors=SensorSpec(signals={"joint_pos": SignalErrors(noise=0.0005, step=2.0 * np.pi / 4096)}, encoder_offset=0.01),
    ranges=typical_ranges(
        ROBOT,
        tuple(f"{joint.name}_{kind}" for joint in ROBOT.joints for kind in ("damping", "frictionloss", "armature")),
    ),
)
