"""The torque-limited simple pendulum (AK80-6 actuator, direct drive of a 0.5 m rod).

Source of the nominal values: the datasheet model of the public torque-limited simple pendulum (BSD-3-Clause). The motor
can do more than 2.5 N·m; the limit makes the task: hanging still, it cannot lift the rod to the side.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from sim2real.robots.base import ParameterSet, Robot, RobotJoint, RobotParameter

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
            plausible=(0.2, 2.0),
            typical=(0.55, 0.85),
            session_factor=1.0,
        ),
        RobotParameter(
            name="armature",
            unit="kg·m²",
            nominal=0.0,
            field="dof_armature/hinge",
            meaning="Inertia about the pivot that gravity does not act on: rotor, and what a point mass leaves out.",
            plausible=(0.0, 0.05),
            typical=(0.003, 0.02),
            session_factor=1.0,
        ),
        RobotParameter(
            name="damping",
            unit="N·m·s/rad",
            nominal=0.1,
            field="dof_damping/hinge",
            meaning="Viscous friction of the joint.",
            plausible=(0.0, 0.5),
            typical=(0.02, 0.2),
            session_factor=2.5,
        ),
        RobotParameter(
            name="frictionloss",
            unit="N·m",
            nominal=0.0,
            field="dof_frictionloss/hinge",
            meaning="Coulomb friction of the joint.",
            plausible=(0.0, 1.0),
            typical=(0.05, 0.3),
            session_factor=2.5,
        ),
    ),
    published=(
        ParameterSet(
            name="published",
            # J = 0.0626 kg·m² and m·cx = 0.1022 kg·m, told as a point mass at 0.5 m and the inertia that it lacks.
            # Fc·atan(100 q̇) tends to Fc·π/2 as soon as the joint moves, which is the Coulomb friction of MuJoCo.
            values={
                "mass": 0.1022 / 0.5,
                "armature": 0.0626 - 0.1022 * 0.5,
                "damping": 0.0471,
                "frictionloss": 0.1839 * math.pi / 2,
            },
            source=(
                "the authors' own fit to another log (J 0.0626, m·cx 0.1022, Fv 0.0471, Fc 0.1839; Fc·atan(100 q̇) as "
                "Coulomb friction of Fc·π/2, their torque offset left out)"
            ),
        ),
    ),
)
