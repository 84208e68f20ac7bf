"""What is fitted, and what is believed of it before any log is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import Robot

__all__ = [
    "EFFORT_LOG_DELAY",
    "EFFORT_LOG_OFFSET",
    "EFFORT_LOG_SCALE",
    "Candidate",
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


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's parameters, to be judged beside the fit."""

    name: str
    values: dict[str, float]
    """By name; what is not named has its datasheet value."""
    source: str


class _Range(msgspec.Struct, frozen=True):
    low: float
    high: float
    session_factor: float = 1.0


_ROBOT_RANGES: Final = {
    "pendulum": {
        "mass": _Range(0.2, 2.0),
        "armature": _Range(0.0, 0.05),
        "damping": _Range(0.0, 0.5, 2.5),
        "frictionloss": _Range(0.0, 1.0, 2.5),
    }
}
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
_OTHERS: Final = {
    "pendulum": (
        Candidate(
            name="published",
            # J = 0.0626 kg·m² and m·cx = 0.1022 kg·m, told as a point mass at 0.5 m and the inertia that it lacks.
            # Fc·atan(100 q̇) tends to Fc·π/2 as soon as the joint moves, which is the Coulomb friction of MuJoCo.
            values={
                "mass": 0.1022 / 0.5,
                "armature": 0.0626 - 0.1022 * 0.5,
                "damping": 0.0471,
                "frictionloss": 0.1839 * np.pi / 2,
            },
            source=(
                "the authors' own fit to another log (J 0.0626, m·cx 0.1022, Fv 0.0471, Fc 0.1839; Fc·atan(100 q̇) as "
                "Coulomb friction of Fc·π/2, their torque offset left out)"
            ),
        ),
    )
}


def priors_of(robot: Robot) -> tuple[Prior, ...]:
    """Return all unknowns of a robot: its own parameters, in its order, then those of its logs.

    Raises:
        InputError: Calibration does not know what is plausible for a parameter of the robot.
    """
    ranges = _ROBOT_RANGES.get(robot.name, {})
    missing = [parameter.name for parameter in robot.parameters if parameter.name not in ranges]
    if missing:
        raise InputError(
            f"robot {robot.name}: calibration knows no plausible range of {', '.join(missing)}; "
            f"it can fit {', '.join(_ROBOT_RANGES)}; add the range in sim2real_calib.priors"
        )
    own = tuple(
        Prior(
            name=parameter.name,
            unit=parameter.unit,
            start=parameter.nominal,
            low=ranges[parameter.name].low,
            high=ranges[parameter.name].high,
            session_factor=ranges[parameter.name].session_factor,
            of_robot=True,
            meaning=parameter.meaning,
        )
        for parameter in robot.parameters
    )
    return own + _LOG_PRIORS


def default_free(priors: Sequence[Prior]) -> tuple[str, ...]:
    """Return what is fitted unless told otherwise.

    A scale of the logged effort is the same unknown as mass, inertia and friction together; an offset makes fitted logs
    better and other logs worse.
    """
    return tuple(prior.name for prior in priors if prior.of_robot or prior.name == EFFORT_LOG_DELAY)


def other_candidates(robot: Robot) -> tuple[Candidate, ...]:
    """Return the parameter sets that the fit is compared with."""
    datasheet = Candidate(name="datasheet", values={}, source="the robot's model file")
    return (datasheet, *_OTHERS.get(robot.name, ()))


def start_vector(priors: Sequence[Prior], values: dict[str, float]) -> Floats:
    """Return a value for each of `priors`, from `values` or else the datasheet, shape (P,)."""
    return np.array([values.get(prior.name, prior.start) for prior in priors])
