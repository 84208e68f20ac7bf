"""Robots that walk, of which nothing is known but their MJCF: a gait from their weight, motors and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from sim2real.errors import InputError
from sim2real.robots import Robot, RobotJoint
from sim2real.sim.scene import EMPTY
from sim2real.tasks.base import Array
from sim2real.tasks.velocity import Gait

__all__ = ["gait_of", "geometric_images"]

GRAVITY: Final = 9.81
"""[m/s²]"""
_FAR: Final = 0.03
"""How far [m] apart two places may be that are each other's images: models are not quite symmetric."""
_TURNED: Final = 0.95
"""Least cosine between the axes of two joints that are."""


def gait_of(robot: Robot) -> Gait:
    """Return how a robot with a floating base, feet, and joints driven by position is to walk.

    An action of ±1 moves a joint by what half of its motor's torque holds against its stiffness, within 0.1 to 0.5 rad.

    Raises:
        InputError: A joint has no stiffness, or the robot no base that floats.
    """
    # Loads MuJoCo, without which tasks can be named and described.
    from sim2real.sim.model import load_model

    if robot.base != "floating" or not robot.feet:
        raise InputError(
            f"robot {robot.name}: expected a robot that walks: a free joint at its base, and feet (geoms or bodies "
            f'with "foot" in their names), got a {robot.base} base and {len(robot.feet)} feet'
        )
    if weak := [joint.name for joint in robot.joints if joint.kp <= 0.0]:
        raise InputError(
            f"robot {robot.name}, joint {weak[0]}: expected position control, got no stiffness; give it <position kp=… "
            "kv=…> in the MJCF in place of a motor, with the gains that its controller will have, and a keyframe home "
            "that it can stand in"
        )
    model = load_model(robot, EMPTY)[1]
    weight = float(model.body_subtreemass[0]) * GRAVITY
    two = len(robot.feet) == 2
    return Gait(
        command_limits=(1.0, 0.5, 1.0),
        action_scale=tuple(min(max(0.5 * joint.effort_limit / joint.kp, 0.1), 0.5) for joint in robot.joints),
        air_time=0.4 if two else 0.3,
        foot_load=weight / len(robot.feet),
        posture=(0.5,) * len(robot.joints),
        push=(0.5, 0.3) if two else (0.5, 0.5),
        training_push=(0.8, 0.6) if two else (1.0, 1.0),
        ranges=(),
        images=geometric_images(robot, model),
    )


def geometric_images(robot: Robot, model: Any) -> Mapping[str, tuple[str, Literal[-1, 1]]]:
    """Return what each joint and foot becomes in the mirror x–z of the base, by where it is in the default pose.

    A rotation about the axis a is one about (−aₓ, a_y, −a_z) there. Nothing is returned where a joint or a foot has no
    image, or one that is rated otherwise.

    Args:
        robot: The robot.
        model: Its MjModel.
    """
    import mujoco

    from sim2real.tasks.starts import rest_of

    data = mujoco.MjData(model)
    data.qpos[:] = rest_of(robot).qpos
    mujoco.mj_forward(model, data)
    base = data.xpos[int(model.jnt_bodyid[0])]
    ids = [model.joint(joint.name).id for joint in robot.joints]
    places = np.array([data.xanchor[index] for index in ids]) - base
    axes = np.array([data.xaxis[index] for index in ids])
    images: dict[str, tuple[str, Literal[-1, 1]]] = {}
    for joint, place, axis in zip(robot.joints, places * [1, -1, 1], axes * [-1, 1, -1], strict=True):
        cosine = axes @ axis
        cost = np.where(np.abs(cosine) > _TURNED, np.linalg.norm(places - place, axis=1), np.inf)
        best = int(cost.argmin())
        sign = 1 if cosine[best] > 0.0 else -1
        if cost[best] > _FAR or not _alike(joint, robot.joints[best], sign):
            return {}
        images[joint.name] = robot.joints[best].name, sign
    if (feet := _feet_images(robot, model, data, base)) is None:
        return {}
    both = {**images, **feet}
    return both if all(both[image] == (name, sign) for name, (image, sign) in both.items()) else {}


def _alike(one: RobotJoint, other: RobotJoint, sign: int) -> bool:
    """Whether two joints are driven alike, and stand alike in the default pose."""
    ratings = [(each.kp, each.kd, each.effort_limit) for each in (one, other)]
    return ratings[0] == ratings[1] and bool(np.isclose(one.default_position, sign * other.default_position, atol=1e-6))


def _feet_images(robot: Robot, model: Any, data: Any, base: Array) -> Mapping[str, tuple[str, Literal[-1, 1]]] | None:
    """Return the image of each foot; None: one has none."""
    from sim2real.sim.model import foot_object

    places = np.array([_place(data, *foot_object(model, foot)) for foot in robot.feet]) - base
    nearest = _nearest(places * [1, -1, 1], places)
    return (
        None
        if nearest is None
        else {foot: (robot.feet[index], 1) for foot, index in zip(robot.feet, nearest, strict=True)}
    )


def _place(data: Any, kind: Any, identifier: int) -> Array:
    import mujoco

    return (data.geom_xpos if kind == mujoco.mjtObj.mjOBJ_GEOM else data.xpos)[identifier]


def _nearest(wanted: Array, places: Array) -> Sequence[int] | None:
    """Return which of the places is nearest to each wanted one; None: one is not near."""
    distance = np.linalg.norm(wanted[:, None] - places[None], axis=2)
    return None if distance.min(axis=1).max() > _FAR else distance.argmin(axis=1).tolist()
