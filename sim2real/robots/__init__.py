"""Robots: an MJCF of primitive geoms with published inertias, and the robot's facts."""

from __future__ import annotations

from sim2real.robots.base import ParameterSet, Robot, RobotJoint, RobotParameter, get_robot, robot_names

__all__ = ["ParameterSet", "Robot", "RobotJoint", "RobotParameter", "get_robot", "robot_names"]
