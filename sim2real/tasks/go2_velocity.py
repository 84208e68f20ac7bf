"""The Unitree Go2, or another robot with legs, walks as the operator says: on flat and on rough ground."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.randomization import ParameterRange
from sim2real.robots import Robot, RobotParameter
from sim2real.robots.go2 import ROBOT
from sim2real.sim.rotation import yaw_of
from sim2real.sim.scene import FLAT, Scene
from sim2real.tasks.base import Array, Curriculum, Motion, Task
from sim2real.tasks.mirror import Image, named_images
from sim2real.tasks.terrain import PATCH, Terrain
from sim2real.tasks.velocity import Gait, fallen, velocity_task
from sim2real.tasks.walkers import gait_of

__all__ = ["FLAT_TASK", "ROUGH_TASK"]

_LEG: Final = 4
"""Legs, each of hip, thigh and calf."""


def _images(robot: Robot) -> dict[str, tuple[str, Literal[-1, 1]]]:
    """Return what the joints and feet of a Go2 become in a mirror."""
    names = (*(joint.name for joint in robot.joints), *robot.feet)
    return named_images(names, (("FL", "FR"), ("RL", "RR")), sideways=("hip",))


GAIT: Final = Gait(
    command_limits=(1.0, 0.6, 1.0),
    action_scale=(0.3, 0.5, 0.5) * _LEG,
    air_time=0.3,
    foot_load=37.0,
    posture=(1.0, 0.3, 0.2) * _LEG,
    push=(0.5, 0.5),
    training_push=(1.0, 1.5),
    ranges=(
        "base_mass",
        "base_com_x",
        "base_com_y",
        "foot_friction",
        "hip_damping",
        "thigh_damping",
        "calf_damping",
        "hip_frictionloss",
        "thigh_frictionloss",
        "calf_frictionloss",
    ),
    images=_images(ROBOT),
)
ALIKE: Final = 1.5
"""How many times the mass, or the height of the base, of the Go2 another model of it may have, or have less."""


def as_go2(robot: Robot) -> Robot | None:
    """Return another model of the Go2 with what an MJCF does not say, or says of another controller.

    Gains, speeds and the default pose are those of `ROBOT`, so that a policy for one drives the other; of its uncertain
    parameters those that the model has. Inertias, limits and efforts are the model's.

    None: it is another robot. Many have joints of these names; none that weighs much more stands on these gains, and
    none whose joints turn the other way stands in this pose.
    """
    # Both load MuJoCo, and the robot that ships with the toolkit does not need them.
    from sim2real.robots.mjcf import robot_from_mjcf
    from sim2real.sim.model import load_model
    from sim2real.sim.places import find_place

    own, others = ({joint.name: joint for joint in each.joints} for each in (ROBOT, robot))
    if set(own) - set(others) or not robot.feet:
        return None
    pose = {name: joint.default_position for name, joint in own.items()}
    posed = robot_from_mjcf(robot.mjcf, joints=tuple(own), default_positions=pose, feet=robot.feet)
    joints = tuple(
        msgspec.structs.replace(
            others[name],
            velocity_limit=joint.velocity_limit,
            default_position=joint.default_position,
            kp=joint.kp,
            kd=joint.kd,
        )
        for name, joint in own.items()
    )
    model = load_model(posed, FLAT)[1]
    mass = model.body_subtreemass[0] / load_model(ROBOT, FLAT)[1].body_subtreemass[0]
    if not all(1.0 / ALIKE < ratio < ALIKE for ratio in (mass, posed.base_height / ROBOT.base_height)):
        return None

    def has(parameter: RobotParameter) -> bool:
        try:
            return all(find_place(model, place) for place in parameter.places)
        except InputError:
            return False

    return msgspec.structs.replace(
        robot,
        joints=joints,
        parameters=robot.parameters or tuple(parameter for parameter in ROBOT.parameters if has(parameter)),
        base_height=posed.base_height,
        feet=posed.feet,
    )


def go2_gait(robot: Robot) -> Gait:
    """Return `GAIT`, without the parameters that another model of the Go2 does not have."""
    known = {parameter.name for parameter in robot.parameters}
    ranges = tuple(name for name in GAIT.ranges if name in known)
    return msgspec.structs.replace(GAIT, ranges=ranges, images=_images(robot))


def with_gait(robot: Robot) -> tuple[Robot, Gait]:
    """Return another robot as it is to walk: a model of the Go2 as the Go2, any other as its MJCF lets it.

    Raises:
        InputError: It cannot walk.
    """
    walker = as_go2(robot)
    return (robot, gait_of(robot)) if walker is None else (walker, go2_gait(walker))


def of_other(task: Task) -> Task:
    """Return the task of another model of the Go2 with ranges about that model's own physics, as wide as the Go2's."""
    return msgspec.structs.replace(task, ranges=tuple(_relative(each) for each in task.ranges))


def _relative(found: ParameterRange) -> ParameterRange:
    nominal = ROBOT.parameter(found.name).nominal
    if nominal > 0.0:
        low, middle, high = (value / nominal for value in (found.low, found.nominal, found.high))
        return msgspec.structs.replace(found, unit="1", low=low, nominal=middle, high=high, operation="scale")
    low, middle, high = (value - nominal for value in (found.low, found.nominal, found.high))
    return msgspec.structs.replace(found, low=low, nominal=middle, high=high, operation="add")


def flat(robot: Robot, gait: Gait) -> Task:
    """Return the task on flat ground."""
    return velocity_task(
        robot,
        gait,
        name="go2-velocity-flat",
        summary="Walk on flat ground at the velocity that is asked for (±1 m/s, ±0.6 m/s, ±1 rad/s), and take pushes.",
        rebuild=lambda other: of_other(flat(*with_gait(other))),
    )


FLAT_TASK: Final = flat(ROBOT, GAIT)


TERRAIN: Final = Terrain(levels=6, columns=8, seed=0)
"""The rough ground: it is the same for everybody."""


def level_change(robot: Robot) -> Callable[[Motion], npt.NDArray[np.int64]]:
    """Return: +1 where the robot walked off its patch, −1 where it fell on it.

    How far it was told to walk does not count: commands that turn lead back to where they began.
    """
    fell = fallen(robot)

    def change(motion: Motion) -> npt.NDArray[np.int64]:
        left = np.linalg.norm(motion.base_pos[:, :2] - motion.origin, axis=1) > 0.5 * PATCH
        return left.astype(np.int64) - (fell(motion) & ~left)

    return change


def height_scan(robot: Robot) -> Callable[[Motion], Array]:
    """Return the ground's height around the robot, 5 × 5 points 0.2 m apart, above where its feet are when it stands.

    In units of 0.2 m, at most ±2.
    """

    def term(motion: Motion) -> Array:
        heading = yaw_of(motion.base_quat)[:, None]
        cos, sin = np.cos(heading), np.sin(heading)
        x = motion.base_pos[:, :1] + cos * _SCAN[0] - sin * _SCAN[1]
        y = motion.base_pos[:, 1:2] + sin * _SCAN[0] + cos * _SCAN[1]
        below = motion.base_pos[:, 2:3] - robot.base_height
        return np.clip(5.0 * (motion.ground_height(x, y) - below), -2.0, 2.0)

    return term


_LINE: Final = np.linspace(-0.4, 0.4, 5)
_SCAN: Final = np.stack(np.meshgrid(_LINE, _LINE, indexing="ij")).reshape(2, -1)
_SCAN_IMAGE: Final = Image(
    # Row by row from right to left, the rows being in front of each other.
    columns=tuple(np.arange(25).reshape(5, 5)[:, ::-1].ravel().tolist()),
    signs=(1,) * 25,
)


def rough(robot: Robot, gait: Gait) -> Task:
    """Return the task on rough ground."""
    return velocity_task(
        robot,
        gait,
        name="go2-velocity-rough",
        summary="Walk over slopes, uneven ground, stairs and blocks at the velocity that is asked for, without seeing.",
        scene=Scene(ground=True, terrain=TERRAIN.field, friction=1.0),
        curriculum=Curriculum(levels=TERRAIN.levels, change=level_change(robot), origin=TERRAIN.origin),
        more_critic={"height_scan": height_scan(robot)},
        more_mirror={"height_scan": _SCAN_IMAGE},
        rebuild=lambda other: of_other(rough(*with_gait(other))),
    )


ROUGH_TASK: Final = rough(ROBOT, GAIT)
