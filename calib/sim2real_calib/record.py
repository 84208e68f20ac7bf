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
from sim2real_calib.priors import EFFORT_LOG_DELAY, Prior, priors_of

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
_HIDDEN: Final = {
    "mass": (0.55, 0.85),
    "armature": (0.003, 0.02),
    "damping": (0.02, 0.2),
    "frictionloss": (0.05, 0.3),
    EFFORT_LOG_DELAY: (0.004, 0.01),
}


class HiddenPlant(msgspec.Struct, frozen=True, kw_only=True):
    """The truth behind a recording."""

    values: dict[str, float]
    """By the names of the robot's parameters, and the delay of the logged effort [s]."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What the robot's own software would have logged, T samples of one joint."""

    time: Floats
    """Time [s], shape (T,)."""
    position: Floats
    """Position [rad] in the actuator's steps, shape (T,)."""
    velocity: Floats
    """Noisy velocity [rad/s], shape (T,)."""
    effort: Floats
    """Noisy and late effort [N·m], shape (T,)."""


def hidden_plant(robot: Robot, seed: int) -> HiddenPlant:
    """Draw a plant around the robot's datasheet.

    Raises:
        InputError: There is no such drawing for the robot.
    """
    names = [prior.name for prior in _drawn(robot)]
    rng = np.random.default_rng([seed, 0])
    return HiddenPlant(values={name: float(rng.uniform(*_HIDDEN[name])) for name in names})


def record(robot: Robot, *, seed: int, take: int, duration: float) -> Recording:
    """Move the plant of `seed` by random tones within the effort limit, and log it.

    Args:
        robot: A robot of one joint.
        seed: Which hidden plant.
        take: Which excitation and noise: two takes are two logs of the same plant.
        duration: Length of the log [s].

    Raises:
        InputError: The robot has more than one joint or unknown parameters, or the duration is too short.
    """
    from sim2real.sim.mujoco import MujocoSim

    if not 2.0 <= duration <= 600.0:
        raise InputError(f"--duration: expected 2 to 600 s, got {duration:g}")
    plant = hidden_plant(robot, seed)
    rng = np.random.default_rng([seed, 1, take])
    limit = robot.joints[0].effort_limit
    sim = MujocoSim(robot, 1, effort_limits=[limit])
    for name, value in plant.values.items():
        if name != EFFORT_LOG_DELAY:
            sim.randomize(name, np.array([value]))
    substeps = round(_PERIOD / sim.dt)
    steps = round(duration / _PERIOD)
    exact = np.arange(steps, dtype=np.float64) * _PERIOD
    applied = _excitation(rng, exact, limit)
    control = np.repeat(applied, substeps)[None, :, None]
    moved = sim.batch.rollout(steps * substeps, control=control, record=("qpos", "qvel"))

    # Sample k is taken when command k begins to act: after k periods.
    position = np.concatenate(([0.0], moved["qpos"][0, substeps - 1 :: substeps, 0]))[:steps]
    velocity = np.concatenate(([0.0], moved["qvel"][0, substeps - 1 :: substeps, 0]))[:steps]
    time = exact.copy()
    time[1:] += rng.uniform(0.0, _JITTER, steps - 1)
    late = time - plant.values[EFFORT_LOG_DELAY]
    logged = applied[np.clip(np.floor(late / _PERIOD).astype(np.intp), 0, None)]
    return Recording(
        time=time,
        position=_POSITION_STEP * np.round(np.interp(time, exact, position) / _POSITION_STEP),
        velocity=np.interp(time, exact, velocity) + rng.normal(0.0, _VELOCITY_NOISE, steps),
        effort=logged + rng.normal(0.0, _EFFORT_NOISE, steps),
    )


def write_csv(path: Path, recording: Recording) -> None:
    """Write time [s], position [rad], velocity [rad/s] and torque [N·m] as CSV, atomically.

    Raises:
        InputError: The file cannot be written.
    """
    text = io.StringIO()
    table = np.stack((recording.time, recording.position, recording.velocity, recording.effort), axis=1)
    np.savetxt(text, table, fmt="%.9g", delimiter=",", header="time,position,velocity,torque", comments="")
    with atomic_write(path) as partial:
        partial.write_text(text.getvalue())


def _drawn(robot: Robot) -> list[Prior]:
    drawn = [prior for prior in priors_of(robot) if prior.of_robot or prior.name == EFFORT_LOG_DELAY]
    if len(robot.joints) != 1 or any(prior.name not in _HIDDEN for prior in drawn):
        raise InputError(f"robot {robot.name}: there is no hidden plant of it to record from; record a real log")
    return drawn


def _excitation(rng: np.random.Generator, time: Floats, limit: float) -> Floats:
    """Return tones of random frequency and phase that use the effort limit, shape (T,)."""
    frequency = np.exp(rng.uniform(np.log(_BAND[0]), np.log(_BAND[1]), _TONES))
    phase = rng.uniform(0.0, 2.0 * np.pi, _TONES)
    tones = np.sin(2.0 * np.pi * frequency * time[:, None] + phase).sum(axis=1)
    return np.clip(1.2 * limit * tones / np.abs(tones).max(), -limit, limit)
