"""Every field of a configuration by its dotted name: what it means, and how it is set from a command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from sim2real.errors import InputError
from sim2real.field_docs import field_docs
from sim2real_train.limits import allowed_of

__all__ = ["Field", "describe", "override"]

_Config = TypeVar("_Config", bound=msgspec.Struct)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a configuration."""

    name: str
    """Dotted, e.g. ``algorithm.clip``."""
    value: Any
    meaning: str
    """The docstring below it; empty if it has none."""
    allowed: str
    """What it may be, in words; empty where its value shows that."""


def describe(config: msgspec.Struct, prefix: str = "") -> list[Field]:
    """Return all fields of a configuration, those of structs within it under dotted names."""
    meanings = field_docs(type(config))
    rows: list[Field] = []
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if isinstance(value, msgspec.Struct):
            rows += describe(value, f"{prefix}{name}.")
        else:
            plain, meaning = msgspec.to_builtins(value), meanings.get(name, "")
            rows.append(Field(name=prefix + name, value=plain, meaning=meaning, allowed=allowed_of(config, name)))
    return rows


def override(config: _Config, assignments: Sequence[str], option: str) -> _Config:
    """Return the configuration with fields set as ``NAME=VALUE`` says.

    Args:
        config: The configuration.
        assignments: E.g. ``algorithm.clip=0.1``, ``model.hidden=[128,128]``, ``model.activation=tanh``: the value is
            JSON, or else a plain word.
        option: Name of the command's option, for messages.

    Raises:
        InputError: There is no such field, the value is not of its type, or one is set twice.
    """
    seen: set[str] = set()
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"{option}: expected NAME=VALUE, e.g. algorithm.clip=0.1, got {assignment!r}")
        if name in seen:
            raise InputError(f"{option}: {name} is set twice; keep one")
        seen.add(name)
        config = _set(config, name, name.split("."), _parsed(value), option)
    return config


def _set(config: _Config, name: str, path: list[str], value: object, option: str) -> _Config:
    field, *rest = path
    inner = getattr(config, field, None) if field in config.__struct_fields__ else None
    if field not in config.__struct_fields__ or (rest and not isinstance(inner, msgspec.Struct)):
        raise InputError(f"{option}: no field named {name!r}{_near(name, config, path)}")
    if rest and isinstance(inner, msgspec.Struct):
        return msgspec.structs.replace(config, **{field: _set(inner, name, rest, value, option)})
    plain = msgspec.to_builtins(config)
    plain[field] = value
    try:
        return msgspec.convert(plain, type(config))
    except msgspec.ValidationError as error:
        wanted = allowed_of(config, field) or str(error).removeprefix("Expected ")
        raise InputError(
            f"{option}: {name}: expected {wanted}, got {value!r}; it is {getattr(config, field)!r} now"
        ) from error


def _parsed(value: str) -> object:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def _near(name: str, config: msgspec.Struct, path: list[str]) -> str:
    known = [field.name for field in describe(config)]
    # Deeper in, the names begin where `path` does.
    near = difflib.get_close_matches(".".join(path), known, n=3, cutoff=0.5)
    prefix = name.removesuffix(".".join(path))
    if near:
        return f"; did you mean {' or '.join(prefix + each for each in near)}?"
    return f"; there are {', '.join(known)}"
