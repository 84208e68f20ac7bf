"""What both ends of the wire share: a socket that never waits longer than it was told to.

Neither end blocks in a send, hands out a message when a newer one is there, or takes longer than a fraction of a second
to close, whatever became of its peer.

Newest wins because the reader empties its queue. libzmq's CONFLATE option would seem to do the same, and must not be
used here: a conflating socket forgets its last message, our BYE, when it is closed in spite of LINGER, its double
buffer drops a message that arrives while the reader looks (``dbuffer_t::write`` only tries the lock), and in lockstep
either ends the run.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from sim2real.clock import NS_PER_MS, now_ns
from sim2real.curve import CurveKeys
from sim2real.endpoints import check_endpoint
from sim2real.wire import (
    Drop,
    DropCounts,
    FrameReader,
    FrameWriter,
    MessageType,
    Received,
    decode_control,
    encode_control,
)
from sim2real.wire_messages import Bye, Hello

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RETRY_NS", "ClockOffset", "Link", "Session"]

RECEIVE_LIMIT: Final = 1024
"""Messages that libzmq keeps for a reader that does not read; later ones wait in the kernel, then at the sender."""
_SEND_LIMIT: Final = 16
"""Messages that wait at a sender, next to those in the kernel; after that its sends fail until the peer reads."""
_SEND_BUFFER: Final = 65536
"""The kernel's part of that queue [bytes]. Left to itself it would grow to seconds of a broken link's messages."""
_MOST_READS: Final = 4 * RECEIVE_LIMIT
"""Messages that one receive looks at; a flood of strangers cannot hold up the loop for longer than that."""
_PROMPT_NS: Final = NS_PER_MS
"""A message that was under way for longer may have newer ones behind it."""
RETRY_NS: Final = 100 * NS_PER_MS
"""Time after which the edge repeats a question of the handshake."""
_LONGEST_MESSAGE: Final = 65536
_LINGER_MS: Final = 200
"""Longest time that `close` waits for the BYE to leave."""
_READABLE: Final = int(zmq.POLLIN)


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How the plant's clock relates to the edge's."""

    offset_ns: int
    """Plant clock minus edge clock; exactly 0 when both are the same clock."""
    uncertainty_ns: int
    """The true offset lies within ± this: half the shortest round trip. Delays below it mean nothing."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that both sides agreed to."""

    peer: Hello
    clock: ClockOffset


