"""Fit a robot's simulator to its logs: search, least squares, trimming, identifiability, intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real_calib.disturbance import Push, find_pushes, pushed
from sim2real_calib.identifiability import Information, identifiable, information
from sim2real_calib.log import Log
from sim2real_calib.priors import EFFORT_LOG_DELAY, Prior, default_free, priors_of, start_vector
from sim2real_calib.replay import Replay
from sim2real_calib.search import ROBUST_SCALE, Problem, Solution, inside, least_squares, search_globally, soft_l1
from sim2real_calib.windows import Windows, cut, rehearse

__all__ = ["STEPS", "Alone", "Fit", "Progress", "fit"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

Progress = Callable[[str], None]
"""Called with what comes next, once for each of `STEPS`."""

STEPS: Final = (
    "windows",
    "search",
    "identifiability",
    "least squares",
    "delay",
    "trimming",
    "rehearsal",
    "each log alone",
)
_TRIM: Final = 8.0
"""A window whose RMS error is this many times the median, and above `_TRIM_FLOOR`, is left out."""
_TRIM_FLOOR: Final = 5.0 * ROBUST_SCALE
"""RMS error [rad] below which the robust loss copes with a window by itself."""
_TRIM_ROUNDS: Final = 4
_DELAY_STEP: Final = 0.0025
_MIN_WINDOWS: Final = 6


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """What one log, or one half of a single log, gives for the unknowns that it shows."""

    part: str
    values: dict[str, float]
    deviations: dict[str, float]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The optimum and what is known around it."""

    priors: tuple[Prior, ...]
    asked: tuple[int, ...]
    """Indices of the unknowns that were to be fitted."""
    free: tuple[int, ...]
    """Those of them that the logs show."""
    start: Floats
    """All unknowns as the datasheet has them, shape (P,)."""
    vector: Floats
    """All unknowns at the optimum, shape (P,); those that are not free are at their start."""
    known: Information
    """About the free ones, at the optimum."""
    asked_known: Information
    """About the asked ones, at the optimum of all of them."""
    bias: Floats
    """By how much the smoothing of the start states displaces the optimum, shape (P,); see `rehearse`."""
    sampling: float
    """Within what time [s] the logs do not tell when the effort changed."""
    delay_valley: tuple[float, float] | None
    """Between which delays of the logged effort [s] the error is not worse than chance; None: it was not fitted."""
    alone: tuple[Alone, ...]
    """What each log alone gives."""
    windows: Windows
    pushes: tuple[Push, ...]
    used: Ids
    """Indices of the windows that were fitted, shape (n,)."""
    trimmed: Ids
    """Indices of the windows that were left out for their error alone."""


def fit(
    robot: Robot,
    logs: Sequence[Log],
    *,
    length: float,
    dt: float,
    also_free: Sequence[str] = (),
    seed: int,
    num_threads: int = 0,
    progress: Progress,
) -> Fit:
    """Fit a robot's parameters, and the delay of the logged effort, to logs.

    Args:
        robot: The robot.
        logs: Its logs.
        length: Length of the windows [s].
        dt: Physics step [s].
        also_free: Further unknowns, by name.
        seed: Seeds the global search.
        num_threads: Threads that step the simulations; 0: one per CPU.
        progress: Told what comes next.

    Raises:
        InputError: An unknown name, or too few usable windows.
    """
    progress("windows")
    priors = priors_of(robot)
    asked = _asked(priors, also_free)
    start = start_vector(priors, {})
    windows = cut(logs, dt=dt, length=length)
    pushes = find_pushes(robot, priors, start, logs)
    clean = np.array([row for row, push in enumerate(pushed(windows, pushes)) if push is None], np.intp)
    if len(clean) < _MIN_WINDOWS:
        raise InputError(
            f"expected at least {_MIN_WINDOWS} windows of {length:g} s without gaps and pushes, got {len(clean)} of "
            f"{len(windows)}; record longer, and keep hands off the robot"
        )
    replay = Replay(robot, priors, logs, windows, num_threads=num_threads)
    problem = Problem(replay=replay, priors=priors, free=asked, rows=clean)

    progress("search")
    found = search_globally(problem, inside(priors, start, asked), seed=seed)

    progress("least squares")
    best = min((least_squares(problem, begin) for begin in (found.vector, start)), key=_cost)

    progress("delay")
    best = _other_valley(problem, best)

    progress("trimming")
    problem, best = _trim(problem, best)

    progress("identifiability")
    asked_known = information(problem, best.vector)
    problem, best, known = _hold_what_is_not_shown(problem, best, start)

    progress("rehearsal")
    bias = _bias(robot, logs, problem, best, num_threads)

    progress("each log alone")
    return Fit(
        priors=priors,
        asked=asked,
        free=problem.free,
        start=start,
        vector=best.vector,
        known=known,
        asked_known=asked_known,
        bias=bias,
        sampling=max(0.0 if log.effort_held else log.period for log in logs),
        delay_valley=_delay_valley(problem, best),
        alone=_alone(problem, best, logs),
        windows=windows,
        pushes=pushes,
        used=problem.rows,
        trimmed=np.setdiff1d(clean, problem.rows),
    )


