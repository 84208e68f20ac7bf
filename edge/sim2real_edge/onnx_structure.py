"""What an ONNX file computes but for its weights, as one hash: two of the same can run in one engine, one at a time.

Read like the metadata, without the onnx package: a ``ModelProto`` has its graph in field 7; a graph its constants in
field 5; a constant its dimensions in field 1, its datatype in 2, its name in 8, and its numbers in others
(onnx/onnx.proto).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from sim2real.errors import BundleError
from sim2real.onnx_metadata import fields

__all__ = ["structure_sha256"]

_GRAPH, _METADATA = 7, 14
_CONSTANT: Final = 5
_DIMENSIONS, _TYPE, _NUMBERS = 1, 2, (4, 5, 6, 7, 9, 10, 11, 13, 14)
_WEIGHTS: Final = (1, 3, 10, 16, 17)
"""Datatypes of weights: float32, int8, float16, bfloat16 and FP8."""


def structure_sha256(model: bytes) -> str:
    """Return a SHA-256, hex, of an ONNX file without the numbers of its weights and without its metadata.

    Scalars stay in: the bounds of a clip and the scale of what goes into a product are part of an engine's code.

    Raises:
        BundleError: Not an ONNX file, or truncated.
    """
    digest = hashlib.sha256()
    try:
        for number, content in _parts(model):
            # The length makes it plain where one part ends.
            digest.update(f"{number} {len(content)}\n".encode() + content)
    except IndexError as error:
        raise BundleError("expected an ONNX file, got something else or a truncated one; export it again") from error
    return digest.hexdigest()


def _parts(model: bytes) -> Iterator[tuple[str, bytes]]:
    for number, content in fields(model):
        if number == _GRAPH:
            for part, inner in fields(content):
                yield f"graph {part}", _without_numbers(inner) if part == _CONSTANT else inner
        elif number != _METADATA:
            yield f"model {number}", content


def _without_numbers(constant: bytes) -> bytes:
    """Return a constant without its numbers if it is a weight, else as it is."""
    parts = list(fields(constant))
    is_weight = any(number == _TYPE and content[0] in _WEIGHTS for number, content in parts)
    if not is_weight or not any(number == _DIMENSIONS for number, _ in parts):
        return constant
    return b"".join(
        f"{number} {len(content)}\n".encode() + content for number, content in parts if number not in _NUMBERS
    )
