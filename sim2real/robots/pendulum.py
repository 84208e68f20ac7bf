"""The torque-limited simple pendulum (AK80-6 actuator, direct drive of a 0.5 m rod).

Source of the nominal values: the datasheet model of the public torque-limited simple pendulum (BSD-3-Clause). The motor
can do more than 2.5 N·m; the limit makes the task: hanging still, it cannot lift the rod to the side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sim2real.robots.base import Robot, RobotJoint, RobotParameter

__all__ = ["ROBOT"]

ROBOT: Final = Robot(
    name="pendulum",
    mjcf=Path(__file__).with_suffix(".xml"),
    joints=(
        RobotJoint(
            name="hinge",
            position_limits=None,
            velocity_limit=25.0,
            effort_limit=2.5,
            default_position=0.0,
        ),
    ),
    parameters=(
        RobotParameter(
            name="mass",
            unit="kg",
            nominal=0.6755,
            field="body_mass/pole",
            meaning="Point mass at 0.5 m: sets the gravity torque and, times 0.25 m², its share of the inertia.",
        ),
        RobotParameter(
            name="armature",
            unit="kg·m²",
            nominal=0.0,
            field="dof_armature/hinge",
            meaning="Inertia about the pivot that gravity does not act on: rotor, and what a point mass leaves out.",
        ),
        RobotParameter(
            name="damping",
            unit="N·m·s/rad",
            nominal=0.1,
            field="dof_damping/hinge",
            meaning="Viscous friction of the joint.",
        ),
        RobotParameter(
            name="frictionloss",
            unit="N·m",
            nominal=0.0,
            field="dof_frictionloss/hinge",
            meaning="Coulomb friction of the joint.",
        ),
    ),
)
