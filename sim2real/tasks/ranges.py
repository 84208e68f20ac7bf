"""Whether a robot can have the physics that a `randomization.json` names."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from sim2real.errors import InputError
from sim2real.randomization import DELAYS, INERTIA, ParameterRange, RandomizationFile, validate
from sim2real.robots import Robot
from sim2real.robots.drives import check_parameter
from sim2real.sim.delays import MAX_DELAY
from sim2real.sim.inertia import nominal_inertia
from sim2real.sim.ranges import DRIVE, SENSOR, Nominal, Resolved, absolute, resolve
from sim2real.sim.scene import EMPTY, Scene

if TYPE_CHECKING:
    from mujoco import MjModel

__all__ = ["check_robot"]

_LARGEST: Final = 1e6
"""No parameter of a robot is larger, in SI units; values beyond overflow in the simulation."""
_POSITIVE: Final = frozenset({"body_mass", "body_inertia"})
_NOT_NEGATIVE: Final = frozenset(
    {
        *("dof_armature", "dof_damping", "dof_frictionloss", "jnt_stiffness", "geom_friction", "pair_friction"),
        *("tendon_armature", "tendon_damping", "tendon_frictionloss", "tendon_stiffness", "opt.density"),
        "opt.viscosity",
    }
)
_LARGEST_COORDINATE: Final = 1.0
"""A log-Cholesky coordinate of 1 is already a body of seven times the density."""


def check_robot(content: RandomizationFile, robot: Robot, scene: Scene = EMPTY) -> None:
    """Check that `robot` in `scene` can have every value of the ranges, before anything is simulated.

    Errors of sensors (``sensor.…``) are checked where the sensors are known: by `sim2real.sim.ranges.Randomizer`.

    Raises:
        InputError: The ranges are another robot's, name a parameter that matches nothing (the message lists near
            names), act twice at one place, or hold a mass that is not positive, an inertia that no body has, another
            value that is negative or huge, or a delay that cannot be simulated.
    """
    if content.robot != robot.name:
        raise InputError(f"randomization: is of robot {content.robot!r}, but the task needs {robot.name!r}")
    validate(content)
    nominal = _model_of(robot, scene)
    found = resolve(content, robot, nominal)
    for index, each in enumerate(found):
        _check(f"randomization.parameters[{index}] {each.parameter.name}", each, robot, nominal)
    _check_moments(found, nominal)


def _model_of(robot: Robot, scene: Scene) -> Nominal:
    """Return what the model holds at a place; it is loaded when first asked."""

    @functools.cache
    def nominal(place: str) -> float:
        from sim2real.sim.places import nominal_value

        return nominal_value(model(), place)

    @functools.cache
    def model() -> MjModel:
        from sim2real.sim.model import load_model

        return load_model(robot, scene)[1]

    return nominal


def _check(path: str, each: Resolved, robot: Robot, nominal: Nominal) -> None:
    if each.body is not None:
        _check_between(path, each, -_LARGEST_COORDINATE, _LARGEST_COORDINATE)
        nominal_inertia(nominal, each.body)
        return
    signed = {parameter.name: min(0.0, parameter.plausible[0]) for parameter in robot.parameters}
    for place in each.places:
        field = place.partition("/")[0]
        if place.startswith(SENSOR):
            continue
        if place in DELAYS:
            _check_between(path, each, 0.0, MAX_DELAY)
        elif place.startswith(DRIVE):
            check_parameter(field.removeprefix(DRIVE), np.array(_bounds(each)))
        elif field.endswith("quat"):
            raise InputError(
                f"{path}: an attitude has no range of single numbers; for an inertia's, take {INERTIA}BODY"
            )
        elif field in _POSITIVE:
            low = min(_bounds(each))
            if low <= 0.0:
                raise InputError(f"{path}: expected a range > 0, got low {low}{_relative(each.parameter)}")
            _check_between(path, each, 0.0, _LARGEST)
        elif each.parameter.name in signed:
            # Few quantities have a sign, e.g. a spring's rest angle; then the robot calls negative ones plausible.
            _check_between(path, each, signed[each.parameter.name], _LARGEST)
        else:
            _check_between(path, each, 0.0 if field in _NOT_NEGATIVE else -_LARGEST, _LARGEST)


def _check_between(path: str, each: Resolved, low: float, high: float) -> None:
    bounds = _bounds(each)
    if not low <= min(bounds) <= max(bounds) <= high:
        parameter = each.parameter
        unit = "" if parameter.unit == "1" or parameter.operation == "scale" else f" {parameter.unit}"
        raise InputError(
            f"{path}: expected a range within {low:g} to {high:g}{unit}, got {min(bounds)} to {max(bounds)}"
            f"{_relative(parameter)}"
        )


def _bounds(each: Resolved) -> list[float]:
    """Return the least and largest value at each place."""
    if each.body is not None:
        return [each.parameter.low, each.parameter.high]
    ends = np.array([each.parameter.low, each.parameter.high])
    return [value for nominal in each.nominal for value in absolute(each.parameter, nominal, ends).tolist()]


def _relative(parameter: ParameterRange) -> str:
    if parameter.operation == "set":
        return ""
    return f" ({parameter.low} to {parameter.high}, {parameter.operation} to what the model holds)"


def _check_moments(found: Sequence[Resolved], nominal: Nominal) -> None:
    """Check that principal moments that are drawn one by one obey the triangle inequality.

    It is linear in them, so it holds for all draws if it does at the corners of the ranges.
    """
    field = "body_inertia/"
    places = {place: each for each in found if each.body is None for place in each.places if place.startswith(field)}
    for body in dict.fromkeys(place.removeprefix(field).partition("[")[0] for place in places):
        axes = [f"{field}{body}[{axis}]" for axis in range(3)]
        drawn = list({id(places[axis]): places[axis] for axis in axes if axis in places}.values())
        for corner in itertools.product(*((each.parameter.low, each.parameter.high) for each in drawn)):
            moments = {axis: nominal(axis) for axis in axes}
            for each, value in zip(drawn, corner, strict=True):
                at = dict(zip(each.places, each.nominal, strict=True))
                for axis in moments.keys() & at.keys():
                    moments[axis] = float(absolute(each.parameter, at[axis], np.array(value)))
            if 2.0 * max(moments.values()) > sum(moments.values()) * (1.0 + 1e-9):
                raise InputError(
                    f"randomization: {', '.join(each.parameter.name for each in drawn)}: the ranges hold the principal "
                    f"moments {list(moments.values())} of body {body}, which no body has: one exceeds the sum of the "
                    f"others; take {INERTIA}{body}, whose draws are always a body's"
                )
