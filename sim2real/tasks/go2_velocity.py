"""The Unitree Go2 walks as the operator says: on flat ground, and over rough terrain that grows with its skill."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real.robots.go2 import ROBOT
from sim2real.sim.rotation import yaw_of
from sim2real.sim.scene import Scene
from sim2real.tasks.base import Array, Curriculum, Motion, Task
from sim2real.tasks.terrain import PATCH, Terrain
from sim2real.tasks.velocity import Gait, velocity_task

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


def level_change(motion: Motion) -> npt.NDArray[np.int64]:
    """Return +1 where the robot walked off its patch, −1 where it came less than half as far as it was told to."""
    walked = np.linalg.norm(motion.base_pos[:, :2] - motion.origin, axis=1)
    asked = np.linalg.norm(motion.command[:, :2], axis=1) * motion.time
    return (walked > 0.5 * PATCH).astype(np.int64) - (walked < 0.5 * np.minimum(asked, PATCH))


def height_scan(motion: Motion) -> Array:
    """Return the ground's height below and around the robot, 5 × 5 points 0.2 m apart, relative to its feet's level."""
    heading = yaw_of(motion.base_quat)[:, None]
    cos, sin = np.cos(heading), np.sin(heading)
    x = motion.base_pos[:, :1] + cos * _SCAN[0] - sin * _SCAN[1]
    y = motion.base_pos[:, 1:2] + sin * _SCAN[0] + cos * _SCAN[1]
    below = motion.base_pos[:, 2:3] - ROBOT.base_height
    return np.clip(5.0 * (motion.ground_height(x, y) - below), -2.0, 2.0)


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
        curriculum=Curriculum(levels=TERRAIN.levels, change=level_change, origin=TERRAIN.origin),
        more_critic={"height_scan": height_scan},
        rebuild=rough,
    )


ROUGH_TASK: Final = rough(ROBOT)
