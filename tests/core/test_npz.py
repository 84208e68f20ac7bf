"""Arrays go through npz files unchanged, and a header cannot make the reader allocate or run anything."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim2real.canonical_zip import pack
from sim2real.errors import BundleError
from sim2real.npz import Array, read_npz, write_npz

DTYPES = st.sampled_from([np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def _finite(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    return hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False)


@st.composite
def _arrays(draw: st.DrawFn) -> Array:
    dtype = draw(DTYPES)
    array = draw(hnp.arrays(dtype, draw(SHAPES), elements=_finite(dtype)))
    # Views that are not contiguous must be written as the values that they show.
    return array.T if draw(st.booleans()) else array


@given(st.dictionaries(st.sampled_from("abc"), _arrays()))
def test_arrays_read_back_bit_for_bit(arrays: dict[str, Array]) -> None:
    file = write_npz(arrays)
    again = read_npz(file)
    loaded = np.load(io.BytesIO(file), allow_pickle=False)
    assert sorted(again) == sorted(arrays) == sorted(loaded)
    for name, array in arrays.items():
        for other in (again[name], loaded[name]):
            assert (other.dtype, other.shape, other.tobytes()) == (array.dtype, array.shape, array.tobytes())


def _npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return pack({"x.npy": b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content})


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, ), }"), "x: shape (9999999999,) of floa"),
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(8)), "x: shape (2,) of float64 does"),
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", bytes(9)), "x: shape (1,) of float64 does"),
        (_npy("{'descr': '<f8', 'fortran_order': True, 'shape': (1,), }", bytes(8)), "x: expected an array of float64"),
        (_npy("{'descr': '>f8', 'fortran_order': False, 'shape': (1,), }", bytes(8)), "x: expected an array of float6"),
        (_npy("{'descr': '<f2', 'fortran_order': False, 'shape': (1,), }", bytes(2)), "x: expected an array of float6"),
        (
            _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps([1])),
            "x: expected an array of",
        ),
        (_npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", b"\x00\x02"), "x: expected booleans of 0 o"),
        (pack({"x.npy": b""}), "x: expected an array of float64, float32, int64, bool in C order"),
        (pack({"x.npy": b"\x93NUMPY\x02\x00"}), "x: expected an array of float64"),
        (write_npz({"x": np.array([[1.0, 2.0], [np.inf, np.nan]])}), "x[1, 0]: expected a finite number, got inf"),
        (write_npz({"x": np.array(np.nan)}), "x[]: expected a finite number, got nan"),
    ],
)
def test_unusable_array_is_named(file: bytes, told: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_npz(file)
    assert str(caught.value).startswith(told)
    assert str(caught.value).endswith("; export it again")


@given(st.binary(max_size=120))
def test_arbitrary_bytes_never_end_in_another_error(noise: bytes) -> None:
    with pytest.raises(BundleError):
        read_npz(pack({"x.npy": b"\x93NUMPY\x01\x00" + noise}))


def test_objects_are_not_written() -> None:
    with pytest.raises(ValueError, match="Object arrays cannot be saved when allow_pickle=False"):
        write_npz({"x": np.array([object()])})
