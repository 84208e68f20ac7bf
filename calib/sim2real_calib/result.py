"""What a fit found, in full: for the report, for ``--json`` and for people."""

from __future__ import annotations

import msgspec

from sim2real.randomization import RandomizationFile

__all__ = ["CandidateResult", "Excluded", "FitResult", "FittedParameter", "Trace", "WindowError"]


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values only: any of these can be written as JSON."""


class FittedParameter(_Part, frozen=True, kw_only=True):
    """One unknown of the fit."""

    name: str
    unit: str
    meaning: str
    of_robot: bool
    """False: it describes the logs, and training does not draw it."""
    start: float
    nominal: float
    low: float
    high: float
    deviation: float | None
    """Standard deviation; None: not shown by the logs, or not fitted."""
    identified: bool
    moved: bool
    """Whether the fit left the start value."""
    at_bound: bool
    """Whether it ended at the edge of what is plausible."""
    by_log: dict[str, float]
    """What each log alone gives, or each half of a single log; only where that part shows it."""
    how: str
    """How nominal and range came about."""


class CandidateResult(_Part, frozen=True, kw_only=True):
    """Open-loop position error of one set of parameters."""

    name: str
    source: str
    values: dict[str, float]
    fit_mae: float
    """On the windows that were fitted [rad]."""
    held_out_mae: float | None
    """On the held-out windows, without those that something else pushed [rad]; None: no log was held out."""
    held_out_mae_all: float | None
    """On all held-out windows [rad]."""


class WindowError(_Part, frozen=True, kw_only=True):
    """How well one window is replayed."""

    log: str
    role: str
    """``fit`` or ``validate``."""
    start: float
    """Time in the log [s]."""
    mae: dict[str, float]
    """Candidate to mean absolute position error [rad]."""
    counts: bool


class Excluded(_Part, frozen=True, kw_only=True):
    """A part of a log that was left out."""

    log: str
    start: float
    """Time in the log [s]."""
    stop: float
    """Time in the log [s]."""
    reason: str


class Trace(_Part, frozen=True, kw_only=True):
    """A log and its replays, window after window; a window starts anew from the measured state."""

    log: str
    role: str
    window: float
    """Length of a window [s]."""
    time: tuple[float, ...]
    """Time in the log [s]."""
    measured: dict[str, tuple[float, ...]]
    """Joint to measured position [rad]."""
    simulated: dict[str, dict[str, tuple[float, ...]]]
    """Candidate to joint to simulated position [rad]."""


class FitResult(_Part, frozen=True, kw_only=True):
    """The whole."""

    robot: str
    window: float
    """Length of the windows [s]."""
    randomization: RandomizationFile
    """What was written."""
    parameters: tuple[FittedParameter, ...]
    candidates: tuple[CandidateResult, ...]
    windows: tuple[WindowError, ...]
    excluded: tuple[Excluded, ...]
    condition: float
    """Condition number of the sensitivity to all unknowns asked for, each measured in widths of its plausible range."""
    correlation_names: tuple[str, ...]
    """The unknowns that the rows and columns of `correlation` are of."""
    correlation: tuple[tuple[float, ...], ...]
    notes: tuple[str, ...]
    """What a person should know: bad spots of the logs, starts that were moved, parameters that never moved."""
    traces: tuple[Trace, ...]
    max_error: float
    """Largest allowed position error [rad]."""
    passed: bool
    elapsed_s: float

    def candidate(self, name: str) -> CandidateResult:
        """Return the candidate called `name`, e.g. ``fitted``."""
        return next(candidate for candidate in self.candidates if candidate.name == name)

    def parameter(self, name: str) -> FittedParameter:
        """Return the unknown called `name`, e.g. ``mass``."""
        return next(parameter for parameter in self.parameters if parameter.name == name)
