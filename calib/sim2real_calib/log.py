"""A robot's log in memory: what was measured, when, and what of it can be used."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.files import read_bytes

__all__ = ["Log", "LogError", "gaps", "make_log", "read_log"]

Floats = npt.NDArray[np.float64]

_MIN_DURATION: Final = 2.0
_MIN_SAMPLES: Final = 100
_MAX_PERIOD: Final = 0.05
"""Longest usable median sampling period [s]: 0.5 s windows need ten samples."""
_MAX_DURATION: Final = 3600.0
"""Longest log [s]: windows of a few minutes show what there is to see, and all are simulated together."""
_MAX_VALUE: Final = 1e6
"""Largest position [rad] or effort [N·m] that can be meant as one."""
_GAP_PERIODS: Final = 10.0
"""A pause of more than this many median periods is a gap: nothing is interpolated across it."""
_SHOWN_ROWS: Final = 5
_BEYOND: Final = 1.0
"""How long [s] the first and the last effort are taken to hold outside the log; delays are much shorter."""
_MOTION: Final = 0.05
"""Total movement [rad] in each direction from which a joint counts as having turned both ways."""


class LogError(InputError):
    """A log that cannot be used; the message names the file, the rows and what to do."""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of J joints at T instants."""

    name: str
    sha256: str
    """Of the file's bytes."""
    time: Floats
    """Time since the first sample [s], shape (T,), strictly increasing."""
    position: Floats
    """Measured joint positions [rad], shape (T, J)."""
    effort: Floats
    """Measured joint efforts [N·m], shape (T, J)."""
    effort_held: bool
    """True: a sample's effort acted, unchanged, since the sample before; False: it is read off a curve through them."""
    command: Floats | None
    """Commanded joint efforts [N·m], shape (T, J); None: not in the log."""
    simulated: bool
    """Whether the file says that its robot was a simulated one."""
    notes: tuple[str, ...]
    """What a person should know of the log's quality, one sentence each."""

    @property
    def period(self) -> float:
        """Median sampling period [s]."""
        return float(np.median(np.diff(self.time)))

    def effort_around(self, time: Floats, step: float) -> Floats:
        """Return the logged efforts of steps [N·m], shape (..., J).

        Args:
            time: Middle of each step [s], shape (...,); before the first sample and after the last their efforts hold.
            step: Length of the steps [s].
        """
        by_joint = [self._effort_around(time, step, self.effort[:, joint]) for joint in range(self.effort.shape[1])]
        return np.stack(by_joint, axis=-1)

    def _effort_around(self, time: Floats, step: float, effort: Floats) -> Floats:
        if not self.effort_held:
            return np.interp(time, self.time, effort)
        # The mean over a step, by the integral: unlike the value at one instant it changes smoothly with a delay.
        edges = np.concatenate(([self.time[0] - _BEYOND], self.time, [self.time[-1] + _BEYOND]))
        held = np.concatenate((effort, effort[-1:]))
        integral = np.concatenate(([0.0], np.cumsum(held * np.diff(edges))))
        after, before = (np.interp(time + side * step, edges, integral) for side in (0.5, -0.5))
        return np.asarray((after - before) / step, np.float64)


def read_log(path: Path, joint_names: tuple[str, ...]) -> Log:
    """Read a log, CSV or MCAP by its ending, of a robot with these joints.

    Raises:
        LogError: The file is unreadable, lacks a column, or holds values that cannot be used.
    """
    readers = {".csv": _read_csv, ".mcap": _read_mcap}
    if path.suffix.lower() not in readers:
        raise LogError(f"{path}: expected a log that ends in .csv or .mcap, got {path.suffix or 'no ending'!r}")
    return readers[path.suffix.lower()](path, read_bytes(path, "log"), joint_names)


def _read_csv(path: Path, data: bytes, joint_names: tuple[str, ...]) -> Log:
    from sim2real_calib.csv_log import parse_csv

    return parse_csv(path, data, joint_names)


def _read_mcap(path: Path, data: bytes, joint_names: tuple[str, ...]) -> Log:
    from sim2real_calib.mcap_log import parse_mcap

    return parse_mcap(path, data, joint_names)