class Link(ABC):
    """What both ends share: the socket and its limits, counters, the farewell, the end."""

    def __init__(
        self, kind: int, endpoint: str, hello: Hello, keys: CurveKeys | None, reader: FrameReader, writer: FrameWriter
    ) -> None:
        check_endpoint(endpoint, has_keys=keys is not None)
        self.endpoint = endpoint
        self.drops = DropCounts()
        self.unsent: int = 0
        self.superseded: int = 0
        self._hello = hello
        self._hash = hello.contract_hash
        self._reader = reader
        self._writer = writer
        self._received = Received()
        self._farewell: str | None = None
        self._in_session = False
        self._offset_ns = 0
        self._linger_ms = 0
        self._timeout_ns = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        # The same send without its Python layer, which serves socket types that these are not.
        self._hand_over: Callable[[bytes | bytearray, int], object] = super(zmq.Socket, self._socket).send
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _LONGEST_MESSAGE)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
        self._socket.setsockopt(zmq.SNDHWM, _SEND_LIMIT)
        self._socket.setsockopt(zmq.SNDBUF, _SEND_BUFFER)
        if "[" in endpoint:
            self._socket.setsockopt(zmq.IPV6, 1)
        if keys is not None:
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)

    def close(self) -> None:
        """Let go of the endpoint, within 0.5 s and whatever the peer does. Closing twice is allowed."""
        self._socket.close(self._linger_ms)
        self._context.term()

    def bye(self, reason: str) -> None:
        """Tell the peer that this is the end, and why. It is the last message of the session."""
        if self._in_session and self._farewell is None:
            self._linger_ms = _LINGER_MS
            self._send(encode_control(Bye(reason=reason), self._hash))
        self._in_session = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sent_ns(self) -> int:
        """When the last state or command was sent [ns]."""
        return self._writer.sent_ns

    @abstractmethod
    def _send_frame(self, frame: bytes | bytearray, receiver: bytes) -> None:
        """Hand a frame to libzmq, for the peer or for who bears that name, without waiting."""

    def _send(self, frame: bytes | bytearray, receiver: bytes = b"") -> bool:
        """Send without waiting; return whether it could be sent, and count it if not."""
        try:
            self._send_frame(frame, receiver)
        except zmq.ZMQError as error:
            return self._send_again(error, frame, receiver)
        return True

    def _send_again(self, error: zmq.ZMQError, frame: bytes | bytearray, receiver: bytes) -> bool:
        # libzmq notices room in a queue once a millisecond at most, unless it is asked for its state.
        self._socket.getsockopt(zmq.EVENTS)
        try:
            if error.errno == errno.EAGAIN:
                self._send_frame(frame, receiver)
                return True
        except zmq.ZMQError as repeated:
            error = repeated
        if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
            raise error
        self.unsent += 1
        return False

    @abstractmethod
    def _receive_frame(self) -> int:
        """Receive a frame into the reader's buffer; return its size."""

    @abstractmethod
    def _admit(self, size: int, values: npt.NDArray[np.float64]) -> int:
        """Deal with the message of `size` bytes in the buffer; return 1 if `_received` and `values` now hold it."""

    def _receive(self, values: npt.NDArray[np.float64], timeout_ns: int) -> Received | None:
        """Return the newest message of the peer; wait for one, if none has come yet; or None."""
        fresh = self._await(values, timeout_ns) if timeout_ns > 0 else self._read_all(values)
        if fresh:
            self.superseded += fresh - 1
            return self._received
        if self._farewell is None:
            return None
        self._received.type = MessageType.BYE
        self._received.reason = self._farewell
        return self._received

    def _await(self, values: npt.NDArray[np.float64], timeout_ns: int) -> int:
        """Wait for a message, and read what may be behind it; return how many were admitted. The last one stands."""
        left_ns = timeout_ns
        deadline = now_ns() + timeout_ns
        while self._farewell is None and (size := self._take(left_ns)) >= 0:
            if self._admit(size, values):
                received = self._received
                is_prompt = received.read_ns - received.sent_ns < _PROMPT_NS
                return 1 if is_prompt else 1 + self._read_all(values)
            left_ns = deadline - now_ns()
        return 0

    def _read_all(self, values: npt.NDArray[np.float64]) -> int:
        """Read what has arrived, up to a limit; return how many messages were admitted. The last one stands."""
        fresh = 0
        for reads in range(_MOST_READS):
            # After a long queue, libzmq's thread is given time to move on what waited in the kernel.
            size = self._take(_PROMPT_NS if reads > RECEIVE_LIMIT // 2 else 0)
            if size < 0:
                break
            fresh += self._admit(size, values)
        return fresh

    def _take(self, timeout_ns: int) -> int:
        """Read one message into the reader's buffer; return its size, or -1 if none came in time."""
        if timeout_ns <= 0:
            if not int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
                return -1
        elif timeout_ns != self._timeout_ns:
            # In milliseconds, rounded up.
            self._socket.setsockopt(zmq.RCVTIMEO, -(-timeout_ns // NS_PER_MS))
            self._timeout_ns = timeout_ns
        try:
            return self._receive_frame()
        except zmq.Again:
            return -1

    def _note(self, kind: MessageType | Drop) -> None:
        """Remember a goodbye; count anything else that is not what was waited for."""
        if isinstance(kind, Drop):
            self.drops.add(kind)
        elif kind is MessageType.BYE:
            bye = decode_control(self._reader.control, Bye)
            self._farewell = bye.reason if bye is not None else "no reason given"
        else:
            self.drops.add(Drop.UNEXPECTED)
