"""One zip file for given members, and no other file is read as them."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.canonical_zip import pack, unpack
from sim2real.errors import BundleError

NAMES = st.from_regex(r"[a-zA-Z0-9_.]{1,12}", fullmatch=True)
MEMBERS = st.dictionaries(NAMES, st.binary(max_size=50), max_size=4)


@given(MEMBERS)
def test_unpacks_to_what_was_packed(members: dict[str, bytes]) -> None:
    assert unpack(pack(members)) == members


@given(MEMBERS)
def test_standard_readers_agree(members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(pack(members))) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == members
        assert archive.namelist() == sorted(members)


@given(MEMBERS, st.data())
def test_any_changed_byte_is_refused(members: dict[str, bytes], data: st.DataObject) -> None:
    file = bytearray(pack(members))
    file[data.draw(st.integers(0, len(file) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BundleError):
        unpack(bytes(file))


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_never_end_in_another_error(noise: bytes, framed: bool) -> None:
    file = b"PK\x03\x04" + noise + pack({}) if framed else noise
    try:
        members = unpack(file)
    except BundleError:
        return
    assert pack(members) == file
