"""What a simulated robot did, step by step, and whether two such records are the same to the last bit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.files import atomic_write, read_bytes
from sim2real.layout import command_shape
from sim2real.npz import read_npz, write_npz
from sim2real.sim.plant import Plant

__all__ = ["Recorder", "Trajectory", "compare", "read_trajectory", "write_trajectory"]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T steps of one simulated robot: control steps in lockstep, physics steps in real time.

    The arrays of the same step belong together: `command` is what came back for the state of its row.
    """

    period: float
    """Time [s] from one tick to the next."""
    tick: npt.NDArray[np.int64]
    """Number of each step, rising; numbers that are missing are ticks that the plant lost. Shape (T,)."""
    qpos: npt.NDArray[np.float64]
    """Generalised positions before the step, shape (T, nq)."""
    qvel: npt.NDArray[np.float64]
    """Generalised velocities before the step, shape (T, nv)."""
    signals: npt.NDArray[np.float64]
    """Measurement vectors as sent, in `SignalLayout` order, shape (T, S)."""
    command: npt.NDArray[np.float64]
    """Command blocks in force in the step, shape (T, 5, J), rows as in `sim2real.layout`."""
    status: npt.NDArray[np.int64]
    """Safety level under which each command was made (`sim2real.wire.Status`), shape (T,)."""

    def __len__(self) -> int:
        return len(self.tick)

    @property
    def time(self) -> npt.NDArray[np.float64]:
        """Time of each step [s] since tick 0, shape (T,)."""
        return self.tick.astype(np.float64) * self.period

    def control_rows(self, contract: PolicyContract) -> npt.NDArray[np.intp]:
        """Return the row of each control tick that has passed, shape (n,).

        For a control tick that the plant lost, the last row before it stands.
        """
        ticks_per_control = round(contract.timing.control_period_ns * 1e-9 / self.period)
        wanted = np.arange(0, int(self.tick[-1]) + 1, ticks_per_control, dtype=np.int64)
        return np.maximum(np.searchsorted(self.tick, wanted, side="right") - 1, 0)


class Recorder:
    """Writes a trajectory into arrays that are made beforehand; `capacity` 0 records nothing."""

    def __init__(self, contract: PolicyContract, plant: Plant, capacity: int, period_ns: int) -> None:
        self._period = period_ns * 1e-9
        self._length = 0
        self._qpos_now, self._qvel_now = plant.sim.qpos, plant.sim.qvel
        self._tick = np.zeros(capacity, np.int64)
        self._qpos = np.zeros((capacity, self._qpos_now.shape[1]))
        self._qvel = np.zeros((capacity, self._qvel_now.shape[1]))
        self._signals = np.zeros((capacity, plant.layout.size))
        self._command = np.zeros((capacity, *command_shape(contract)))
        self._status = np.zeros(capacity, np.int64)

    def add(self, tick: int, signals: npt.NDArray[np.float64], command: npt.NDArray[np.float64], status: int) -> None:
        """Append the step that begins at the plant's present state; what does not fit is left out."""
        row = self._length
        if row == len(self._tick):
            return
        self._tick[row] = tick
        self._qpos[row] = self._qpos_now[0]
        self._qvel[row] = self._qvel_now[0]
        self._signals[row] = signals
        self._command[row] = command
        self._status[row] = status
        self._length = row + 1

    def trajectory(self) -> Trajectory:
        """Return what was recorded so far."""
        end = self._length
        return Trajectory(
            period=self._period,
            tick=self._tick[:end].copy(),
            qpos=self._qpos[:end].copy(),
            qvel=self._qvel[:end].copy(),
            signals=self._signals[:end].copy(),
            command=self._command[:end].copy(),
            status=self._status[:end].copy(),
        )


def compare(left: Trajectory, right: Trajectory) -> str:
    """Return the first difference between two trajectories, bit for bit, or nothing.

    The earliest step that differs is named, and in it the first field: a later one usually only follows from it.
    """
    if len(left) != len(right):
        return f"lengths differ: {len(left)} and {len(right)} steps"
    first = len(left)
    told = ""
    for field in fields(Trajectory):
        if field.name == "period":
            continue
        one: npt.NDArray[Any] = getattr(left, field.name)
        two: npt.NDArray[Any] = getattr(right, field.name)
        if one.shape != two.shape:
            return f"{field.name}: shapes differ: {one.shape} and {two.shape}"
        # Compared as integers: -0.0 equals 0.0 and NaN differs from itself, but bits are bits.
        bits_one, bits_two = one.view(np.int64), two.view(np.int64)
        steps = np.flatnonzero((bits_one != bits_two).reshape(len(one), -1).any(axis=1))
        if len(steps) and steps[0] < first:
            first = int(steps[0])
            place = np.flatnonzero((bits_one[first] != bits_two[first]).reshape(-1))[0]
            a, b = one[first].reshape(-1)[place], two[first].reshape(-1)[place]
            told = f"tick {first}: {field.name}[{place}] is {a!r} in one and {b!r} in the other"
    return told


def read_trajectory(path: Path) -> Trajectory:
    """Read what `write_trajectory` wrote.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    arrays = read_npz(read_bytes(path, "trajectory"))
    names = [field.name for field in fields(Trajectory)]
    if sorted(arrays) != sorted(names):
        raise InputError(
            f"{path}: expected the arrays {', '.join(names)}, got {', '.join(arrays)}; run the bench again"
        )
    return Trajectory(period=float(arrays.pop("period")), **arrays)


def write_trajectory(path: Path, trajectory: Trajectory) -> None:
    """Write the arrays of `trajectory` as an npz file.

    Raises:
        InputError: It cannot be written.
    """
    if path.suffix != ".npz":
        raise InputError(f"{path}: expected a name that ends in .npz")
    arrays = {field.name: np.asarray(getattr(trajectory, field.name)) for field in fields(Trajectory)}
    with atomic_write(path) as partial:
        partial.write_bytes(write_npz(arrays))
