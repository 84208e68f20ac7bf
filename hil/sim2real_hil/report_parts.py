"""What a report consists of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Figure", "Report", "Section", "Table", "Verdict"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must hold, and whether it did."""

    name: str
    passed: bool
    measured: str
    """What was found, with its unit."""
    allowed: str
    """What must hold, with its unit."""
    advice: str = ""
    """What to do when it did not."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Cells of text; the same numbers in full precision belong into `Section.data`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One drawing."""

    title: str
    caption: str
    svg: str
    """An ``<svg>`` element that refers to nothing outside itself but the page's colours."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of the work."""

    title: str
    text: str
    """One paragraph: what was done and how to read what follows."""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    elapsed_s: float = 0.0
    """How long the stage took [s]."""
    data: Mapping[str, Any] = {}
    """What machines read: plain values and arrays, SI units."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole."""

    title: str
    created: str
    """Date and time of day, ISO 8601, UTC."""
    elapsed_s: float
    sections: tuple[Section, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts of all sections, in order."""
        return tuple(verdict for section in self.sections for verdict in section.verdicts)

    @property
    def passed(self) -> bool:
        """Whether every verdict is pass."""
        return all(verdict.passed for verdict in self.verdicts)
