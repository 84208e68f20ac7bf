"""Values out of JSON and YAML, looked at without trust: what they are is asked, never assumed."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, cast

from sim2real.errors import InputError

__all__ = ["as_list", "as_mapping", "inner", "numbers", "one_number"]


def as_mapping(value: object) -> Mapping[Any, Any] | None:
    """Return `value` if it is a mapping."""
    return cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else None


def as_list(value: object) -> list[Any] | None:
    """Return `value` if it is a list."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def inner(value: object, *keys: str) -> Any:
    """Return what lies under `keys`, one within the other, or None."""
    for key in keys:
        value = (as_mapping(value) or {}).get(key)
    return value


def numbers(value: object, where: str, count: int | None = None) -> list[float]:
    """Return `value` as a list of finite numbers, `count` of them if that is known.

    Raises:
        InputError: It is none.
    """
    listed = as_list(value)
    if listed is None:
        raise InputError(f"{where}: expected a list of numbers, got {reprlib.repr(value)}")
    if count is not None and len(listed) != count:
        raise InputError(f"{where}: expected {count} numbers, got {len(listed)}")
    return [one_number(each, f"{where}[{index}]") for index, each in enumerate(listed)]


def one_number(value: object, where: str) -> float:
    """Return `value` as a finite number.

    Raises:
        InputError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: expected a finite number, got {reprlib.repr(value)}")
    return float(value)
