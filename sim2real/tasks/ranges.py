"""Whether a robot can have the physics that a `randomization.json` names."""

from __future__ import annotations

from typing import Final

from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile
from sim2real.robots import Robot
from sim2real.sim.plant import MAX_DELAY

__all__ = ["check_robot"]

_LARGEST: Final = 1e6
"""No parameter of a robot is larger, in SI units; values beyond overflow in the simulation."""


def check_robot(content: RandomizationFile, robot: Robot) -> None:
    """Check that `robot` can have every value of the ranges, before anything is simulated.

    Raises:
        InputError: The ranges are another robot's, name a parameter that it has not, or hold a mass that is not
            positive, another value that is negative or huge, or a delay that cannot be simulated.
    """
    if content.robot != robot.name:
        raise InputError(f"randomization: is of robot {content.robot!r}, but the task needs {robot.name!r}")
    for index, parameter in enumerate(content.parameters):
        path = f"randomization.parameters[{index}]"
        if parameter.name == COMMAND_DELAY:
            _check_between(path, parameter, 0.0, MAX_DELAY)
            continue
        known = robot.parameter(parameter.name)
        if any(place.startswith(("body_mass/", "body_inertia/")) for place in known.places):
            if parameter.low <= 0.0:
                raise InputError(f"{path} {parameter.name}: expected a range > 0, got low {parameter.low}")
            _check_between(path, parameter, 0.0, _LARGEST)
        else:
            # Few quantities have a sign, e.g. a spring's rest angle; then the robot calls negative ones plausible.
            _check_between(path, parameter, min(0.0, known.plausible[0]), _LARGEST)


def _check_between(path: str, parameter: ParameterRange, low: float, high: float) -> None:
    if not low <= parameter.low <= parameter.high <= high:
        raise InputError(
            f"{path} {parameter.name}: expected a range within {low:g} to {high:g} {parameter.unit}, got "
            f"{parameter.low} to {parameter.high}"
        )
