"""Exact types for structs that were built in code: msgspec checks them when it reads JSON, but not at construction.

Exactness matters beyond tidiness: an `int` in a `float` field, or a numpy scalar, would be written differently from
what is read back, and the contract's hash would change on the way.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import msgspec.inspect as mi

from sim2real.errors import ContractError

__all__ = ["INT64_MAX", "check_types"]

INT64_MAX: Final = 2**63 - 1
"""Integers of the contract travel in 8-byte fields."""

_LEAVES: Final[dict[type[mi.Type], type]] = {mi.StrType: str, mi.IntType: int, mi.FloatType: float}


def check_types(value: object, cls: type, path: str) -> None:
    """Check that `value` is a `cls` and that all it holds has exactly the annotated types and finite numbers.

    Handles what contracts are made of: structs, tuples, literals, str, int, float and ``X | None``.

    Raises:
        ContractError: The message names the place as `path` continued, e.g. ``contract.joints[3].kp``.
    """
    _check(value, _type_info(cls), path)


@functools.cache
def _type_info(cls: type) -> mi.Type:
    return mi.type_info(cls)


def _check(value: Any, kind: mi.Type, path: str) -> None:
    if isinstance(kind, mi.UnionType):
        if value is not None:
            _check(value, next(each for each in kind.types if not isinstance(each, mi.NoneType)), path)
    elif isinstance(kind, mi.StructType):
        _exactly(value, kind.cls, path)
        for field in kind.fields:
            _check(getattr(value, field.name), field.type, f"{path}.{field.name}")
    elif isinstance(kind, mi.VarTupleType):
        _exactly(value, tuple, path)
        for index, item in enumerate(value):
            _check(item, kind.item_type, f"{path}[{index}]")
    elif isinstance(kind, mi.TupleType):
        _exactly(value, tuple, path)
        if len(value) != len(kind.item_types):
            raise ContractError(f"{path}: expected {len(kind.item_types)} values, got {len(value)}")
        for index, (item, item_kind) in enumerate(zip(value, kind.item_types, strict=True)):
            _check(item, item_kind, f"{path}[{index}]")
    elif isinstance(kind, mi.LiteralType):
        _exactly(value, type(kind.values[0]), path)
        if value not in kind.values:
            allowed = ", ".join(map(repr, kind.values))
            raise ContractError(f"{path}: expected one of {allowed}, got {value!r}")
    else:
        _check_leaf(value, _LEAVES[type(kind)], path)


def _check_leaf(value: Any, cls: type, path: str) -> None:
    _exactly(value, cls, path)
    if cls is float and not math.isfinite(value):
        raise ContractError(f"{path}: expected a finite number, got {value!r}")
    if cls is int and not -INT64_MAX <= value <= INT64_MAX:
        raise ContractError(f"{path}: expected an integer of 64 bits, got {value!r}")
    # A lone surrogate or a line break is not printable, so what passes can be written as UTF-8 and shown on one line.
    if cls is str and not (value.isprintable() and value.strip() == value):
        raise ContractError(f"{path}: expected printable text without blanks at its ends, got {value!r}")


def _exactly(value: object, cls: type, path: str) -> None:
    # bool is an int and numpy.float64 a float, so isinstance would let both through.
    if type(value) is not cls:
        raise ContractError(f"{path}: expected {cls.__name__}, got {value!r} of type {type(value).__name__}")
