"""Built engines on disk: whole or not there, bound to all that decides what is in them, and trusted only when ours.

A file holds one line for its format, one for the SHA-256 of all that follows, one of JSON about its content, and then
the content. An engine is code: it is read only from a folder that nobody else can write to, and given to TensorRT only
when its hash and its key are right. The hash shows damage; that nobody else wrote it, the folder shows.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from sim2real.errors import EngineError, InputError
from sim2real.files import atomic_write, read_bytes

__all__ = ["EngineCache", "EngineKey", "default_folder", "l4t_release"]

_FORMAT: Final = b"sim2real engine 1\n"
_VARIABLE: Final = "SIM2REAL_ENGINES"
_L4T: Final = Path("/etc/nv_tegra_release")
_AGAIN: Final = "delete it, then: sim2real edge build"
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class EngineKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides what is built. A change of anything here is another engine (onnxruntime#6455)."""

    model_sha256: str
    """Of the whole ONNX file: weights, scales and contract; of a refittable engine of all but its weights."""
    tensorrt: str
    sm: str
    gpu: str
    """Its name: two of one compute capability may be fastest with different kernels."""
    l4t: str | None
    """Release of a Jetson's Linux; None: no Jetson."""
    refittable: bool
    batch: int = 1

    @property
    def digest(self) -> str:
        """SHA-256 of the key, hex."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def file(self) -> str:
        """Name of the engine's file."""
        return f"{self.digest}.engine"


class _About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The line of JSON: what the content was made for, and what the writer adds."""

    key: msgspec.Raw
    extra: msgspec.Raw


class EngineCache:
    """A folder of engines.

    Attributes:
        folder: Where it lies; made, for its owner alone, when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def path(self, name: str) -> Path:
        """Return where the file called `name` lies, or would."""
        return self.folder / name

    def holds(self, name: str) -> bool:
        """Whether there is a file called `name`, whatever is in it."""
        return os.path.lexists(self.path(name))

    def read(self, name: str, key: msgspec.Struct) -> tuple[bytes, bytes] | None:
        """Return what was written under this name and key, content and `extra`; None: there is no such file.

        Raises:
            EngineError: It is cut off, altered, or of another key, or somebody else could have written it.
        """
        path = self.path(name)
        if not self.holds(name):
            return None
        self._check_folder()
        if path.is_symlink():
            raise EngineError(f"{path}: expected a file, got a link to one; {_AGAIN}")
        _check_ours(path)
        try:
            data = read_bytes(path, "engine")
        except InputError as error:
            raise EngineError(str(error)) from error
        return _opened(path, data, msgspec.json.encode(key))

    def write(self, name: str, key: msgspec.Struct, content: bytes, extra: Any = None) -> Path:
        """Write a file, whole or not at all, and return where.

        Args:
            name: What it is called.
            key: What it was made for.
            content: Any bytes.
            extra: More to know of it; anything that msgspec encodes in JSON.

        Raises:
            EngineError: Somebody else could write to the folder.
            InputError: It cannot be written.
        """
        about = _About(key=msgspec.Raw(msgspec.json.encode(key)), extra=msgspec.Raw(msgspec.json.encode(extra)))
        data = msgspec.json.encode(about) + b"\n" + content
        path = self.path(name)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--cache {self.folder}: cannot be made ({error.strerror}); choose another place"
            ) from error
        self._check_folder()
        with atomic_write(path) as partial:
            partial.touch(mode=0o600)
            partial.write_bytes(_FORMAT + hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        return path

    def _check_folder(self) -> None:
        """Check the folder and all above it, links resolved and not: who writes to one can swap what is below."""
        resolved = Path(os.path.realpath(self.folder))
        for place in {self.folder, *self.folder.parents, resolved, *resolved.parents}:
            _check_ours(place)


def default_folder() -> Path:
    """Return where engines lie unless told otherwise: ``$SIM2REAL_ENGINES``, else within the user's cache folder."""
    if told := os.environ.get(_VARIABLE):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sim2real" / "engines"


def l4t_release(path: Path = _L4T) -> str | None:
    """Return the release of a Jetson's Linux, e.g. ``"R39 2.0"``; None: this is no Jetson.

    Raises:
        EngineError: The file is there and says something else.
    """
    if not path.exists():
        return None
    # # R38 (release), REVISION: 4.0, GCID: …
    words = path.read_text(errors="replace").replace(",", " ").split()
    if len(words) < 5 or words[2] != "(release)" or words[3] != "REVISION:":
        raise EngineError(f"{path}: expected '# R<n> (release), REVISION: <m>, …', got {' '.join(words[:6])!r}")
    return f"{words[1]} {words[4]}"


def _opened(path: Path, data: bytes, key: bytes) -> tuple[bytes, bytes]:
    if not data.startswith(_FORMAT):
        raise EngineError(f"{path}: expected an engine of this toolkit's format, got something else; {_AGAIN}")
    digest, _, rest = data[len(_FORMAT) :].partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise EngineError(f"{path}: cut off or altered, its SHA-256 is not the one it begins with; {_AGAIN}")
    line, _, content = rest.partition(b"\n")
    try:
        about = msgspec.json.decode(line, type=_About)
    except msgspec.DecodeError as error:
        raise EngineError(f"{path}: {error}; {_AGAIN}") from error
    if bytes(about.key) != key:
        raise EngineError(
            f"{path}: expected an engine for {key.decode()}, got one for {bytes(about.key).decode()}; {_AGAIN}"
        )
    return content, bytes(about.extra)


def _check_ours(place: Path) -> None:
    """Check that nobody but us, and root, can write to a file or folder.

    In a folder with the sticky bit, like /tmp, others may add files but not replace ours.
    """
    status = place.lstat()
    if status.st_uid not in (0, os.geteuid()):
        raise EngineError(
            f"{place}: expected this user or root to own it, got user {status.st_uid}, and an engine is code; "
            f"choose another folder with ${_VARIABLE} or --cache"
        )
    folder, link = stat.S_ISDIR(status.st_mode), stat.S_ISLNK(status.st_mode)
    if link or (folder and status.st_mode & stat.S_ISVTX):
        return
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise EngineError(f"{place}: others may write to it, and an engine is code; run: chmod go-w {place}")
