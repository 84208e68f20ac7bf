"""Where episodes begin, and from what ranges physics is drawn: what tasks of different robots share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim2real.randomization import ParameterRange
from sim2real.robots import Robot
from sim2real.tasks.base import Array

__all__ = ["standing", "typical_ranges"]


def standing(
    robot: Robot, *, joint_spread: float, velocity_spread: float
) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    """Return what puts a floating robot into its default pose, at any heading.

    Args:
        robot: Its qpos holds the base and then the joints in the robot's order.
        joint_spread: Largest deviation [rad] of a joint from the default pose, within its limits.
        velocity_spread: Largest velocity of the base [m/s, rad/s] and of the joints [rad/s].
    """
    default = np.array([joint.default_position for joint in robot.joints])
    limits = np.array([joint.position_limits or (-np.inf, np.inf) for joint in robot.joints])

    def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        joints = default + rng.uniform(-joint_spread, joint_spread, (num, len(default)))
        qpos = np.zeros((num, 7 + len(default)))
        qpos[:, 2] = robot.base_height
        half_heading = rng.uniform(-0.5 * np.pi, 0.5 * np.pi, num)
        qpos[:, 3], qpos[:, 6] = np.cos(half_heading), np.sin(half_heading)
        qpos[:, 7:] = np.clip(joints, limits[:, 0], limits[:, 1])
        return qpos, rng.uniform(-velocity_spread, velocity_spread, (num, 6 + len(default)))

    return start


def typical_ranges(robot: Robot, names: Sequence[str]) -> tuple[ParameterRange, ...]:
    """Return ranges of parameters of the robot as they vary between robots of its type."""
    return tuple(_typical(robot, name) for name in names)


def _typical(robot: Robot, name: str) -> ParameterRange:
    parameter = robot.parameter(name)
    low, high = parameter.typical
    return ParameterRange(
        name=name,
        unit=parameter.unit,
        nominal=min(max(parameter.nominal, low), high),
        low=low,
        high=high,
        distribution="uniform",
        operation="set",
        identified=False,
        how="No log was fitted: what is typical of robots of this type.",
        delays=None,
    )
