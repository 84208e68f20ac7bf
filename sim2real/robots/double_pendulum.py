"""The double pendulum of design C.1 of the public torque-limited double pendulum (BSD-3-Clause): two AK80-6 actuators.

Both joints have an actuator; a task says which of them drives: the elbow of an acrobot, the shoulder of a pendubot.
Nominal values: parameter set 1.1 of the authors, which is 1.0 without friction and rotors, as in their benchmark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sim2real.robots.base import ParameterSet, Robot, RobotJoint, RobotParameter

__all__ = ["ROBOT"]

# Rotor inertia times the square of the gear ratio 6. An armature leaves out that the elbow's rotor rides on the upper
# link: Ir in M[0, 0] (at most 0.2 % of it) and -6 Ir in M[0, 1] (at most 2 % of it).
_ROTOR: Final = 6.287203962819607e-05 * 6.0**2


def _joint(name: str) -> RobotJoint:
    return RobotJoint(name=name, position_limits=None, velocity_limit=20.0, effort_limit=10.0, default_position=0.0)


def _of_link(link: str, *, mass: float, inertia: float) -> tuple[RobotParameter, ...]:
    return (
        RobotParameter(
            name=f"{link}_mass",
            unit="kg",
            nominal=mass,
            field=f"body_mass/{link}",
            meaning=f"Mass of the {link} link, at the link's centre of mass.",
            plausible=(0.3 * mass, 3.0 * mass),
            typical=(0.85 * mass, 1.15 * mass),
            session_factor=1.0,
        ),
        RobotParameter(
            name=f"{link}_inertia",
            unit="kg·m²",
            nominal=inertia,
            field=(f"body_inertia/{link}[0]", f"body_inertia/{link}[1]"),
            meaning=f"Inertia of the {link} link about its centre of mass.",
            plausible=(0.1 * inertia, 5.0 * inertia),
            typical=(0.75 * inertia, 1.25 * inertia),
            session_factor=1.0,
        ),
    )


def _of_joint(joint: str) -> tuple[RobotParameter, ...]:
    return (
        RobotParameter(
            name=f"{joint}_armature",
            unit="kg·m²",
            nominal=0.0,
            field=f"dof_armature/{joint}",
            meaning=f"Rotor inertia of the {joint}'s motor, seen behind its gear.",
            plausible=(0.0, 0.02),
            typical=(0.0, 0.005),
            session_factor=1.0,
        ),
        RobotParameter(
            name=f"{joint}_damping",
            unit="N·m·s/rad",
            nominal=0.0,
            field=f"dof_damping/{joint}",
            meaning=f"Viscous friction of the {joint}.",
            plausible=(0.0, 0.3),
            typical=(0.0, 0.02),
            session_factor=2.5,
        ),
        RobotParameter(
            name=f"{joint}_frictionloss",
            unit="N·m",
            nominal=0.0,
            field=f"dof_frictionloss/{joint}",
            meaning=f"Coulomb friction of the {joint}.",
            plausible=(0.0, 0.6),
            typical=(0.05, 0.25),
            session_factor=2.5,
        ),
    )


ROBOT: Final = Robot(
    name="double_pendulum",
    mjcf=Path(__file__).with_suffix(".xml"),
    joints=(_joint("shoulder"), _joint("elbow")),
    parameters=(
        *_of_link("upper", mass=0.5234602302310271, inertia=0.01094879038227203),
        *_of_link("lower", mass=0.6255677234174437, inertia=0.009970894693799519),
        *_of_joint("shoulder"),
        *_of_joint("elbow"),
    ),
    published=(
        ParameterSet(
            name="published",
            values={
                "shoulder_armature": _ROTOR,
                "elbow_armature": _ROTOR,
                "shoulder_damping": 0.001,
                "elbow_damping": 0.001,
                "shoulder_frictionloss": 0.16,
                "elbow_frictionloss": 0.12,
            },
            source="the authors' parameter set 1.0 of design C.1 (masses and inertias of it are the nominal ones)",
        ),
    ),
)
