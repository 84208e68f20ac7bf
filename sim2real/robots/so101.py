"""The SO-101, a desk arm with a gripper, driven by six Feetech STS3215 servos (12 V).

Sources: joint frames, ranges, inertias, effort limit, stiffness, friction and armature of the arm's public description;
the servo's datasheet: 45 rpm without load, stall torque 2.94 N·m (the description grants 3.35 N·m). The servo's own
damping is part of the joint's, so kd is 0. Default pose: the middle of all travel, as calibrated.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from sim2real.robots.base import Robot, RobotJoint, RobotParameter

__all__ = ["ROBOT"]

_RANGES: Final = {
    "shoulder_pan": (-1.91986, 1.91986),
    "shoulder_lift": (-1.74533, 1.74533),
    "elbow_flex": (-1.69, 1.69),
    "wrist_flex": (-1.65806, 1.65806),
    "wrist_roll": (-2.74385, 2.84121),
    "gripper": (-0.174533, 1.74533),
}


def _joint(name: str, limits: tuple[float, float]) -> RobotJoint:
    return RobotJoint(
        name=name,
        position_limits=limits,
        velocity_limit=45.0 * 2.0 * math.pi / 60.0,
        effort_limit=3.35,
        default_position=0.0,
        kp=17.8,
        kd=0.0,
    )


def _of_joint(joint: str) -> tuple[RobotParameter, ...]:
    return (
        RobotParameter(
            name=f"{joint}_armature",
            unit="kg·m²",
            nominal=0.028,
            field=f"dof_armature/{joint}",
            meaning=f"Rotor inertia of the {joint} servo, seen behind its gear.",
            plausible=(0.002, 0.1),
            typical=(0.015, 0.045),
            session_factor=1.0,
        ),
        RobotParameter(
            name=f"{joint}_damping",
            unit="N·m·s/rad",
            nominal=0.6,
            field=f"dof_damping/{joint}",
            meaning=f"What the {joint} servo loses with speed: back-EMF, damping of its controller, viscous friction.",
            plausible=(0.02, 3.0),
            typical=(0.35, 1.0),
            session_factor=1.5,
        ),
        RobotParameter(
            name=f"{joint}_frictionloss",
            unit="N·m",
            nominal=0.052,
            field=f"dof_frictionloss/{joint}",
            meaning=f"Coulomb friction of the {joint} servo's gear.",
            plausible=(0.0, 0.6),
            typical=(0.02, 0.2),
            session_factor=2.0,
        ),
    )


ROBOT: Final = Robot(
    name="so101",
    mjcf=Path(__file__).with_suffix(".xml"),
    joints=tuple(_joint(name, limits) for name, limits in _RANGES.items()),
    parameters=(
        RobotParameter(
            name="gripper_mass",
            unit="kg",
            nominal=0.087,
            field="body_mass/gripper",
            meaning="Gripper without its moving jaw, and what it holds.",
            plausible=(0.05, 0.6),
            typical=(0.08, 0.15),
            session_factor=1.0,
        ),
        *(parameter for name in _RANGES for parameter in _of_joint(name)),
    ),
)
