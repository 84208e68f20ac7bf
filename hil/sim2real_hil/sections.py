"""Sections of a report on the way to a policy: what was fitted, learned, measured and exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.randomization import HeldOutError, ParameterRange, RandomizationFile
from sim2real_hil.plots import Bar, Curve, bars, curves
from sim2real_hil.report_parts import Figure, Section, Table, Verdict
from sim2real_hil.units import number, percent

__all__ = [
    "Excluded",
    "LearningCurve",
    "ParityError",
    "Replay",
    "SuccessRate",
    "calibration_section",
    "evaluation_section",
    "parity_section",
    "training_section",
]

Floats = npt.NDArray[np.float64]

_MRAD: Final = 1e3


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a held-out log, and what the simulator makes of the same commands."""

    log: str
    time: Floats
    """Time [s], shape (T,)."""
    measured: Floats
    """Position [rad], shape (T,)."""
    simulated: Mapping[str, Floats]
    """Whose parameters → position [rad], shape (T,)."""


class Excluded(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a log that was left out."""

    log: str
    start: float
    """Time [s] in the log."""
    stop: float
    """Time [s] in the log."""
    reason: str


def calibration_section(
    fit: RandomizationFile,
    *,
    limits: Mapping[str, float],
    replay: Replay | None = None,
    excluded: Sequence[Excluded] = (),
    elapsed_s: float,
) -> Section:
    """Return what was fitted, how well it replays logs that it has not seen, and what was left out.

    Args:
        fit: The file that calibration wrote.
        limits: Candidate, e.g. ``fitted``, to the largest allowed position error [rad].
        replay: A piece of a held-out log; None: not drawn.
        excluded: Parts of logs that were left out.
        elapsed_s: How long it took [s].
    """
    errors = {error.candidate: error.position_mae for error in fit.held_out}
    windows = {error.window for error in fit.held_out}
    window = f"{min(windows):g} s" if len(windows) == 1 else "short"
    fitted = errors.get("fitted", float("nan"))
    verdicts = [
        Verdict(
            name=f"{name} parameters replay unseen logs",
            passed=errors[name] <= limit,
            measured=f"{number(errors[name] * _MRAD, 3)} mrad",
            allowed=f"≤ {number(limit * _MRAD, 3)} mrad",
            advice="fit on logs that move more, or look at the excluded windows",
        )
        for name, limit in limits.items()
    ]
    if "datasheet" in errors:
        verdicts.append(
            Verdict(
                name="the fit is better than the datasheet",
                passed=fitted < errors["datasheet"],
                measured=f"{number(fitted * _MRAD, 3)} mrad",
                allowed=f"< {number(errors['datasheet'] * _MRAD, 3)} mrad",
                advice="the logs may not excite what the datasheet already has right",
            )
        )
    figures: list[Figure] = []
    if errors:
        figures.append(_held_out_figure(errors, limits.get("fitted"), window))
    if replay is not None:
        figures.append(_replay_figure(replay))
    tables = [_parameter_table(fit.parameters)]
    if errors:
        tables.append(_held_out_table(fit.held_out))
    if excluded:
        tables.append(
            Table(
                title="Left out",
                columns=("log", "from", "to", "why"),
                rows=tuple((each.log, f"{each.start:.2f} s", f"{each.stop:.2f} s", each.reason) for each in excluded),
            )
        )
    used = ", ".join(log.name for log in fit.logs if log.role == "fit") or "none"
    unseen = ", ".join(log.name for log in fit.logs if log.role == "validate") or "none"
    return Section(
        title="Calibration",
        text=(
            f"The simulator of robot {fit.robot} was fitted to {used} and judged on {unseen}, which the fit never saw: "
            f"open-loop replay in {window} windows. A parameter that the logs do not show is called so and keeps a "
            "wide range, from which training draws."
        ),
        tables=tuple(tables),
        figures=tuple(figures),
        verdicts=tuple(verdicts),
        elapsed_s=elapsed_s,
        data={"randomization": msgspec.to_builtins(fit)},
    )


def _parameter_table(parameters: Sequence[ParameterRange]) -> Table:
    def row(each: ParameterRange) -> tuple[str, ...]:
        unit = "" if each.unit == "1" else f" {each.unit}"
        name = f"{each.name} (of the {each.delays})" if each.delays else each.name
        value = (
            f"{number(each.nominal)}{unit}"
            if each.identified
            else f"not identifiable (kept {number(each.nominal)}{unit})"
        )
        return name, value, f"{number(each.low)} to {number(each.high)}{unit}", each.distribution, each.how

    return Table(
        title="Parameters",
        columns=("parameter", "value", "range", "training draws", "how the range came about"),
        rows=tuple(row(each) for each in parameters),
    )


def _held_out_table(errors: Sequence[HeldOutError]) -> Table:
    return Table(
        title="Position error on unseen logs",
        columns=("parameters", "judged: without the parts left out", "all parts"),
        rows=tuple(
            (
                each.candidate,
                f"{number(each.position_mae * _MRAD, 3)} mrad",
                f"{number(each.position_mae_all * _MRAD, 3)} mrad",
            )
            for each in errors
        ),
    )


def _held_out_figure(errors: Mapping[str, float], limit: float | None, window: str) -> Figure:
    rows = [
        Bar(label=name, value=error * _MRAD, text=f"{number(error * _MRAD, 3)} mrad", main=name == "fitted")
        for name, error in sorted(errors.items(), key=lambda item: item[1])
    ]
    told = ", ".join(f"{row.label} {row.text}" for row in rows)
    return Figure(
        title="Error on unseen logs",
        caption=f"Mean absolute position error of open-loop replay in {window} windows; shorter is better.",
        svg=bars(
            rows,
            x_label="position MAE [mrad]",
            limit=None if limit is None else limit * _MRAD,
            limit_label="" if limit is None else f"≤ {number(limit * _MRAD, 3)} mrad",
            alt=f"Position error on unseen logs: {told}",
        ),
    )


def _replay_figure(replay: Replay) -> Figure:
    lines = [Curve(label="measured", x=replay.time, y=replay.measured)]
    lines += [Curve(label=name, x=replay.time, y=values) for name, values in replay.simulated.items()]
    return Figure(
        title=f"Replay of {replay.log}",
        caption="The log's commands played into the simulator, set to the measured state at each window's start.",
        svg=curves(
            {"position [rad]": lines},
            x_label="time [s]",
            alt=f"Measured and simulated position of {replay.log}",
            panel_height=2.4,
        ),
    )


class LearningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """How training went: one value per iteration, shape (n,)."""

    env_steps: Floats
    """Control steps of all environments together, so far."""
    mean_return: Floats
    """Mean return of the episodes that ended; NaN where none did."""
    success_rate: Floats
    """Success rate of the deterministic policy, 0 to 1; NaN where it was not measured."""


def training_section(curve: LearningCurve, *, task: str, elapsed_s: float) -> Section:
    """Return the learning curve."""
    measured = {"return": curve.mean_return, "success": curve.success_rate}
    panels: dict[str, list[Curve]] = {}
    for name, values in measured.items():
        known = np.isfinite(values)
        if known.any():
            panels[name] = [Curve(label=name, x=curve.env_steps[known] / 1e6, y=values[known])]
    steps = float(curve.env_steps[-1]) if len(curve.env_steps) else 0.0
    rate = steps / elapsed_s if elapsed_s > 0 else 0.0
    return Section(
        title="Training",
        text=(
            f"PPO on {task}: {steps:,.0f} control steps in {elapsed_s:.0f} s, {rate:,.0f} a second, on plants that are "
            "drawn anew from the calibrated ranges for every episode."
        ),
        figures=()
        if not panels
        else (
            Figure(
                title="Learning curve",
                caption=(
                    "Return of the episodes as they ended in training, exploration included; success of the "
                    "deterministic policy on plants of the training ranges."
                ),
                svg=curves(panels, x_label="control steps [millions]", alt="Return and success over control steps"),
            ),
        ),
        elapsed_s=elapsed_s,
        data={"learning_curve": msgspec.structs.asdict(curve)},
    )


class SuccessRate(msgspec.Struct, frozen=True, kw_only=True):
    """Success on one kind of plant."""

    plants: str
    """Which plants, e.g. ``nominal``."""
    starts: int
    successes: int
    interval: tuple[float, float]
    """95 % interval of the rate."""
    required: float
    """Smallest allowed rate."""

    @property
    def rate(self) -> float:
        """Share of starts that succeeded."""
        return self.successes / self.starts


def evaluation_section(rates: Sequence[SuccessRate], *, criterion: str, elapsed_s: float) -> Section:
    """Return success rates with their intervals."""
    return Section(
        title="Evaluation",
        text=f"Whole episodes from random states with the deterministic action. Success: {criterion}.",
        figures=(
            Figure(
                title="Success",
                caption="Share of random starts, with its 95 % interval (Wilson). Dashed: what is required.",
                svg=bars(
                    [
                        Bar(
                            label=f"{each.plants} plants",
                            value=each.rate * 100.0,
                            text=f"{each.successes} of {each.starts}",
                            interval=(each.interval[0] * 100.0, each.interval[1] * 100.0),
                            required=each.required * 100.0,
                        )
                        for each in rates
                    ],
                    x_label="success [%]",
                    limit=None,
                    limit_label="",
                    full=100.0,
                    alt=", ".join(f"{each.plants}: {percent(each.rate)}" for each in rates),
                ),
            ),
        ),
        verdicts=tuple(
            Verdict(
                name=f"success on {each.plants} plants",
                passed=each.rate >= each.required,
                measured=f"{each.successes} of {each.starts} starts, {percent(each.rate)}",
                allowed=f"≥ {percent(each.required)}",
                advice="train for more iterations, or with another seed",
            )
            for each in rates
        ),
        elapsed_s=elapsed_s,
        data={"success": [msgspec.structs.asdict(each) for each in rates], "criterion": criterion},
    )


class ParityError(msgspec.Struct, frozen=True, kw_only=True):
    """Largest difference between two implementations of the same policy."""

    between: str
    """Which two, e.g. ``trainer and ONNX``."""
    error: float
    """Largest |difference| / max(1, |action|)."""
    tolerance: float
    steps: int


def parity_section(errors: Sequence[ParityError], *, elapsed_s: float) -> Section:
    """Return the differences between trainer, ONNX file and edge."""
    return Section(
        title="Parity",
        text=(
            "The same raw measurements through each implementation of the policy, whole sequences at a time. What "
            "counts is the largest |difference| / max(1, |action|)."
        ),
        tables=(
            Table(
                title="Largest difference of an action",
                columns=("between", "difference", "allowed", "steps"),
                rows=tuple(
                    (each.between, number(each.error, 3), number(each.tolerance, 3), str(each.steps)) for each in errors
                ),
            ),
        ),
        verdicts=tuple(
            Verdict(
                name=f"parity between {each.between}",
                passed=each.error <= each.tolerance,
                measured=number(each.error, 3),
                allowed=f"≤ {number(each.tolerance, 3)}",
                advice="the exported graph is not the trained policy: export again, and check custom layers",
            )
            for each in errors
        ),
        elapsed_s=elapsed_s,
        data={"parity": [msgspec.structs.asdict(each) for each in errors]},
    )
