"""What an environment checks of its arguments before it makes or changes anything."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots.model_files import is_file_name, split_name

__all__ = ["MARK", "as_action", "check_generator", "check_state", "check_whole", "mark_of", "steps_of_episode"]

MARK: Final = "env/of"
"""Name of the array that says whose state it is."""
_PHYSICS: Final = "plant/model."
"""Parameters of the physics; a state holds those that differ from the robot's own."""


def check_whole(name: str, value: object, low: int) -> None:
    """Check that `value` is a whole number, and at least `low`.

    Raises:
        InputError: It is not.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < low:
        raise InputError(f"{name}: expected a whole number of at least {low}, got {value!r}")


def steps_of_episode(length: object, control_period: float) -> int:
    """Return how many control steps an episode of `length` [s] has.

    Raises:
        InputError: It is no finite time of at least one control period [s].
    """
    if isinstance(length, (int, float, np.integer, np.floating)) and not isinstance(length, bool):
        seconds = float(cast("float", length))
        # Whoever computes the period may have other last digits than we.
        if control_period * (1.0 - 1e-9) <= seconds < math.inf:
            return round(seconds / control_period)
    raise InputError(
        f"episode_length: expected a time of at least one control period, {control_period:g} s, or None for the "
        f"task's, got {length!r}"
    )


def as_action(action: object, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return actions, shape (N, A), as float32; the same array if it is one already.

    Raises:
        InputError: They have another shape, or are no real floating point numbers.
    """
    try:
        values: npt.NDArray[Any] = np.asarray(action)
    except ValueError as error:
        raise InputError(f"action: expected an array of shape {shape}, got rows of different lengths") from error
    if values.shape != shape:
        raise InputError(f"action: expected shape {shape}, one row per environment, got {values.shape}")
    if values.dtype == np.float32:
        return values
    if values.dtype.kind != "f":
        raise InputError(f"action: expected real floating point numbers, e.g. float32, got {values.dtype}")
    # What float32 cannot hold becomes infinite, and its row counts as diverged.
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def mark_of(task: str, robot: str, engine: str) -> npt.NDArray[np.uint8]:
    """Return what tells states of equal shapes apart: a digest of whose they are, shape (32,)."""
    content = split_name(robot)[1] if is_file_name(robot) else None
    return np.frombuffer(hashlib.sha256("\n".join((task, content or robot, engine)).encode()).digest(), np.uint8)


def check_state(own: Mapping[str, npt.NDArray[Any]], given: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check that arrays of a state fit an environment whose own are `own`.

    Raises:
        InputError: An array is missing, unknown, or of another shape or kind: it is of another task, engine, or number
            of environments.
    """
    from_where = "it is of another task, engine or number of environments"
    required, known = ({name for name in arrays if not name.startswith(_PHYSICS)} for arrays in (own, given))
    if required != known:
        lacks, extra = sorted(required - known), sorted(known - required)
        what = f"lacks {lacks[0]!r}" if lacks else f"has an unknown {extra[0]!r}"
        raise InputError(f"state: expected the arrays of this environment, but it {what}; {from_where}")
    for name, values in given.items():
        if name not in own:
            continue
        if values.shape != own[name].shape:
            raise InputError(f"state: {name}: expected shape {own[name].shape}, got {values.shape}; {from_where}")
        if not np.can_cast(values.dtype, own[name].dtype, "same_kind"):
            raise InputError(f"state: {name}: expected {own[name].dtype}, got {values.dtype}; {from_where}")
    if not np.array_equal(own[MARK], given[MARK]):
        raise InputError("state: it is of another task, robot or engine, whose arrays have the same shapes")


def check_generator(own: np.random.Generator, given: Mapping[str, Any]) -> None:
    """Check that `given` is the state of a generator of the kind of `own`.

    Raises:
        InputError: It is not.
    """
    trial = type(own.bit_generator)(0)
    try:
        trial.state = dict(given)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"state: expected that of a {type(trial).__name__} generator, got something else ({error})"
        ) from error
