"""What plant and edge say to each other: one frame per message, checked on arrival, no pickle.

A frame is a header of 96 bytes and a payload, all little-endian:

======  =====  ==================================================================================
offset  type   field
======  =====  ==================================================================================
0       4s     magic, ``S2RW``
4       u16    wire version
6       u8     message type
7       u32    payload length [bytes]
11      32s    SHA-256 of the contract
43      u32    CRC-32 of all other bytes
47      u8     status: the safety level under which the edge made a command
48      u64    sequence: the plant's tick (STATE) or the edge's tick (COMMAND)
56      u64    answered: sequence of the state that a command was computed from
64      4×i64  scheduled, sensed, sent, received [ns, monotonic, on the *sender's* clock]
======  =====  ==================================================================================

STATE and COMMAND carry float64 arrays; the other types carry one JSON object. The checksum is there because a flipped
bit in a stamp or a float would otherwise be a plausible value. Reading and writing STATE and COMMAND uses buffers made
once; nothing grows from message to message, and nothing that arrives raises an exception.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, TypeVar
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.clock import now_ns
from sim2real.wire_messages import LATEST_NS, WIRE_VERSION, Bye, Control, Hello, Ping, Pong, Refuse, Start

__all__ = [
    "HEADER_SIZE",
    "MAX_CONTROL_SIZE",
    "TYPE_OF",
    "Drop",
    "DropCounts",
    "FrameReader",
    "FrameWriter",
    "MessageType",
    "Received",
    "Status",
    "decode_control",
    "encode_control",
]

_MAGIC: Final = b"S2RW"
_FIXED: Final = struct.Struct("<4sHBI32s")
"""What is the same in all frames of one stream, so that one comparison checks it all."""
_CRC: Final = struct.Struct("<I")
_CRC_AT: Final = _FIXED.size
_VARYING: Final = struct.Struct("<BQQ4q")
_VARYING_AT: Final = _CRC_AT + _CRC.size
_unpack: Final = struct.Struct("<IBQQ4q").unpack_from
"""CRC and what varies, in one go."""
_pack_varying: Final = _VARYING.pack_into
_pack_crc: Final = _CRC.pack_into
HEADER_SIZE: Final = _VARYING_AT + _VARYING.size
MAX_CONTROL_SIZE: Final = 16384
"""Largest JSON payload [bytes]; a hello of 100 joints needs a quarter of it."""


class MessageType(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    REFUSE = 2
    PING = 3
    PONG = 4
    START = 5
    STATE = 6
    COMMAND = 7
    BYE = 8


class Status(enum.IntEnum):
    """Safety level under which a command was made."""

    RUN = 0
    HOLD = 1
    DAMP = 2
    STOP = 3


class Drop(enum.Enum):
    """Why a message was dropped."""

    SHORT = "short"
    LONG = "long"
    WRONG_MAGIC = "wrong_magic"
    WRONG_VERSION = "wrong_version"
    CORRUPT = "corrupt"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_STATUS = "unknown_status"
    WRONG_CONTRACT = "wrong_contract"
    BAD_PAYLOAD = "bad_payload"
    NOT_FINITE = "not_finite"
    BAD_TIME = "bad_time"
    """A time stamp that no clock can show; shifted to another clock, it would no longer fit into a frame."""
    OLD_SEQUENCE = "old_sequence"
    MULTIPART = "multipart"
    """A message of several frames; ours have one, because CONFLATE keeps only the last frame of a message."""
    UNEXPECTED = "unexpected"
    """A well-formed message that has no place here, e.g. a command that reaches the edge."""
    FOREIGN = "foreign"
    """From a peer that is not the one being served."""


class DropCounts:
    """How many messages were dropped, by reason."""

    def __init__(self) -> None:
        self._counts: dict[Drop, int] = dict.fromkeys(Drop, 0)

    def add(self, drop: Drop) -> None:
        """Count one message."""
        self._counts[drop] += 1

    def __getitem__(self, drop: Drop) -> int:
        return self._counts[drop]

    @property
    def total(self) -> int:
        """Messages dropped for any reason."""
        return sum(self._counts.values())

    def as_dict(self) -> dict[str, int]:
        """Return the counts that are not 0, by the reason's name."""
        return {drop.value: count for drop, count in self._counts.items() if count}

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.as_dict().items()) or "none"


TYPE_OF: Final[dict[type[Control], MessageType]] = {
    Hello: MessageType.HELLO,
    Refuse: MessageType.REFUSE,
    Ping: MessageType.PING,
    Pong: MessageType.PONG,
    Start: MessageType.START,
    Bye: MessageType.BYE,
}
_C = TypeVar("_C", bound=Control)


