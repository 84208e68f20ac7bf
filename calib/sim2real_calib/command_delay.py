"""How long a command takes until the actuator follows: from logs that hold both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.randomization import COMMAND_DELAY, ParameterRange
from sim2real_calib.log import Log

__all__ = ["command_delay"]

Floats = npt.NDArray[np.float64]

_PRIOR: Final = (0.0, 0.005, 0.02)
"""Least, usual and largest delay [s] of a command over a field bus; training covers all of it."""
_LAGS: Final = np.arange(-0.01, 0.06, 0.0005)
_PLATEAU: Final = 1e-6
_MIN_EXPLAINED: Final = 0.5
"""Share of the effort's variance that the command must explain before its lag means anything."""


def command_delay(logs: Sequence[Log], effort_log_delay: tuple[float, float, float]) -> ParameterRange:
    """Return the delay of the command until the effort that acts [s].

    The logged effort lags the command by the command's own delay and by its delay in the log, so the latter, as lowest,
    nominal and highest value [s], is subtracted. A difference that is not positive, or that leaves open all that is
    plausible, says nothing of the command: the range is then the prior one.
    """
    lags = [lag for log in logs if (lag := _lag(log)) is not None]
    if not lags:
        return _not_shown("these logs hold no commands that efforts follow")
    late_low, late, late_high = effort_log_delay
    half_period = 0.5 * max(log.period for log in logs)
    low = max(0.0, min(lags) - late_high - half_period)
    nominal = float(np.mean(lags)) - late
    high = max(nominal, max(lags) - late_low + half_period)
    told = f"logged efforts lag the commands by {np.mean(lags) * 1e3:.1f} ms, of which {late * 1e3:.1f} ms is the log's"
    if nominal <= 0.0 or (low <= _PRIOR[0] and high >= _PRIOR[2]):
        return _not_shown(f"{told} ({late_low * 1e3:.1f} to {late_high * 1e3:.1f} ms)")
    return _parameter(low, nominal, high, True, told)


def _not_shown(why: str) -> ParameterRange:
    low, nominal, high = _PRIOR
    return _parameter(low, nominal, high, False, f"not identifiable, the whole plausible range: {why}")


def _parameter(low: float, nominal: float, high: float, identified: bool, how: str) -> ParameterRange:
    return ParameterRange(
        name=COMMAND_DELAY,
        unit="s",
        nominal=nominal,
        low=low,
        high=high,
        operation="set",
        distribution="uniform",
        identified=identified,
        how=how,
        delays="command, until its effort acts",
    )


def _lag(log: Log) -> float | None:
    """Return the lag [s] at which the held command explains the logged effort best; None: at none does it."""
    if log.command is None or not np.ptp(log.command):
        return None
    inner = (log.time > _LAGS[-1]) & (log.time < log.time[-1] + _LAGS[0])
    effort = log.effort[inner]
    acted = log.time - 0.5 * np.diff(log.time, prepend=log.time[0]) if log.effort_held else log.time
    shares = np.array([_explained(_held(log, acted[inner] - lag), effort) for lag in _LAGS])
    # Commands are held between samples: all lags within the same sample explain the effort equally well.
    plateau = _LAGS[shares >= (1.0 - _PLATEAU) * shares.max()]
    return float(plateau.mean()) if shares.max() >= _MIN_EXPLAINED else None


def _held(log: Log, time: Floats) -> Floats:
    """Return the command in force at `time`, shape (n, J): each is held until the next."""
    assert log.command is not None
    return log.command[np.clip(np.searchsorted(log.time, time, side="right") - 1, 0, None)]


def _explained(command: Floats, effort: Floats) -> float:
    """Return the share of the effort's variance that a multiple of the command explains."""
    command, effort = command - command.mean(axis=0), effort - effort.mean(axis=0)
    total = float(np.square(effort).sum() * np.square(command).sum())
    return float(np.sum(command * effort) ** 2 / total) if total > 0.0 else 0.0
