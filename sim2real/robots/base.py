"""What a robot is to the toolkit: its model file, its joints' ratings and its uncertain parameters."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from sim2real import plugins
from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.robots.drives import IDEAL, Drive
from sim2real.robots.model_files import is_file_name, split_name

__all__ = ["ParameterSet", "Robot", "RobotJoint", "RobotParameter", "get_robot", "robot_names"]

_BUILT_IN: Final = {
    "pendulum": "sim2real.robots.pendulum:ROBOT",
    "double_pendulum": "sim2real.robots.double_pendulum:ROBOT",
    "so101": "sim2real.robots.so101:ROBOT",
    "go2": "sim2real.robots.go2:ROBOT",
}


class RobotJoint(msgspec.Struct, frozen=True, kw_only=True):
    """Ratings of one actuated joint, from the datasheet; the MJCF's hinge and motor carry the same name."""

    name: str
    position_limits: tuple[float, float] | None
    """Allowed positions [rad]; None: the joint turns without end."""
    velocity_limit: float
    """Largest absolute velocity [rad/s]."""
    effort_limit: float
    """Largest absolute effort [N·m]."""
    default_position: float
    """Position [rad] of the default pose."""
    kp: float = 0.0
    """Stiffness [N·m/rad] of the robot's own position control; 0: it is driven by effort."""
    kd: float = 0.0
    """Damping [N·m·s/rad] of it."""
    drive: Drive = IDEAL
    """What lies between command and torque."""


class RobotParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A physical quantity that calibration fits and training randomizes."""

    name: str
    unit: str
    nominal: float
    """Datasheet value."""
    field: str | tuple[str, ...]
    """Where the value goes in the simulator: ``<mjModel field>/<object name>``, optionally with ``[index]``. The same
    value goes to each of several places."""
    meaning: str
    plausible: tuple[float, float]
    """Least and largest value that any robot of this type could have, in `unit`: calibration searches between them, and
    training draws from all of it where logs do not show the parameter."""
    typical: tuple[float, float]
    """Within what most robots of this type lie, in `unit`: simulated robots of hidden parameters are drawn from it."""
    session_factor: float
    """By what factor it may differ in another session (temperature, wear), at least 1; 1: it does not."""

    @property
    def places(self) -> tuple[str, ...]:
        """Every place of `field`."""
        return (self.field,) if isinstance(self.field, str) else self.field


class ParameterSet(msgspec.Struct, frozen=True, kw_only=True):
    """Values of a robot's parameters and whose they are: of a datasheet, of a fit, or published by somebody else."""

    name: str
    values: dict[str, float]
    """By the parameter's name; what is not named has its datasheet value."""
    source: str


class Robot(msgspec.Struct, frozen=True, kw_only=True):
    """One robot."""

    name: str
    mjcf: Path
    joints: tuple[RobotJoint, ...]
    parameters: tuple[RobotParameter, ...]
    published: tuple[ParameterSet, ...] = ()
    """What others found for the real robot; calibration judges it beside its own fit."""
    base: Literal["fixed", "floating"] = "fixed"
    """floating: the MJCF's first joint is a free joint of the base link."""
    base_height: float = 0.0
    """Height [m] of a floating base above flat ground in the default pose."""
    feet: tuple[str, ...] = ()
    """Geoms that are meant to touch the ground, in a fixed order."""

    def parameter(self, name: str) -> RobotParameter:
        """Return the parameter called `name`.

        Raises:
            InputError: The robot has no such parameter; the message lists near names.
        """
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        names = [parameter.name for parameter in self.parameters]
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"parameter {name!r} of robot {self.name}: unknown; allowed: {', '.join(names)}{hint}")


def robot_names() -> tuple[str, ...]:
    """Return the names that `get_robot` accepts: built in, then of installed packages (`sim2real.plugins`)."""
    return plugins.names("robot", _BUILT_IN)


def get_robot(name: str) -> Robot:
    """Return the robot called `name`.

    Args:
        name: One of `robot_names()`; the path of an MJCF, which ends in ``.xml``, alone or as a robot's name has it,
            with its content; or ``menagerie:`` and the name of a model of MuJoCo Menagerie, which is downloaded on
            first use.

    Raises:
        InputError: There is no such robot, what a package gives is not one, or the MJCF cannot be used, or is not what
            it was.
        MissingExtraError: MuJoCo, or `mujoco-menagerie`, is needed and not installed.
    """
    if name.startswith("menagerie:") or is_file_name(name):
        require("mujoco", "sim")
        # Reading MJCF loads MuJoCo; the robots that ship with the toolkit are known without it.
        from sim2real.robots.mjcf import robot_from_menagerie, robot_from_mjcf

        return robot_from_menagerie(name) if name.startswith("menagerie:") else _from_file(robot_from_mjcf, name)
    robot = plugins.load("robot", _BUILT_IN, name)
    if not isinstance(robot, Robot):
        raise InputError(f"robot {name!r}: expected a sim2real.robots.Robot, got {type(robot).__name__}")
    return robot


def _from_file(load: Callable[[Path], Robot], name: str) -> Robot:
    """Return the robot of a file, if it has the content that the name says."""
    path, content = split_name(name)
    if content is not None and not path.is_file():
        raise InputError(f"robot {name!r}: there is no {path} any more; put it back, or say by --robot where it is now")
    robot = load(path)
    if content is not None and (found := split_name(robot.name)[1]) != content:
        raise InputError(
            f"robot {str(path)!r}: expected the content {content}, got {found}: the file, or one that it names, has "
            "been changed since; restore it, or train anew with what it describes now"
        )
    return robot