def _asked(priors: Sequence[Prior], also_free: Sequence[str]) -> tuple[int, ...]:
    names = [prior.name for prior in priors]
    unknown = [name for name in also_free if name not in names]
    if unknown:
        raise InputError(f"parameter {unknown[0]!r}: unknown; allowed: {', '.join(names)}")
    wanted = {*default_free(priors), *also_free}
    return tuple(index for index, name in enumerate(names) if name in wanted)


def _hold_what_is_not_shown(problem: Problem, best: Solution, start: Floats) -> tuple[Problem, Solution, Information]:
    """Hold unknowns at their start until the logs show all that are left, and fit these again each time."""
    shown, known = identifiable(problem, best.vector)
    while shown != problem.free:
        problem = problem.with_free(shown)
        vector = start.copy()
        vector[list(shown)] = best.vector[list(shown)]
        best = least_squares(problem, vector)
        shown, known = identifiable(problem, best.vector)
    return problem, best, known


def _cost(solution: Solution) -> float:
    return solution.cost


def _delay_index(problem: Problem) -> int | None:
    index = [prior.name for prior in problem.priors].index(EFFORT_LOG_DELAY)
    return index if index in problem.free else None


def _delay_costs(problem: Problem, solution: Solution, index: int) -> tuple[Floats, Floats]:
    """Return delays over the whole range [s] and the robust cost of each, the other unknowns as they are."""
    prior = problem.priors[index]
    delays = np.linspace(prior.low, prior.high, round(prior.width / _DELAY_STEP) + 1)
    vectors = np.tile(solution.vector, (len(delays), 1))
    vectors[:, index] = delays
    return delays, soft_l1(problem.errors(vectors)).mean(axis=(1, 2))


def _other_valley(problem: Problem, best: Solution) -> Solution:
    """Try the best delay of the whole range: a torque that oscillates gives the error several valleys over it."""
    index = _delay_index(problem)
    if index is None:
        return best
    delays, costs = _delay_costs(problem, best, index)
    vector = best.vector.copy()
    vector[index] = delays[int(np.argmin(costs))]
    return min(best, least_squares(problem, vector), key=_cost)


def _delay_valley(problem: Problem, best: Solution) -> tuple[float, float] | None:
    """Likelihood-ratio interval: cost ≤ (1 + 4 / n) × the least, each of n windows counted as one observation."""
    index = _delay_index(problem)
    if index is None:
        return None
    delays, costs = _delay_costs(problem, best, index)
    inside_valley = delays[costs <= best.cost * (1.0 + 4.0 / len(problem.rows))]
    nominal = float(best.vector[index])
    edges = [nominal, *inside_valley.tolist()]
    return min(edges), max(edges)


def _trim(problem: Problem, best: Solution) -> tuple[Problem, Solution]:
    """Leave out windows that no parameters explain, judged by the fit's own errors, until the choice stays."""
    clean = problem.rows
    for _ in range(_TRIM_ROUNDS):
        rms = np.sqrt(np.square(problem.errors(best.vector[None], clean)[0]).mean(axis=1))
        kept = clean[rms <= max(_TRIM * float(np.median(rms)), _TRIM_FLOOR)]
        if len(kept) == len(problem.rows) and (kept == problem.rows).all():
            break
        problem = problem.with_rows(kept)
        best = least_squares(problem, best.vector)
    return problem, best


def _bias(robot: Robot, logs: Sequence[Log], problem: Problem, best: Solution, num_threads: int) -> Floats:
    """Fit the model's own replay, cut and smoothed like the logs, and return how far off its parameters come out."""
    replay = problem.replay
    rehearsed = rehearse(replay.windows, replay.positions(best.vector[None])[0], replay.dt)
    again = Replay(robot, problem.priors, logs, rehearsed, num_threads=num_threads)
    return least_squares(msgspec.structs.replace(problem, replay=again), best.vector).vector - best.vector


def _alone(problem: Problem, best: Solution, logs: Sequence[Log]) -> tuple[Alone, ...]:
    """Fit each log alone, or each half of a single log: their spread is what one session cannot know of another."""
    windows, rows = problem.replay.windows, problem.rows
    if len(logs) > 1:
        parts = [(log.name, rows[windows.log[rows] == index]) for index, log in enumerate(logs)]
    else:
        middle = 0.5 * float(logs[0].time[-1])
        first = windows.start[rows] < middle
        parts = [(f"{logs[0].name}, first half", rows[first]), (f"{logs[0].name}, second half", rows[~first])]
    results: list[Alone] = []
    for name, part in parts:
        if len(part) < _MIN_WINDOWS:
            continue
        only = problem.with_rows(part)
        shown, known = identifiable(only, best.vector)
        only = only.with_free(shown)
        vector = least_squares(only, best.vector).vector
        deviations = known.deviation * only.widths()
        results.append(
            Alone(
                part=name,
                values=dict(zip(known.names, vector[list(shown)].tolist(), strict=True)),
                deviations=dict(zip(known.names, deviations.tolist(), strict=True)),
            )
        )
    return tuple(results)
