"""The whole of a calibration: logs in, a fit, its judgement, and the file that training reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sim2real import __version__
from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.randomization import HeldOutError, LogRecord, RandomizationFile, write_randomization
from sim2real.robots import ParameterSet, Robot
from sim2real_calib.command_delay import command_delay
from sim2real_calib.fit import STEPS, Fit, fit
from sim2real_calib.intervals import covariance, fitted_parameters, parameter_ranges
from sim2real_calib.judge import Judgement, judge
from sim2real_calib.log import Log, read_log
from sim2real_calib.priors import EFFORT_LOG_DELAY, Prior, other_candidates
from sim2real_calib.result import CandidateResult, Excluded, FitResult, FittedParameter

__all__ = ["FITTED", "calibrate"]

FITTED: Final = "fitted"
_WINDOW: Final = (0.2, 5.0)
"""Shortest and longest window [s]."""


def calibrate(
    robot: Robot,
    logs: Sequence[Path],
    out: Path,
    *,
    validate: Sequence[Path] = (),
    window: float = 0.5,
    max_error: float = 0.03,
    also_free: Sequence[str] = (),
    seed: int = 0,
    num_threads: int = 0,
) -> FitResult:
    """Fit `logs`, judge on the logs of `validate`, and write `out`.

    Args:
        robot: The robot.
        logs: Logs to fit.
        out: The randomization file to write.
        validate: Logs that judge and never enter the fit.
        window: Length of the replayed windows [s].
        max_error: Largest allowed mean absolute position error [rad].
        also_free: Unknowns to fit beyond the usual ones.
        seed: Seeds the global search.
        num_threads: Threads that simulate; 0: one per CPU.

    Raises:
        InputError: A log or an argument cannot be used, or the file cannot be written; nothing is left behind.
    """
    began = time.monotonic()
    require("scipy", "calib")
    if not _WINDOW[0] <= window <= _WINDOW[1]:
        raise InputError(f"--window: expected {_WINDOW[0]:g} to {_WINDOW[1]:g} s, got {window:g}")
    names = tuple(joint.name for joint in robot.joints)
    fit_logs = [read_log(path, names) for path in logs]
    held_out_logs = [read_log(path, names) for path in validate]
    _check_apart(fit_logs, held_out_logs)

    dt = _physics_step(robot)
    found = _fit_with_progress(robot, fit_logs, window, dt, also_free, seed, num_threads)
    parameters = fitted_parameters(found)
    real = not any(log.simulated for log in (*fit_logs, *held_out_logs))
    candidates = (_fitted_candidate(found), *other_candidates(robot, real=real))

    def judged(which: Sequence[Log], role: str, trimmed: Sequence[int] = ()) -> Judgement:
        return judge(
            robot,
            found.priors,
            candidates,
            which,
            length=window,
            dt=dt,
            role=role,
            also_left_out=trimmed,
            num_threads=num_threads,
        )

    on_fit = judged(fit_logs, "fit", found.trimmed.tolist())
    on_held_out = judged(held_out_logs, "validate") if held_out_logs else None
    results = tuple(_candidate_result(candidate, on_fit, on_held_out) for candidate in candidates)
    content = _file(robot, found, parameters, fit_logs, held_out_logs, results, window)
    write_randomization(out, content)
    judgements = [each for each in (on_fit, on_held_out) if each is not None]
    return FitResult(
        robot=robot.name,
        window=window,
        randomization=content,
        parameters=parameters,
        candidates=results,
        windows=tuple(error for each in judgements for error in each.windows),
        excluded=tuple(part for each in judgements for part in each.excluded) + _trimmed(found, fit_logs),
        condition=found.asked_known.condition,
        correlation_names=found.asked_known.names,
        correlation=tuple(tuple(row) for row in found.asked_known.correlation.tolist()),
        notes=_notes(found, parameters, [*fit_logs, *held_out_logs]),
        traces=tuple(trace for each in judgements for trace in each.traces),
        max_error=max_error,
        passed=_passes(results, max_error),
        elapsed_s=time.monotonic() - began,
    )


def _check_apart(fit_logs: Sequence[Log], held_out_logs: Sequence[Log]) -> None:
    fitted = {log.sha256: log.name for log in fit_logs}
    for log in held_out_logs:
        if log.sha256 in fitted:
            raise InputError(
                f"--validate {log.name}: expected a log that is not fitted, got the content of {fitted[log.sha256]}; "
                "a fit cannot judge itself"
            )


def _physics_step(robot: Robot) -> float:
    """Return the physics step [s] of the robot's model: the parameters are fitted for the step they are used with."""
    from sim2real.sim.mujoco import MujocoSim

    return MujocoSim(robot, 1).dt


