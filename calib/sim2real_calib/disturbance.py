"""Who else moved the robot? Efforts that the log's motion needed and that the actuators did not give.

A hand that pushes a pendulum is not a fact about the pendulum: windows that it touches neither teach nor judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.robots import Robot
from sim2real_calib.columns import columns_of, controls
from sim2real_calib.log import Log
from sim2real_calib.priors import EFFORT_LOG_DELAY, EFFORT_LOG_OFFSET, EFFORT_LOG_SCALE, Prior
from sim2real_calib.windows import Windows, filtered, smooth

__all__ = ["Push", "find_pushes", "pushed"]

Floats = npt.NDArray[np.float64]

_PERIOD: Final = 0.01
"""Sampling period of the search [s]; a push lasts many of these."""


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """An external effort above the actuator's own rating."""

    log: int
    """Index of the log."""
    start: float
    """Time in the log [s]."""
    stop: float
    """Time in the log [s]."""
    effort: float
    """Largest external effort [N·m]."""


def find_pushes(robot: Robot, priors: Sequence[Prior], vector: Floats, logs: Sequence[Log]) -> tuple[Push, ...]:
    """Find where the smoothed motion of `logs`, under the parameters `vector`, needed an external effort.

    External effort = M (q̈ measured − q̈ of the model under the logged effort, without Coulomb friction). It counts where
    it exceeds the joint's effort limit: no plausible error of the parameters, and no friction, does that.
    """
    limits = np.array([joint.effort_limit for joint in robot.joints])
    pushes: list[Push] = []
    for index, log in enumerate(logs):
        time, external = _external_effort(robot, priors, vector, log)
        size = np.abs(external)
        above = (size > limits).any(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], above, [False]))))
        pushes += [
            Push(
                log=index,
                start=float(time[begin]),
                stop=float(time[end - 1]),
                effort=float(size[begin:end].max()),
            )
            for begin, end in zip(edges[::2], edges[1::2], strict=True)
        ]
    return tuple(pushes)


def pushed(windows: Windows, pushes: Sequence[Push]) -> list[Push | None]:
    """Return for each window the strongest push that it overlaps, if any."""
    strongest: list[Push | None] = [None] * len(windows)
    for push in sorted(pushes, key=lambda push: push.effort):
        begins, ends = windows.start <= push.stop, windows.start + windows.length >= push.start
        for row in np.flatnonzero((windows.log == push.log) & begins & ends):
            strongest[row] = push
    return strongest


def _external_effort(robot: Robot, priors: Sequence[Prior], vector: Floats, log: Log) -> tuple[Floats, Floats]:
    """Return times [s], shape (n,), and external efforts [N·m], shape (n, J)."""
    from sim2real.sim.mujoco import MujocoSim

    values = dict(zip((prior.name for prior in priors), vector.tolist(), strict=True))
    motion = smooth(log)
    chosen = slice(None, None, max(1, round(_PERIOD / log.period)))
    time = motion.time[chosen]
    num, joints = len(time), log.effort.shape[1]
    effort = log.effort_around(motion.time + values[EFFORT_LOG_DELAY], log.period)
    acted = filtered(values[EFFORT_LOG_SCALE] * effort + values[EFFORT_LOG_OFFSET], log.period, 0)[chosen]

    sim = MujocoSim(robot, num, effort_limits=[np.inf] * joints, num_threads=0)
    columns = columns_of(sim)
    acceleration = sim.batch.bind("qacc_smooth")
    for prior in priors:
        if prior.of_robot:
            sim.randomize(prior.name, np.full(num, values[prior.name]))
    sim.qpos[:, columns.qpos], sim.qvel[:, columns.qvel] = motion.position[chosen], motion.velocity[chosen]

    def under(ctrl: Floats) -> Floats:
        sim.ctrl[:] = controls(columns, ctrl)
        sim.refresh()
        return acceleration[:, columns.qvel]

    modelled = under(acted)
    # A column of M⁻¹ is what one more N·m on one joint does to all accelerations.
    inverse_mass = np.stack([under(acted + unit) - modelled for unit in np.eye(joints)], axis=2)
    unexplained = motion.acceleration[chosen] - modelled
    return time, np.asarray(np.linalg.solve(inverse_mass, unexplained[..., None])[..., 0], np.float64)
