"""What both ends of the wire share: a socket that never waits longer than it was told to.

Neither end blocks in a send, hands out a message when a newer one is there, or takes longer than a fraction of a second
to close, whatever became of its peer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import msgspec
import zmq

from sim2real.clock import NS_PER_MS
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
        """Messages that could not be sent because the peer does not read, or is gone."""
        self._hello = hello
        self._hash = hello.contract_hash
        self._reader = reader
        self._writer = writer
        self._received = Received()
        self._farewell: str | None = None
        self._in_session = False
        self._offset_ns = 0
        self._linger_ms = 0
        self._wait_ms = -1
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _LONGEST_MESSAGE)
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
    def _send(self, frame: bytes | bytearray) -> bool:
        """Send to the peer without waiting; return whether it could be sent, and count it if not."""

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE)

    def _wait(self, timeout_ns: int) -> None:
        """Let the next receive wait for at most so long, rounded up to milliseconds."""
        milliseconds = -(-timeout_ns // NS_PER_MS)
        if milliseconds != self._wait_ms:
            self._socket.setsockopt(zmq.RCVTIMEO, milliseconds)
            self._wait_ms = milliseconds

    def _say_farewell(self) -> Received:
        """Return the peer's BYE, now and at every later receive."""
        self._received.type = MessageType.BYE
        self._received.reason = self._farewell or ""
        return self._received

    def _note(self, kind: MessageType | Drop) -> None:
        """Remember a goodbye; count anything else that is not what was waited for."""
        if isinstance(kind, Drop):
            self.drops.add(kind)
        elif kind is MessageType.BYE:
            bye = decode_control(self._reader.control, Bye)
            self._farewell = bye.reason if bye is not None else "no reason given"
        else:
            self.drops.add(Drop.UNEXPECTED)
