"""Run every benchmark of this folder and write one flat JSON object, `results.json`.

A benchmark is a module `bench_*.py` with ``measure() -> dict[str, float | int | str]``. Its ratios are of figures from
one run, so that they can be compared between machines; what a figure includes is said where it is measured.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from pathlib import Path

from sim2real import __version__
from sim2real.errors import InputError
from sim2real.files import atomic_write

Value = float | int | str
FOLDER = Path(__file__).parent


def main() -> None:
    """Measure, show, write."""
    results: dict[str, Value] = machine()
    for path in sorted(FOLDER.glob("bench_*.py")):
        print(f"{path.name} ...", file=sys.stderr, flush=True)
        # This folder comes first on sys.path, since the script that runs lies in it.
        merge(results, importlib.import_module(path.stem).measure(), path.name)
    print(table(results))
    with atomic_write(FOLDER / "results.json") as partial:
        partial.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")


def machine() -> dict[str, Value]:
    """What the figures depend on besides the code."""
    return {
        "sim2real": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average_before": os.getloadavg()[0],
    }


def merge(results: dict[str, Value], more: dict[str, Value], origin: str) -> None:
    """Add `more` to `results`.

    Raises:
        InputError: A name is there already: one figure would hide the other.
    """
    if twice := results.keys() & more.keys():
        raise InputError(f"{origin}: measures {', '.join(sorted(twice))}, which another benchmark measures; rename it")
    results |= more


def table(results: dict[str, Value]) -> str:
    """The results for people, one a line."""
    width = max(map(len, results))
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in results.items()}
    return "\n".join(f"{name:<{width}}  {text}" for name, text in shown.items())


if __name__ == "__main__":
    main()
