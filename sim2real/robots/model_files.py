"""Names of robots that come from a file: where it is, and what is in it.

``/home/me/arm.xml#1f0c5a9e37b2d846``: a policy learned what this content describes. The same name with another content
would be another plant, and a file that was moved is still the same one, so that names are equal if contents are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from sim2real.errors import InputError

__all__ = ["content_of", "is_file_name", "name_of", "same_robot", "split_name"]

_DIGITS: Final = 16
"""Hexadecimal digits of a content's SHA-256 that a name carries."""
_NAME: Final = re.compile(rf"(?!menagerie:)(?P<path>.*\.xml)(?:#(?P<content>[0-9a-f]{{{_DIGITS}}}))?", re.DOTALL)
_NAMED: Final = frozenset({"include", "model", "mesh", "hfield", "skin", "texture", "flexcomp", "composite"})
"""Elements of an MJCF whose attributes ``file``, ``fileright`` and so on name files."""
_XML: Final = frozenset({"include", "model"})
"""Those whose files are MJCF themselves, whatever they are called."""
_FOLDERS: Final = ("assetdir", "meshdir", "texturedir")


def is_file_name(name: str) -> bool:
    """Whether a robot's name is that of a file: a path that ends in ``.xml``, with or without its content."""
    return _NAME.fullmatch(name) is not None


def split_name(name: str) -> tuple[Path, str | None]:
    """Return the path in the name of a file, and what its content has to be; None: that is not said."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return Path(match["path"]), match["content"]


def same_robot(one: str, other: str) -> bool:
    """Whether two names are of one robot: files are by their content; by their path, where a person wrote one."""
    if one == other or not (is_file_name(one) and is_file_name(other)):
        return one == other
    (path, content), (other_path, other_content) = split_name(one), split_name(other)
    if content and other_content:
        return content == other_content
    return path.resolve() == other_path.resolve()


def name_of(path: Path) -> str:
    """Return the name of the robot in an MJCF.

    Raises:
        InputError: As of `content_of`.
    """
    return f"{path.resolve()}#{content_of(path)}"


def content_of(path: Path) -> str:
    """Return a digest of an MJCF, of what it includes, and of the meshes, textures and heights that it names.

    Comments do not count, nor how much space there is between words. Where a name may mean several files, all that are
    there count: which of them MuJoCo takes is its own matter.

    Raises:
        InputError: A file that is named is not there, cannot be read, or is no XML.
    """
    parts = _parts(path)
    folders = [
        Path(element.get(name, "")) for part in parts for element in part.root.iter("compiler") for name in _FOLDERS
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part.text).digest())
        for element, named in part.named():
            if element not in _XML:
                for found in _find(path, part.file, named, folders):
                    digest.update(hashlib.sha256(_read(path, found)).digest())
    return digest.hexdigest()[:_DIGITS]


class _Part(NamedTuple):
    """One of the MJCFs that a robot is made of."""

    file: Path
    text: bytes
    """In canonical form: what differs from it means the same."""
    root: ElementTree.Element

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield what names a file, and the name."""
        for element in self.root.iter():
            if element.tag in _NAMED:
                yield from ((element.tag, named) for key, named in element.items() if key.startswith("file") and named)


def _parts(path: Path) -> list[_Part]:
    """Return the file and every other MJCF that it names, in the order in which they are named."""
    parts: dict[Path, _Part] = {}
    pending = [path.resolve()]
    while pending:
        file = pending.pop(0)
        if file in parts:
            continue
        text = _read(path, file)
        try:
            canonical = ElementTree.canonicalize(text, strip_text=True).encode()
            part = parts[file] = _Part(file, canonical, ElementTree.fromstring(canonical))
        except ElementTree.ParseError as error:
            raise InputError(f"robot {str(path)!r}: {file.name} is no XML as others read it: {error}") from error
        pending += [found for tag, named in part.named() if tag in _XML for found in _find(path, file, named, ())]
    return list(parts.values())


def _find(path: Path, file: Path, named: str, folders: Sequence[Path]) -> list[Path]:
    """Return the files that `file`, which belongs to the MJCF at `path`, may mean by a name: one or more."""
    names = dict.fromkeys((named, Path(named).name))  # the latter for a compiler that strips paths
    starts = dict.fromkeys((file.parent, path.resolve().parent))
    candidates = [start / folder / name for start in starts for folder in (Path(), *folders) for name in names]
    found = dict.fromkeys(candidate.resolve() for candidate in candidates if candidate.is_file())
    if not found:
        raise InputError(
            f"robot {str(path)!r}: {named}, which {file.name} names, is not beside it or in its asset folders"
        )
    return list(found)


def _read(path: Path, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"robot {str(path)!r}: {file.name} cannot be read ({error.strerror})") from error
