"""The edge's end of the wire: connected to one plant, always reading its newest state."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import zmq

from sim2real.clock import NS_PER_S, now_ns
from sim2real.curve import CurveKeys
from sim2real.errors import WireError
from sim2real.wire import TYPE_OF, Drop, FrameReader, FrameWriter, MessageType, Received, decode_control, encode_control
from sim2real.wire_link import RETRY_NS, ClockOffset, Link, Session
from sim2real.wire_messages import Control, Hello, Ping, Pong, Refuse, Start, mismatch

__all__ = ["EdgeSocket"]

_CLOCK_ROUNDS: Final = 16
_NOBLOCK: Final = int(zmq.NOBLOCK)
_STATE: Final = MessageType.STATE
_ANSWERS: Final = (MessageType.HELLO, MessageType.PONG)
"""What `_ask` asks for. A plant that is slow is asked again, and answers each time: more of them may come later."""

_C = TypeVar("_C", Hello, Pong)


class EdgeSocket(Link):
    """The edge's end: follows one plant.

    Attributes:
        endpoint: Where the plant is.
        drops: Messages dropped, by reason.
        unsent: Commands that were not sent, because the plant does not read or is gone.
        superseded: States that a newer one replaced before they were read.
    """

    def __init__(self, endpoint: str, *, hello: Hello, keys: CurveKeys | None = None) -> None:
        """Prepare the connection; `connect` makes it.

        Args:
            endpoint: Where the plant is bound: ``ipc:///path`` or ``tcp://host:port``.
            hello: What this edge runs, see `sim2real.wire_messages.make_hello`.
            keys: This edge's keys and the plant's public one; needed unless the plant is on this machine.

        Raises:
            WireError: The endpoint is malformed, or on another machine and there are no keys.
        """
        super().__init__(
            zmq.DEALER,
            endpoint,
            hello,
            keys,
            FrameReader(MessageType.STATE, hello.contract_hash, hello.state_shape),
            FrameWriter(MessageType.COMMAND, hello.contract_hash, hello.command_shape),
        )
        # Questions that were not answered yet.
        self._late = 0
        # A name that nobody can guess: the plant recognizes its edge by it.
        self._socket.setsockopt(zmq.ROUTING_ID, secrets.token_bytes(16))
        try:
            if keys is not None:
                self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.peers[0])
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise WireError(
                f"endpoint {endpoint!r}: cannot be connected to ({error.strerror}); give the endpoint at which the "
                "plant is bound: ipc:///path/to/socket or tcp://host:port"
            ) from error

    def connect(self, timeout_ns: int) -> Session:
        """Agree with the plant on contract, mode and clocks; states arrive from then on.

        Raises:
            WireError: The plant refused (the message names its reason), said goodbye, or did not answer in time.
        """
        deadline = now_ns() + timeout_ns
        self._farewell = None
        self._in_session = False
        self._late = 0
        peer = self._ask(lambda: self._hello, Hello, deadline)
        difference = mismatch(peer, self._hello)
        if difference is not None:
            raise WireError(f"{self.endpoint}: the plant is of another kind: {difference}")
        clock = self._compare_clocks(peer, deadline)
        self._offset_ns = clock.offset_ns
        self._reader.restart()
        start = Start(offset_ns=clock.offset_ns, uncertainty_ns=clock.uncertainty_ns)
        self._send(encode_control(start, self._hash))
        self._in_session = True
        return Session(peer=peer, clock=clock)

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
        """Send one command without waiting; return whether it could be sent.

        Args:
            values: Shape (5, num_joints), rows as in `sim2real.layout`.
            status: Safety level, see `sim2real.wire.Status`.
            sequence: Edge tick; greater than that of the command before.
            answered: Sequence of the state that the command was computed from.
            scheduled_ns: Deadline of the edge tick [ns].
            sensed_ns: `Received.sensed_ns` of that state.
            received_ns: `Received.received_ns` of that state.
        """
        return self._send(
            self._writer.write(
                values,
                status=status,
                sequence=sequence,
                answered=answered,
                scheduled_ns=scheduled_ns,
                sensed_ns=sensed_ns,
                received_ns=received_ns,
            )
        )

    def receive_state(self, values: npt.NDArray[np.float64], timeout_ns: int) -> Received | None:
        """Return the newest state, waiting for one that was not returned before; after the last one the BYE; or None.

        With a timeout it returns as soon as it has a state that was under way for less than 1 ms.

        Args:
            values: Written to when the result is a STATE: shape (state_size,), as laid out by `SignalLayout`.
            timeout_ns: How long to wait [ns], rounded up to milliseconds; 0: take only what is there.
        """
        return self._receive(values, timeout_ns)

    def _admit(self, size: int, values: npt.NDArray[np.float64]) -> int:
        received = self._received
        kind = self._reader.read(size, values, received)
        if kind is not _STATE:
            if kind in _ANSWERS and self._late > 0:
                self._late -= 1
            else:
                self._note(kind)
            return 0
        received.read_ns = received.received_ns = now_ns()
        if offset_ns := self._offset_ns:
            received.scheduled_ns -= offset_ns
            received.sensed_ns -= offset_ns
            received.sent_ns -= offset_ns
        return 1

    def _receive_frame(self) -> int:
        return self._socket.recv_into(self._reader.buffer)

    def _send_frame(self, frame: bytes | bytearray, receiver: bytes) -> None:
        self._hand_over(frame, _NOBLOCK)

    def _ask(self, question: Callable[[], Control], answer: type[_C], deadline_ns: int) -> _C:
        """Send what `question` makes, again and again, until the plant answers."""
        started = now_ns()
        while (now := now_ns()) < deadline_ns:
            self._late += self._send(encode_control(question(), self._hash))
            retry = min(deadline_ns, now + RETRY_NS)
            while (size := self._take(retry - now_ns())) >= 0:
                kind = self._reader.read(size, None, self._received)
                message = self._reader.control
                if isinstance(kind, Drop):
                    self.drops.add(kind)
                elif kind is MessageType.REFUSE:
                    refusal = decode_control(message, Refuse)
                    reason = refusal.reason if refusal is not None else "no reason given"
                    raise WireError(f"{self.endpoint}: the plant refused this edge: {reason}")
                elif kind is MessageType.BYE:
                    self._note(kind)
                    raise WireError(f"{self.endpoint}: the plant said goodbye: {self._farewell}")
                elif kind in _ANSWERS:
                    self._late -= 1
                    if kind is not TYPE_OF[answer]:
                        continue
                    if (reply := decode_control(message, answer)) is not None:
                        return reply
                    self.drops.add(Drop.BAD_PAYLOAD)
        raise WireError(
            f"{self.endpoint}: no answer from a plant within {(now_ns() - started) / NS_PER_S:.1f} s; check that it "
            f"runs, at this endpoint, with keys that fit; dropped messages: {self.drops}"
        )

    def _compare_clocks(self, peer: Hello, deadline_ns: int) -> ClockOffset:
        """Measure the plant's clock against this one, as NTP does, trusting the fastest of several round trips."""
        if peer.clock_id and peer.clock_id == self._hello.clock_id:
            return ClockOffset(offset_ns=0, uncertainty_ns=0)
        rounds = [self._one_round(deadline_ns) for _ in range(_CLOCK_ROUNDS)]
        return min(rounds, key=lambda clock: clock.uncertainty_ns)

    def _one_round(self, deadline_ns: int) -> ClockOffset:
        pong = self._ask(lambda: Ping(sent_ns=now_ns()), Pong, deadline_ns)
        arrived_ns = now_ns()
        outward = pong.received_ns - pong.ping_sent_ns
        homeward = pong.sent_ns - arrived_ns
        # Outward is the offset plus a delay, homeward the offset minus a delay; neither delay is negative.
        # A plant that claims to have answered before it was asked gets no negative uncertainty for it.
        uncertainty_ns = max(0, (outward - homeward + 1) // 2)
        return ClockOffset(offset_ns=(outward + homeward) // 2, uncertainty_ns=uncertainty_ns)
