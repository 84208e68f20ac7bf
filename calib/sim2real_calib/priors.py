"""What is fitted, and what is believed of it before any log is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import ParameterSet, Robot, RobotParameter

__all__ = [
    "EFFORT_LOG_DELAY",
    "EFFORT_LOG_OFFSET",
    "EFFORT_LOG_SCALE",
    "Prior",
    "default_free",
    "other_candidates",
    "priors_of",
    "start_vector",
]

Floats = npt.NDArray[np.float64]

EFFORT_LOG_DELAY: Final = "effort_log_delay"
EFFORT_LOG_SCALE: Final = "effort_log_scale"
EFFORT_LOG_OFFSET: Final = "effort_log_offset"


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """One unknown: a parameter of the robot, or one that says how the log's effort relates to the applied one."""

    name: str
    unit: str
    start: float
    """The datasheet's value, from which the fit starts."""
    low: float
    high: float
    """Everything that is plausible: the fit's bounds, and the range of a parameter that the logs do not show."""
    session_factor: float
    """By what factor it may differ in another session (temperature, wear); 1: it does not."""
    of_robot: bool
    """False: it describes the log and is not randomized in training."""
    meaning: str

    @property
    def width(self) -> float:
        """Distance between the bounds."""
        return self.high - self.low


_LOG_PRIORS: Final = (
    Prior(
        name=EFFORT_LOG_DELAY,
        unit="s",
        start=0.0,
        low=-0.03,
        high=0.03,
        session_factor=1.0,
        of_robot=False,
        meaning="How much later than the position an effort is logged: effort(t) acted is effort(t + delay) logged.",
    ),
    Prior(
        name=EFFORT_LOG_SCALE,
        unit="1",
        start=1.0,
        low=0.5,
        high=2.0,
        session_factor=1.0,
        of_robot=False,
        meaning="Effort that acted, per effort logged: an error of the torque constant.",
    ),
    Prior(
        name=EFFORT_LOG_OFFSET,
        unit="N·m",
        start=0.0,
        low=-0.5,
        high=0.5,
        session_factor=1.0,
        of_robot=False,
        meaning="Effort that acted while 0 was logged.",
    ),
)


def priors_of(robot: Robot) -> tuple[Prior, ...]:
    """Return all unknowns of a robot: its own parameters, in its order, then those of its logs.

    Raises:
        InputError: What the robot says of a parameter does not hold together.
    """
    return (*(_prior(robot, parameter) for parameter in robot.parameters), *_LOG_PRIORS)


def _prior(robot: Robot, parameter: RobotParameter) -> Prior:
    low, high = parameter.plausible
    place = f"robot {robot.name}: parameter {parameter.name}"
    if not (math.isfinite(low) and math.isfinite(high) and low < high and low <= parameter.nominal <= high):
        raise InputError(
            f"{place}: plausible: expected finite bounds, the lower one first, around its nominal "
            f"{parameter.nominal:g}, got {low:g} to {high:g}"
        )
    if not low <= parameter.typical[0] <= parameter.typical[1] <= high:
        raise InputError(
            f"{place}: typical: expected bounds within the plausible {low:g} to {high:g}, "
            f"got {parameter.typical[0]:g} to {parameter.typical[1]:g}"
        )
    if not 1.0 <= parameter.session_factor < math.inf:
        raise InputError(f"{place}: session_factor: expected at least 1, got {parameter.session_factor:g}")
    return Prior(
        name=parameter.name,
        unit=parameter.unit,
        start=parameter.nominal,
        low=low,
        high=high,
        session_factor=parameter.session_factor,
        of_robot=True,
        meaning=parameter.meaning,
    )


def default_free(priors: Sequence[Prior]) -> tuple[str, ...]:
    """Return what is fitted unless told otherwise.

    A scale of the logged effort is the same unknown as mass, inertia and friction together; an offset makes fitted logs
    better and other logs worse.
    """
    return tuple(prior.name for prior in priors if prior.of_robot or prior.name == EFFORT_LOG_DELAY)


def other_candidates(robot: Robot, *, real: bool) -> tuple[ParameterSet, ...]:
    """Return the parameter sets that the fit is compared with.

    Args:
        robot: The robot.
        real: Whether the logs are of the real robot; what was published of it says nothing of a simulated one.
    """
    datasheet = ParameterSet(name="datasheet", values={}, source="the robot's model file")
    return (datasheet, *robot.published) if real else (datasheet,)


def start_vector(priors: Sequence[Prior], values: dict[str, float]) -> Floats:
    """Return a value for each of `priors`, from `values` or else the datasheet, shape (P,)."""
    return np.array([values.get(prior.name, prior.start) for prior in priors])
