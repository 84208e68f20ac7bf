"""From a start anywhere to an optimum: global search first, then robust least squares, both on batched replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real_calib.priors import Prior
from sim2real_calib.replay import Replay

__all__ = ["ROBUST_SCALE", "Problem", "Solution", "inside", "least_squares", "search_globally", "soft_l1"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

ROBUST_SCALE: Final = 0.03
"""Position error [rad] from which a residual counts linearly instead of squared."""
_SAMPLE_PERIOD: Final = 0.01
"""Of the errors that least squares sees [s]: closer ones say the same twice."""
_STEP: Final = 0.002
"""Finite-difference step as a share of the distance between a parameter's bounds."""
_MARGIN: Final = 0.02
"""How far inside its bounds a start is moved, as a share of their distance: on a bound a fit stalls."""
_POPULATION: Final = 24
_GENERATIONS: Final = 12
_SEARCH_WINDOWS: Final = 24


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be fitted to what."""

    replay: Replay
    priors: tuple[Prior, ...]
    free: tuple[int, ...]
    """Indices of the F fitted unknowns."""
    rows: Ids
    """Indices of the windows that count, shape (n,)."""

    def with_free(self, free: tuple[int, ...]) -> Problem:
        """Return the same with other unknowns."""
        return msgspec.structs.replace(self, free=free)

    def with_rows(self, rows: Ids) -> Problem:
        """Return the same on other windows."""
        return msgspec.structs.replace(self, rows=rows)

    def names(self) -> tuple[str, ...]:
        """Return the names of the fitted unknowns."""
        return tuple(self.priors[index].name for index in self.free)

    def widths(self) -> Floats:
        """Return the distances between the bounds of the fitted unknowns, shape (F,)."""
        return np.array([self.priors[index].width for index in self.free])

    def lows(self) -> Floats:
        """Return their lower bounds, shape (F,)."""
        return np.array([self.priors[index].low for index in self.free])

    def errors(self, vectors: Floats, rows: Ids | None = None) -> Floats:
        """Return position errors [rad] under parameter vectors, shape (C, P): shape (C, n, samples × joints)."""
        every = max(1, round(_SAMPLE_PERIOD / self.replay.dt))
        residuals = self.replay.residuals(vectors, self.rows if rows is None else rows)[:, :, every - 1 :: every]
        return residuals.reshape(*residuals.shape[:2], -1)

    def slopes(self, vector: Floats) -> Floats:
        """Return the derivatives of the errors by the free unknowns, each over its width: shape (n, S, F).

        All perturbed parameters on all windows are one batch. Differences are forward, or backward at an upper bound:
        half the cost of `exact_slopes`, and enough to go downhill by.
        """
        free = list(self.free)
        ahead = vector[free] + _STEP * self.widths() <= self.lows() + self.widths()
        step = np.where(ahead, _STEP, -_STEP)
        vectors = np.tile(vector, (len(free) + 1, 1))
        vectors[np.arange(len(free)) + 1, free] += step * self.widths()
        errors = self.errors(vectors)
        return np.moveaxis((errors[1:] - errors[0]) / step[:, None, None], 0, -1)

    def exact_slopes(self, vector: Floats) -> Floats:
        """Return the same by central differences, so that unknowns that only act together are seen to do so.

        Next to a bound, the centre is moved inside.
        """
        free, step = list(self.free), 0.5 * _STEP * self.widths()
        centre = vector.copy()
        centre[free] = np.clip(vector[free], self.lows() + step, self.lows() + self.widths() - step)
        vectors = np.tile(centre, (2 * len(free), 1))
        each = np.arange(len(free))
        vectors[each, free] += step
        vectors[each + len(free), free] -= step
        errors = self.errors(vectors)
        return np.moveaxis((errors[: len(free)] - errors[len(free) :]) / _STEP, 0, -1)


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """Where least squares ended."""

    vector: Floats
    """All unknowns, shape (P,)."""
    cost: float
    """Mean robust loss [rad²] per error."""
    iterations: int


def soft_l1(errors: Floats) -> Floats:
    """Return the loss 2 s² (√(1 + (e/s)²) − 1): e² for small errors, 2 s |e| for large ones."""
    return 2.0 * ROBUST_SCALE**2 * (np.sqrt(1.0 + np.square(errors / ROBUST_SCALE)) - 1.0)


def inside(priors: Sequence[Prior], vector: Floats, free: Sequence[int]) -> Floats:
    """Return `vector` with its free unknowns moved off their bounds."""
    moved = vector.copy()
    for index in free:
        prior = priors[index]
        margin = _MARGIN * prior.width
        moved[index] = np.clip(vector[index], prior.low + margin, prior.high - margin)
    return moved


def search_globally(problem: Problem, start: Floats, *, seed: int) -> Solution:
    """Look everywhere between the bounds by differential evolution; each generation is one batch.

    Args:
        problem: The problem; of its windows, at most 24, evenly chosen, are looked at.
        start: All unknowns, shape (P,); a member of the first generation.
        seed: Seeds the search.
    """
    from scipy.optimize import Bounds, differential_evolution

    chosen = np.unique(np.linspace(0, len(problem.rows) - 1, _SEARCH_WINDOWS).astype(np.intp))
    rows, lows, widths = problem.rows[chosen], problem.lows(), problem.widths()
    rng = np.random.default_rng(seed)
    first = rng.random((_POPULATION, len(problem.free)))
    first[0] = (start[list(problem.free)] - lows) / widths

    def vectors(unit: Floats) -> Floats:
        """Parameter vectors, shape (C, P), of points in the unit cube, shape (F, C)."""
        full = np.tile(start, (unit.shape[1], 1))
        full[:, list(problem.free)] = lows + unit.T * widths
        return full

    def costs(unit: Floats) -> Floats:
        return soft_l1(problem.errors(vectors(unit), rows)).mean(axis=(1, 2))

    found = differential_evolution(
        costs,  # pyright: ignore[reportArgumentType] the stubs do not know vectorized=True, which returns an array
        bounds=Bounds(np.zeros(len(problem.free)), np.ones(len(problem.free))),
        init=first,
        maxiter=_GENERATIONS,
        tol=0.0,
        polish=False,
        updating="deferred",
        vectorized=True,
        rng=rng,
    )
    return Solution(vector=vectors(found.x[:, None])[0], cost=float(found.fun), iterations=int(found.nit))


def least_squares(problem: Problem, start: Floats, *, max_iterations: int = 30) -> Solution:
    """Minimise the soft-L1 loss from `start`, shape (P,), within the bounds, by a trust region."""
    from scipy import optimize

    if not problem.free:
        return Solution(vector=start, cost=float(soft_l1(problem.errors(start[None])).mean()), iterations=0)
    lows, widths = problem.lows(), problem.widths()
    start = inside(problem.priors, start, problem.free)

    def full(unit: Floats) -> Floats:
        vector = start.copy()
        vector[list(problem.free)] = lows + unit * widths
        return vector

    def slopes(unit: Floats) -> Floats:
        return problem.slopes(full(unit)).reshape(-1, len(problem.free))

    found = optimize.least_squares(
        lambda unit: problem.errors(full(unit)[None]).ravel(),
        (start[list(problem.free)] - lows) / widths,
        jac=slopes,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        xtol=1e-4,
        ftol=1e-4,
        max_nfev=max_iterations,
    )
    vector = full(found.x)
    return Solution(vector=vector, cost=float(2.0 * found.cost / found.fun.size), iterations=int(found.nfev))