def _fit_with_progress(
    robot: Robot, logs: Sequence[Log], window: float, dt: float, also_free: Sequence[str], seed: int, num_threads: int
) -> Fit:
    from tqdm import tqdm

    with tqdm(total=len(STEPS), desc="calibrate", unit="step") as bar:

        def progress(step: str) -> None:
            bar.set_postfix_str(step)
            bar.update()

        return fit(
            robot,
            logs,
            length=window,
            dt=dt,
            also_free=also_free,
            seed=seed,
            num_threads=num_threads,
            progress=progress,
        )


def _fitted_candidate(found: Fit) -> ParameterSet:
    values = {prior.name: float(value) for prior, value in zip(found.priors, found.vector, strict=True)}
    return ParameterSet(name=FITTED, values=values, source="this fit")


def _candidate_result(candidate: ParameterSet, on_fit: Judgement, on_held_out: Judgement | None) -> CandidateResult:
    return CandidateResult(
        name=candidate.name,
        source=candidate.source,
        values=candidate.values,
        fit_mae=on_fit.mae[candidate.name],
        held_out_mae=on_held_out.mae.get(candidate.name) if on_held_out else None,
        held_out_mae_all=on_held_out.mae_all.get(candidate.name) if on_held_out else None,
    )


def _passes(results: Sequence[CandidateResult], max_error: float) -> bool:
    errors = {each.name: each.fit_mae if each.held_out_mae is None else each.held_out_mae for each in results}
    return errors[FITTED] <= max_error and errors[FITTED] < errors["datasheet"]


def _file(
    robot: Robot,
    found: Fit,
    parameters: Sequence[FittedParameter],
    fit_logs: Sequence[Log],
    held_out_logs: Sequence[Log],
    results: Sequence[CandidateResult],
    window: float,
) -> RandomizationFile:
    late = next((each for each in parameters if each.name == EFFORT_LOG_DELAY), None)
    log_delay = (late.low, late.nominal, late.high) if late else (0.0, 0.0, 0.0)
    return RandomizationFile(
        schema_version=2,
        robot=robot.name,
        toolkit_version=__version__,
        parameters=(*parameter_ranges(parameters, of_robot=True), command_delay(fit_logs, log_delay)),
        covariance=covariance(found, parameters),
        log_parameters=parameter_ranges(parameters, of_robot=False),
        logs=(
            *(LogRecord(name=log.name, sha256=log.sha256, role="fit") for log in fit_logs),
            *(LogRecord(name=log.name, sha256=log.sha256, role="validate") for log in held_out_logs),
        ),
        fit_position_mae=results[0].fit_mae,
        held_out=tuple(
            HeldOutError(
                candidate=each.name,
                position_mae=each.held_out_mae,
                position_mae_all=each.held_out_mae_all,
                window=window,
            )
            for each in results
            if each.held_out_mae is not None and each.held_out_mae_all is not None
        ),
    )


def _trimmed(found: Fit, logs: Sequence[Log]) -> tuple[Excluded, ...]:
    windows = found.windows
    return tuple(
        Excluded(
            log=logs[int(windows.log[row])].name,
            start=float(windows.start[row]),
            stop=float(windows.start[row]) + windows.length,
            reason="no parameters explain it: the fit's own error is far above that of the other windows",
        )
        for row in found.trimmed
    )


def _notes(found: Fit, parameters: Sequence[FittedParameter], logs: Sequence[Log]) -> tuple[str, ...]:
    fitted = [each for each in parameters if each.identified]
    on_bound = [
        prior.name for index, prior in enumerate(found.priors) if index in found.asked and _starts_on_bound(prior)
    ]
    about = {
        "started on a bound, where a fit stalls, and were moved inside": on_bound,
        "never moved from their start": [each.name for each in fitted if not each.moved],
        "ended at the edge of what is plausible": [each.name for each in fitted if each.at_bound],
        "are not identifiable": [each.name for each in parameters if not each.identified],
    }
    of_fit = [f"{what}: {', '.join(names)}" for what, names in about.items() if names]
    return (*of_fit, *(f"{log.name}: {note}" for log in logs for note in log.notes))


def _starts_on_bound(prior: Prior) -> bool:
    return prior.start in (prior.low, prior.high)
