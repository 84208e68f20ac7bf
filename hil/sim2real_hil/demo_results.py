"""The parts of other commands' ``--json`` output that the demo's report shows.

The bench knows neither training nor calibration; it reads what any program could read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.randomization import RandomizationFile
from sim2real_hil.bench_sections import LockstepResult, RealtimeCounts
from sim2real_hil.sections import Excluded, Replay

__all__ = [
    "Curve",
    "Evaluation",
    "Exported",
    "Fit",
    "Golden",
    "Lockstep",
    "Parity",
    "Realtime",
    "Trace",
    "Trained",
    "Verified",
    "read",
    "replay_of",
]

_SHOWN: Final = ("fitted", "datasheet")
"""Candidates that are drawn beside the measurement."""
_SHOWN_TIME: Final = 10.0
"""Longest piece of a log [s] that is drawn."""

_T = TypeVar("_T")


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A log and its replays."""

    log: str
    role: str
    time: tuple[float, ...]
    measured: dict[str, tuple[float, ...]]
    simulated: dict[str, dict[str, tuple[float, ...]]]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``calib fit``."""

    randomization: RandomizationFile
    excluded: tuple[Excluded, ...]
    traces: tuple[Trace, ...]
    max_error: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One value per iteration; None: not measured in it."""

    env_steps: tuple[int, ...]
    mean_return: tuple[float | None, ...]
    success: tuple[float | None, ...]

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return one of the fields, with NaN for None, shape (n,)."""
        return np.array([math.nan if value is None else float(value) for value in getattr(self, name)])


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``train``."""

    curve: Curve


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """How far one implementation is from the trained network."""

    engine: str
    measurements: str
    steps: int
    error: float | None
    """None: not finite."""
    tolerance: float


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``export``."""

    bundle: str | None
    """None: the exported policy does not compute what was trained, and nothing was written."""
    parity: tuple[Parity, ...]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``evaluate``."""

    starts: int
    successes: int
    success_interval: tuple[float, float]
    criterion: str


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``verify``: one engine's replay of the golden run."""

    engine: str
    precision: str
    steps: int
    action_error: float
    tolerance: float


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``verify``."""

    golden: tuple[Golden, ...]


class Lockstep(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hil run --mode lockstep``."""

    lockstep: tuple[LockstepResult, ...]


class Realtime(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``hil run --mode realtime``."""

    counts: RealtimeCounts


def read(result: dict[str, Any], cls: type[_T], command: str) -> _T:
    """Return the `cls` in a command's result.

    Raises:
        InputError: The result has another form: the command is of another version than this one.
    """
    try:
        return msgspec.convert(result, cls)
    except msgspec.ValidationError as error:
        raise InputError(f"result of sim2real {command}: {error}; install all parts in the same version") from error


def replay_of(traces: Sequence[Trace]) -> Replay | None:
    """Return a piece of a held-out log's trace, of its first joint; None if there is none."""
    trace = next((each for each in traces if each.role == "validate"), None)
    if trace is None:
        return None
    time = np.array(trace.time)
    shown = time <= time[0] + _SHOWN_TIME
    joint, measured = next(iter(trace.measured.items()))
    return Replay(
        log=trace.log,
        time=time[shown],
        measured=np.array(measured)[shown],
        simulated={name: np.array(trace.simulated[name][joint])[shown] for name in _SHOWN if name in trace.simulated},
    )