class Received:
    """One message as a socket hands it out. It is overwritten by the next one: copy what you keep.

    Every stamp is on the clock of the process that reads it, whatever clock it was taken on.

    Attributes:
        type: STATE, COMMAND or BYE.
        status: Safety level of a command.
        sequence: Plant tick of a state, edge tick of a command.
        answered: Sequence of the state that a command was computed from; 0 in a state.
        scheduled_ns: Deadline of the tick that made the message.
        sensed_ns: When the state was measured; of a command: the state it was computed from.
        sent_ns: When the message was sent.
        received_ns: When the edge received the state; of a command: the state it was computed from.
        read_ns: When this process read the message.
        reason: Why the peer said BYE; empty otherwise.
    """

    __slots__ = (
        "answered",
        "read_ns",
        "reason",
        "received_ns",
        "scheduled_ns",
        "sensed_ns",
        "sent_ns",
        "sequence",
        "status",
        "type",
    )

    def __init__(self) -> None:
        self.type = MessageType.STATE
        self.status = Status.RUN
        self.sequence = 0
        self.answered = 0
        self.scheduled_ns = 0
        self.sensed_ns = 0
        self.sent_ns = 0
        self.received_ns = 0
        self.read_ns = 0
        self.reason = ""

    @property
    def age_ns(self) -> int:
        """How old the measurement behind this message was when it was read [ns]."""
        return self.read_ns - self.sensed_ns

    @property
    def transit_ns(self) -> int:
        """How long the message was under way [ns]; below the clock offset's uncertainty it means nothing."""
        return self.read_ns - self.sent_ns


_TYPES: Final[dict[int, MessageType]] = {int(member): member for member in MessageType}
_STATUSES: Final = tuple(Status)


def _bytes_of(values: npt.NDArray[np.float64], shape: tuple[int, ...]) -> memoryview:
    """Return an array's memory, after a check; done once for an array that is used again and again.

    Copying memory is several times quicker than assigning arrays. Every machine that this runs on is little-endian.
    """
    if values.shape != shape or values.dtype != np.float64 or not values.flags.c_contiguous:
        raise ValueError(
            f"values: expected a contiguous float64 array of shape {shape}, got {values.dtype} of {values.shape}"
        )
    return values.data.cast("B")


class FrameWriter:
    """Writes STATE or COMMAND frames of one shape, always into the same buffer.

    Attributes:
        sent_ns: Stamp of the frame written last [ns].
    """

    def __init__(self, message_type: MessageType, contract_hash: bytes, shape: tuple[int, ...]) -> None:
        payload = 8 * int(np.prod(shape))
        self.sent_ns = 0
        self._shape = shape
        self._buffer = bytearray(HEADER_SIZE + payload)
        self._checked = memoryview(self._buffer)[_VARYING_AT:]
        self._payload = memoryview(self._buffer)[HEADER_SIZE:]
        fixed = _FIXED.pack(_MAGIC, WIRE_VERSION, message_type, payload, contract_hash)
        self._buffer[:_CRC_AT] = fixed
        self._fixed_crc = crc32(fixed)
        self._source: npt.NDArray[np.float64] | None = None
        self._source_bytes = memoryview(b"")

    def write(
        self,
        values: npt.NDArray[np.float64],
        *,
        status: int = 0,
        sequence: int,
        answered: int = 0,
        scheduled_ns: int,
        sensed_ns: int,
        received_ns: int = 0,
    ) -> bytearray:
        """Return the frame of `values`, stamped as sent now; it stays valid until the next call.

        Raises:
            ValueError: `values` is not a contiguous float64 array of the frames' shape.
        """
        if values is not self._source:
            self._source_bytes = _bytes_of(values, self._shape)
            self._source = values
        buffer = self._buffer
        self._payload[:] = self._source_bytes
        self.sent_ns = sent_ns = now_ns()
        _pack_varying(buffer, _VARYING_AT, status, sequence, answered, scheduled_ns, sensed_ns, sent_ns, received_ns)
        _pack_crc(buffer, _CRC_AT, crc32(self._checked, self._fixed_crc))
        return buffer


