"""The Unitree Go2 walks as the operator says: on flat ground, and over rough terrain that grows with its skill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real.robots.go2 import ROBOT
from sim2real.sim.rotation import yaw_of
from sim2real.sim.scene import Scene
from sim2real.tasks.base import Array, Curriculum, Motion, Task
from sim2real.tasks.terrain import PATCH, Terrain
from sim2real.tasks.velocity import Gait, fallen, velocity_task

__all__ = ["FLAT_TASK", "ROUGH_TASK"]

_LEG: Final = 4
"""Legs, each of hip, thigh and calf."""
GAIT: Final = Gait(
    command_limits=(1.0, 0.6, 1.0),
    action_scale=(0.3, 0.5, 0.5) * _LEG,
    air_time=0.3,
    foot_load=37.0,
    posture=(1.0, 0.3, 0.2) * _LEG,
    push=(0.5, 0.5),
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
)


def flat(robot: Robot) -> Task:
    """Return the task on flat ground, for the Go2 or for another model of it."""
    return velocity_task(
        robot,
        GAIT,
        name="go2-velocity-flat",
        summary="Walk on flat ground at the velocity that is asked for (±1 m/s, ±0.6 m/s, ±1 rad/s), and take pushes.",
        rebuild=flat,
    )


FLAT_TASK: Final = flat(ROBOT)


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


def rough(robot: Robot) -> Task:
    """Return the task on rough ground, for the Go2 or for another model of it."""
    return velocity_task(
        robot,
        GAIT,
        name="go2-velocity-rough",
        summary="Walk over slopes, uneven ground, stairs and blocks at the velocity that is asked for, without seeing.",
        scene=Scene(ground=True, terrain=TERRAIN.field, friction=1.0),
        curriculum=Curriculum(levels=TERRAIN.levels, change=level_change(robot), origin=TERRAIN.origin),
        more_critic={"height_scan": height_scan(robot)},
        rebuild=rough,
    )


ROUGH_TASK: Final = rough(ROBOT)
