"""`randomization.json`: what calibration knows of a robot's physics, and how sure it is of it.

Written by calibration, read by training (which draws an episode's physics from it) and by the bench.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.files import atomic_write, read_bytes

__all__ = [
    "COMMAND_DELAY",
    "HeldOutError",
    "LogRecord",
    "ParameterRange",
    "RandomizationFile",
    "read_randomization",
    "sample",
    "write_randomization",
]

SCHEMA_VERSION: Final = 1
COMMAND_DELAY: Final = "command_delay"
"""Name of the parameter that delays commands [s]; every other name is one of the robot's parameters."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete, named, closed: no field has a default."""


class ParameterRange(_Part, frozen=True):
    """One physical parameter: its best value, and the values that the data do not exclude."""

    name: str
    unit: str
    nominal: float
    low: float
    high: float
    distribution: Literal["fixed", "uniform", "log_uniform"]
    """How training draws it between `low` and `high`; ``fixed`` always gives `nominal`."""
    identified: bool
    """False: the logs do not show it; the range is then a prior, and wide."""
    how: str
    """How the interval came about, in one sentence."""
    delays: str | None
    """For a delay: what is delayed, e.g. ``command``; None for any other parameter."""


class LogRecord(_Part, frozen=True):
    """One log that went into the fit or judged it."""

    name: str
    sha256: str
    role: Literal["fit", "validate"]


class HeldOutError(_Part, frozen=True):
    """Open-loop replay error of one set of parameters on the logs that judge."""

    candidate: str
    """Whose parameters: ``fitted``, ``datasheet``, ``published``."""
    position_mae: float
    """Mean absolute position error [rad], without the windows in which something pushed the robot."""
    position_mae_all: float
    """The same over all windows [rad]."""
    window: float
    """Length of the replayed windows [s]."""


class RandomizationFile(_Part, frozen=True):
    """The whole file."""

    schema_version: Literal[1]
    robot: str
    toolkit_version: str
    parameters: tuple[ParameterRange, ...]
    log_parameters: tuple[ParameterRange, ...]
    """What the fit found about the logs and not the robot, e.g. the delay of a logged effort; training skips them."""
    logs: tuple[LogRecord, ...]
    fit_position_mae: float
    """Mean absolute position error [rad] on the logs that were fitted."""
    held_out: tuple[HeldOutError, ...]


def write_randomization(path: Path, content: RandomizationFile) -> None:
    """Write the file atomically.

    Raises:
        InputError: The content does not hold together, or the file cannot be written.
    """
    _validate(content)
    with atomic_write(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))


def read_randomization(path: Path) -> RandomizationFile:
    """Read and validate the file.

    Raises:
        InputError: Missing, truncated, of another schema, or a value that cannot be; the message names its path.
    """
    data = read_bytes(path, "randomization file")
    try:
        content = msgspec.json.decode(data, type=RandomizationFile)
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; make it anew with: sim2real calib fit") from error
    _validate(content)
    return content


def _validate(content: RandomizationFile) -> None:
    for field in ("parameters", "log_parameters"):
        _check_ranges(f"randomization.{field}", getattr(content, field))
    for index, parameter in enumerate(content.parameters):
        if (parameter.name == COMMAND_DELAY) != (parameter.delays is not None):
            raise InputError(
                f"randomization.parameters[{index}].delays: expected what is delayed for {COMMAND_DELAY}, "
                f"null for any other parameter, got {parameter.delays!r} for {parameter.name}"
            )
    errors = {
        f"held_out[{index}].{field}": getattr(each, field)
        for index, each in enumerate(content.held_out)
        for field in ("position_mae", "position_mae_all")
    }
    for path, error in {"fit_position_mae": content.fit_position_mae, **errors}.items():
        if not 0.0 <= error < math.inf:
            raise InputError(f"randomization.{path}: expected a finite number >= 0, got {error}")


def _check_ranges(path: str, parameters: tuple[ParameterRange, ...]) -> None:
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        raise InputError(f"{path}: expected each name once, got {sorted(names)}")
    for index, parameter in enumerate(parameters):
        for field in ("nominal", "low", "high"):
            value = getattr(parameter, field)
            if not math.isfinite(value):
                raise InputError(f"{path}[{index}].{field}: expected a finite number, got {value}")
        if not parameter.low <= parameter.nominal <= parameter.high:
            raise InputError(
                f"{path}[{index}].nominal: expected a number from low {parameter.low} to high {parameter.high}, "
                f"got {parameter.nominal}"
            )
        if not math.isfinite(parameter.high - parameter.low):
            raise InputError(
                f"{path}[{index}].high: expected a finite distance from low, got {parameter.low} to {parameter.high}"
            )
        if parameter.distribution == "log_uniform" and parameter.low <= 0.0:
            raise InputError(f"{path}[{index}].low: expected a number > 0 for log_uniform, got {parameter.low}")


def sample(content: RandomizationFile, rng: np.random.Generator, num_envs: int) -> dict[str, npt.NDArray[np.float64]]:
    """Draw one value of every parameter for each environment: name → shape (num_envs,)."""
    draws: dict[str, npt.NDArray[np.float64]] = {}
    for parameter in content.parameters:
        if parameter.distribution == "fixed":
            draws[parameter.name] = np.full(num_envs, parameter.nominal)
        elif parameter.distribution == "uniform":
            draws[parameter.name] = rng.uniform(parameter.low, parameter.high, num_envs)
        else:
            draws[parameter.name] = np.exp(rng.uniform(math.log(parameter.low), math.log(parameter.high), num_envs))
    return draws
