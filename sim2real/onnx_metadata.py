"""The metadata of an ONNX file, read without the onnx package: a robot has no use for it otherwise.

An ONNX file is one protobuf message, ``ModelProto``. Its field 14, ``metadata_props``, repeats a message of two
strings: 1, ``key``, and 2, ``value`` (onnx/onnx.proto). All other fields are skipped unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim2real.errors import BundleError

__all__ = ["CONTRACT_METADATA_KEY", "fields", "read_metadata"]

CONTRACT_METADATA_KEY: Final = "sim2real.contract"
"""Key under which an exported model carries its contract, as the exact text of `contract.json`."""

_METADATA_PROPS: Final = 14
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types: https://protobuf.dev/programming-guides/encoding/#structure."""
_MAX_VARINT_BYTES: Final = 10


def read_metadata(model: bytes) -> dict[str, str]:
    """Return the metadata of the ONNX file whose content is `model`.

    Raises:
        BundleError: Not an ONNX file, truncated, or a key is there twice.
    """
    metadata: dict[str, str] = {}
    try:
        for number, entry in fields(model):
            if number == _METADATA_PROPS:
                strings = {part: text.decode() for part, text in fields(entry)}
                key = strings.get(_KEY, "")
                if key in metadata:
                    raise BundleError(f"expected metadata keys that differ, got {key!r} twice; export it again")
                metadata[key] = strings.get(_VALUE, "")
    except (IndexError, UnicodeDecodeError) as error:
        raise BundleError("expected an ONNX file, got something else or a truncated one; export it again") from error
    return metadata


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of every field of a protobuf message; of a number its bytes as they are written.

    Raises:
        IndexError: `message` is not a whole protobuf message.
    """
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        start = position
        if wire_type == _BYTES:
            length, start = _varint(message, position)
            position = start + length
        elif wire_type == _VARINT:
            _, position = _varint(message, start)
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
        else:
            raise IndexError("no such wire type")
        if position > len(message):
            raise IndexError("the last field is cut off")
        yield number, message[start:position]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, position + index + 1
    raise IndexError("a number has no end")
