"""One trial of a search: a `sim2real train` in a process of its own, seen through the files that it writes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from sim2real_train.search_space import assignments_of

__all__ = ["MetricsTail", "Training", "TrialSettings", "await_end", "last_of", "was_started"]

_PATIENCE: Final = 25.0
"""How long [s] a training may take to end when it is told to; less than `sim2real.interrupts.PATIENCE`."""
_POLL: Final = 0.2
"""How often [s] is looked for what a training wrote."""
_SET_PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class TrialSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all trials of a search have in common."""

    task: str
    words: tuple[str, ...]
    """Further options of `sim2real train`."""
    metric: str
    out: str
    """Folder of the search."""
    directory: str
    """Where relative paths among the words begin."""
    stop: str
    """A file; when it is there, trials end."""


class Training:
    """A training that this process started; it ends with this process, however that ends.

    Args:
        settings: What it has in common with others.
        drawn: Fields of its configuration.
        name: Of its folder and its log.

    Raises:
        OSError: Its log cannot be written.
    """

    def __init__(self, settings: TrialSettings, drawn: Mapping[str, Any], name: str) -> None:
        self.out = Path(settings.out) / name
        self._metrics = MetricsTail(self.out / "metrics.jsonl")
        self._metric = settings.metric
        self._stop = Path(settings.stop)
        self._log = _log_of(self.out)
        self._told_to_end = False
        self._process = None if self._stop.exists() else self._start(settings, drawn)

    def _start(self, settings: TrialSettings, drawn: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-m", "sim2real_train.trial", str(os.getpid())]
        words = ["train", settings.task, "--out", str(self.out), *settings.words]
        values = [f"--set={assignment}" for assignment in assignments_of(drawn)]
        # What Ray sets for its own worker is not for another Ray.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with self._log.open("wb") as log:
            # Held by whoever has this file as its stderr, for as long as one of them is there: `await_end`.
            fcntl.flock(log, fcntl.LOCK_SH)
            return subprocess.Popen(
                [*launcher, *words, *values],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=settings.directory,
                # A terminal's Ctrl-C is for the search, which tells its trials.
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Of its process; None: it was not started, since trials were to end already."""
        return None if self._process is None else self._process.pid

    def next_result(self) -> dict[str, Any]:
        """Wait for the next iteration and return it, or what the end was like."""
        while self._process is not None:
            running = self._process.poll() is None
            if (metrics := self._metrics.next()) is not None:
                value = metrics[self._metric]
                return self._result(-math.inf if value is None else value)
            if not running:
                return self._result(-math.inf, error=self._error(self._process.returncode), done=True)
            if self._stop.exists():
                self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_POLL)
        return self._result(-math.inf, done=True)

    def _error(self, code: int) -> str:
        """Say why it failed; nothing where it did not."""
        if self._told_to_end or not code:
            return ""
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        told = re.findall(r"^error: (.+)$", self._log.read_text(errors="replace"), flags=re.MULTILINE)
        if told:
            return told[-1]
        full = not shutil.disk_usage(self._log.parent).free
        return "no space left for what it had to say" if full else f"ended with exit code {code}; look into {self._log}"

    def _result(self, metric: float, *, error: str = "", done: bool = False) -> dict[str, Any]:
        return {"iteration": self._metrics.iteration, "metric": metric, "error": error, "done": done}

    def end(self) -> None:
        """End the training as Ctrl-C does: its last checkpoint is whole."""
        if self._process is None or self._process.poll() is not None:
            return
        self._told_to_end = True
        # Not SIGINT, which Ray's workers block and their children with them.
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class MetricsTail:
    """Iterations that a training writes, each told of once, also where it goes on from a checkpoint and writes anew.

    Args:
        path: Its `metrics.jsonl`, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.iteration = 0
        """The last that was told of."""

    def next(self) -> dict[str, Any] | None:
        """Return the metrics of the next iteration; None: there is none yet."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read:
                self._read = 0
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                try:
                    metrics = msgspec.json.decode(line)
                except msgspec.DecodeError:
                    # Written anew, and longer again already: where the next line began there is the midst of another.
                    self._read = 0
                    break
                if metrics["iteration"] > self.iteration:
                    self.iteration = metrics["iteration"]
                    return metrics
        return None


def last_of(out: Path, metric: str) -> tuple[int, float | None]:
    """Return how many iterations a training made, and the last value that a metric had; None: it never had one.

    The largest might be one from before anything was learned, of which nothing is left.
    """
    iteration, last = 0, None
    with contextlib.suppress(FileNotFoundError), (out / "metrics.jsonl").open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                metrics = msgspec.json.decode(line)
                iteration, value = metrics["iteration"], metrics[metric]
                last = last if value is None else value
    return iteration, last


def was_started(out: Path) -> bool:
    """Whether the training with the folder `out` was."""
    return _log_of(out).exists()


def await_end(out: Path) -> None:
    """Wait until no training of the search in the folder `out` is there any more."""
    for path in out.glob("*.log"):
        with path.open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX)


def _log_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.log")


def _main(parent: str, words: Sequence[str]) -> int:
    """Be `sim2real WORDS` for as long as the process `parent` is there."""
    from sim2real.cli import main

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 2  # gone before it could be asked for
    return main(words)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2:]))
