"""Zip files of which there is exactly one for given members, so that any changed byte can be noticed.

Python's `zipfile` writes headers that differ between versions and reads many files as the same members (padding,
comments, time stamps, data before the first header). Here members are stored uncompressed, sorted by name, dated
1980-01-01, and a file is accepted only if packing its members again gives the same bytes. Nothing can grow on reading.

Layout: APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central header), 4.3.16 (end record).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final

from sim2real.errors import BundleError

__all__ = ["MAX_BYTES", "pack", "unpack"]

MAX_BYTES: Final = 2**30
"""Largest file; far above any policy, far below the 4 GiB at which zip needs another format."""

_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_SIZE: Final = struct.Struct("<IH")
_SIZE_OFFSET: Final = 22
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_CENTRAL_MAGIC: Final = b"PK\x01\x02"
_END_MAGIC: Final = b"PK\x05\x06"
_VERSION: Final = 20
_MADE_BY_UNIX: Final = 3 << 8 | _VERSION
_TIME, _DATE = 0, 1 << 5 | 1  # 00:00:00 on 1980-01-01, the first day that zip knows
_MODE: Final = 0o100644 << 16


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the one zip file that holds `members`; names must be ASCII.

    Raises:
        BundleError: The file would be larger than `MAX_BYTES`.
    """
    body = bytearray()
    directory = bytearray()
    for name, content in sorted(members.items()):
        encoded = name.encode("ascii")
        # Version needed, flags, method (stored), time, date, CRC, packed and unpacked size, name and extra length.
        common = (_VERSION, 0, 0, _TIME, _DATE, zlib.crc32(content), len(content), len(content), len(encoded), 0)
        directory += _CENTRAL.pack(_CENTRAL_MAGIC, _MADE_BY_UNIX, *common, 0, 0, 0, _MODE, len(body)) + encoded
        body += _LOCAL.pack(_LOCAL_MAGIC, *common) + encoded + content
    count = len(members)
    end = _END.pack(_END_MAGIC, 0, 0, count, count, len(directory), len(body), 0)
    file = bytes(body + directory + end)
    if len(file) > MAX_BYTES:
        raise BundleError(f"expected at most {MAX_BYTES} bytes, got {len(file)}")
    return file


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the members of a file written by `pack`.

    Raises:
        BundleError: Truncated, not a zip file, or any byte other than `pack` would write.
    """
    if not data.startswith((_LOCAL_MAGIC, _END_MAGIC)) and not _LOCAL_MAGIC.startswith(data):
        raise BundleError("expected a zip file, got something else; give the path of a policy bundle")
    if len(data) < _END.size or not data.startswith(_END_MAGIC, len(data) - _END.size):
        raise BundleError(f"truncated: its {len(data)} bytes have no end record; copy it again")
    members: dict[str, bytes] = {}
    position = 0
    while data.startswith(_LOCAL_MAGIC, position):
        if position + _LOCAL.size > len(data):
            break
        size, name_length = _SIZE.unpack_from(data, position + _SIZE_OFFSET)
        start = position + _LOCAL.size
        # Decoding cannot fail, and a name that is not ASCII cannot come out of `pack` as it went in.
        name = data[start : start + name_length].decode("ascii", "replace").replace("\ufffd", "?")
        position = start + name_length + size
        members[name] = data[start + name_length : position]
    if pack(members) != data:
        raise BundleError("altered: the zip file is not the one that was written; copy or export it again")
    return members
