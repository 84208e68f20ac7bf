"""A report: sections of text, tables, figures and verdicts; HTML for people, JSON and JUnit XML for machines.

`sim2real hil run` and `sim2real demo` make their sections by the builders of `sim2real_hil.sections` and
`sim2real_hil.bench_sections`, and write them here, in one way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sim2real.files import atomic_write
from sim2real_hil.html import render_html
from sim2real_hil.junit import render_junit
from sim2real_hil.report_parts import Figure, Report, Section, Table, Verdict

__all__ = ["Figure", "Report", "Section", "Table", "Verdict", "verdict_table", "write_report"]


def write_report(report: Report, out: Path, *, name: str = "report") -> tuple[Path, Path, Path]:
    """Write ``<name>.html``, ``<name>.json`` and ``junit.xml`` into the folder `out`; return their paths.

    Each file is whole or not there.

    Raises:
        InputError: A file cannot be written.
    """
    contents = {
        out / f"{name}.html": render_html(report).encode(),
        out / f"{name}.json": _render_json(report),
        out / "junit.xml": render_junit(report),
    }
    for path, content in contents.items():
        with atomic_write(path) as partial:
            partial.write_bytes(content)
    page, data, junit = contents
    return page, data, junit


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    """Return the verdicts as lines of text for a terminal."""
    rows = [("pass" if each.passed else "FAIL", each.name, each.measured, each.allowed) for each in verdicts]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return "\n".join(
        f"{state:<{widths[0]}}  {name:<{widths[1]}}  {measured:<{widths[2]}}  {allowed}".rstrip()
        for state, name, measured, allowed in rows
    )


def _render_json(report: Report) -> bytes:
    plain = {
        "title": report.title,
        "passed": report.passed,
        "created": report.created,
        "elapsed_s": report.elapsed_s,
        "verdicts": [_verdict(section, verdict) for section in report.sections for verdict in section.verdicts],
        "sections": [_section(section) for section in report.sections],
    }
    return msgspec.json.format(msgspec.json.encode(_plain(plain)), indent=1)


def _verdict(section: Section, verdict: Verdict) -> Mapping[str, Any]:
    return {"section": section.title, **msgspec.structs.asdict(verdict)}


def _section(section: Section) -> Mapping[str, Any]:
    return {
        "title": section.title,
        "text": section.text,
        "tables": [msgspec.structs.asdict(table) for table in section.tables],
        "figures": [{"title": figure.title, "caption": figure.caption} for figure in section.figures],
        "data": section.data,
    }


def _plain(value: Any) -> Any:
    """Return `value` with arrays as lists, paths as text, and numbers that JSON does not have as null."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())  # pyright: ignore[reportUnknownArgumentType] an array of any type is meant
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] as above
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType] as above
    return value
