"""`sim2real calib fit` and `sim2real calib record`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from sim2real.arguments import check_number, check_seed, check_writable
from sim2real.command import Outcome
from sim2real.errors import InputError

__all__ = ["FitArgs", "RecordArgs", "run_fit", "run_record"]


@dataclass(frozen=True)
class FitArgs:
    """Fit the simulator of a robot to its logs, judge it on logs that the fit does not see, write the ranges.

    Ends with 0 if the fitted parameters replay the held-out logs (without any: the fitted ones) within --max-error and
    better than the datasheet's.
    """

    robot: tyro.conf.Positional[str]
    """Name of the robot, e.g. pendulum."""
    logs: tyro.conf.Positional[tuple[Path, ...]]
    """Logs to fit: CSV with the columns time [s], position [rad], torque [N·m], or MCAP of the edge runtime."""
    out: Path = Path("randomization.json")
    """The file to write: values and ranges that training draws from."""
    validate: tuple[Path, ...] = ()
    """Logs that judge the fit and never enter it."""
    window: float = 0.5
    """Length of the replayed windows [s]."""
    max_error: float = 0.03
    """Largest allowed mean absolute position error of the fit [rad]."""
    free: tuple[str, ...] = ()
    """Unknowns to fit beyond the usual ones: effort_log_scale, effort_log_offset."""
    seed: int = 0
    """Seed of the global search."""
    threads: int = 0
    """Threads that simulate; 0: one per CPU."""


@dataclass(frozen=True)
class RecordArgs:
    """Record a log from a simulated robot with hidden parameters, for trying the calibration without hardware."""

    robot: tyro.conf.Positional[str]
    """Name of the robot, e.g. pendulum."""
    out: Path = Path("log.csv")
    """The CSV file to write."""
    seed: int = 0
    """Which hidden plant."""
    take: int = 0
    """Which excitation: two takes of a seed are two logs of the same plant."""
    duration: float = 20.0
    """Length of the log [s]."""


def run_fit(args: FitArgs) -> Outcome:
    """Fit, judge, write the file, and tell.

    Raises:
        InputError: A log cannot be used, or the file cannot be written; no file is left behind.
    """
    from sim2real.robots import get_robot
    from sim2real_calib.calibrate import calibrate
    from sim2real_calib.summary import summarise

    check_number("--max-error", args.max_error, high=10.0)
    check_number("--threads", args.threads, high=1024, inclusive=True)
    check_seed(args.seed)
    check_writable("--out", args.out)
    if not args.logs:
        raise InputError("sim2real calib fit: expected at least one log after the robot's name")
    result = calibrate(
        get_robot(args.robot),
        args.logs,
        args.out,
        validate=args.validate,
        window=args.window,
        max_error=args.max_error,
        also_free=args.free,
        seed=args.seed,
        num_threads=args.threads,
    )
    return Outcome(passed=result.passed, result=result, summary=f"{summarise(result)}\n\nwritten: {args.out}")


def run_record(args: RecordArgs) -> Outcome:
    """Record a log and write it.

    Raises:
        InputError: An unknown robot, or the file cannot be written.
    """
    from sim2real.robots import get_robot
    from sim2real_calib.record import record, write_csv

    check_seed(args.seed)
    check_seed(args.take, "--take")
    check_writable("--out", args.out)
    recording = record(get_robot(args.robot), seed=args.seed, take=args.take, duration=args.duration)
    write_csv(args.out, recording)
    samples, duration = len(recording.time), float(recording.time[-1])
    return Outcome(
        passed=True,
        result={"log": args.out, "samples": samples, "duration_s": duration},
        summary=(
            f"{args.out}: {samples} samples in {duration:.2f} s of a {args.robot} whose parameters are hidden; "
            f"fit it with: sim2real calib fit {args.robot} {args.out}"
        ),
    )
