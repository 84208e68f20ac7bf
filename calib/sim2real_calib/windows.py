"""Multiple shooting: a log cut into short windows, each with its own measured start state.

Over a whole log an unstable system tells nothing: the smallest error of the start grows without bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real_calib.log import Log, gaps

__all__ = ["SMOOTHING", "Motion", "Windows", "cut", "filtered", "interpolate", "rehearse", "smooth"]

Floats = npt.NDArray[np.float64]

SMOOTHING: Final = 0.16
"""Width [s] of the smoothing that start states are read from. A velocity register's noise (0.12 rad/s) would multiply
the replay's error; a much shorter width lets the position's steps through, a longer one flattens the motion."""
_ORDER: Final = 3


class Motion(msgspec.Struct, frozen=True, kw_only=True):
    """Smoothed motion of J joints on an even grid."""

    time: Floats
    """Time [s], shape (G,)."""
    position: Floats
    """Position [rad], shape (G, J)."""
    velocity: Floats
    """Velocity [rad/s], shape (G, J)."""
    acceleration: Floats
    """Acceleration [rad/s²], shape (G, J)."""

    def at(self, time: Floats) -> tuple[Floats, Floats]:
        """Return position and velocity at `time`, shape (n,), each of shape (n, J)."""
        return interpolate(time, self.time, self.position), interpolate(time, self.time, self.velocity)


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """n windows of K physics steps; the arrays of all logs one after the other."""

    length: float
    """Length of each window [s]."""
    log: npt.NDArray[np.intp]
    """Index of the log that the window is of, shape (n,)."""
    start: Floats
    """Time of its start in that log [s], shape (n,)."""
    position: Floats
    """Start position [rad], shape (n, J)."""
    velocity: Floats
    """Start velocity [rad/s], shape (n, J)."""
    measured: Floats
    """Measured position after each physics step [rad], shape (n, K, J)."""
    skipped: tuple[tuple[int, float], ...]
    """Log and start [s] of the windows that touch a gap in their log; they are not among the n."""

    def __len__(self) -> int:
        """Return n."""
        return len(self.start)


def smooth(log: Log) -> Motion:
    """Return the motion by `filtered` position and its derivatives."""
    time = np.arange(log.time[0], log.time[-1], log.period)
    position = interpolate(time, log.time, log.position)
    return Motion(
        time=time,
        position=filtered(position, log.period, 0),
        velocity=filtered(position, log.period, 1),
        acceleration=filtered(position, log.period, 2),
    )


def filtered(values: Floats, period: float, derivative: int) -> Floats:
    """Return a derivative of evenly sampled `values`, shape (G, J), by a cubic Savitzky-Golay filter of zero phase.

    Its width is `SMOOTHING`; `period` is the sampling period [s].
    """
    from scipy.signal import savgol_filter

    samples = max(2 * round(0.5 * SMOOTHING / period) + 1, _ORDER + 2)
    return np.asarray(savgol_filter(values, samples, _ORDER, deriv=derivative, delta=period, axis=0))


def cut(logs: Sequence[Log], *, dt: float, length: float) -> Windows:
    """Cut logs into adjoining windows of `length` [s]; `dt` is the physics step [s]."""
    after = np.arange(1, round(length / dt) + 1) * dt
    pieces: list[tuple[npt.NDArray[np.intp], Floats, Floats, Floats, Floats]] = []
    skipped: list[tuple[int, float]] = []
    for index, log in enumerate(logs):
        every = np.arange(0.0, log.time[-1] - length + 1e-9, length)
        broken = _touches(every, length, gaps(log.time))
        skipped += [(index, float(start)) for start in every[broken]]
        start = every[~broken]
        position, velocity = smooth(log).at(start)
        measured = interpolate((start[:, None] + after).ravel(), log.time, log.position)
        shape = (len(start), len(after), log.position.shape[1])
        pieces.append((np.full(len(start), index, np.intp), start, position, velocity, measured.reshape(shape)))
    return Windows(
        length=length,
        log=np.concatenate([piece[0] for piece in pieces]),
        start=np.concatenate([piece[1] for piece in pieces]),
        position=np.concatenate([piece[2] for piece in pieces]),
        velocity=np.concatenate([piece[3] for piece in pieces]),
        measured=np.concatenate([piece[4] for piece in pieces]),
        skipped=tuple(skipped),
    )


def _touches(start: Floats, length: float, intervals: Sequence[tuple[float, float]]) -> npt.NDArray[np.bool_]:
    """Return which windows overlap an interval; the smoothing reaches a little further than the window."""
    touches = np.zeros(len(start), np.bool_)
    for begin, end in intervals:
        touches |= (start - 0.5 * SMOOTHING < end) & (start + length > begin)
    return touches


def interpolate(time: Floats, grid: Floats, values: Floats) -> Floats:
    """Interpolate each column of `values`, shape (G, J), linearly: shape (len(time), J)."""
    out = np.empty((len(time), values.shape[1]))
    for joint in range(values.shape[1]):
        out[:, joint] = np.interp(time, grid, values[:, joint])
    return out


def rehearse(windows: Windows, simulated: Floats, dt: float) -> Windows:
    """Return windows of a log that the model itself would have written.

    Each begins half a `SMOOTHING` into the old one, from the filtered positions of the replay, and ends with it. A fit
    to them should find the model's own parameters; what it finds instead is the filter's doing.

    Args:
        windows: The windows.
        simulated: Their replay: position after each physics step [rad], shape (n, K, J).
        dt: Physics step [s].
    """
    skip = round(0.5 * SMOOTHING / dt)
    motion = np.concatenate((windows.position[:, None], simulated), axis=1)
    flat = motion.swapaxes(0, 1).reshape(motion.shape[1], -1)
    shape = windows.position.shape
    return msgspec.structs.replace(
        windows,
        length=windows.length - skip * dt,
        start=windows.start + skip * dt,
        position=filtered(flat, dt, 0)[skip].reshape(shape),
        velocity=filtered(flat, dt, 1)[skip].reshape(shape),
        measured=simulated[:, skip:],
        skipped=(),
    )
