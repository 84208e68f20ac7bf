"""From an optimum to ranges that training can trust."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sim2real.randomization import Covariance, ParameterRange
from sim2real_calib.fit import Fit
from sim2real_calib.priors import EFFORT_LOG_DELAY, Prior
from sim2real_calib.result import FittedParameter

__all__ = ["covariance", "fitted_parameters", "parameter_ranges"]

_MOVED = 1e-3
"""Share of its plausible range from which a parameter counts as moved, or as away from its bound."""


def fitted_parameters(fit: Fit) -> tuple[FittedParameter, ...]:
    """Return value and range of every unknown that was to be fitted, and of the robot's parameters in any case."""
    return tuple(
        _fitted(fit, index, prior) if index in fit.free else _not_shown(fit, index, prior)
        for index, prior in enumerate(fit.priors)
        if prior.of_robot or index in fit.asked
    )


def parameter_ranges(parameters: Sequence[FittedParameter], *, of_robot: bool) -> tuple[ParameterRange, ...]:
    """Return the ranges of the robot's own parameters, or else of those that describe its logs."""
    return tuple(
        ParameterRange(
            name=parameter.name,
            unit=parameter.unit,
            nominal=parameter.nominal,
            low=parameter.low,
            high=parameter.high,
            operation="set",
            distribution="uniform",
            identified=parameter.identified,
            how=parameter.how,
            delays="logged effort, behind the logged position" if parameter.name == EFFORT_LOG_DELAY else None,
        )
        for parameter in parameters
        if parameter.of_robot == of_robot
    )


def covariance(fit: Fit, parameters: Sequence[FittedParameter]) -> Covariance | None:
    """Return how the robot's own fitted parameters vary together; None: fewer than two of them were fitted.

    The fit says how its errors hang together: C = D R D, with the deviations D and correlations R of all its free
    unknowns, of which those of the logs are then left out. A range that is taken as ± 2 deviations but wider than the
    fit's, for single logs or other sessions, holds more variance; that has nothing to do with the other parameters, so
    it is added to the diagonal.
    """
    shown = {each.name: each for each in parameters if each.of_robot and each.identified and each.low < each.high}
    rows = [row for row, index in enumerate(fit.free) if fit.priors[index].name in shown]
    if len(rows) < 2:
        return None
    priors = [fit.priors[fit.free[row]] for row in rows]
    deviation = fit.known.deviation[rows] * [prior.width for prior in priors]
    matrix = fit.known.correlation[np.ix_(rows, rows)] * np.outer(deviation, deviation)
    ranged = np.array([0.25 * (shown[prior.name].high - shown[prior.name].low) for prior in priors])
    matrix[np.diag_indices_from(matrix)] = np.square(np.maximum(deviation, ranged))
    upper = np.triu(matrix, 1)
    matrix = upper + upper.T + np.diag(np.diag(matrix))
    return Covariance(
        names=tuple(prior.name for prior in priors),
        matrix=tuple(tuple(float(f"{value:.6g}") for value in row) for row in matrix.tolist()),
    )


def _fitted(fit: Fit, index: int, prior: Prior) -> FittedParameter:
    """± 2 σ, wider where the smoothing of the start states, single logs or other sessions say so."""
    nominal, bias = float(fit.vector[index]), float(fit.bias[index])
    deviation = float(fit.known.deviation[fit.free.index(index)]) * prior.width
    # A rehearsal is about as nonlinear as the fit: its bias is trusted to a factor of two.
    low = nominal - 2.0 * deviation - 2.0 * max(bias, 0.0)
    high = nominal + 2.0 * deviation + 2.0 * max(-bias, 0.0)
    told = "fitted; ± 2 σ and twice the bias that smoothed start states give"
    if prior.name == EFFORT_LOG_DELAY and fit.delay_valley is not None:
        # A log that is read as a curve does not tell when in a period its effort changed.
        low = min(low, fit.delay_valley[0]) - 0.5 * fit.sampling
        high = max(high, fit.delay_valley[1]) + 0.5 * fit.sampling
    # As far towards what a log alone gives as that log's own uncertainty does not explain.
    near = [(each.values[prior.name], each.deviations[prior.name]) for each in fit.alone if prior.name in each.values]
    wide_low = min([low, *(value + 2.0 * spread for value, spread in near)])
    wide_high = max([high, *(value - 2.0 * spread for value, spread in near)])
    if (wide_low, wide_high) != (low, high):
        told += ", widened to what single logs give"
    if prior.session_factor > 1.0:
        wide_low = min(wide_low, nominal / prior.session_factor)
        wide_high = max(wide_high, nominal * prior.session_factor)
        told += f", at least a factor of {prior.session_factor:g} for other sessions"
    return FittedParameter(
        name=prior.name,
        unit=prior.unit,
        meaning=prior.meaning,
        of_robot=prior.of_robot,
        start=prior.start,
        nominal=_rounded(nominal, prior),
        low=_rounded(max(prior.low, wide_low), prior),
        high=_rounded(min(prior.high, wide_high), prior),
        deviation=deviation,
        identified=True,
        moved=abs(nominal - prior.start) > _MOVED * prior.width,
        at_bound=min(nominal - prior.low, prior.high - nominal) <= _MOVED * prior.width,
        by_log={each.part: each.values[prior.name] for each in fit.alone if prior.name in each.values},
        how=told,
    )


def _rounded(value: float, prior: Prior) -> float:
    """Return `value` without the digits that are dust of the optimiser: beyond about 1e-5 of what is plausible."""
    rounded = round(value, 4 - math.floor(math.log10(prior.width)))
    return min(max(rounded, prior.low), prior.high) + 0.0  # no negative zero


def _not_shown(fit: Fit, index: int, prior: Prior) -> FittedParameter:
    """The datasheet's value, and everything that is plausible."""
    deviation = None
    if index in fit.asked:
        share = float(fit.asked_known.deviation[fit.asked.index(index)])
        # Beyond its whole range the linearisation says no more than "not at all".
        deviation = share * prior.width if share < 1.0 else None
    return FittedParameter(
        name=prior.name,
        unit=prior.unit,
        meaning=prior.meaning,
        of_robot=prior.of_robot,
        start=prior.start,
        nominal=prior.start,
        low=prior.low,
        high=prior.high,
        deviation=deviation,
        identified=False,
        moved=False,
        at_bound=False,
        by_log={},
        how="not identifiable: these logs do not show it; the datasheet's value and the whole plausible range",
    )
