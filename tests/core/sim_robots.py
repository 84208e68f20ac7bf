"""Tiny robots for the tests of simulators."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sim2real.robots import Robot, RobotJoint, RobotParameter

__all__ = ["WALKER", "joint", "parameter", "robot", "walker"]

WALKER = """
<mujoco model="walker">
  <compiler angle="radian"/>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body name="trunk" pos="0 0 0.3">
      <freejoint name="base"/>
      <inertial pos="0 0 0.01" mass="4" diaginertia="0.03 0.04 0.05"/>
      <geom name="trunk" type="box" size="0.2 0.1 0.05"/>
      <site name="imu" pos="0.1 0 0.05"/>
      <body name="left_leg" pos="0 0.1 0">
        <joint name="left" axis="0 1 0" damping="0.1"/>
        <inertial pos="0 0 -0.1" mass="0.5" diaginertia="0.002 0.002 0.0005"/>
        <geom name="left_foot" type="sphere" size="0.03" pos="0 0 -0.25" friction="0.8 0.005 0.0001" priority="1"/>
      </body>
      <body name="right_leg" pos="0 -0.1 0">
        <joint name="right" axis="0 1 0" damping="0.1"/>
        <inertial pos="0 0 -0.1" mass="0.5" diaginertia="0.002 0.002 0.0005"/>
        <geom name="right_foot" type="sphere" size="0.03" pos="0 0 -0.25" friction="0.8 0.005 0.0001" priority="1"/>
      </body>
    </body>
  </worldbody>
  <sensor><accelerometer name="base_lin_acc" site="imu"/><jointpos name="left_pos" joint="left"/></sensor>
</mujoco>
"""
"""A trunk on two legs with one hinge each: floats, touches the ground, turns over."""


def joint(name: str, *, effort_limit: float = 20.0) -> RobotJoint:
    return RobotJoint(
        name=name, position_limits=None, velocity_limit=50.0, effort_limit=effort_limit, default_position=0.0
    )


def parameter(name: str, *places: str, nominal: float = 1.0) -> RobotParameter:
    return RobotParameter(
        name=name,
        unit="1",
        nominal=nominal,
        field=places,
        meaning="",
        plausible=(0.0, 10.0),
        typical=(0.0, 10.0),
        session_factor=1.0,
    )


def robot(
    folder: Path,
    xml: str,
    *joints: str,
    base: Literal["fixed", "floating"] = "fixed",
    feet: tuple[str, ...] = (),
    parameters: tuple[RobotParameter, ...] = (),
) -> Robot:
    """Write an MJCF into `folder` and return the robot of it."""
    mjcf = folder / "robot.xml"
    mjcf.write_text(xml)
    return Robot(
        name="tiny",
        mjcf=mjcf,
        joints=tuple(joint(name) for name in joints),
        parameters=parameters,
        base=base,
        base_height=0.3,
        feet=feet,
    )


def walker(folder: Path) -> Robot:
    return robot(
        folder,
        WALKER,
        "left",
        "right",
        base="floating",
        feet=("left_foot", "right_foot"),
        parameters=(
            parameter("payload", "body_mass/trunk"),
            parameter("foot_friction", "geom_friction/left_foot[0]", "geom_friction/right_foot[0]"),
        ),
    )
