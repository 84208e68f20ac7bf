"""Arrays in and out of npz files without pickle, compression or trust in what a header claims.

`numpy.load` opens them too. This reader exists because that one would decompress, and allocate, whatever an unknown
file announces; here an array is a view of bytes that are already there, and equal arrays give equal files.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim2real.canonical_zip import pack, unpack
from sim2real.errors import BundleError

__all__ = ["Array", "read_npz", "write_npz"]

Array = npt.NDArray[Any]

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_HEADER: Final = re.compile(rb"\{'descr': '([<|][a-z]\d)', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n")
_DTYPES: Final = {b"<f8": np.float64, b"<f4": np.float32, b"<i8": np.int64, b"|b1": np.bool_}


def write_npz(arrays: Mapping[str, Array]) -> bytes:
    """Return an npz file that holds `arrays` (float64, float32, int64 or bool, of any shape)."""
    members: dict[str, bytes] = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
        members[f"{name}.npy"] = buffer.getvalue()
    return pack(members)


def read_npz(data: bytes, *, finite: bool = True) -> dict[str, Array]:
    """Return the arrays of a file written by `write_npz`, read-only.

    Args:
        data: The file.
        finite: Whether all numbers must be finite; otherwise NaN and the infinities may be among them.

    Raises:
        BundleError: Truncated, altered, another element type, or not finite; the message names the array.
    """
    arrays: dict[str, Array] = {}
    for member, content in unpack(data).items():
        name = member.removesuffix(".npy")
        arrays[name] = _read_array(name, content)
        if finite:
            _check_finite(name, arrays[name])
    return arrays


def _check_finite(name: str, array: Array) -> None:
    if not np.isfinite(array).all():
        index = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise BundleError(f"{name}{list(index)}: expected a finite number, got {array[index]}; export it again")


def _read_array(name: str, content: bytes) -> Array:
    length = int.from_bytes(content[len(_MAGIC) : len(_MAGIC) + 2], "little")
    start = len(_MAGIC) + 2 + length
    header = _HEADER.fullmatch(content[len(_MAGIC) + 2 : start])
    if not content.startswith(_MAGIC) or header is None or header[1] not in _DTYPES:
        allowed = ", ".join(np.dtype(dtype).name for dtype in _DTYPES.values())
        raise BundleError(f"{name}: expected an array of {allowed} in C order; export it again")
    dtype = np.dtype(_DTYPES[header[1]])
    shape = tuple(int(size) for size in re.findall(rb"\d+", header[2]))
    if math.prod(shape) * dtype.itemsize != len(content) - start:
        raise BundleError(
            f"{name}: shape {shape} of {dtype} does not fit its {len(content) - start} bytes; export it again"
        )
    if dtype == np.bool_ and set(content[start:]) - {0, 1}:
        raise BundleError(f"{name}: expected booleans of 0 or 1; export it again")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