def make_log(
    path: Path,
    data: bytes,
    *,
    time: Floats,
    position: Floats,
    effort: Floats,
    effort_held: bool,
    command: Floats | None,
    simulated: bool,
    row_numbers: npt.NDArray[np.intp],
) -> Log:
    """Check measurements and make a `Log` of them.

    Args:
        path: The file that they come from.
        data: The bytes of that file.
        time: Time stamps [s], shape (T,).
        position: Joint positions [rad], shape (T, J).
        effort: Measured efforts [N·m], shape (T, J).
        effort_held: See `Log.effort_held`.
        command: Commanded efforts [N·m], shape (T, J), or None.
        simulated: Whether the file says that its robot was a simulated one.
        row_numbers: Where a person finds each sample in the file (line or message), shape (T,).

    Raises:
        LogError: They cannot be used.
    """
    columns = {"time": time[:, None], "position": position, "effort": effort}
    if command is not None:
        columns["command"] = command
    _check_finite(path, columns, row_numbers)
    _check_time(path, time, row_numbers)
    _check_sign(path, position, effort)
    return Log(
        name=path.name,
        sha256=hashlib.sha256(data).hexdigest(),
        time=time - time[0],
        position=position,
        effort=effort,
        effort_held=effort_held,
        command=command,
        simulated=simulated,
        notes=_notes(time),
    )


def gaps(time: Floats) -> list[tuple[float, float]]:
    """Return from when to when [s] nothing was logged, for pauses that are too long to be interpolated."""
    steps = np.diff(time)
    return [(float(time[i]), float(time[i + 1])) for i in np.flatnonzero(steps > _GAP_PERIODS * np.median(steps))]


def _check_finite(path: Path, columns: dict[str, Floats], row_numbers: npt.NDArray[np.intp]) -> None:
    for name, values in columns.items():
        bad = row_numbers[~np.isfinite(values).all(axis=1)]
        if len(bad):
            raise LogError(
                f"{path}: column {name}: expected finite numbers, got NaN or infinity in {_rows(bad)}; "
                "remove these rows"
            )
        huge = row_numbers[(np.abs(values) > _MAX_VALUE).any(axis=1)] if name != "time" else row_numbers[:0]
        if len(huge):
            raise LogError(
                f"{path}: column {name}: expected values up to {_MAX_VALUE:g} in rad or N·m, got a larger one in "
                f"{_rows(huge)}; remove these rows, or convert the unit"
            )


def _check_time(path: Path, time: Floats, row_numbers: npt.NDArray[np.intp]) -> None:
    if len(time) < _MIN_SAMPLES:
        raise LogError(f"{path}: expected at least {_MIN_SAMPLES} samples, got {len(time)}; record longer")
    steps = np.diff(time)
    backwards = row_numbers[1:][steps <= 0.0]
    if len(backwards):
        raise LogError(
            f"{path}: column time: expected increasing time, got a step back or a repeat in {_rows(backwards)}; "
            "sort the log, or remove these rows"
        )
    period = float(np.median(steps))
    if period > _MAX_PERIOD:
        raise LogError(
            f"{path}: column time: expected seconds and a median period of at most {_MAX_PERIOD} s, got {period:g}; "
            "convert other units to seconds, or log faster"
        )
    if time[-1] - time[0] > _MAX_DURATION:
        raise LogError(
            f"{path}: expected at most {_MAX_DURATION:g} s from first to last sample, got {time[-1] - time[0]:g} s; "
            "cut the log, or convert its time to seconds"
        )
    if time[-1] - time[0] < _MIN_DURATION:
        raise LogError(f"{path}: expected at least {_MIN_DURATION:g} s, got {time[-1] - time[0]:.3f} s; record longer")


def _check_sign(path: Path, position: Floats, effort: Floats) -> None:
    """Refuse an effort that never turns negative though the joint moves both ways: its sign was lost."""
    moves = np.diff(position, axis=0)
    both_ways = (np.clip(moves, 0.0, None).sum(axis=0) > _MOTION) & (np.clip(-moves, 0.0, None).sum(axis=0) > _MOTION)
    unsigned = both_ways & (effort.min(axis=0) >= 0.0) & (effort.max(axis=0) > 0.0)
    if unsigned.any():
        raise LogError(
            f"{path}: column effort: expected a signed effort [N·m], got none below 0 though joint number "
            f"{np.flatnonzero(unsigned)[0] + 1} turns both ways; log the torque with its sign"
        )


def _notes(time: Floats) -> tuple[str, ...]:
    steps = np.diff(time)
    period = float(np.median(steps))
    notes = [
        f"nothing logged from {start - time[0]:.3f} s to {stop - time[0]:.3f} s: windows that touch it are left out"
        for start, stop in gaps(time)
    ]
    if (late := int(np.sum(steps > 1.5 * period))) > len(notes):
        notes.append(f"{late} of {len(steps)} periods exceed 1.5 × the median of {period * 1e3:.2f} ms")
    return tuple(notes)


def _rows(rows: npt.NDArray[np.intp]) -> str:
    shown = ", ".join(map(str, rows[:_SHOWN_ROWS].tolist()))
    more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"
