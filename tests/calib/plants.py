"""Logs whose truth is known: of a simulated pendulum, under efforts that the log tells or hides."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.robots import get_robot
from sim2real.sim.mujoco import MujocoSim
from sim2real_calib.log import Log
from sim2real_calib.priors import Prior, priors_of
from sim2real_calib.windows import Windows

Floats = npt.NDArray[np.float64]

ROBOT = get_robot("pendulum")
PRIORS: tuple[Prior, ...] = priors_of(ROBOT)
DT = 0.0025
PERIOD = 0.005
TRUTH = {"mass": 0.7, "armature": 0.01, "damping": 0.05, "frictionloss": 0.1}


def tones(time: Floats, amplitude: float = 2.0) -> Floats:
    """Return a smooth effort [N·m] that moves the pendulum through and through."""
    return amplitude * (0.6 * np.sin(2.1 * time) + 0.4 * np.sin(5.3 * time + 1.0))


def simulate(effort: Floats, values: dict[str, float], start: float = 0.0) -> Floats:
    """Return positions [rad] at each multiple of `DT`, shape (T,), under efforts held for one step each, shape (T,)."""
    sim = MujocoSim(ROBOT, 1, effort_limits=[1e6])
    for name, value in values.items():
        sim.randomize(name, np.array([value]))
    sim.qpos[:] = start
    positions = sim.batch.rollout(len(effort), control=effort[None, :, None])["qpos"][0, :, 0]
    return np.concatenate(([start], positions[:-1]))


def log_of(time: Floats, position: Floats, effort: Floats, command: Floats | None = None) -> Log:
    """Return a log of one joint."""
    return Log(
        name="made.csv",
        sha256="0" * 64,
        time=time,
        position=position[:, None],
        effort=effort[:, None],
        effort_held=False,
        command=None if command is None else command[:, None],
        simulated=False,
        notes=(),
    )


def true_log(duration: float = 6.0, *, late: float = 0.0, hidden: Floats | None = None) -> Log:
    """Return a log without noise of the `TRUTH`.

    Args:
        duration: Length [s].
        late: How late the effort is logged [s].
        hidden: Efforts at multiples of `DT` that act and are not logged [N·m].
    """
    time = np.arange(0.0, duration, DT)
    # A step's effort acts in its middle on average, which is what a replay assumes of the log.
    effort = tones(time + 0.5 * DT)
    acted = effort if hidden is None else effort + hidden
    position = simulate(acted, TRUTH)
    return log_of(time[::2], position[::2], tones(time[::2] - late))


def windows_of(start: tuple[float, float], measured: Floats) -> Windows:
    """Return a single window that begins in the state (position, velocity) and measures `measured`, shape (K,)."""
    return Windows(
        length=len(measured) * DT,
        log=np.zeros(1, np.intp),
        start=np.zeros(1),
        position=np.array([[start[0]]]),
        velocity=np.array([[start[1]]]),
        measured=measured[None, :, None],
        skipped=(),
    )


def write_log(path: Path, log: Log) -> Path:
    """Write a log as CSV and return its path."""
    text = io.StringIO()
    table = np.column_stack((log.time, log.position, log.effort))
    np.savetxt(text, table, fmt="%.17g", delimiter=",", header="time,position,torque", comments="")
    path.write_text(text.getvalue())
    return path


def shortened(log: Log, keep: slice) -> Log:
    """Return only some samples of a log."""
    return msgspec.structs.replace(log, time=log.time[keep], position=log.position[keep], effort=log.effort[keep])
