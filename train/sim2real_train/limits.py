"""What each number of a configuration may be: stated where the field is, checked in one place wherever it came from."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from sim2real.arguments import short
from sim2real.errors import InputError

__all__ = [
    "Coefficient",
    "Count",
    "Discount",
    "Finite",
    "Positive",
    "Share",
    "Small",
    "Steps",
    "Width",
    "allowed_of",
    "allowed_within",
    "check_limits",
]

# Bounds on both sides, since NaN and the infinities satisfy one that stands alone.
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Steps = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
"""Control steps of a rollout, T."""
Discount = Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
"""γ."""
Width = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
"""Of a layer; more is a slip of the keyboard, and would not fit into memory."""
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
Coefficient = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Finite = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Small = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
"""Step sizes."""
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def check_limits(config: msgspec.Struct) -> None:
    """Check that every field of a configuration is within what its type allows.

    Fields are checked as they are read from a file; a `Struct` that is made in Python checks nothing by itself.

    Raises:
        InputError: One is not; the message names it, its value and what is allowed.
    """
    try:
        msgspec.convert(msgspec.to_builtins(config), type(config))
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        name, value, allowed = _at(config, path.removesuffix("`"))
        raise InputError(f"{name}: expected {allowed or reason.removeprefix('Expected ')}, got {value!r}") from error


def allowed_of(config: msgspec.Struct, field: str) -> str:
    """Return what a field may be, in words; empty where its type says no more than its value shows."""
    return _words(_fields(config)[field])


def allowed_within(config: msgspec.Struct, field: str) -> str:
    """Return what each value of a field that holds values by name may be, in words."""
    kind = _fields(config)[field].value_type
    return "true or false" if isinstance(kind, msgspec.inspect.BoolType) else _words(kind)


def _at(config: msgspec.Struct, path: str) -> tuple[str, Any, str]:
    """Return the dotted name of what lies at a path like ``.model.hidden[0]``, its value, and what it may be."""
    names: list[str] = []
    value: Any = config
    kind: Any = None
    for field, index in _STEP.findall(path):
        if field:
            kind, value = _fields(value)[field], getattr(value, field)
            names.append(field)
        else:
            kind, value = _of_item(kind, int(index)), value[int(index)]
    return ".".join(names), value, "" if kind is None else _words(kind)


def _fields(config: msgspec.Struct) -> dict[str, Any]:
    kind = msgspec.inspect.type_info(type(config))
    assert isinstance(kind, msgspec.inspect.StructType)
    return {field.name: _present(field.type) for field in kind.fields}


def _present(kind: Any) -> Any:
    """Return a type without the None that it allows."""
    if isinstance(kind, msgspec.inspect.UnionType):
        others = [each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
        return others[0] if len(others) == 1 else kind
    return kind


def _of_item(kind: Any, index: int) -> Any:
    return kind.item_types[index] if isinstance(kind, msgspec.inspect.TupleType) else kind.item_type


def _words(kind: Any) -> str:
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        what = "an integer" if isinstance(kind, msgspec.inspect.IntType) else "a number"
        bounds = ((">=", kind.ge), (">", kind.gt), ("<=", kind.le), ("<", kind.lt))
        within = " and ".join(f"{sign} {short(bound)}" for sign, bound in bounds if bound is not None)
        return f"{what} {within}" if within else ""
    if isinstance(kind, msgspec.inspect.LiteralType):
        return "one of " + ", ".join(map(str, kind.values))
    if isinstance(kind, msgspec.inspect.VarTupleType) and kind.min_length:
        return f"{kind.min_length} or more, each {_words(kind.item_type)}"
    return ""
