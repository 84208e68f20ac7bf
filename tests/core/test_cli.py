"""The `sim2real` command as a person, a script and a shell meet it. About 20 s."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real import __version__
from sim2real.cli import COMMANDS, Command, main

ROOT = Path(__file__).parents[2]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)


def sim2real(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "sim2real.cli", *words], environment)


def sample(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "tests.core.cli_sample", "sample", *words], environment)


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text.strip()


# --- endings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("fail", 1)])
def test_the_verdict_is_the_exit_code_and_the_summary_is_all_of_stdout(ending: str, code: int) -> None:
    done = sample(ending, "--length", "2.5")
    assert (done.returncode, done.stdout, done.stderr) == (code, "a sample of 2.5 m\n", "")


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("fail", 1)])
def test_with_json_stdout_is_the_result(ending: str, code: int) -> None:
    done = sample(ending, "--json", "--length", "2.5")
    assert (done.returncode, json.loads(done.stdout)) == (code, {"length": 2.5})


def test_with_json_whatever_else_is_printed_goes_to_stderr() -> None:
    done = sample("noise", "--json")
    assert done.returncode == 0
    assert json.loads(one_line(done.stdout)) == {"length": 1.0}
    assert sorted(done.stderr.splitlines()) == ["from C", "from Python", "from a child"]


def test_json_has_null_for_what_it_cannot_say_and_lists_for_arrays() -> None:
    result = json.loads(sample("numbers", "--json").stdout, parse_constant=pytest.fail)
    assert result == {
        "length": 1.0,
        "nan": None,
        "inf": None,
        "array": [0.0, 1.0, 2.0],
        "scalar": 0.5,
        "path": "out.txt",
    }


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["refuse"], "InputError", "expected a number, got a letter"),
        (["missing"], "MissingExtraError", "needs the 'edge' extra: pip install 'sim2real[edge]'"),
        (["crash"], "ZeroDivisionError", "over nothing (not foreseen; SIM2REAL_DEBUG=1 shows"),
        ([], "UsageError", "see sim2real sample --help"),
        (["pass", "--lenght", "2"], "UsageError", "--length"),
        (["pass", "--length", "long"], "UsageError", "--length"),
        (["sing"], "UsageError", "refuse"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_one_line(words: list[str], kind: str, message: str) -> None:
    plain, as_json = sample(*words), sample(*words, "--json")
    assert (plain.returncode, as_json.returncode) == (2, 2)
    assert plain.stdout == ""
    line = one_line(plain.stderr)
    assert line.startswith("error: ")
    assert message in line
    assert one_line(as_json.stderr) == line
    error = json.loads(one_line(as_json.stdout))["error"]
    assert error["kind"] == kind
    assert line.endswith(error["message"])


def test_the_stack_of_what_was_not_foreseen_is_there_for_those_who_ask() -> None:
    done = sample("crash", SIM2REAL_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "run_sample" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ZeroDivisionError")


def test_a_library_that_leaves_does_not_take_the_exit_code_with_it() -> None:
    done = sample("leave")
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("interrupted: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupted_command_says_so_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.core.cli_sample", "sample", "wait", "--out", str(tmp_path / "out.txt")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        assert len(list(tmp_path.iterdir())) == 1, "it was to be interrupted while it wrote"
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 2
    assert stdout == ""
    assert one_line(stderr).startswith("interrupted: ")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_pressed_again_and_again_is_pressed_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.core.cli_sample", "sample", "wait", "--out", str(tmp_path / "out.txt")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        for _ in range(20_000):
            process.send_signal(signal.SIGINT)
            if process.poll() is not None:
                break
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 2
    assert one_line(stderr).startswith("interrupted: ")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """As ``nohup`` starts it: the kernel has a mask of the signals that a process ignores."""
    command = [sys.executable, "-m", "tests.core.cli_sample", "sample", "wait", "--out", str(tmp_path / "out.txt")]
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command]
    with subprocess.Popen(ignoring, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    assert int(mask, 16) >> (signal.SIGHUP - 1) & 1


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("fail", 1), ("--help", 0)])
def test_a_reader_that_has_gone_away_changes_nothing(ending: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.core.cli_sample", "sample", ending],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, b"")


FULL = Path("/dev/full")
"""A file on a disk without room."""


def redirected(redirections: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(
        ["sh", "-c", f'exec "$0" "$@" {redirections}', sys.executable, "-m", "tests.core.cli_sample", *words], {}
    )


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [["pass"], ["fail"], ["fail", "--json"], ["--help"]], ids=" ".join)
def test_a_result_that_cannot_be_written_is_not_a_verdict(words: list[str]) -> None:
    done = redirected(f">{FULL}", "sample", *words)
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("error: stdout cannot be written (No space left on device)")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("redirections", [f"2>{FULL}", f">{FULL} 2>&1"])
@pytest.mark.parametrize("words", [["sample", "refuse"], ["sample", "refuse", "--json"], ["sampel"]], ids=" ".join)
def test_an_error_that_cannot_be_written_is_an_error(redirections: str, words: list[str]) -> None:
    done = redirected(redirections, *words)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize(
    ("redirections", "stdout"), [("2>&-", True), (">&-", False), ("<&- >&- 2>&-", False), ("<&- 2>&-", True)]
)
@pytest.mark.parametrize(("ending", "code"), [("noise", 0), ("fail", 1), ("refuse", 2)])
def test_streams_that_are_closed_change_neither_the_exit_code_nor_the_other_streams(
    redirections: str, stdout: bool, ending: str, code: int
) -> None:
    done = redirected(redirections, "sample", ending, "--json")
    assert done.returncode == code
    if stdout:
        assert isinstance(json.loads(one_line(done.stdout)), dict)
    else:
        assert done.stdout == ""


@pytest.mark.parametrize("words", [["pass", "--out", ""], ["pass", "--out="], [""]], ids=" ".join)
def test_an_empty_value_is_not_the_working_directory(words: list[str]) -> None:
    done = sample(*words)
    assert done.returncode == 2
    assert "got an empty one" in one_line(done.stderr)


@pytest.mark.parametrize("columns", ["1", "3", "-1", "0", "1000000000", "wide"])
def test_help_ends_at_any_width_of_the_terminal(columns: str) -> None:
    done = sample("--help", COLUMNS=columns)
    assert done.returncode == 0
    assert "A length [m]." in " ".join(done.stdout.split())


# --- the table ---------------------------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    done = sim2real("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command.words} " in done.stdout
        assert command.help in done.stdout


@pytest.mark.parametrize("words", [["tune"], ["play"], ["bench", "sim"]], ids=" ".join)
def test_help_names_what_an_option_takes_and_what_it_is_without(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "TASK" in text
    assert [raw for raw in ("{None", "(default: None)", "STR", "PATH") if raw in text] == []


def test_help_of_a_group_lists_its_commands_alone() -> None:
    listed = sim2real("edge", "--help").stdout
    assert "edge run" in listed
    assert "edge bench" in listed
    assert "hil" not in listed


def test_version() -> None:
    assert sim2real("--version").stdout == f"sim2real {__version__}\n"


def test_help_answers_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    def seconds() -> float:
        start = time.monotonic()
        assert sim2real("--help").returncode == 0
        return time.monotonic() - start

    # The best of several: what is measured is the command, not what else the machine was doing.
    best = min(seconds() for _ in range(5))
    with capsys.disabled():
        print(f" [sim2real --help: {best:.3f} s] ", end="")
    assert best < 0.3


@each_command
def test_every_row_of_the_table_leads_to_a_command_whose_arguments_are_documented(command: Command) -> None:
    module = importlib.import_module(command.module)
    args: type[Any] = getattr(module, command.args)
    assert callable(getattr(module, command.function))
    assert dataclasses.is_dataclass(args)
    assert args.__doc__
    assert getattr(args, "__dataclass_params__").frozen  # noqa: B009 - not an attribute that type checkers know
    fields = {field.name for field in dataclasses.fields(args)}
    assert documented(args) == fields
    assert "json" not in fields, "--json is the same for all commands and lives in cli.py"


def documented(args: type[Any]) -> set[str]:
    """Names of the fields under which `args` and its bases have a docstring."""
    names: set[str] = set()
    for owner in args.__mro__[:-1]:
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                names.add(field.target.id)
    return names


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["trian"], "did you mean train?"),
        (["hil"], "did you mean hil run or hil plant?"),
        (["edge", "benhc"], "did you mean edge bench or edge run or edge build?"),
        (["--speed", "3"], "sim2real --help"),
        ([], "sim2real --help"),
    ],
)
def test_what_is_no_command_is_answered_with_what_was_meant(typed: list[str], meant: str) -> None:
    done = sim2real(*typed)
    assert done.returncode == 2
    assert done.stdout == ""
    assert meant in one_line(done.stderr)


@given(st.lists(st.text(), max_size=4).filter(lambda words: "--version" not in words[:1]), st.booleans())
def test_no_words_bring_it_out_of_step(words: list[str], as_json: bool) -> None:
    words = [word for word in words if not any(word == command.words for command in COMMANDS)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main([*words, "--json"] if as_json else words)
    assert code == (0 if words and words[-1] in ("-h", "--help") and len(words) == 1 else 2)
    if code == 2:
        assert one_line(stderr.getvalue()).startswith("error: ")
        assert bool(stdout.getvalue()) == as_json


@pytest.mark.parametrize(
    ("words", "kind"), [([b"\xff"], "UsageError"), ([b"refuse", b"--out", b"\xff"], "InputError")], ids=["word", "path"]
)
def test_words_that_are_not_text_are_answered_in_json_too(words: list[bytes], kind: str) -> None:
    command = [sys.executable.encode(), b"-m", b"tests.core.cli_sample", b"sample", *words, b"--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == kind


def test_a_terminal_without_the_letters_still_shows_the_help() -> None:
    done = sample("--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "A length [m]." in done.stdout
