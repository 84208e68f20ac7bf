"""The Unitree Go2, a quadruped of 15 kg.

Sources: joint frames, ranges and inertias of the maker's public description; efforts and velocities of its motors:
23.7 N·m and 30.1 rad/s, geared by another 1.917 at the calf. Armature, damping and friction: what two public
identifications of single robots found; they scatter by a factor of three between the legs, so the nominal values are
rounded means, and nominal friction is viscous alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sim2real.robots.base import Robot, RobotJoint, RobotParameter

__all__ = ["ROBOT"]

_LEGS: Final = ("FL", "FR", "RL", "RR")
_CALF_GEAR: Final = 45.43 / 23.7
_THIGH_LIMITS: Final = {"F": (-1.5708, 3.4907), "R": (-0.5236, 4.5379)}


def _leg(leg: str) -> tuple[RobotJoint, ...]:
    return (
        _joint(f"{leg}_hip_joint", (-1.0472, 1.0472), 0.0),
        _joint(f"{leg}_thigh_joint", _THIGH_LIMITS[leg[0]], 0.8),
        _joint(f"{leg}_calf_joint", (-2.7227, -0.83776), -1.5, gear=_CALF_GEAR),
    )


def _joint(name: str, limits: tuple[float, float], default: float, *, gear: float = 1.0) -> RobotJoint:
    return RobotJoint(
        name=name,
        position_limits=limits,
        velocity_limit=30.1 / gear,
        effort_limit=23.7 * gear,
        default_position=default,
        kp=40.0,
        kd=1.0,
    )


def _of_each_leg(
    name: str,
    *,
    part: str,
    unit: str,
    nominal: float,
    meaning: str,
    plausible: tuple[float, float],
    typical: tuple[float, float],
    session_factor: float,
) -> RobotParameter:
    return RobotParameter(
        name=f"{part}_{name}",
        unit=unit,
        nominal=nominal,
        field=tuple(f"dof_{name}/{leg}_{part}_joint" for leg in _LEGS),
        meaning=meaning,
        plausible=plausible,
        typical=typical,
        session_factor=session_factor,
    )


def _armature(part: str, nominal: float, typical: tuple[float, float]) -> RobotParameter:
    return _of_each_leg(
        "armature",
        part=part,
        unit="kg·m²",
        nominal=nominal,
        meaning=f"Rotor inertia of a {part} motor, seen behind its gear.",
        plausible=(0.0, 0.06),
        typical=typical,
        session_factor=1.0,
    )


def _damping(part: str, typical: tuple[float, float]) -> RobotParameter:
    return _of_each_leg(
        "damping",
        part=part,
        unit="N·m·s/rad",
        nominal=0.2,
        meaning=f"Viscous friction of a {part} joint.",
        plausible=(0.0, 1.0),
        typical=typical,
        session_factor=2.0,
    )


def _frictionloss(part: str, typical: tuple[float, float]) -> RobotParameter:
    return _of_each_leg(
        "frictionloss",
        part=part,
        unit="N·m",
        nominal=0.0,
        meaning=f"Coulomb friction of a {part} joint.",
        plausible=(0.0, 2.0),
        typical=typical,
        session_factor=2.0,
    )


ROBOT: Final = Robot(
    name="go2",
    mjcf=Path(__file__).with_suffix(".xml"),
    base="floating",
    base_height=0.3346,
    feet=tuple(f"{leg}_foot" for leg in _LEGS),
    joints=tuple(joint for leg in _LEGS for joint in _leg(leg)),
    parameters=(
        RobotParameter(
            name="base_mass",
            unit="kg",
            nominal=6.921,
            field="body_mass/base",
            meaning="Trunk with battery, computer and payload.",
            plausible=(5.0, 14.0),
            typical=(6.4, 9.0),
            session_factor=1.0,
        ),
        RobotParameter(
            name="base_com_x",
            unit="m",
            nominal=0.021112,
            field="body_ipos/base[0]",
            meaning="How far the trunk's centre of mass lies in front of its origin.",
            plausible=(-0.1, 0.1),
            typical=(-0.03, 0.07),
            session_factor=1.0,
        ),
        RobotParameter(
            name="base_com_y",
            unit="m",
            nominal=0.0,
            field="body_ipos/base[1]",
            meaning="How far the trunk's centre of mass lies left of its origin.",
            plausible=(-0.06, 0.06),
            typical=(-0.02, 0.02),
            session_factor=1.0,
        ),
        RobotParameter(
            name="foot_friction",
            unit="1",
            nominal=0.8,
            field=tuple(f"geom_friction/{leg}_foot[0]" for leg in _LEGS),
            meaning="Sliding friction coefficient between the feet and whatever they stand on.",
            plausible=(0.1, 2.0),
            typical=(0.4, 1.2),
            session_factor=2.0,
        ),
        _armature("hip", 0.01, (0.004, 0.022)),
        _armature("thigh", 0.017, (0.004, 0.025)),
        _armature("calf", 0.033, (0.016, 0.04)),
        _damping("hip", (0.1, 0.3)),
        _damping("thigh", (0.1, 0.3)),
        _damping("calf", (0.1, 0.5)),
        _frictionloss("hip", (0.1, 0.3)),
        _frictionloss("thigh", (0.1, 0.3)),
        _frictionloss("calf", (0.4, 1.4)),
    ),
)
