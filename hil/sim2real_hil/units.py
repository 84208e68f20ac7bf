"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["nanoseconds", "number", "percent"]


def nanoseconds(value: float) -> str:
    """Return a time [ns] in the unit that suits it: ``850 ns``, ``12.3 µs``, ``4 ms``, ``1.5 s``."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} ns"


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, or a dash where there is none."""
    return f"{value:.{digits}g}" if math.isfinite(value) else "–"


def percent(share: float) -> str:
    """Return a share of 1 in percent: ``97.3 %``."""
    return f"{100.0 * share:.4g} %"
