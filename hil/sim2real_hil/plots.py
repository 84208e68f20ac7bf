"""Drawings of a report as inline SVG in the page's own colours.

Matplotlib draws with stand-in colours which are then replaced by CSS variables, so that one drawing is right in light
and in dark mode. Figures are `matplotlib.figure.Figure` objects: pyplot and its global state are not used.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib
import msgspec
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sim2real_hil.units import nanoseconds

__all__ = ["Bar", "Curve", "Ridge", "bars", "curves", "ridges"]

_INK: Final = "#010101"
_MUTED: Final = "#010102"
_LINE: Final = "#010103"
_SERIES: Final = ("#010104", "#010105", "#010106")
_BAD: Final = "#010107"
_GOOD: Final = "#010108"
_CARD: Final = "#010109"
_VARIABLES: Final = {
    _INK: "--ink",
    _MUTED: "--muted",
    _LINE: "--line",
    _SERIES[0]: "--series-1",
    _SERIES[1]: "--series-2",
    _SERIES[2]: "--series-3",
    _BAD: "--bad",
    _GOOD: "--good",
    _CARD: "--card",
}
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    # Ids are otherwise random: the same report would be another file each time.
    "svg.hashsalt": "sim2real",
    "font.size": 10.0,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
}
_WIDTH: Final = 8.6
"""Width of every drawing [inch]; the page scales it."""
_MOST_POINTS: Final = 1500
"""Points of one curve that can be told apart at that width."""

_FEW_POINTS: Final = 20
"""Up to so many measurements are drawn one by one."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar, with an interval where there is one."""

    label: str
    value: float
    text: str
    """What is written at its end, with the unit."""
    interval: tuple[float, float] | None = None
    main: bool = True
    """Whether it is what the drawing is about, or there to compare with."""
    required: float | None = None
    """Value that it must reach."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    label: str
    x: npt.NDArray[np.float64]
    """Shape (n,)."""
    y: npt.NDArray[np.float64]
    """Shape (n,); NaN leaves a gap."""
    low: npt.NDArray[np.float64] | None = None
    """Bounds of a band around it, shape (n,)."""
    high: npt.NDArray[np.float64] | None = None


class Ridge(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of one latency."""

    label: str
    edges_ns: npt.NDArray[np.float64]
    """Bounds of the bins [ns], rising, shape (n + 1,)."""
    counts: npt.NDArray[np.float64]
    """Shape (n,)."""
    percentiles_ns: Mapping[str, float]
    """Name, e.g. ``p99``, to value [ns]."""
    budgets_ns: Mapping[str, float]
    """The same names to the largest allowed value [ns]; empty: no budget."""


def bars(
    rows: Sequence[Bar], *, x_label: str, limit: float | None, limit_label: str, alt: str, full: float = 0.0
) -> str:
    """Return horizontal bars, from top to bottom, and a dashed line at `limit`; the axis reaches at least to `full`."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.75 + 0.42 * len(rows)), layout="constrained")
        axes = figure.subplots()
        places = np.arange(len(rows))
        colors = [_SERIES[0] if row.main else _SERIES[2] for row in rows]
        axes.barh(places, [row.value for row in rows], height=0.62, color=colors)
        reach = max(full, limit or 0.0)
        for place, row in zip(places, rows, strict=True):
            end = row.value
            if row.interval is not None:
                axes.plot(row.interval, (place, place), color=_INK, linewidth=1.2, marker="|", markersize=7)
                end = max(end, row.interval[1])
            if row.required is not None:
                edge = (place - 0.42, place + 0.42)
                axes.plot((row.required, row.required), edge, color=_BAD, linewidth=1.4, linestyle=(0, (3, 2)))
                end = max(end, row.required)
            axes.annotate(row.text, (end, place), (6, 0), textcoords="offset points", va="center", fontsize=9.5)
            reach = max(reach, end)
        if limit is not None:
            axes.axvline(limit, color=_BAD, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                limit_label, (limit, 1.0), (4, 2), ("data", "axes fraction"), "offset points", color=_BAD, fontsize=9
            )
        axes.set_yticks(places, [row.label for row in rows], color=_INK)
        axes.invert_yaxis()
        axes.set_xlim(0.0, 1.22 * reach or 1.0)
        axes.set_xlabel(x_label)
        axes.grid(axis="y", visible=False)
        return _svg(figure, alt)


def curves(
    panels: Mapping[str, Sequence[Curve]],
    *,
    x_label: str,
    alt: str,
    bands: Mapping[str, tuple[float, float]] | None = None,
    spans: Sequence[tuple[float, float]] = (),
    panel_height: float = 1.6,
) -> str:
    """Return panels of lines below each other on one x axis.

    Args:
        panels: Label of the y axis to lines.
        x_label: Label of the x axis.
        alt: What a reader who cannot see it should know.
        bands: Label of the y axis to a range that is shaded as good.
        spans: Ranges of x that are shaded as bad.
        panel_height: Height of one panel [inch].
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.5 + panel_height * len(panels)), layout="constrained")
        grid: npt.NDArray[np.object_] = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, (label, lines) in zip(grid[:, 0], panels.items(), strict=True):
            _lines(axes, lines)
            axes.set_ylabel(label)
            if bands and label in bands:
                axes.axhspan(*bands[label], color=_GOOD, alpha=0.14, linewidth=0)
            for start, stop in spans:
                axes.axvspan(start, stop, color=_BAD, alpha=0.12, linewidth=0)
        grid[-1, 0].set_xlabel(x_label)
        figure.align_ylabels()
        return _svg(figure, alt)


