"""What the logs can show: condition, correlations, and how far the data leave each parameter open."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real_calib.search import ROBUST_SCALE, Problem

__all__ = ["MAX_OPEN_SHARE", "Information", "identifiable", "information"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

MAX_OPEN_SHARE: Final = 0.5
"""A parameter is identifiable if the logs leave open (± 2 σ) at most this share of its plausible range."""
_MAX_CORRELATION: Final = 0.99
"""Two unknowns that are closer than this are one: an error of the model decides between them, not the logs."""
_RESOLUTION: Final = 1e-3
"""Least error [rad] that is reckoned with: a log that is replayed exactly was measured in steps, too."""
_BLOCK: Final = 1.0
"""Errors within this time [s] of one log are taken as dependent."""


class Information(msgspec.Struct, frozen=True, kw_only=True):
    """What the errors say about the free unknowns near a point."""

    names: tuple[str, ...]
    """The free unknowns."""
    deviation: Floats
    """Standard deviation of each over the width of its range, shape (F,); infinite: not shown at all."""
    condition: float
    """Largest over smallest singular value of the sensitivity, each unknown measured in widths of its range."""
    correlation: Floats
    """Correlations between the unknowns, shape (F, F)."""


def information(problem: Problem, vector: Floats) -> Information:
    """Linearise the fit around `vector`, shape (P,).

    The variance of each unknown is the larger of two: σ² (JᵀWJ)⁻¹ with each window counted as one observation, and the
    sandwich (JᵀWJ)⁻¹ (Σ_b s_b s_bᵀ) (JᵀWJ)⁻¹ over blocks b of one second, s_b = Σ JᵀW e (Liang and Zeger 1986), which
    holds when errors are dependent and the model is wrong. W are the weights of the soft-L1 loss.
    """
    if not problem.free:
        return Information(names=(), deviation=np.zeros(0), condition=1.0, correlation=np.zeros((0, 0)))
    errors, slopes = problem.errors(vector[None])[0], problem.exact_slopes(vector)
    weight = 1.0 / np.sqrt(1.0 + np.square(errors / ROBUST_SCALE))
    hessian = np.einsum("nsf,ns,nsg->fg", slopes, weight, slopes)
    values, directions = np.linalg.eigh(hessian)
    # Rounding can make the smallest eigenvalue of a singular matrix negative; without any sensitivity all are zero.
    values = np.maximum(values, max(1e-14 * values[-1], 1e-30))
    inverse = (directions / values) @ directions.T

    samples = errors.shape[1]
    naive = max(float((weight * np.square(errors)).mean()), _RESOLUTION**2) * samples * inverse
    scores = np.einsum("nsf,ns,ns->nf", slopes, weight, errors)
    blocks = _blocks(problem)
    sums = np.stack([scores[blocks == block].sum(axis=0) for block in np.unique(blocks)])
    few = len(sums) / max(1, len(sums) - len(problem.free))
    sandwich = few * inverse @ (sums.T @ sums) @ inverse
    deviation = np.sqrt(np.maximum(np.diag(naive), np.diag(sandwich)))
    spread = np.sqrt(np.diag(inverse))
    return Information(
        names=problem.names(),
        deviation=deviation,
        condition=float(np.sqrt(values[-1] / values[0])),
        correlation=inverse / np.outer(spread, spread),
    )


def identifiable(problem: Problem, vector: Floats) -> tuple[tuple[int, ...], Information]:
    """Return the unknowns that the logs show near `vector`, and what is known when only these are free.

    The unknown that the logs leave open the furthest is held at its start and the rest looked at again, until all that
    are left are shown: of two that can hardly be told apart, one is held and the other is fitted given it.
    """
    free = problem.free
    known = information(problem, vector)
    while free and (suspects := _not_shown(known)).any():
        worst = int(np.argmax(np.where(suspects, known.deviation, -np.inf)))
        free = free[:worst] + free[worst + 1 :]
        known = information(problem.with_free(free), vector)
    return free, known


def _not_shown(known: Information) -> npt.NDArray[np.bool_]:
    open_too_far = 4.0 * known.deviation > MAX_OPEN_SHARE
    twins = np.abs(np.tril(known.correlation, -1)) > _MAX_CORRELATION
    return open_too_far | twins.any(axis=0) | twins.any(axis=1)


def _blocks(problem: Problem) -> Ids:
    windows = problem.replay.windows
    number = np.floor(windows.start[problem.rows] / _BLOCK).astype(np.intp)
    return windows.log[problem.rows] * (int(number.max()) + 1) + number
