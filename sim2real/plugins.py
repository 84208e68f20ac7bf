"""Robots and tasks by name: those that ship with the toolkit, and those of installed packages.

A package adds its own through entry points, in its `pyproject.toml`:

    [project.entry-points."sim2real.robots"]
    my-arm = "my_package.arm:ROBOT"

    [project.entry-points."sim2real.tasks"]
    my-arm-reach = "my_package.reach:TASK"
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from sim2real.errors import InputError

__all__ = ["load", "names"]


def names(kind: str, built_in: Mapping[str, str]) -> tuple[str, ...]:
    """Return every name that `load` accepts, the built-in ones first.

    Args:
        kind: ``"robot"`` or ``"task"``.
        built_in: Name to ``module:attribute`` of what ships with the toolkit.
    """
    return tuple(_places(kind, built_in))


def load(kind: str, built_in: Mapping[str, str], name: str) -> Any:
    """Import and return the robot or task called `name`.

    Raises:
        InputError: There is none of that name, its package does not import, or two packages give the same name.
    """
    places = _places(kind, built_in)
    if name not in places:
        close = difflib.get_close_matches(name, places, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{kind} {name!r}: unknown; allowed: {', '.join(places)}{hint}")
    module, _, attribute = places[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{kind} {name!r}: {places[name]} cannot be loaded ({error}); install or mend its package"
        ) from error


def _places(kind: str, built_in: Mapping[str, str]) -> dict[str, str]:
    places = dict(built_in)
    for point in entry_points(group=f"sim2real.{kind}s"):
        # The same package may be found twice on sys.path; that is no conflict.
        if places.setdefault(point.name, point.value) != point.value:
            raise InputError(
                f"{kind} {point.name!r}: given by both {places[point.name]} and {point.value}; rename or uninstall one"
            )
    return places
