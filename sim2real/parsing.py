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
        complaint = _unframed(stderr.getvalue())
        raise UsageError(f"{_of_numbers(args_class, complaint, words)}; see sim2real {command} --help") from None


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


def _of_numbers(args_class: type[Any], complaint: str, words: Sequence[str]) -> str:
    """Return a complaint about an option that takes numbers in words of our own; any other as it is.

    Of an option that may be left out, tyro lists how each type of the union failed.
    """
    import typing

    told = re.match(r"Error parsing (--[\w-]+): ", complaint)
    if told is None:
        return complaint
    option = told[1]
    hint = typing.get_type_hints(args_class).get(option[2:].replace("-", "_"))
    # tuple[int, ...] | None: the None is what it is without.
    present = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    wanted = _numbers(hint if typing.get_origin(hint) is tuple or not present else present[0], option)
    return complaint if wanted is None else f"{option}: expected {wanted}, got {_given(option, words)}"


def _numbers(kind: Any, option: str) -> str | None:
    """Return in words how the numbers of a type are typed; None: it is not of numbers."""
    import typing

    one = {int: "an integer", float: "a number"}
    if kind in one:
        return one[kind]
    items = typing.get_args(kind) if typing.get_origin(kind) is tuple else ()
    if not items or items[0] not in one:
        return None
    many = f"{one[items[0]].split()[1]}s with spaces between them"
    return f"{many}, e.g. {option} 64 64" if items[-1] is ... else f"{len(items)} {many}"


def _given(option: str, words: Sequence[str]) -> str:
    """Return what was typed after the last mention of an option, as it was typed."""
    given: list[str] = []
    taking = False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            taking = name.replace("_", "-") == option
            given = ([value] if equals else []) if taking else given
        elif taking:
            given.append(word)
    return " ".join(given)
