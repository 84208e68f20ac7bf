from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from sim2real.parsing import HelpRequestedError, UsageError, parse


@dataclass(frozen=True)
class Args:
    """What a command takes."""

    bundle: tyro.conf.Positional[Path]
    """A file."""
    train_args: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Any number of words, each of which is
    kept: this goes on in the same paragraph."""
    hidden: tuple[int, ...] = ()
    """Any number of numbers, the last mention of which counts."""
    seed: int = 0
    """A number."""


words = st.text("abc=._", min_size=1, max_size=4)


@given(mentions=st.lists(st.tuples(st.lists(words, min_size=1, max_size=3), st.booleans(), st.booleans()), max_size=4))
def test_what_is_said_in_several_mentions_is_kept_in_order(mentions: list[tuple[list[str], bool, bool]]) -> None:
    typed = ["file"]
    kept: list[str] = []
    for values, at_once, underscored in mentions:
        option = "--train_args" if underscored else "--train-args"
        typed += [option, *values] if at_once else [f"{option}={value}" for value in values]
        kept += values
    assert parse("try", Args, [*typed, "--seed", "3"]) == Args(bundle=Path("file"), train_args=tuple(kept), seed=3)


def test_a_value_may_begin_like_an_option() -> None:
    args = parse("try", Args, ["file", "--train-args=--num-envs=8", "--train-args=--seed", "--hidden", "4", "5"])
    assert args == Args(bundle=Path("file"), train_args=("--num-envs=8", "--seed"), hidden=(4, 5))


@pytest.mark.parametrize("typed", [["file", "--train-args"], ["file", "--seed", "x"], [], ["file", "--train-args="]])
def test_a_complaint_is_one_line(typed: list[str]) -> None:
    with pytest.raises(UsageError, match="see sim2real try --help") as error:
        parse("try", Args, typed)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class Numbers:
    """What a command takes that measures."""

    hidden: tuple[int, ...] | None = None
    """Widths."""
    num_envs: tuple[int, ...] = (8,)
    """Sizes."""
    command_delay: tuple[float, float] | None = None
    """Ends."""
    workers: int | None = None
    """How many."""
    seconds: float = 1.0
    """How long."""


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--hidden [64,64]", "--hidden: expected integers with spaces between them, e.g. --hidden 64 64, got [64,64]"),
        ("--hidden=64,64", "--hidden: expected integers with spaces between them, e.g. --hidden 64 64, got 64,64"),
        ("--hidden 64 b --workers 2", "--hidden: expected integers .*, got 64 b"),
        ("--num_envs 256,1024", "--num-envs: expected integers with spaces between them, e.g. .*, got 256,1024"),
        ("--command-delay 0,0.02", "--command-delay: expected 2 numbers with spaces between them, got 0,0.02"),
        ("--workers many", "--workers: expected an integer, got many"),
        ("--seconds -x", "--seconds"),
        ("--seconds 1s", "--seconds: expected a number, got 1s"),
    ],
)
def test_numbers_are_asked_for_in_words(typed: str, told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("[", r"\[")) as error:
        parse("try", Numbers, typed.split())
    assert not re.search("None|INT|FLOAT|tuple", str(error.value))


def test_help_says_what_may_be_repeated() -> None:
    with pytest.raises(HelpRequestedError, match="repeatable"):
        parse("try", Args, ["--help"])


def test_help_lays_out_a_paragraph_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    for _ in range(2):
        with pytest.raises(HelpRequestedError, match="each of which is kept: this goes on in the same paragraph"):
            parse("try", Args, ["--help"])
