"""What a search draws settings from, and whether every training that it could make can be made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from sim2real.errors import InputError
from sim2real.extras import require

if TYPE_CHECKING:
    from sim2real_train.config import TrainConfig

__all__ = ["Axis", "assignments_of", "check_space", "domain_of", "parse_space"]

_RANGE: Final = re.compile(r"(log:)?([^.:]+(?:\.[^.]+)?)\.\.([^.:]+(?:\.[^.]+)?)")


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One field, and the values that it may be given."""

    name: str
    """Dotted, as of `sim2real train --show`."""
    kind: Literal["even", "log", "choice"]
    """Drawn evenly or evenly in the logarithm between two ends, or one of some values."""
    values: tuple[str, ...]
    """The two ends, or all choices, as they are given to ``--set``."""


def parse_space(assignments: Sequence[str]) -> tuple[Axis, ...]:
    """Return what ``--space`` says.

    Raises:
        InputError: Not of the form NAME=LOW..HIGH, NAME=log:LOW..HIGH or NAME=A|B|C, or a field is named twice.
    """
    axes: dict[str, Axis] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name or not text:
            raise InputError(f"--space: expected NAME=LOW..HIGH, NAME=log:LOW..HIGH or NAME=A|B|C, got {assignment!r}")
        if name in axes:
            raise InputError(f"--space: {name} is named twice; keep one")
        if name == "task":
            raise InputError("--space: task: one search is about one task; leave it out")
        axes[name] = _axis(name, text)
    if not axes:
        raise InputError("--space: expected one field or more, e.g. algorithm.learning_rate=log:1e-4..1e-2")
    return tuple(axes.values())


def _axis(name: str, text: str) -> Axis:
    bounds = _RANGE.fullmatch(text)
    if bounds is None:
        choices = tuple(text.split("|"))
        if not all(choices):
            raise InputError(f"--space: {name}: expected a value on either side of each |, got {text!r}")
        return Axis(name=name, kind="choice", values=choices)
    logarithm, *ends = bounds.groups()
    try:
        low, high = map(float, ends)
    except ValueError as error:
        raise InputError(f"--space: {name}: expected two numbers, got {text!r}") from error
    if not low < high or not math.isfinite(high - low) or (logarithm and low <= 0.0):
        wanted = "0 < LOW < HIGH" if logarithm else "LOW < HIGH"
        raise InputError(f"--space: {name}: expected {wanted}, got {text!r}")
    return Axis(name=name, kind="log" if logarithm else "even", values=tuple(ends))


def check_space(base: TrainConfig, axes: Sequence[Axis]) -> dict[str, tuple[Any, ...]]:
    """Rehearse a training for each end of every range and each choice, the other fields being at their first value.

    Args:
        base: What all trainings have in common.
        axes: What they differ in.

    Returns:
        The values of each field of `axes` as its type has them, e.g. integers where it takes only those.

    Raises:
        InputError: There is no such field, or a training with that value cannot be made; the message says why.
    """
    from sim2real_train.checks import check_run
    from sim2real_train.overrides import override
    from sim2real_train.warm_start import warm_start

    first = {axis.name: axis.values[0] for axis in axes}
    configs: dict[tuple[tuple[str, str], ...], TrainConfig] = {}
    values: dict[str, tuple[Any, ...]] = {}
    for axis in axes:
        corners = [tuple((first | {axis.name: value}).items()) for value in axis.values]
        for corner in corners:
            if corner not in configs:
                configs[corner] = override(base, [f"{name}={value}" for name, value in corner], "--space")
                check_run(configs[corner])
                warm_start(configs[corner])
        values[axis.name] = tuple(_value(configs[corner], axis.name) for corner in corners)
    return values


def _value(config: msgspec.Struct, name: str) -> Any:
    value: Any = config
    path = name.split(".")
    for depth, field in enumerate(path):
        if isinstance(value, dict):
            # Names that a task gives may have dots of their own.
            return cast("dict[str, Any]", value)[".".join(path[depth:])]
        value = getattr(value, field)
    return value


def domain_of(axis: Axis, values: Sequence[Any]) -> Any:
    """Return what Ray Tune draws a field from, given the `values` of its ends: integers where they are integers."""
    tune = require("ray.tune", "tune")
    if axis.kind == "choice":
        return tune.choice(list(axis.values))
    low, high = values
    if isinstance(low, int):
        # Ray Tune's ranges of integers end before their upper end.
        return tune.lograndint(low, high + 1) if axis.kind == "log" else tune.randint(low, high + 1)
    return tune.loguniform(low, high) if axis.kind == "log" else tune.uniform(low, high)


def assignments_of(drawn: Mapping[str, Any]) -> list[str]:
    """Return drawn settings as they are given to ``--set``."""
    return [
        f"{name}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in drawn.items()
    ]
