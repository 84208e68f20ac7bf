"""From the words of a command line to a dataclass of arguments: tyro, with help and complaints as people read them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import textwrap
from collections.abc import Generator, Sequence
from typing import Any, Final

from sim2real.errors import Sim2RealError
from sim2real.field_docs import field_docs

__all__ = ["HelpRequestedError", "UsageError", "parse"]

_NARROWEST: Final = 40
_WIDEST: Final = 200
"""Columns between which help and complaints are laid out."""


class UsageError(Sim2RealError):
    """What was typed is not a command, or not its arguments."""


class HelpRequestedError(Exception):
    """What was typed asks for help, which `text` is."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def parse(command: str, args_class: type[Any], words: Sequence[str]) -> Any:
    """Return the `args_class` that `words` describe.

    Args:
        command: What was typed before them, e.g. ``"hil run"``.
        args_class: A frozen dataclass, whose docstrings are the help.
        words: What was typed after that.

    Raises:
        HelpRequestedError: ``--help`` is among them.
        UsageError: They do not describe one.
    """
    import inspect

    import tyro

    if any(not word or re.fullmatch("--[^=]+=", word) for word in words):
        # An empty path would be taken for the working directory.
        raise UsageError(f"expected a value, got an empty one; see sim2real {command} --help")
    # Of a stream that names no encoding tyro expects ASCII alone, and no colours.
    stdout, stderr = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), _sensible_width():
            return tyro.cli(
                _with_docs(args_class),
                prog=f"sim2real {command}",
                description=f"{inspect.getdoc(args_class)}\n\nWith --json: one object on stdout, all else on stderr.",
                args=_one_value_each(args_class, words),
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise HelpRequestedError(_wrapped(stdout.getvalue().rstrip())) from None
        raise UsageError(f"{_unframed(stderr.getvalue())}; see sim2real {command} --help") from None


def _with_docs(args_class: type[Any]) -> type[Any]:
    """Give the fields of a class their docstrings as annotations; tyro keeps the line breaks of those in the source."""
    import typing

    from typing_extensions import Doc

    docs = field_docs(args_class)
    args_class.__annotations__ = {
        name: typing.Annotated[hint, Doc(docs[name])] if name in docs else hint
        for name, hint in typing.get_type_hints(args_class, include_extras=True).items()
    }
    return args_class


def _one_value_each(args_class: type[Any], words: Sequence[str]) -> list[str]:
    """Return `words` with ``--set A B`` as ``--set=A --set=B``.

    Of an option that takes any number of values the command line libraries keep the last mention alone; of one that may
    be repeated, they take one value each time. Both are ways that people write them.
    """
    import typing

    import tyro

    hints = typing.get_type_hints(args_class, include_extras=True)
    repeatable = {
        f"--{name}" for name, hint in hints.items() if tyro.conf.UseAppendAction in getattr(hint, "__metadata__", ())
    }
    spread: list[str] = []
    option = None
    for word in words:
        if word.startswith("-"):
            option = word if word.replace("-", "_").replace("__", "--", 1) in repeatable else None
            spread.append(word)
        elif option is None:
            spread.append(word)
        elif spread[-1] == option:
            spread[-1] = f"{option}={word}"
        else:
            spread.append(f"{option}={word}")
    return spread


@contextlib.contextmanager
def _sensible_width() -> Generator[None]:
    """Let tyro lay out for a width that it can deal with: in a few columns it never comes to an end."""
    import shutil

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _wrapped(text: str) -> str:
    """Return `text` with its paragraphs in lines of readable length; what is indented is a table and stays."""
    return "\n".join(line if line.startswith(" ") else textwrap.fill(line, 80) for line in text.splitlines())


def _unframed(complaint: str) -> str:
    """Return in one line what tyro says of a wrong argument: a title, paragraphs between rules, general advice."""
    _, *paragraphs = re.split(r"\n\s*-{3,}\s*\n", complaint)
    told = "; ".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub("(; )?(For full helptext|Argument helptext).*", "", told)
