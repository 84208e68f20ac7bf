"""Names of robots that come from a file: where it is, and what is in it.

``/home/me/arm.xml#1f0c5a9e37b2d846``: a policy learned what this content describes. The same name with another content
would be another plant, and a file that was moved is still the same one, so that names are equal if contents are.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from sim2real.errors import InputError

__all__ = ["content_of", "is_file_name", "name_of", "same_robot", "split_name"]

_DIGITS: Final = 16
"""Hexadecimal digits of a content's SHA-256 that a name carries."""
_NAME: Final = re.compile(rf"(?!menagerie:)(?P<path>.*\.xml)(?:#(?P<content>[0-9a-f]{{{_DIGITS}}}))?", re.DOTALL)
_COMMENT: Final = re.compile(rb"<!--.*?-->", re.DOTALL)
_FILES: Final = re.compile(rb"\bfile\w*\s*=\s*(?:\"([^\"]+)\"|'([^']+)')")
_FOLDERS: Final = re.compile(rb"\b(?:asset|mesh|texture)dir\s*=\s*(?:\"([^\"]+)\"|'([^']+)')")


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

    Comments do not count, nor how much space there is between words.

    Raises:
        InputError: A file that is named is not there, or cannot be read.
    """
    texts = _texts(path)
    folders = [Path(folder) for text in texts.values() for folder in _named(_FOLDERS, text)]
    digest = hashlib.sha256()
    for file, text in texts.items():
        digest.update(hashlib.sha256(text).digest())
        for named in _named(_FILES, text):
            found = _find(path, file, named, folders)
            if found not in texts:
                digest.update(hashlib.sha256(_read(path, found)).digest())
    return digest.hexdigest()[:_DIGITS]


def _texts(path: Path) -> Mapping[Path, bytes]:
    """Return the text of the file and of every other MJCF that it names, in the order in which they are named."""
    texts: dict[Path, bytes] = {}
    pending = [path.resolve()]
    while pending:
        file = pending.pop(0)
        if file not in texts:
            texts[file] = b" ".join(_COMMENT.sub(b" ", _read(path, file)).split())
            pending += [_find(path, file, named, ()) for named in _named(_FILES, texts[file]) if named.endswith(".xml")]
    return texts


def _named(pattern: re.Pattern[bytes], text: bytes) -> Iterator[str]:
    for match in pattern.finditer(text):
        yield html.unescape((match[1] or match[2]).decode(errors="surrogateescape"))


def _find(path: Path, file: Path, named: str, folders: Sequence[Path]) -> Path:
    """Return where MuJoCo finds what `file`, which belongs to the MJCF at `path`, names."""
    names = (named, Path(named).name)  # the latter of a compiler that strips paths
    for start in (file.parent, path.resolve().parent):
        for folder in (Path(), *folders):
            for name in names:
                if (found := start / folder / name).is_file():
                    return found.resolve()
    raise InputError(f"robot {str(path)!r}: {named}, which {file.name} names, is not beside it or in its asset folders")


def _read(path: Path, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"robot {str(path)!r}: {file.name} cannot be read ({error.strerror})") from error
