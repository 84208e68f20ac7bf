"""Rows from the control loop to the recorder's process, through shared memory: one writer, one reader, no locks."""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.layout import SignalLayout, command_shape

__all__ = ["Row", "RowReader", "RowWriter", "create_memory"]

_COUNTER: Final = struct.Struct("<Q")
_STAMPS: Final = struct.Struct("<4q2i")
_WRITTEN, _READ, _ROWS = 0, 64, 128
"""Offsets; the counters lie in different cache lines, since each is written by another process."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One tick. The arrays are views into the ring: copy what you keep."""

    time_ns: int
    scheduled_ns: int
    sensed_ns: int
    sent_ns: int
    level: int
    missed: int
    signals: npt.NDArray[np.float64]
    observation: npt.NDArray[np.float32]
    action: npt.NDArray[np.float32]
    command: npt.NDArray[np.float64]


class _Ring:
    """What both sides see: two counters and the rows, as columns of arrays."""

    def __init__(self, descriptor: int, contract: PolicyContract, capacity: int) -> None:
        self._capacity = capacity
        self._dtype = _row_type(contract)
        self._memory = mmap.mmap(descriptor, _ROWS + capacity * self._dtype.itemsize)
        rows = np.frombuffer(self._memory, self._dtype, capacity, _ROWS)
        self._signals: npt.NDArray[np.float64] = rows["signals"]
        self._observation: npt.NDArray[np.float32] = rows["observation"]
        self._action: npt.NDArray[np.float32] = rows["action"]
        self._command: npt.NDArray[np.float64] = rows["command"]

    def _offset(self, slot: int) -> int:
        return _ROWS + slot * self._dtype.itemsize


class RowWriter(_Ring):
    """The loop's side: never waits; a row for which there is no room is dropped and counted.

    A row becomes visible to the reader when the next one is written, or at `publish`. In between the loop has made
    system calls, so that on every processor the row's bytes are there before the counter that announces them.

    Attributes:
        written: Rows that went into the ring.
        dropped: Rows for which there was no room.
    """

    def __init__(self, descriptor: int, contract: PolicyContract, capacity: int) -> None:
        super().__init__(descriptor, contract, capacity)
        self.written = 0
        self.dropped = 0
        self._read = 0

    def write(
        self,
        *,
        time_ns: int,
        scheduled_ns: int,
        sensed_ns: int,
        sent_ns: int,
        level: int,
        missed: int,
        signals: npt.NDArray[np.float64],
        observation: npt.NDArray[np.float32],
        action: npt.NDArray[np.float32],
        command: npt.NDArray[np.float64],
    ) -> None:
        """Copy one tick into the ring; allocates nothing."""
        written = self.written
        _COUNTER.pack_into(self._memory, _WRITTEN, written)
        if written - self._read >= self._capacity:
            (self._read,) = _COUNTER.unpack_from(self._memory, _READ)
            if written - self._read >= self._capacity:
                self.dropped += 1
                return
        slot = written % self._capacity
        _STAMPS.pack_into(self._memory, self._offset(slot), time_ns, scheduled_ns, sensed_ns, sent_ns, level, missed)
        self._signals[slot] = signals
        self._observation[slot] = observation
        self._action[slot] = action
        self._command[slot] = command
        self.written = written + 1

    def publish(self) -> None:
        """Let the reader see every row written so far."""
        _COUNTER.pack_into(self._memory, _WRITTEN, self.written)


class RowReader(_Ring):
    """The recorder's side."""

    def __init__(self, descriptor: int, contract: PolicyContract, capacity: int) -> None:
        super().__init__(descriptor, contract, capacity)
        self._read = 0

    def pending(self) -> int:
        """Return how many rows wait to be read."""
        (written,) = _COUNTER.unpack_from(self._memory, _WRITTEN)
        return written - self._read

    def peek(self) -> Row:
        """Return the oldest row that waits; it stays in the ring until `advance`."""
        slot = self._read % self._capacity
        stamps = _STAMPS.unpack_from(self._memory, self._offset(slot))
        return Row(
            time_ns=stamps[0],
            scheduled_ns=stamps[1],
            sensed_ns=stamps[2],
            sent_ns=stamps[3],
            level=stamps[4],
            missed=stamps[5],
            signals=self._signals[slot],
            observation=self._observation[slot],
            action=self._action[slot],
            command=self._command[slot],
        )

    def advance(self) -> None:
        """Give the slot of the oldest row back to the writer."""
        self._read += 1
        _COUNTER.pack_into(self._memory, _READ, self._read)


def create_memory(contract: PolicyContract, capacity: int) -> int:
    """Return the descriptor of memory for a ring. It belongs to no file and vanishes with the last process using it."""
    descriptor = os.memfd_create("sim2real-recorder")
    os.ftruncate(descriptor, _ROWS + capacity * _row_type(contract).itemsize)
    return descriptor


def _row_type(contract: PolicyContract) -> np.dtype[np.void]:
    model = contract.model
    return np.dtype(
        [
            ("stamps", np.void, _STAMPS.size),
            ("signals", np.float64, SignalLayout(contract).size),
            ("command", np.float64, command_shape(contract)),
            ("observation", np.float32, model.observation_size),
            ("action", np.float32, model.action_size),
            ("padding", np.void, 4 * ((model.observation_size + model.action_size) % 2)),
        ]
    )
