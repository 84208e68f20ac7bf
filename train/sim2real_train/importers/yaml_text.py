"""YAML as data: no tag makes an object, no key hides another, no alias grows into more than the file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sim2real import extras
from sim2real.errors import InputError
from sim2real_train.importers.plain import as_list, as_mapping

__all__ = ["read_text", "read_yaml"]

_MOST_BYTES: Final = 1 << 20
_MOST_VALUES: Final = 100_000


def read_text(path: Path, option: str) -> str:
    """Return the text of a small file.

    Raises:
        InputError: It cannot be read, is too large, or is no text; the message begins with `option`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(f"{option} {path}: expected at most {_MOST_BYTES} bytes; give the file of the policy")
        return content.decode()
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be read ({error.strerror}); give an existing file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{option} {path}: expected text in UTF-8; give the file of the policy") from error


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the mapping that a YAML text (or JSON, which is YAML) holds.

    Raises:
        InputError: Not YAML, a tag that would make an object, a key twice, or no mapping; it begins with `name`.
    """
    yaml = extras.require("yaml", "train")

    class Loader(yaml.SafeLoader):
        """Safe, and a key that comes twice is an error."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys: list[Any] = [self.construct_object(key, deep=True) for key, _ in node.value]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} twice", node.start_mark)
            return super().construct_mapping(node, deep=deep)  # pyright: ignore[reportUnknownVariableType]

    try:
        document = as_mapping(yaml.load(text, Loader))
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"{name}: expected plain YAML, without tags that name objects of a program, got: {told}"
        ) from error
    if document is None:
        raise InputError(f"{name}: expected a mapping of names to values")
    _count(document, name)
    return {str(key): value for key, value in document.items()}


def _count(document: object, name: str) -> None:
    """Refuse what aliases make large: each of them counts as often as it is named."""
    left = _MOST_VALUES
    waiting: list[Any] = [document]
    while waiting:
        value: Any = waiting.pop()
        left -= 1
        if left < 0:
            raise InputError(f"{name}: expected at most {_MOST_VALUES} values, aliases counted; write it out plainly")
        waiting += as_list(value) or (as_mapping(value) or {}).values()
