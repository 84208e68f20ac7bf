"""The `sim2real` command: a table of subcommands, each loaded only when it is called.

A subcommand is a frozen dataclass of arguments (its docstrings are the help) and a function from it to an `Outcome`.
What all of them share is here: ``--json``, the exit codes, and errors of one line.

Exit codes: 0, done and the verdict is pass; 1, done and the verdict is fail; 2, could not do it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from sim2real import __version__, interrupts
from sim2real.errors import Sim2RealError
from sim2real.extras import missing
from sim2real.parsing import HelpRequestedError, UsageError, parse

if TYPE_CHECKING:
    # At run time the list of commands must not pay for the libraries of any one of them.
    from sim2real.command import Outcome

__all__ = ["COMMANDS", "Command", "UsageError", "main"]


class Command(NamedTuple):
    """One row of the table: what a person types, and where the code for it lies."""

    words: str
    """What comes after ``sim2real``, e.g. ``"hil run"``."""
    help: str
    """One line for the list of commands."""
    module: str
    """Dotted name of the module that holds the two below."""
    args: str
    """Name of the dataclass of its arguments."""
    function: str
    """Name of the function from the arguments to an `Outcome`."""
    extra: str
    """The extra of the distribution that brings what it needs; empty if the base install does."""


COMMANDS = (
    Command(
        "demo", "Walk the whole path once, from logs to verdict", "sim2real_hil.demo", "DemoArgs", "run_demo", "all"
    ),
    Command(
        "robots",
        "List the robots, or describe one",
        "sim2real.robots.commands",
        "RobotsArgs",
        "run_robots",
        "sim",
    ),
    Command(
        "tasks", "List the tasks and what each is about", "sim2real.tasks.commands", "TasksArgs", "run_tasks", "sim"
    ),
    Command(
        "play", "Watch a task's robot: window, video or browser", "sim2real_hil.play", "PlayArgs", "run_play", "hil"
    ),
    Command(
        "replay",
        "Run a simulation that became unstable again",
        "sim2real_hil.replay",
        "ReplayArgs",
        "run_replay",
        "hil",
    ),
    Command(
        "bench sim",
        "Time a task's environments beside the bare physics",
        "sim2real.tasks.bench_sim",
        "BenchSimArgs",
        "run_bench_sim",
        "sim",
    ),
    Command(
        "calib record",
        "Record a log from a simulated plant",
        "sim2real_calib.commands",
        "RecordArgs",
        "run_record",
        "calib",
    ),
    Command(
        "calib fit", "Fit the simulator to a robot's logs", "sim2real_calib.commands", "FitArgs", "run_fit", "calib"
    ),
    Command(
        "quantize",
        "Put a policy into few bits, and prove that it holds",
        "sim2real_calib.quantize_command",
        "QuantizeArgs",
        "run_quantize",
        "calib",
    ),
    Command("train", "Learn a policy", "sim2real_train.train_command", "TrainArgs", "run_train", "train"),
    Command(
        "evaluate",
        "Measure a policy over many random starts",
        "sim2real_train.commands",
        "EvaluateArgs",
        "run_evaluate",
        "train",
    ),
    Command(
        "eval",
        "Another word for evaluate",
        "sim2real_train.commands",
        "EvaluateArgs",
        "run_evaluate",
        "train",
    ),
    Command("tune", "Search for a training's settings", "sim2real_train.tune", "TuneArgs", "run_tune", "tune"),
    Command(
        "export",
        "Make a policy bundle from a checkpoint",
        "sim2real_train.commands",
        "ExportArgs",
        "run_export",
        "train",
    ),
    Command(
        "import",
        "Make a policy bundle of a policy that others trained",
        "sim2real_train.import_command",
        "ImportArgs",
        "run_import",
        "train",
    ),
    Command(
        "inspect", "Show the contract of a bundle as a table", "sim2real.inspect", "InspectArgs", "run_inspect", ""
    ),
    Command(
        "verify",
        "Check a bundle: hashes, signature, golden vectors",
        "sim2real_edge.commands",
        "VerifyArgs",
        "run_verify",
        "edge",
    ),
    Command(
        "edge run",
        "Drive a robot, or a plant, with a bundle",
        "sim2real_edge.commands",
        "EdgeRunArgs",
        "run_edge",
        "edge",
    ),
    Command(
        "edge build",
        "Build a bundle's TensorRT engine on this device",
        "sim2real_edge.build_command",
        "EdgeBuildArgs",
        "run_build",
        "edge",
    ),
    Command(
        "edge targets",
        "List the GPUs that are built for, and precisions",
        "sim2real_edge.build_command",
        "TargetsArgs",
        "run_targets",
        "",
    ),
    Command(
        "edge bench",
        "Time a bundle's engine and loop on this machine",
        "sim2real_edge.commands",
        "EdgeBenchArgs",
        "run_bench",
        "edge",
    ),
    Command(
        "hil run",
        "Prove a bundle over the wire: lockstep or realtime",
        "sim2real_hil.commands",
        "HilRunArgs",
        "run_hil",
        "hil",
    ),
    Command("hil plant", "Serve a simulated robot", "sim2real_hil.commands", "PlantArgs", "run_plant", "hil"),
    Command("keygen", "Make the keys of the wire and of bundles", "sim2real.keygen", "KeygenArgs", "run_keygen", ""),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's own arguments by default) and return its exit code.

    With ``--json`` anywhere among the arguments, stdout gets one JSON object and nothing else: whatever the command, a
    library or a child process prints goes to stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show ± or µ gets a question mark, not an error.
        sys.stdout.reconfigure(errors="replace")
    # A polite kill unwinds like Ctrl-C, so that it leaves no half-written file either; so does a terminal that closes,
    # unless whoever started this process wants it to go on (nohup).
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    interrupts.handle_once()
    try:
        if text := _about(words):
            return _end(text, 0)
        command, rest = _find(words)
        with _stdout_to_stderr() if as_json else contextlib.nullcontext():
            outcome = _run(command, rest)
        return _end(_encode(outcome.result) if as_json else outcome.summary, 0 if outcome.passed else 1)
    except HelpRequestedError as asked:
        return _end(asked.text, 0)
    except KeyboardInterrupt:
        return _fail("Interrupted", "interrupted: stopped before the end; no file was left half-written", as_json)
    except Sim2RealError as error:
        return _fail(type(error).__name__, f"error: {error}", as_json)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person gets one line, not a stack
        if os.environ.get("SIM2REAL_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        kind = type(error).__name__
        return _fail(kind, f"error: {kind}: {error} (not foreseen; SIM2REAL_DEBUG=1 shows where it came from)", as_json)


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that this process was started without (``2>&-``).

    The next file to be opened would take the number of such a stream, and get what is meant for it.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free: all below it are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115 - for as long as the process lives


def _about(words: Sequence[str]) -> str:
    """Return the text that answers ``--version`` or ``--help`` without any command, or nothing."""
    if words[:1] == ["--version"]:
        return f"sim2real {__version__}"
    if words and words[-1] in ("-h", "--help"):
        group = " ".join(words[:-1])
        listed = [command for command in COMMANDS if not group or command.words.startswith(f"{group} ")]
        if listed:
            return _listing(group, listed)
    return ""


def _listing(group: str, commands: Sequence[Command]) -> str:
    width = max(len(command.words) for command in commands)
    rows = "\n".join(f"  {command.words:<{width}}  {command.help}" for command in commands)
    return textwrap.dedent("""\
        usage: {usage} COMMAND [arguments]

        {rows}

        sim2real COMMAND --help says more. Every command takes --json (one object on stdout, all else on stderr) and
        ends with 0 (done, verdict pass), 1 (done, verdict fail) or 2 (could not do it).""").format(
        usage=f"sim2real {group}".strip(), rows=rows
    )


def _find(words: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """Return the command that `words` begin with, and the words after it."""
    for command in COMMANDS:
        length = command.words.count(" ") + 1
        if " ".join(words[:length]) == command.words:
            return command, words[length:]
    if not words:
        raise UsageError("expected a command; sim2real --help lists them")
    # Only here, since it is the one path that needs it.
    import difflib

    names = [command.words for command in COMMANDS]
    group = [name for name in names if name.startswith(f"{words[0]} ")]
    typed = " ".join(words[:2] if group else words[:1])
    near = group if typed == words[0] and group else difflib.get_close_matches(typed, group or names)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"unknown command {typed!r}; {meant}sim2real --help lists them")


def _run(command: Command, words: Sequence[str]) -> Outcome:
    """Load `command`, read its arguments from `words`, and do its work."""
    try:
        module = importlib.import_module(command.module)
        function: Callable[[Any], Outcome] = getattr(module, command.function)
        args = parse(command.words, getattr(module, command.args), words)
        return _call(function, args)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not command.extra or not library or library.startswith("sim2real"):
            raise
        raise missing(library, command.extra) from error


def _call(function: Callable[[Any], Outcome], args: Any) -> Outcome:
    try:
        return function(args)
    except SystemExit as end:
        # Ray puts its own answer to SIGTERM, which is to leave, in place of ours.
        raise KeyboardInterrupt from end


@contextlib.contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Send to stderr what this process and its children write to stdout, whether through Python or below it."""
    stdout, descriptor = sys.stdout, os.dup(1)
    stdout.flush()
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()
        os.dup2(descriptor, 1)
        os.close(descriptor)


