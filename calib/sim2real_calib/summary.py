"""A fit as a page of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sim2real_calib.result import FitResult, FittedParameter

__all__ = ["summarise"]

_STRONG = 0.8
"""Correlation from which two parameters are named as hard to tell apart."""


def summarise(result: FitResult) -> str:
    """Return what a person should read of a fit: values and ranges, errors, what was left out, what to beware of."""
    return "\n".join(_lines(result))


def _lines(result: FitResult) -> Iterator[str]:
    yield f"robot {result.robot}, fitted in {result.elapsed_s:.1f} s, condition {result.condition:.3g}"
    yield ""
    yield from _table(
        ("parameter", "value", "range", "unit", "datasheet"), (_parameter(each) for each in result.parameters)
    )
    yield ""
    yield f"position error of open-loop replay in {result.window:g} s windows [mrad]"
    yield from _table(
        ("parameters of", "fitted logs", "held-out logs", "held-out, all windows"),
        (
            (each.name, _mrad(each.fit_mae), _mrad(each.held_out_mae), _mrad(each.held_out_mae_all))
            for each in result.candidates
        ),
    )
    yield ""
    for part in result.excluded:
        yield f"left out: {part.log} {part.start:.2f} to {part.stop:.2f} s: {part.reason}"
    yield from (f"correlated: {pair}" for pair in _strong_pairs(result))
    yield from (f"note: {note}" for note in result.notes)
    yield (
        f"{'pass' if result.passed else 'FAIL'}: {_judged(result)}; "
        f"allowed {_mrad(result.max_error)} mrad and less than the datasheet's"
    )


def _judged(result: FitResult) -> str:
    """Return the error that decides, and what it leaves out."""
    fitted = result.candidate("fitted")
    if fitted.held_out_mae is None:
        judged, on, role, why = fitted.fit_mae, "fitted", "fit", "that were left out"
    else:
        judged, on, role, why = fitted.held_out_mae, "held-out", "validate", "in which something pushed the robot"
    told = f"{_mrad(judged)} mrad on {on} logs"
    windows = [window for window in result.windows if window.role == role]
    left_out = sum(not window.counts for window in windows)
    if not left_out:
        return told
    whole = sum(window.mae["fitted"] for window in windows) / len(windows)
    return f"{told} without the {left_out} of {len(windows)} windows {why} ({_mrad(whole)} with them)"


def _parameter(each: FittedParameter) -> tuple[str, ...]:
    value = f"{each.nominal:.4g}" if each.identified else "not identifiable"
    return each.name, value, f"{each.low:.4g} to {each.high:.4g}", each.unit, f"{each.start:.4g}"


def _mrad(error: float | None) -> str:
    return "-" if error is None else f"{error * 1e3:.1f}"


def _strong_pairs(result: FitResult) -> Iterator[str]:
    names, matrix = result.correlation_names, result.correlation
    for row, name in enumerate(names):
        for column in range(row):
            if abs(matrix[row][column]) >= _STRONG:
                yield f"{names[column]} and {name} ({matrix[row][column]:+.2f}): hard to tell apart in these logs"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
