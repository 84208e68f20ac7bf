"""Where episodes begin, and from what ranges physics is drawn: what tasks of different robots share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.randomization import ParameterRange
from sim2real.robots import Robot
from sim2real.sim.scene import EMPTY
from sim2real.tasks.base import Array, Task

__all__ = ["Rest", "put_down", "rest_of", "standing", "typical_ranges"]


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """A robot in its default pose; a floating base is upright, heads along x, and stands at the origin."""

    qpos: Array
    """Generalised positions, shape (nq,); joints that nothing drives are as the model has them."""
    joints: npt.NDArray[np.intp]
    """Where in it the robot's joints are, in the robot's order, shape (J,)."""
    num_velocities: int
    """nv."""


def rest_of(robot: Robot) -> Rest:
    """Return the robot at rest.

    Raises:
        InputError: The MJCF does not fit the robot.
    """
    # Loads MuJoCo, without which tasks can be named and described.
    from sim2real.sim.model import load_model

    model = load_model(robot, EMPTY)[1]
    joints = np.array([int(model.joint(joint.name).qposadr[0]) for joint in robot.joints], np.intp)
    qpos = model.qpos0.copy()
    if robot.base == "floating":
        qpos[:7] = [0.0, 0.0, robot.base_height, 1.0, 0.0, 0.0, 0.0]
    qpos[joints] = [joint.default_position for joint in robot.joints]
    return Rest(qpos=qpos, joints=joints, num_velocities=model.nv)


def put_down(task: Task, qpos: Array, rng: np.random.Generator, levels: npt.NDArray[np.int64]) -> None:
    """Put floating bases to where episodes of these levels begin, shape (n,), and onto the ground there.

    `qpos`, shape (n, nq), is changed in place; it is relative to that place.
    """
    if task.robot.base != "floating":
        return
    if task.curriculum is not None:
        qpos[:, :2] += task.curriculum.origin(rng, levels)
    qpos[:, 2] += task.scene.ground_height(qpos[:, 0], qpos[:, 1])


def standing(
    robot: Robot, *, joint_spread: float, velocity_spread: float
) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    """Return what puts a floating robot into its default pose, at any heading.

    Args:
        robot: The robot.
        joint_spread: Largest deviation [rad] of a joint from the default pose, within its limits.
        velocity_spread: Largest velocity of the base [m/s, rad/s] and of the joints [rad/s].
    """
    low, high = np.array([joint.position_limits or (-np.inf, np.inf) for joint in robot.joints]).T

    @functools.cache
    def rest() -> Rest:
        return rest_of(robot)

    def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        qpos, joints = np.empty((num, len(rest().qpos))), rest().joints
        qpos[:] = rest().qpos
        spread = rest().qpos[joints] + rng.uniform(-joint_spread, joint_spread, (num, len(joints)))
        qpos[:, joints] = np.minimum(np.maximum(spread, low), high)
        half_heading = rng.uniform(-0.5 * np.pi, 0.5 * np.pi, num)
        qpos[:, 3], qpos[:, 6] = np.cos(half_heading), np.sin(half_heading)
        return qpos, rng.uniform(-velocity_spread, velocity_spread, (num, rest().num_velocities))

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
