"""Every field of a configuration by its dotted name: what it means, and how it is set from a command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from sim2real.errors import InputError
from sim2real.field_docs import field_docs
from sim2real_train.limits import allowed_of, allowed_within

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
            JSON, or else a plain word; of a field that holds values by name, ``rewards.upright=2``.
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
        try:
            config = _set(config, name, name.split("."), _parsed(value), option)
        except KeyError as error:
            raise InputError(f"{option}: no field named {name!r}{_near(name, config)}") from error
    return config


def _set(config: _Config, name: str, path: list[str], value: object, option: str) -> _Config:
    """Return the configuration with one field set; a `KeyError` if it has none of that name."""
    field, *rest = path
    inner = getattr(config, field, None) if field in config.__struct_fields__ else None
    if field not in config.__struct_fields__ or (rest and not isinstance(inner, msgspec.Struct | dict)):
        raise KeyError(name)
    if rest and isinstance(inner, msgspec.Struct):
        return msgspec.structs.replace(config, **{field: _set(inner, name, rest, value, option)})
    plain = msgspec.to_builtins(config)
    plain[field] = plain.get(field, {}) | {".".join(rest): value} if rest else value
    try:
        return msgspec.convert(plain, type(config))
    except msgspec.ValidationError as error:
        wanted = allowed_within(config, field) if rest else _wanted(config, field, name, value)
        now = "" if rest else f"; it is {_json(getattr(config, field))} now"
        reason = str(error).removeprefix("Expected ").partition(", got ")[0]
        raise InputError(f"{option}: {name}: expected {wanted or reason}, got {value!r}{now}") from error


def _wanted(config: msgspec.Struct, field: str, name: str, value: object) -> str:
    """Return what a field takes, and how it is written where that was wrong; empty where its type alone says it."""
    present, allowed = getattr(config, field), allowed_of(config, field)
    if isinstance(present, tuple) and not isinstance(value, list):
        return f"a list in brackets, e.g. {name}={_json(cast(object, present))}" + (f" ({allowed})" if allowed else "")
    if isinstance(present, dict):
        return f"{name}.NAME=VALUE"
    return allowed


def _parsed(value: str) -> object:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _near(name: str, config: msgspec.Struct) -> str:
    """Say which fields of the whole configuration may have been meant; often only the last part of a name is known."""
    known = [field.name for field in describe(config)]
    last = [each.rpartition(".")[2] for each in known]
    typed = name.rpartition(".")[2]
    head, _, term = name.partition(".")
    if term and (meant := difflib.get_close_matches(head, ("rewards", "terminations"), 1)):
        return f"; did you mean {meant[0]}.{term}?"
    near = _ending_in([typed], known) or _ending_in(difflib.get_close_matches(typed, last), known)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}"


def _ending_in(last: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the dotted names of which only the last part may have been typed."""
    return [name for name in names if name.rpartition(".")[2] in last]
