"""Replay logs under several parameter sets and compare: the fit, the datasheet, and what others published."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import ParameterSet, Robot
from sim2real_calib.disturbance import Push, find_pushes, pushed
from sim2real_calib.log import Log
from sim2real_calib.priors import Prior, start_vector
from sim2real_calib.replay import Replay
from sim2real_calib.result import Excluded, Trace, WindowError
from sim2real_calib.windows import Windows, cut

__all__ = ["Judgement", "judge", "left_out"]

Floats = npt.NDArray[np.float64]

_TRACE_PERIOD = 0.01
"""Sampling period of traces [s]."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """How well each candidate replays some logs."""

    mae: dict[str, float]
    """Candidate to mean absolute position error over the windows that count [rad]."""
    mae_all: dict[str, float]
    """The same over all windows [rad]."""
    windows: tuple[WindowError, ...]
    excluded: tuple[Excluded, ...]
    traces: tuple[Trace, ...]


def judge(
    robot: Robot,
    priors: Sequence[Prior],
    candidates: Sequence[ParameterSet],
    logs: Sequence[Log],
    *,
    length: float,
    dt: float,
    role: str,
    also_left_out: Sequence[int] = (),
    num_threads: int = 0,
) -> Judgement:
    """Replay `logs` in windows of `length` [s] under each candidate.

    Windows in which something pushed the robot do not count: the same ones for every candidate, found with the
    datasheet's parameters, so that no fit chooses what it is judged by.

    Args:
        robot: The robot.
        priors: Its unknowns.
        candidates: Whose parameters.
        logs: The logs.
        length: Length of the windows [s].
        dt: Physics step [s].
        role: ``fit`` or ``validate``; goes into the result.
        also_left_out: Indices of further windows that do not count.
        num_threads: Threads that step the simulations; 0: one per CPU.

    Raises:
        InputError: No window counts.
    """
    windows = cut(logs, dt=dt, length=length)
    vectors = np.stack([start_vector(priors, candidate.values) for candidate in candidates])
    pushes = pushed(windows, find_pushes(robot, priors, start_vector(priors, {}), logs))
    counts = np.array([push is None for push in pushes], np.bool_)
    counts[list(also_left_out)] = False
    if not counts.any():
        names = ", ".join(log.name for log in logs)
        raise InputError(f"{names}: expected a window of {length:g} s without gap or push, got none; use another log")
    simulated = Replay(robot, priors, logs, windows, num_threads=num_threads).positions(vectors)
    errors = np.abs(simulated - windows.measured).mean(axis=(2, 3))
    names = [candidate.name for candidate in candidates]
    return Judgement(
        mae=_by_name(names, errors[:, counts].mean(axis=1)),
        mae_all=_by_name(names, errors.mean(axis=1)),
        windows=tuple(
            WindowError(
                log=logs[int(windows.log[row])].name,
                role=role,
                start=float(windows.start[row]),
                mae=_by_name(names, errors[:, row]),
                counts=bool(counts[row]),
            )
            for row in range(len(windows))
        ),
        excluded=left_out(logs, windows, pushes),
        traces=tuple(_trace(robot, names, logs, windows, simulated, index, dt, role) for index in range(len(logs))),
    )


def left_out(logs: Sequence[Log], windows: Windows, pushes: Sequence[Push | None]) -> tuple[Excluded, ...]:
    """Return the windows with a push or a gap, and why."""
    touched = [
        _excluded(
            logs[int(windows.log[row])],
            float(windows.start[row]),
            windows.length,
            f"something pushed the robot: {push.effort:.1f} N·m that its actuators did not give",
        )
        for row, push in enumerate(pushes)
        if push is not None
    ]
    broken = [
        _excluded(logs[index], start, windows.length, "nothing was logged for part of it")
        for index, start in windows.skipped
    ]
    return tuple(touched + broken)


def _excluded(log: Log, start: float, length: float, reason: str) -> Excluded:
    return Excluded(log=log.name, start=start, stop=start + length, reason=reason)


def _by_name(names: Sequence[str], values: Floats) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _trace(
    robot: Robot,
    names: Sequence[str],
    logs: Sequence[Log],
    windows: Windows,
    simulated: Floats,
    index: int,
    dt: float,
    role: str,
) -> Trace:
    """Return one log's windows end to end; `simulated` is of shape (C, n, K, J)."""
    rows = np.flatnonzero(windows.log == index)
    every = max(1, round(_TRACE_PERIOD / dt))
    after = (np.arange(simulated.shape[2], dtype=np.float64) + 1.0)[every - 1 :: every] * dt
    joints = [joint.name for joint in robot.joints]

    def by_joint(positions: Floats) -> dict[str, tuple[float, ...]]:
        flat = positions[rows, every - 1 :: every].reshape(-1, len(joints))
        return {name: tuple(flat[:, joint].tolist()) for joint, name in enumerate(joints)}

    return Trace(
        log=logs[index].name,
        role=role,
        window=windows.length,
        time=tuple((windows.start[rows, None] + after).ravel().tolist()),
        measured=by_joint(windows.measured),
        simulated={name: by_joint(simulated[candidate]) for candidate, name in enumerate(names)},
    )