def _encode(result: Any) -> str:
    """Return `result` as JSON; numbers that JSON does not have (NaN, the infinities) become null."""
    from pathlib import Path

    import msgspec

    def plain(value: Any) -> Any:
        # What a result may hold besides msgspec's own types: paths, and numpy's scalars and arrays.
        return str(value) if isinstance(value, Path) else value.tolist()

    return msgspec.json.encode(result, enc_hook=plain).decode()


def _fail(kind: str, told: str, as_json: bool) -> int:
    # A path may hold bytes that are no text; JSON may not.
    line = " ".join(told.split()).encode(errors="backslashreplace").decode()
    _write(line, sys.stderr)
    if not as_json:
        return 2
    return _end(_encode({"error": {"kind": kind, "message": line.partition(": ")[2]}}), 2)


def _end(text: str, code: int) -> int:
    """Write `text` to stdout and return `code`, or 2 if it cannot be written."""
    if reason := _write(text, sys.stdout):
        _write(f"error: stdout cannot be written ({reason}); free space or send it elsewhere", sys.stderr)
        return 2
    return code


def _write(text: str, stream: TextIO) -> str:
    """Write `text` and return why it could not be done; a reader that has gone away (``| head``) changes nothing."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        # The interpreter flushes its streams once more as it exits: give this one somewhere to write.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        return "" if isinstance(error, BrokenPipeError) else str(error.strerror)
    return ""


if __name__ == "__main__":
    sys.exit(main())
