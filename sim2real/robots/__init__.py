"""Robots: an MJCF of primitive geoms with published inertias, and the robot's facts."""

from __future__ import annotations

from sim2real.robots.base import ParameterSet, Robot, RobotJoint, RobotParameter, get_robot, robot_names
from sim2real.robots.model_files import is_file_name, same_robot

__all__ = [
    "ParameterSet",
    "Robot",
    "RobotJoint",
    "RobotParameter",
    "get_robot",
    "is_file_name",
    "robot_names",
    "same_robot",
]
