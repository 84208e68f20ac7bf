"""The contract's view of a simulated robot: measurement vectors out, command blocks in, at the control rate.

The trainer's environments (N = 4096) and the bench's plant (N = 1) are this one class, so what a policy learned on and
what it is proved on cannot differ.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.layout import SignalLayout, command_shape
from sim2real.signals import SIGNALS
from sim2real.sim.base import BatchedSim, EnvIds, Snapshot

__all__ = ["MAX_DELAY", "Plant"]

MAX_DELAY = 0.1
"""Longest command delay [s] that a plant can simulate."""


class Plant:
    """`num_envs` simulated robots as a policy meets them. Joints are matched by name.

    Attributes:
        sim: The simulation below.
        delay_steps: Physics steps between `step`'s command and its effect, one per environment, shape (N,); set by
            `set_delay`. What is delayed is the command, not the torque.
    """

    def __init__(self, contract: PolicyContract, sim: BatchedSim) -> None:
        self.sim = sim
        self.layout = SignalLayout(contract)
        self.decimation = contract.timing.decimation
        order = [sim.joint_names.index(name) for name in contract.joint_names]
        in_order = order == list(range(len(order)))
        self._from_sim = None if in_order else np.array(order, np.intp)
        self._to_sim = None if in_order else np.argsort(order)
        self._joint_sources = [
            (self.layout.slices[name], name) for name in self.layout.names if SIGNALS[name].per_joint
        ]
        self._sensors = [
            (self.layout.slices[name], sim.sensor(name)) for name in self.layout.names if not SIGNALS[name].per_joint
        ]
        depth = int(np.ceil(MAX_DELAY / (self.decimation * sim.dt))) + 2
        self._queue = np.zeros((depth, sim.num_envs, *command_shape(contract)))
        self._newest = 0
        self.delay_steps = np.zeros(sim.num_envs, np.intp)

    def read(self, out: npt.NDArray[np.float64]) -> None:
        """Write the present measurements into `out`, shape (N, S), in `SignalLayout` order."""
        for columns, name in self._joint_sources:
            values = getattr(self.sim, name)
            out[:, columns] = values if self._from_sim is None else values[:, self._from_sim]
        for columns, sensor in self._sensors:
            out[:, columns] = sensor

    def set_delay(self, delay: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Delay the commands of `env_ids` (None: all) by `delay` [s], shape (n,), rounded to physics steps.

        Raises:
            InputError: A delay is negative, not finite or above `MAX_DELAY`.
        """
        if not np.all((delay >= 0.0) & (delay <= MAX_DELAY)):
            raise InputError(f"command delay: expected 0 to {MAX_DELAY} s, got {delay.min()} to {delay.max()}")
        rows = slice(None) if env_ids is None else env_ids
        self.delay_steps[rows] = np.rint(delay / self.sim.dt).astype(np.intp)

    def reset(self, command: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Forget the commands on their way in `env_ids` (None: all): `command`, shape (N, 5, J), is in force."""
        rows = slice(None) if env_ids is None else env_ids
        self._queue[:, rows] = command[rows] if self._to_sim is None else command[rows][..., self._to_sim]
        self.sim.set_command(self._queue[self._newest, rows], env_ids)

    def step(self, command: npt.NDArray[np.float64]) -> None:
        """Advance one control period under `command`, shape (N, 5, J), each environment's after its delay."""
        self._newest = (self._newest + 1) % len(self._queue)
        self._queue[self._newest] = command if self._to_sim is None else command[..., self._to_sim]
        if not self.delay_steps.any():
            self.sim.set_command(self._queue[self._newest])
            self.sim.step(self.decimation)
            return
        self._step_delayed()

    def drive(self, command: npt.NDArray[np.float64], steps: int) -> None:
        """Advance by physics steps under `command`, shape (N, 5, J), without delay: for a plant in real time."""
        self.sim.set_command(command if self._to_sim is None else command[..., self._to_sim])
        self.sim.step(steps)

    def _step_delayed(self) -> None:
        """Give each environment its command at the physics step where the delay ends."""
        periods, substeps = np.divmod(self.delay_steps, self.decimation)
        done = 0
        for substep in np.unique(substeps):
            if substep > done:
                self.sim.step(int(substep) - done)
                done = int(substep)
            rows = np.flatnonzero(substeps == substep)
            slots = (self._newest - periods[rows]) % len(self._queue)
            self.sim.set_command(self._queue[slots, rows], rows)
        self.sim.step(self.decimation - done)

    def snapshot(self) -> Snapshot:
        """Return a copy of everything that the next steps depend on."""
        return self.sim.snapshot() | {
            "plant.queue": self._queue.copy(),
            "plant.newest": np.array(float(self._newest)),
            "plant.delay_steps": self.delay_steps.astype(np.float64),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from what `snapshot` returned."""
        self.sim.restore(snapshot)
        self._queue[:] = snapshot["plant.queue"]
        self._newest = int(snapshot["plant.newest"])
        self.delay_steps[:] = snapshot["plant.delay_steps"].astype(np.intp)
