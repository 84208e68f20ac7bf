"""Open-loop replay: the logged efforts played into many simulations at once, from measured start states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real_calib.columns import columns_of, controls
from sim2real_calib.log import Log
from sim2real_calib.priors import EFFORT_LOG_DELAY, EFFORT_LOG_OFFSET, EFFORT_LOG_SCALE, Prior
from sim2real_calib.windows import Windows

__all__ = ["Replay"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

_CAPACITY: Final = 1024
_NO_LIMIT: Final = 1e6
"""Effort limit [N·m] of a replay: the logged effort did act, whatever the rating says."""


class Replay:
    """Windows of some logs, ready to be replayed under any parameters.

    Args:
        robot: The robot.
        priors: The unknowns, in the order of every parameter vector.
        logs: The logs.
        windows: Their windows.
        num_threads: Threads that step the simulations; 0: one per CPU.
    """

    def __init__(
        self, robot: Robot, priors: Sequence[Prior], logs: Sequence[Log], windows: Windows, *, num_threads: int = 0
    ) -> None:
        from sim2real.sim.mujoco import MujocoSim

        self.windows = windows
        self._names = [prior.name for prior in priors]
        self._of_robot = [prior.name for prior in priors if prior.of_robot]
        self._logs = logs
        self._sim = MujocoSim(robot, _CAPACITY, effort_limits=[_NO_LIMIT] * len(robot.joints), num_threads=num_threads)
        self._columns = columns_of(self._sim)
        self.dt = self._sim.dt

    def positions(self, parameters: Floats, rows: Ids | None = None) -> Floats:
        """Replay windows under each row of `parameters`.

        Args:
            parameters: Parameter vectors, shape (C, P).
            rows: Which windows, shape (n,); None: all.

        Returns:
            Position after each physics step [rad], shape (C, n, K, J).
        """
        rows = np.arange(len(self.windows)) if rows is None else rows
        every = [self._efforts(vector, rows) for vector in parameters]
        window = np.tile(rows, len(parameters))
        vector = np.repeat(parameters, len(rows), axis=0)
        effort = np.concatenate(every)
        parts = [
            self._roll(window[part], vector[part], effort[part])
            for part in (slice(begin, begin + _CAPACITY) for begin in range(0, len(window), _CAPACITY))
        ]
        return np.concatenate(parts).reshape(len(parameters), len(rows), *effort.shape[1:])

    def residuals(self, parameters: Floats, rows: Ids | None = None) -> Floats:
        """Return simulated minus measured position [rad], shape (C, n, K, J); arguments as in `positions`."""
        measured = self.windows.measured if rows is None else self.windows.measured[rows]
        return self.positions(parameters, rows) - measured

    def _efforts(self, vector: Floats, rows: Ids) -> Floats:
        """Return the efforts [N·m] that acted under one parameter vector, shape (n, K, J)."""
        delay, scale, offset = (
            float(vector[self._names.index(name)]) for name in (EFFORT_LOG_DELAY, EFFORT_LOG_SCALE, EFFORT_LOG_OFFSET)
        )
        _, steps, joints = self.windows.measured.shape
        # The effort in the middle of a step stands for the whole step.
        middle = (np.arange(steps, dtype=np.float64) + 0.5) * self.dt + delay
        logged = np.empty((len(rows), steps, joints))
        of_log = self.windows.log[rows]
        for index, log in enumerate(self._logs):
            mine = of_log == index
            time = self.windows.start[rows[mine], None] + middle
            logged[mine] = log.effort_around(time, self.dt)
        return scale * logged + offset

    def _roll(self, rows: Ids, vectors: Floats, efforts: Floats) -> Floats:
        """Simulate one window per row: positions, shape (len(rows), K, J)."""
        sim = self._sim
        used = np.arange(len(rows))
        for name in self._of_robot:
            sim.randomize(name, vectors[:, self._names.index(name)], used)
        sim.reset(used)
        sim.qpos[used[:, None], self._columns.qpos] = self.windows.position[rows]
        sim.qvel[used[:, None], self._columns.qvel] = self.windows.velocity[rows]
        control = controls(self._columns, efforts)
        return sim.batch.rollout(efforts.shape[1], control=control, ids=used)["qpos"][:, :, self._columns.qpos]