def ridges(rows: Sequence[Ridge], *, alt: str) -> str:
    """Return latency distributions below each other on one logarithmic time axis.

    Ticks mark the percentiles; a dashed line of the same name is the budget. Heights are on a square-root scale, so
    that the rare slow ones stay visible beside the usual.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.55 + 0.92 * len(rows)), layout="constrained")
        grid: npt.NDArray[np.object_] = figure.subplots(len(rows), 1, sharex=True, squeeze=False)
        for axes, row in zip(grid[:, 0], rows, strict=True):
            _ridge(axes, row)
        last: Axes = grid[-1, 0]
        last.set_xscale("log")
        low, high = _decades(rows)
        last.set_xlim(low, high)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        last.xaxis.set_major_locator(FixedLocator([10.0**power for power in powers if low <= 10.0**power <= high]))
        last.xaxis.set_minor_locator(NullLocator())
        last.xaxis.set_major_formatter(FuncFormatter(_tick_label))
        return _svg(figure, alt)


def _tick_label(value: float, _: int | None) -> str:
    return nanoseconds(value)


def _lines(axes: Axes, lines: Sequence[Curve]) -> None:
    for index, line in enumerate(lines):
        color = _SERIES[index % len(_SERIES)]
        keep = slice(None, None, max(1, len(line.x) // _MOST_POINTS))
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x[keep], line.low[keep], line.high[keep], color=color, alpha=0.16, linewidth=0)
        # The first line is what the others are compared with: it lies on top.
        marker = "o" if len(line.x) <= _FEW_POINTS else ""
        zorder = 2.9 - 0.1 * index
        axes.plot(line.x[keep], line.y[keep], color=color, marker=marker, markersize=4, label=line.label, zorder=zorder)
    if len(lines) > 1:
        axes.legend(loc="best", fontsize=9, ncols=len(lines))


def _ridge(axes: Axes, row: Ridge) -> None:
    heights = np.sqrt(row.counts / max(1.0, float(row.counts.max(initial=0.0))))
    axes.stairs(heights, row.edges_ns, fill=True, color=_SERIES[0], alpha=0.32)
    axes.stairs(heights, row.edges_ns, color=_SERIES[0], linewidth=1.0)
    for name, value in row.percentiles_ns.items():
        over = name in row.budgets_ns and value > row.budgets_ns[name]
        color = _BAD if over else _INK
        axes.axvline(value, ymax=0.3, color=color, linewidth=1.4)
    for name, value in row.budgets_ns.items():
        axes.axvline(value, color=_BAD, linewidth=1.0, linestyle=(0, (4, 3)), alpha=0.8)
        axes.annotate(
            name, (value, 1.0), (2, -2), ("data", "axes fraction"), "offset points", va="top", fontsize=8, color=_BAD
        )
    axes.set_ylim(0.0, 1.18)
    axes.set_yticks([])
    axes.set_ylabel(row.label, rotation=0, ha="right", va="center", color=_INK)
    axes.spines["left"].set_visible(False)


def _decades(rows: Sequence[Ridge]) -> tuple[float, float]:
    """Bounds of the time axis [ns] that show every bin that is not empty, and every budget."""
    low, high = 1e6, 1e6
    for row in rows:
        used = np.flatnonzero(row.counts)
        if len(used):
            low = min(low, float(row.edges_ns[used[0]]))
            high = max(high, float(row.edges_ns[used[-1] + 1]))
        high = max([high, *row.budgets_ns.values()])
    return max(100.0, low) / 1.3, high * 1.6


def _svg(figure: Figure, alt: str) -> str:
    """Return the drawing as an ``<svg>`` element that stands alone inside HTML."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    # Inside HTML neither prologue, metadata nor namespaces are needed, and all of them hold addresses; its style sheet
    # would apply to the whole page.
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\s(width|height)="[\d.]+pt"', "", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(alt)}"', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
