"""The plant's end of the wire: bound to an endpoint, serving one edge at a time."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import zmq

from sim2real.clock import NS_PER_S, now_ns
from sim2real.curve import CurveKeys, authenticate
from sim2real.endpoints import bind
from sim2real.errors import WireError
from sim2real.wire import Drop, FrameReader, FrameWriter, MessageType, Received, decode_control, encode_control
from sim2real.wire_link import RETRY_NS, ClockOffset, Link, Session
from sim2real.wire_messages import Hello, Ping, Pong, Refuse, Start, mismatch

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

__all__ = ["PlantSocket"]

_SILENCE_NS: Final = 5 * RETRY_NS
"""An edge that has begun a handshake and then says nothing for so long loses its place."""
_BUSY: Final = "busy: this plant serves another edge already; stop that one, or start another plant elsewhere"
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_COMMAND: Final = MessageType.COMMAND
_NOBODY: Final = secrets.token_bytes(16)
"""A name that no peer has, and that none can guess."""


class PlantSocket(Link):
    """The plant's end: bound from construction on, and serving one edge at a time.

    Attributes:
        endpoint: Where it is bound, with the actual port.
        drops: Messages dropped, by reason.
        unsent: States that were not sent, because the edge does not read or is gone.
        superseded: Commands that a newer one replaced before they were read.
    """

    def __init__(self, endpoint: str, *, hello: Hello, keys: CurveKeys | None = None) -> None:
        """Bind to `endpoint`.

        Args:
            endpoint: ``ipc:///path`` or ``tcp://host:port``; port ``*`` is any free one.
            hello: What this plant simulates, see `sim2real.wire_messages.make_hello`.
            keys: This plant's keys and the edges it trusts; needed wherever other machines can reach the endpoint,
                and used, if given, everywhere.

        Raises:
            WireError: The endpoint is malformed, in use, or open to other machines without keys.
        """
        super().__init__(
            zmq.ROUTER,
            endpoint,
            hello,
            keys,
            FrameReader(MessageType.COMMAND, hello.contract_hash, hello.command_shape),
            FrameWriter(MessageType.STATE, hello.contract_hash, hello.state_shape),
        )
        self._sender = b""
        self._peer = _NOBODY
        self._peer_hello = hello
        self._heard_ns = 0
        self._refused = ""
        self._authenticator: ThreadAuthenticator | None = None
        # A state for an edge that is gone is then an error to count, not a message that silently vanishes.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            if keys is not None:
                self._authenticator = authenticate(self._context, keys)
                self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.endpoint = bind(self._socket, endpoint)
        except WireError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the endpoint, within 0.5 s and whatever the edge does. Closing twice is allowed."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        super().close()

    def accept(self, timeout_ns: int) -> Session:
        """Wait for an edge that agrees with this plant and is ready for states; forget any earlier one.

        An edge that does not agree is refused, with the reason, and waiting goes on.

        Raises:
            WireError: No edge came in time; the message tells why the last one was refused.
        """
        self._peer, self._farewell = _NOBODY, None
        self._in_session = False
        deadline = now_ns() + timeout_ns
        while (size := self._take(deadline - now_ns())) >= 0:
            kind = self._read_control(size)
            if isinstance(kind, Drop):
                self.drops.add(kind)
            elif kind is MessageType.HELLO:
                self._meet()
            elif self._sender != self._peer:
                self.drops.add(Drop.FOREIGN)
            elif (session := self._continue_handshake(kind)) is not None:
                return session
        refused = f"; the last one was refused: {self._refused}" if self._refused else ""
        raise WireError(
            f"{self.endpoint}: no edge connected within {timeout_ns / NS_PER_S:g} s{refused}; dropped messages: "
            f"{self.drops}; start one with: sim2real edge run BUNDLE --connect {self.endpoint}"
        )

    def send_state(self, values: npt.NDArray[np.float64], *, sequence: int, scheduled_ns: int, sensed_ns: int) -> bool:
        """Send one state without waiting; return whether it could be sent.

        Args:
            values: Measurements as laid out by `SignalLayout`, shape (state_size,).
            sequence: Plant tick; greater than that of the state before.
            scheduled_ns: Deadline of that tick [ns].
            sensed_ns: When the measurements were taken [ns].
        """
        frame = self._writer.write(values, sequence=sequence, scheduled_ns=scheduled_ns, sensed_ns=sensed_ns)
        return self._send(frame)

    def receive_command(self, values: npt.NDArray[np.float64], timeout_ns: int) -> Received | None:
        """Return the newest command, waiting for one if none has come yet; after the last one the edge's BYE; or None.

        With a timeout it returns as soon as it has a command that was under way for less than 1 ms.

        Args:
            values: Written to when the result is a COMMAND: shape (5, num_joints), rows as in `sim2real.layout`.
            timeout_ns: How long to wait [ns], rounded up to milliseconds; 0: take only what is there.
        """
        return self._receive(values, timeout_ns)

    def _admit(self, size: int, values: npt.NDArray[np.float64]) -> int:
        if self._sender != self._peer:
            self._turn_away(size)
            return 0
        received = self._received
        kind = self._reader.read(size, values, received)
        if kind is not _COMMAND:
            self._note(kind)
            return 0
        received.read_ns = now_ns()
        if offset_ns := self._offset_ns:
            received.scheduled_ns += offset_ns
            received.sensed_ns += offset_ns
            received.sent_ns += offset_ns
            received.received_ns += offset_ns
        return 1

    def _receive_frame(self) -> int:
        sender = self._sender = self._socket.recv()
        # Asking whether more frames follow costs microseconds, and is not needed after the edge's name: no other
        # peer knows it. Any other first frame may be one that somebody appended to a message.
        if sender == self._peer or self._socket.getsockopt(zmq.RCVMORE):
            return self._socket.recv_into(self._reader.buffer)
        self._sender = _NOBODY
        return 0

    def _read_control(self, size: int) -> MessageType | Drop:
        return Drop.MULTIPART if self._sender == _NOBODY else self._reader.read(size, None, self._received)

    def _send_frame(self, frame: bytes | bytearray, receiver: bytes) -> None:
        self._hand_over(receiver or self._peer, _MORE)
        self._hand_over(frame, _NOBLOCK)

    def _meet(self) -> None:
        """Answer the hello just read: take the edge on, refuse it, or let it wait until another one has started."""
        hello = decode_control(self._reader.control, Hello)
        if hello is None:
            self.drops.add(Drop.BAD_PAYLOAD)
            return
        difference = mismatch(self._hello, hello)
        if difference is not None:
            self._refuse(difference)
        elif self._peer in (_NOBODY, self._sender) or now_ns() - self._heard_ns > _SILENCE_NS:
            self._peer, self._peer_hello, self._heard_ns = self._sender, hello, now_ns()
            self._send(encode_control(self._hello, self._hash))

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        self._send(encode_control(Refuse(reason=reason), self._hash), self._sender)

    def _continue_handshake(self, kind: MessageType) -> Session | None:
        read_ns = self._heard_ns = now_ns()
        message = self._reader.control
        if kind is MessageType.PING and (ping := decode_control(message, Ping)) is not None:
            pong = Pong(ping_sent_ns=ping.sent_ns, received_ns=read_ns, sent_ns=now_ns())
            self._send(encode_control(pong, self._hash))
        elif kind is MessageType.START and (start := decode_control(message, Start)) is not None:
            return self._begin(start)
        elif kind in (MessageType.PING, MessageType.START):
            self.drops.add(Drop.BAD_PAYLOAD)
        elif kind is MessageType.BYE:
            self._peer = _NOBODY
        else:
            self.drops.add(Drop.UNEXPECTED)
        return None

    def _begin(self, start: Start) -> Session:
        self._in_session = True
        self._reader.restart()
        self._offset_ns = start.offset_ns
        clock = ClockOffset(offset_ns=start.offset_ns, uncertainty_ns=start.uncertainty_ns)
        return Session(peer=self._peer_hello, clock=clock)

    def _turn_away(self, size: int) -> None:
        """Deal with a message of somebody who is not the edge being served."""
        kind = self._read_control(size)
        if kind is not MessageType.HELLO:
            self.drops.add(kind if isinstance(kind, Drop) else Drop.FOREIGN)
            return
        hello = decode_control(self._reader.control, Hello)
        difference = mismatch(self._hello, hello) if hello is not None else "hello: not understood"
        self._refuse(difference or _BUSY)
