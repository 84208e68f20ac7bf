"""Whether a robot can have the physics that a `randomization.json` names."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from sim2real.errors import InputError
from sim2real.randomization import DELAYS, INERTIA, ParameterRange, RandomizationFile, no_ranges, validate
from sim2real.robots import Robot, same_robot
from sim2real.robots.drives import check_parameter
from sim2real.sim.bounds import NOT_NEGATIVE, POSITIVE, RANGES
from sim2real.sim.delays import MAX_DELAY
from sim2real.sim.inertia import nominal_inertia
from sim2real.sim.ranges import DRIVE, SENSOR, Nominal, Resolved, absolute, resolve
from sim2real.sim.scene import EMPTY, Scene
from sim2real.tasks.base import Task

if TYPE_CHECKING:
    from mujoco import MjModel

__all__ = ["check_robot", "with_own_ranges"]

_LARGEST: Final = 1e6
"""No parameter of a robot is larger, in SI units; values beyond overflow in the simulation."""
_POSITIVE: Final = POSITIVE | {"body_mass", "body_inertia"}
"""A simulation takes bodies of no mass, which no robot that is randomized has."""
_LARGEST_COORDINATE: Final = 1.0
"""A log-Cholesky coordinate of 1 is already a body of seven times the density."""


def check_robot(content: RandomizationFile, robot: Robot, scene: Scene = EMPTY) -> None:
    """Check that `robot` in `scene` can have every value of the ranges, before anything is simulated.

    Errors of sensors (``sensor.…``) are checked where the sensors are known: by `sim2real.sim.ranges.Randomizer`.

    Raises:
        InputError: The ranges are another robot's, name a parameter that matches nothing (the message lists near
            names), act twice at one place, or hold a mass that is not positive, an inertia that no body has, a joint's
            range that may end below its beginning, another value that is negative or huge, or a delay that cannot be
            simulated.
    """
    if not same_robot(content.robot, robot.name):
        raise InputError(f"randomization: is of robot {content.robot!r}, but the task needs {robot.name!r}")
    validate(content)
    nominal = _model_of(robot, scene)
    found = resolve(content, robot, nominal)
    for index, each in enumerate(found):
        _check_unit(f"randomization.parameters[{index}] {each.parameter.name}", each.parameter, robot)
        _check(f"randomization.parameters[{index}] {each.parameter.name}", each, robot, nominal)
    _check_moments(found, nominal)
    _check_ends(found, nominal)


def _check_unit(path: str, parameter: ParameterRange, robot: Robot) -> None:
    """A range of the robot's own parameter is in its unit, or says none."""
    for known in robot.parameters:
        if parameter.name == known.name and parameter.unit not in ("", known.unit):
            raise InputError(f"{path}: unit: expected {known.unit!r}, the robot's own, got {parameter.unit!r}")


def with_own_ranges(content: RandomizationFile | None, task: Task) -> RandomizationFile | None:
    """Return the ranges that episodes of `task` draw from: those of `content`, and the task's own of all else.

    A range of the task gives way where one of `content` acts on the same place of the model.

    Returns:
        None: neither has any, and physics is nominal.
    """
    if content is None:
        if not task.ranges:
            return None
        content = no_ranges(task.robot.name)
    taken = [place for parameter in content.parameters for place in _places(task.robot, parameter.name)]
    own = tuple(
        parameter
        for parameter in task.ranges
        if not any(_meet(place, other) for place in _places(task.robot, parameter.name) for other in taken)
    )
    return msgspec.structs.replace(content, parameters=(*content.parameters, *own))


def _places(robot: Robot, name: str) -> tuple[str, ...]:
    """Places in the model that a parameter sets; a name that the robot has not is one itself."""
    known = {parameter.name for parameter in robot.parameters}
    return robot.parameter(name).places if name in known else (name,)


def _meet(one: str, other: str) -> bool:
    """Whether two places are the same, or one is the whole inertia of a body and the other a part of it."""
    if one == other:
        return True
    for whole, part in ((one, other), (other, one)):
        field, _, body = part.partition("/")
        named = whole.removeprefix(INERTIA).partition("[")[0]
        if whole.startswith(INERTIA) and field.startswith("body_") and body.partition("[")[0] == named:
            return True
    return False


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
            _check_between(path, each, 0.0 if field in NOT_NEGATIVE else -_LARGEST, _LARGEST)


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


def _check_ends(found: Sequence[Resolved], nominal: Nominal) -> None:
    """Check that the lower end of what has two ends, e.g. a joint's range, stays below the upper in every draw."""
    places = {place: each for each in found if each.body is None for place in each.places}
    ranges = dict.fromkeys(place.rpartition("[")[0] for place in places if place.partition("/")[0] in RANGES)
    for name in ranges:
        low, high = (_drawn(places, f"{name}[{end}]", nominal) for end in (0, 1))
        # Of one parameter for both ends, they are drawn together.
        together = places.get(f"{name}[0]") is places.get(f"{name}[1]")
        crossed = any(one > other for one, other in zip(low, high, strict=True)) if together else max(low) > min(high)
        if crossed:
            raise InputError(
                f"randomization: {name}: the lower end may be up to {max(low)}, the upper as low as {min(high)}; "
                "give ranges that do not meet"
            )


def _drawn(places: dict[str, Resolved], place: str, nominal: Nominal) -> list[float]:
    """Return the value at a place for the low and for the high end of its parameter; nominal if it has none."""
    if place not in places:
        return [nominal(place)]
    each = places[place]
    at = each.nominal[each.places.index(place)]
    return [float(absolute(each.parameter, at, np.array(end))) for end in (each.parameter.low, each.parameter.high)]