class FrameReader:
    """Checks frames that arrived in `buffer` and takes STATE or COMMAND arrays of one shape out of them.

    Attributes:
        buffer: Room for the longest valid frame; a socket fills it, then calls `read` with the size of what arrived.
        control: JSON of the control message read last.
    """

    def __init__(self, message_type: MessageType, contract_hash: bytes, shape: tuple[int, ...]) -> None:
        count = int(np.prod(shape))
        self.control = b""
        self._type = message_type
        self._hash = contract_hash
        self._shape = shape
        self._size = HEADER_SIZE + 8 * count
        self._fixed = _FIXED.pack(_MAGIC, WIRE_VERSION, message_type, 8 * count, contract_hash)
        self._fixed_crc = crc32(self._fixed)
        self.buffer = bytearray(max(self._size, HEADER_SIZE + MAX_CONTROL_SIZE))
        self._view = memoryview(self.buffer)
        self._checked = self._view[_VARYING_AT : self._size]
        self._values = np.frombuffer(self.buffer, "<f8", count, offset=HEADER_SIZE).reshape(shape)
        self._finite = bytearray(count)
        self._finite_view = np.frombuffer(self._finite, np.bool_).reshape(shape)
        self._payload = self._view[HEADER_SIZE : self._size]
        self._target: npt.NDArray[np.float64] | None = None
        self._target_bytes = memoryview(b"")
        self._last_sequence = -1

    def restart(self) -> None:
        """Accept any sequence again: a new peer starts to count."""
        self._last_sequence = -1

    def read(self, size: int, values: npt.NDArray[np.float64] | None, received: Received) -> MessageType | Drop:
        """Check the frame of `size` bytes in the buffer; return its type, or why it is dropped.

        An array is copied to `values` and its header to `received`, with the stamps on the sender's clock; both are
        untouched by any other frame. With `values` None only control messages have a place; their JSON is in
        `control`. Of HELLO and REFUSE the contract is not checked: they are how a wrong one is talked about.

        Raises:
            ValueError: `values` is not a contiguous float64 array of the frames' shape.
        """
        if values is None or size != self._size or not self.buffer.startswith(self._fixed):
            return self._read_other(size)
        crc, status, sequence, answered, scheduled, sensed, sent, received_at = _unpack(self.buffer, _CRC_AT)
        if crc != crc32(self._checked, self._fixed_crc):
            return Drop.CORRUPT
        if status >= len(_STATUSES):
            return Drop.UNKNOWN_STATUS
        if sequence <= self._last_sequence:
            return Drop.OLD_SEQUENCE
        np.isfinite(self._values, self._finite_view)
        if 0 in self._finite:
            return Drop.NOT_FINITE
        if not (
            -LATEST_NS <= scheduled <= LATEST_NS
            and -LATEST_NS <= sensed <= LATEST_NS
            and -LATEST_NS <= sent <= LATEST_NS
            and -LATEST_NS <= received_at <= LATEST_NS
        ):
            return Drop.BAD_TIME
        if values is not self._target:
            self._target_bytes = _bytes_of(values, self._shape)
            self._target = values
        self._target_bytes[:] = self._payload
        self._last_sequence = sequence
        received.type = self._type
        received.status = _STATUSES[status]
        received.sequence = sequence
        received.answered = answered
        received.scheduled_ns = scheduled
        received.sensed_ns = sensed
        received.sent_ns = sent
        received.received_ns = received_at
        return self._type

    def _read_other(self, size: int) -> MessageType | Drop:
        """Check a control message, or find out what is wrong with an array's frame."""
        if size < HEADER_SIZE:
            return Drop.SHORT
        magic, version, kind, payload, digest = _FIXED.unpack_from(self.buffer)
        if magic != _MAGIC:
            return Drop.WRONG_MAGIC
        if version != WIRE_VERSION:
            return Drop.WRONG_VERSION
        if size != HEADER_SIZE + payload or size > len(self.buffer):
            return Drop.SHORT if size < HEADER_SIZE + payload else Drop.LONG
        crc = crc32(self._view[_VARYING_AT:size], crc32(self._view[:_CRC_AT]))
        if _CRC.unpack_from(self.buffer, _CRC_AT)[0] != crc:
            return Drop.CORRUPT
        message_type = _TYPES.get(kind)
        if message_type is None:
            return Drop.UNKNOWN_TYPE
        if digest != self._hash and message_type not in (MessageType.HELLO, MessageType.REFUSE):
            return Drop.WRONG_CONTRACT
        if message_type is self._type and size != self._size:
            return Drop.SHORT if size < self._size else Drop.LONG
        if message_type in (MessageType.STATE, MessageType.COMMAND):
            return Drop.UNEXPECTED
        self.control = bytes(self._view[HEADER_SIZE:size])
        return message_type


def encode_control(message: Control, contract_hash: bytes) -> bytes:
    """Return the frame of a control message.

    Raises:
        ValueError: The message is longer than `MAX_CONTROL_SIZE`.
    """
    payload = msgspec.json.encode(message)
    if len(payload) > MAX_CONTROL_SIZE:
        raise ValueError(
            f"{type(message).__name__}: expected at most {MAX_CONTROL_SIZE} bytes of JSON, got {len(payload)}"
        )
    fixed = _FIXED.pack(_MAGIC, WIRE_VERSION, TYPE_OF[type(message)], len(payload), contract_hash)
    rest = _VARYING.pack(0, 0, 0, 0, 0, now_ns(), 0) + payload
    return fixed + _CRC.pack(crc32(rest, crc32(fixed))) + rest


def decode_control(payload: bytes, message_type: type[_C]) -> _C | None:
    """Return the message of that type in a JSON payload, or None if it does not hold one."""
    try:
        return msgspec.json.decode(payload, type=message_type)
    except (msgspec.DecodeError, RecursionError):
        return None
