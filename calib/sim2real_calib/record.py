"""Record a log from a simulated robot whose parameters nobody is told.

For trying the calibration without hardware, with what real logs suffer from: position in steps, a noisy torque
estimate that is logged late, and sample times that jitter.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.files import atomic_write
from sim2real.robots import Robot
from sim2real_calib.columns import columns_of, controls
from sim2real_calib.csv_log import SIMULATED
from sim2real_calib.priors import EFFORT_LOG_DELAY, priors_of
from sim2real_calib.windows import interpolate

__all__ = ["HiddenPlant", "Recording", "hidden_plant", "record", "write_csv"]

Floats = npt.NDArray[np.float64]

_PERIOD: Final = 0.005
"""Sampling and control period [s]."""
_JITTER: Final = 0.0001
_POSITION_STEP: Final = 0.0029
"""Resolution of the position [rad]: that of the AK80-6 actuator's telegram."""
_VELOCITY_NOISE: Final = 0.12
_EFFORT_NOISE: Final = 0.05
_TONES: Final = 7
_BAND: Final = (0.15, 2.5)
"""Frequencies of the excitation [Hz]."""
_LATE: Final = (0.004, 0.01)
"""How late the effort is logged [s]: of this range."""


class HiddenPlant(msgspec.Struct, frozen=True, kw_only=True):
    """The truth behind a recording."""

    values: dict[str, float]
    """By the names of the robot's parameters, and the delay of the logged effort [s]."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What the robot's own software would have logged, T samples of J joints."""

    joint_names: tuple[str, ...]
    time: Floats
    """Time [s], shape (T,)."""
    position: Floats
    """Position [rad] in the actuator's steps, shape (T, J)."""
    velocity: Floats
    """Noisy velocity [rad/s], shape (T, J)."""
    effort: Floats
    """Noisy and late effort [N·m], shape (T, J)."""


def hidden_plant(robot: Robot, seed: int) -> HiddenPlant:
    """Draw a plant from what is typical of the robot.

    Raises:
        InputError: What the robot says of a parameter does not hold together.
    """
    priors_of(robot)
    ranges = {parameter.name: parameter.typical for parameter in robot.parameters} | {EFFORT_LOG_DELAY: _LATE}
    rng = np.random.default_rng([seed, 0])
    return HiddenPlant(values={name: float(rng.uniform(low, high)) for name, (low, high) in ranges.items()})


def record(robot: Robot, *, seed: int, take: int, duration: float) -> Recording:
    """Move the plant of `seed` by random tones within the effort limit, and log it.

    Args:
        robot: The robot.
        seed: Which hidden plant.
        take: Which excitation and noise: two takes are two logs of the same plant.
        duration: Length of the log [s].

    Raises:
        InputError: The robot cannot be simulated from its joints alone, or the duration is too short.
    """
    from sim2real.sim.mujoco import MujocoSim

    if not 2.0 <= duration <= 600.0:
        raise InputError(f"--duration: expected 2 to 600 s, got {duration:g}")
    plant = hidden_plant(robot, seed)
    rng = np.random.default_rng([seed, 1, take])
    sim = MujocoSim(robot, 1)
    columns = columns_of(sim)
    for name, value in plant.values.items():
        if name != EFFORT_LOG_DELAY:
            sim.randomize(name, np.array([value]))
    substeps = round(_PERIOD / sim.dt)
    steps = round(duration / _PERIOD)
    exact = np.arange(steps, dtype=np.float64) * _PERIOD
    applied = np.stack([_excitation(rng, exact, joint.effort_limit) for joint in robot.joints], axis=1)
    control = controls(columns, np.repeat(applied, substeps, axis=0))[None]
    start = np.array([joint.default_position for joint in robot.joints])
    sim.qpos[0, columns.qpos] = start
    moved = sim.batch.rollout(steps * substeps, control=control, record=("qpos", "qvel"))

    # Sample k is taken when command k begins to act: after k periods.
    every = slice(substeps - 1, None, substeps)
    position = np.concatenate((start[None], moved["qpos"][0, every][:, columns.qpos]))[:steps]
    velocity = np.concatenate((np.zeros_like(start)[None], moved["qvel"][0, every][:, columns.qvel]))[:steps]
    time = exact.copy()
    time[1:] += rng.uniform(0.0, _JITTER, steps - 1)
    late = time - plant.values[EFFORT_LOG_DELAY]
    logged = applied[np.clip(np.floor(late / _PERIOD).astype(np.intp), 0, None)]
    return Recording(
        joint_names=sim.joint_names,
        time=time,
        position=_POSITION_STEP * np.round(interpolate(time, exact, position) / _POSITION_STEP),
        velocity=interpolate(time, exact, velocity) + rng.normal(0.0, _VELOCITY_NOISE, velocity.shape),
        effort=logged + rng.normal(0.0, _EFFORT_NOISE, logged.shape),
    )


def write_csv(path: Path, recording: Recording) -> None:
    """Write time [s], position [rad], velocity [rad/s] and torque [N·m] of each joint as CSV, atomically.

    A column `SIMULATED` says that the log is of no real robot.

    Raises:
        InputError: The file cannot be written.
    """
    text = io.StringIO()
    tags = [f"_{name}" for name in recording.joint_names] if len(recording.joint_names) > 1 else [""]
    names = [f"{quantity}{tag}" for quantity in ("position", "velocity", "torque") for tag in tags]
    marks = np.ones(len(recording.time))
    table = np.column_stack((recording.time, recording.position, recording.velocity, recording.effort, marks))
    header = ",".join(("time", *names, SIMULATED))
    np.savetxt(text, table, fmt="%.9g", delimiter=",", header=header, comments="")
    with atomic_write(path) as partial:
        partial.write_text(text.getvalue())


def _excitation(rng: np.random.Generator, time: Floats, limit: float) -> Floats:
    """Return tones of random frequency and phase that use the effort limit, shape (T,)."""
    frequency = np.exp(rng.uniform(np.log(_BAND[0]), np.log(_BAND[1]), _TONES))
    phase = rng.uniform(0.0, 2.0 * np.pi, _TONES)
    tones = np.sin(2.0 * np.pi * frequency * time[:, None] + phase).sum(axis=1)
    return np.clip(1.2 * limit * tones / np.abs(tones).max(), -limit, limit)
