"""A wire that ends in itself, to time the edge without a plant: frames are made and checked as on a real one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim2real.bundle import Bundle
from sim2real.clock import now_ns
from sim2real.layout import SignalLayout, command_shape
from sim2real.wire import FrameReader, FrameWriter, MessageType, Received

__all__ = ["Loopback"]


class Loopback:
    """Offers the same measurements as states, over and over, and encodes commands for nobody.

    Everything that an `EdgeSocket` does for a message is done, except for the system calls.
    """

    def __init__(self, bundle: Bundle, signals: Sequence[npt.NDArray[np.float64]]) -> None:
        """Prepare the frames.

        Args:
            bundle: Whose messages they are.
            signals: Measurements, shape (S,) each, at least one.
        """
        contract, digest = bundle.contract, bundle.contract_hash
        shape = (SignalLayout(contract).size,)
        self._states = itertools.cycle(signals)
        self._sequence = 0
        self._plant = FrameWriter(MessageType.STATE, digest, shape)
        self._reader = FrameReader(MessageType.STATE, digest, shape)
        self._writer = FrameWriter(MessageType.COMMAND, digest, command_shape(contract))
        self._received = Received()
        self._size = 0

    def offer(self) -> None:
        """Do the plant's part: put the next state where the edge will find it."""
        sensed_ns = now_ns()
        frame = self._plant.write(
            next(self._states), sequence=self._sequence, scheduled_ns=sensed_ns, sensed_ns=sensed_ns
        )
        self._sequence += 1
        self._size = len(frame)
        self._reader.buffer[: self._size] = frame

    @property
    def sent_ns(self) -> int:
        """When the last command was encoded [ns]."""
        return self._writer.sent_ns

    def receive_state(self, values: npt.NDArray[np.float64], timeout_ns: int) -> Received | None:
        """Return the state offered last, or None if it was returned before; never waits, whatever `timeout_ns` says."""
        size, self._size = self._size, 0
        if not size or self._reader.read(size, values, self._received) is not MessageType.STATE:
            return None
        # As if measured just now: a machine that stalls between offer and tick is no reason to stop driving.
        self._received.sensed_ns = self._received.read_ns = self._received.received_ns = now_ns()
        return self._received

    def send_command(
        self,
        values: npt.NDArray[np.float64],
        *,
        status: int,
        sequence: int,
        answered: int,
        scheduled_ns: int,
        sensed_ns: int,
        received_ns: int,
    ) -> bool:
        """Encode one command."""
        self._writer.write(
            values,
            status=status,
            sequence=sequence,
            answered=answered,
            scheduled_ns=scheduled_ns,
            sensed_ns=sensed_ns,
            received_ns=received_ns,
        )
        return True
