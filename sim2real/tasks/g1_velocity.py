"""The Unitree G1, a humanoid, walks as the operator says, on flat ground; so does another robot with legs."""

from __future__ import annotations

from typing import Final

from sim2real.robots import Robot
from sim2real.robots.mjcf import robot_from_mjcf
from sim2real.tasks.base import FETCHED, Task
from sim2real.tasks.mirror import named_images
from sim2real.tasks.velocity import Gait, velocity_task
from sim2real.tasks.walkers import gait_of

__all__ = ["flat"]

_NAME: Final = "g1-velocity-flat"

_GAINS: Final = {
    "hip": (100.0, 2.0),
    "knee": (150.0, 4.0),
    "ankle": (40.0, 2.0),
    "waist": (150.0, 4.0),
    "shoulder": (40.0, 1.0),
    "elbow": (40.0, 1.0),
    "wrist": (20.0, 0.5),
}
"""kp [N·m/rad] and kd [N·m·s/rad] by the part of the body that a joint's name begins with, after its side."""
_POSTURE: Final = {"hip": 0.5, "knee": 0.2, "ankle": 0.5, "waist": 2.0, "shoulder": 1.0, "elbow": 1.0, "wrist": 1.0}
_KNEES_BENT: Final = {"hip_pitch": -0.3, "knee": 0.6, "ankle_pitch": -0.3}
"""Default pose [rad]: knees bent, feet below the body."""


def part(joint: str) -> str:
    """Return the part of the body of a joint: ``left_hip_pitch_joint`` is of the ``hip``."""
    return joint.removeprefix("left_").removeprefix("right_").partition("_")[0]


def with_gains(robot: Robot) -> Robot:
    """Return a G1 with gains of a walking controller and bent knees: the model's own gains are a servo's.

    Raises:
        InputError: It does not have the G1's legs.
    """
    names = [joint.name for joint in robot.joints]
    bent = {f"{side}_{name}_joint": angle for side in ("left", "right") for name, angle in _KNEES_BENT.items()}
    return robot_from_mjcf(
        robot.mjcf,
        name=robot.name,
        kp={name: _GAINS[part(name)][0] for name in names},
        kd={name: _GAINS[part(name)][1] for name in names},
        default_positions=bent,
    )


def g1_gait(walker: Robot) -> Gait:
    """Return how the G1, or another model of it, is to walk."""
    names = (*(joint.name for joint in walker.joints), *walker.feet)
    return Gait(
        command_limits=(1.0, 0.5, 1.0),
        # Half of what the motor's torque can hold, within what is sensible for a joint.
        action_scale=tuple(min(max(0.5 * joint.effort_limit / joint.kp, 0.1), 0.5) for joint in walker.joints),
        air_time=0.4,
        foot_load=160.0,
        posture=tuple(_POSTURE[part(joint.name)] for joint in walker.joints),
        push=(0.5, 0.3),
        training_push=(0.8, 0.6),
        ranges=(),
        images=named_images(names, (("left", "right"),), sideways=("roll", "yaw")),
    )


def flat(robot: Robot) -> Task:
    """Return the task for the G1, for another model of it, or for another robot as its MJCF lets it walk.

    Raises:
        InputError: It cannot walk.
    """
    is_g1 = all(part(joint.name) in _GAINS for joint in robot.joints)
    walker = with_gains(robot) if is_g1 else robot
    return velocity_task(
        walker,
        g1_gait(walker) if is_g1 else gait_of(walker),
        name=_NAME,
        summary=FETCHED[_NAME].summary,
        rebuild=flat,
    )
