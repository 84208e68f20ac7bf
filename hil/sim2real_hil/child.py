"""A `sim2real` command as a child process that never outlives its parent's interest in it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from typing import IO, Any, Final

import msgspec

from sim2real.errors import Sim2RealError

__all__ = ["Child", "ChildError", "child"]

_LAST_LINE: Final = 2000


class ChildError(Sim2RealError):
    """A child process could not do its work; the message is its own last line."""


@contextlib.contextmanager
def child(words: Sequence[str], *, show: bool = False, grace_s: float = 0.6) -> Generator[Child]:
    """Run ``sim2real WORDS --json`` while the block lasts; a child that has not ended by then is ended.

    The interpreter is isolated (``-I``): a ``train.py`` or ``sim2real.py`` in the working directory is not imported.

    Args:
        words: The command and its arguments.
        show: Pass the child's stderr (progress, warnings) on to this process's; otherwise it is kept for errors.
        grace_s: Time [s] that it gets to end by itself when it is no longer wanted.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        # A group of its own: Ctrl-C in the terminal reaches this process alone, which then ends the child in order.
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "sim2real.cli", *words, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=None if show else stderr,
            start_new_session=True,
        )
        try:
            yield Child(words, process, stdout, stderr)
        finally:
            _end(process, grace_s)


class Child:
    """A running command, as `child` yields it."""

    def __init__(
        self, words: Sequence[str], process: subprocess.Popen[bytes], stdout: IO[bytes], stderr: IO[bytes]
    ) -> None:
        self._name = " ".join(itertools.takewhile(str.isalpha, words))
        self._process = process
        self._stdout = stdout
        self._stderr = stderr

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> None:
        """Return if the child is still running.

        Raises:
            ChildError: It has ended.
        """
        code = self._process.poll()
        if code is not None:
            raise self.error(code)

    def result(self, timeout_s: float | None) -> dict[str, Any]:
        """Wait for the end and return the object that the child printed; a failed verdict is a result too.

        Raises:
            ChildError: It could not do its work, or did not end in time.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"sim2real {self._name}: did not end within {timeout_s:g} s; it was stopped") from error
        self._stdout.seek(0)
        try:
            result = msgspec.json.decode(self._stdout.read(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise self.error(code) from error
        if code not in (0, 1):
            raise self.error(code)
        return result

    def error(self, code: int) -> ChildError:
        """Return what to tell about an end with exit code `code`, in the child's own words where it has any."""
        told = self._last_words()
        if code < 0:
            return ChildError(f"sim2real {self._name} was killed by {signal.Signals(-code).name}{told and f': {told}'}")
        return ChildError(f"sim2real {self._name} ended with exit code {code}: {told or 'it said nothing'}")

    def _last_words(self) -> str:
        self._stdout.seek(0)
        with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
            told: str = msgspec.json.decode(self._stdout.read())["error"]["message"]
            return told
        self._stderr.seek(0)
        lines = self._stderr.read()[-_LAST_LINE:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also when a second Ctrl-C interrupts the waiting.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
