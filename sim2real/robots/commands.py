"""`sim2real robots`: what can be simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import tyro

from sim2real.command import Outcome
from sim2real.robots.base import Robot, RobotJoint, RobotParameter, get_robot, robot_names

__all__ = ["RobotsArgs", "run_robots"]


@dataclass(frozen=True)
class RobotsArgs:
    """List the robots, or describe one: joints with limits, gains and default pose, mass, feet, parameters."""

    robot: tyro.conf.Positional[str | None] = None
    """Describe this one: a name from the list, the path of an MJCF, or menagerie:NAME."""


def run_robots(args: RobotsArgs) -> Outcome:
    """List every robot that is known by name, or describe one.

    Raises:
        InputError: There is no such robot, or its MJCF cannot be used.
    """
    if args.robot is not None:
        robot = get_robot(args.robot)
        described = _describe(robot)
        return Outcome(passed=True, result=described, summary="\n".join(_page(robot, described["mass_kg"])))
    robots = [_describe(get_robot(name)) for name in robot_names()]
    lines = [
        f"{row['name']:20} {row['base']:9} {len(row['joints']):3} joints {row['mass_kg']:8.3f} kg" for row in robots
    ]
    lines.append("and any other: the path of an MJCF (robot.xml), or menagerie:NAME of MuJoCo Menagerie")
    return Outcome(passed=True, result={"robots": robots}, summary="\n".join(lines))


def _describe(robot: Robot) -> dict[str, Any]:
    return {
        "name": robot.name,
        "mjcf": str(robot.mjcf),
        "base": robot.base,
        "base_height_m": robot.base_height,
        "mass_kg": _mass(robot),
        "feet": robot.feet,
        "joints": [msgspec.to_builtins(joint) for joint in robot.joints],
        "parameters": [msgspec.to_builtins(parameter) for parameter in robot.parameters],
    }


def _mass(robot: Robot) -> float:
    """Return the mass [kg] of what moves of the robot itself; other bodies of its file, e.g. a ball, are not in it."""
    import mujoco
    import numpy as np

    model = mujoco.MjModel.from_xml_path(str(robot.mjcf))
    roots = {int(model.body_rootid[model.jnt_bodyid[model.joint(joint.name).id]]) for joint in robot.joints}
    own = np.isin(model.body_rootid, list(roots)) & (model.body_weldid != 0)
    return float(model.body_mass[own].sum())


def _page(robot: Robot, mass: float) -> list[str]:
    base = f"floating, {robot.base_height:.4g} m above the ground" if robot.base == "floating" else "fixed"
    lines = [f"{robot.name}: {len(robot.joints)} joints, {mass:.3f} kg, base {base}", f"    {robot.mjcf}"]
    if robot.feet:
        lines.append(f"    feet: {', '.join(robot.feet)}")
    lines.append(_ROW.format("joint", "position [rad]", "default", "velocity", "effort", "kp", "kd"))
    lines += [_joint_row(joint) for joint in robot.joints]
    if robot.parameters:
        lines.append("parameters that calibration fits and training randomizes, nominal (typical):")
        lines += [_parameter_row(parameter) for parameter in robot.parameters]
    return lines


_ROW = "{:28} {:>20} {:>8} {:>9} {:>8} {:>8} {:>8}"


def _joint_row(joint: RobotJoint) -> str:
    limits = joint.position_limits
    return _ROW.format(
        joint.name,
        "without end" if limits is None else f"{limits[0]:.4g} … {limits[1]:.4g}",
        f"{joint.default_position:.4g}",
        f"{joint.velocity_limit:.4g}",
        f"{joint.effort_limit:.4g}",
        f"{joint.kp:.4g}",
        f"{joint.kd:.4g}",
    )


def _parameter_row(parameter: RobotParameter) -> str:
    low, high = parameter.typical
    return f"    {parameter.name:28} {parameter.nominal:.4g} ({low:.4g} … {high:.4g}) {parameter.unit}"
