"""`sim2real tune`: many trainings of one task, whose settings Ray Tune draws, and stops where others do better.

Each trial is a `sim2real train` of its own: what a trial finds, the same command finds again.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import tyro

from sim2real.arguments import check_number, check_seed
from sim2real.command import Outcome
from sim2real.errors import InputError, Sim2RealError
from sim2real.extras import require

__all__ = ["TuneArgs", "TuneResult", "parse_space", "run_tune"]

Metric = Literal["success", "mean_return", "mean_reward"]
_RANGE: Final = re.compile(r"(log:)?([^.:]+(?:\.[^.]+)?)\.\.([^.:]+(?:\.[^.]+)?)")
_PATIENCE: Final = 60.0
"""How long [s] a trial may take to end when it is told to."""
_MOST: Final = 1e5


@dataclass(frozen=True)
class TuneArgs:
    """Search for settings of a task's training: Ray Tune draws them, and ends trials early that fall behind.

    OUT gets one run per trial, as `sim2real train` makes them, and tune.json with all results, best first.
    """

    task: tyro.conf.Positional[str]
    """Name of the task."""
    out: Path
    """Folder of the search."""
    space: tyro.conf.UseAppendAction[tuple[str, ...]]
    """What is drawn: NAME=LOW..HIGH (evenly), NAME=log:LOW..HIGH (evenly in the logarithm) or NAME=A|B|C, where NAME is
    a field as of `sim2real train --show`, e.g. algorithm.learning_rate=log:1e-4..1e-2 'model.activation=elu|tanh'."""
    trials: int = 8
    """Number of trainings."""
    at_once: int = 1
    """How many of them run at the same time."""
    iterations: int | None = None
    """Iterations of a trial that is not ended early; without this, the task's preset."""
    metric: Metric = "mean_reward"
    """What is to be high: mean_reward per step, mean_return of episodes (none ends in the first iterations), or the
    success, where it is measured."""
    grace: int = 20
    """Iterations that every trial may make before it can be ended."""
    seed: int = 0
    """Seeds what is drawn."""
    train_args: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Further options of every training, e.g. --train-args=--num-envs=128."""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """One training."""

    out: Path
    settings: dict[str, Any]
    iterations: int
    metric: float | None
    """Largest value that was seen; None: none was."""
    error: str | None
    """Its last line, where it failed."""


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real tune` reports."""

    task: str
    metric: str
    trials: tuple[TrialResult, ...]
    """Best first."""


class SearchFailedError(Sim2RealError):
    """No trial came to a result."""


def run_tune(args: TuneArgs) -> Outcome:
    """Search; the outcome is a `TuneResult`."""
    _check(args)
    space = parse_space(args.space)
    trials = sorted(_search(args, space), key=lambda trial: -math.inf if trial.metric is None else -trial.metric)
    trials.sort(key=lambda trial: trial.metric is None)
    if all(trial.metric is None for trial in trials):
        errors = {trial.error for trial in trials if trial.error is not None}
        raise SearchFailedError(f"no trial came to a result: {'; '.join(sorted(errors)) or 'none made an iteration'}")
    result = TuneResult(task=args.task, metric=args.metric, trials=tuple(trials))
    _write(args.out, result)
    return Outcome(passed=True, result=result, summary=_summary(result))


def _check(args: TuneArgs) -> None:
    from sim2real.tasks import get_task
    from sim2real.tasks.gym_tasks import is_foreign

    for option, value in (("--trials", args.trials), ("--at-once", args.at_once), ("--grace", args.grace)):
        check_number(option, value, low=1, high=_MOST, inclusive=True)
    if args.iterations is not None:
        check_number("--iterations", args.iterations, low=1, high=1e9, inclusive=True)
    check_seed(args.seed)
    if not is_foreign(args.task):
        get_task(args.task)
    if args.out.exists() and any(args.out.iterdir()):
        raise InputError(f"{args.out}: is not empty; choose another --out")


def parse_space(assignments: Sequence[str]) -> dict[str, Any]:
    """Return what Ray Tune draws each field from.

    Raises:
        InputError: Not of the form NAME=LOW..HIGH, NAME=log:LOW..HIGH or NAME=A|B|C, or a field is named twice.
    """
    tune = require("ray.tune", "tune")
    space: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name or not text:
            raise InputError(f"--space: expected NAME=LOW..HIGH, NAME=log:LOW..HIGH or NAME=A|B|C, got {assignment!r}")
        if name in space:
            raise InputError(f"--space: {name} is named twice; keep one")
        space[name] = _domain(tune, name, text)
    if not space:
        raise InputError("--space: expected one field or more, e.g. algorithm.learning_rate=log:1e-4..1e-2")
    return space


def _domain(tune: Any, name: str, text: str) -> Any:
    bounds = _RANGE.fullmatch(text)
    if bounds is None:
        return tune.choice(text.split("|"))
    logarithm, low_text, high_text = bounds.groups()
    try:
        low, high = float(low_text), float(high_text)
    except ValueError as error:
        raise InputError(f"--space: {name}: expected two numbers, got {text!r}") from error
    if not low < high or not math.isfinite(high - low) or (logarithm and low <= 0.0):
        wanted = "0 < LOW < HIGH" if logarithm else "LOW < HIGH"
        raise InputError(f"--space: {name}: expected {wanted}, got {text!r}")
    return tune.loguniform(low, high) if logarithm else tune.uniform(low, high)


def _search(args: TuneArgs, space: Mapping[str, Any]) -> list[TrialResult]:
    """Let Ray Tune run the trials; a Ctrl-C ends them all."""
    from sim2real_train.cluster import local_cluster

    tune, schedulers = require("ray.tune", "tune"), require("ray.tune.schedulers", "tune")
    out = args.out.absolute()
    longest = int(args.iterations or _MOST)
    scheduler = schedulers.ASHAScheduler(
        time_attr="iteration", metric="metric", mode="max", grace_period=min(args.grace, longest), max_t=longest
    )
    settings = {"task": args.task, "out": str(out), "metric": args.metric, "words": _words(args)}
    with local_cluster(args.at_once):
        tuner = tune.Tuner(
            tune.with_resources(_trial_class(settings), {"cpu": 1}),
            param_space={"settings": dict(space)},
            tune_config=tune.TuneConfig(
                num_samples=args.trials,
                max_concurrent_trials=args.at_once,
                scheduler=scheduler,
                search_alg=require("ray.tune.search.basic_variant", "tune").BasicVariantGenerator(
                    random_state=args.seed
                ),
            ),
            run_config=tune.RunConfig(name="tune", storage_path=str(out), verbose=0),
        )
        results = tuner.fit()
    return [_result_of(out, each) for each in results]


def _words(args: TuneArgs) -> list[str]:
    iterations = [] if args.iterations is None else ["--iterations", str(args.iterations)]
    return [*iterations, *args.train_args]


def _result_of(out: Path, result: Any) -> TrialResult:
    metrics: dict[str, Any] = result.metrics or {}
    values: list[float] = [] if result.metrics_dataframe is None else result.metrics_dataframe["metric"].tolist()
    seen = [value for value in values if math.isfinite(value)]
    return TrialResult(
        out=Path(metrics.get("out", out)),
        settings=dict(result.config["settings"]),
        iterations=int(metrics.get("iteration", 0)),
        metric=max(seen, default=None),
        error=metrics.get("error") or None,
    )


def _trial_class(settings: Mapping[str, Any]) -> type:
    """Return the class that Ray Tune runs: it starts a training, and reads what it writes."""
    tune = require("ray.tune", "tune")

    class Trial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.training = Training(settings, config["settings"], self.trial_id)

        def step(self) -> dict[str, Any]:
            return self.training.next_result()

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """The training keeps its own."""

        def load_checkpoint(self, checkpoint: Any) -> None:
            """Nothing of it is ours."""

        def cleanup(self) -> None:
            self.training.end()

    return Trial


class Training:
    """A `sim2real train` in a process of its own, seen through the metrics that it writes."""

    def __init__(self, settings: Mapping[str, Any], drawn: Mapping[str, Any], name: str) -> None:
        self.out = Path(settings["out"]) / name
        self._metric: Metric = settings["metric"]
        self._log = Path(settings["out"]) / f"{name}.log"
        self._read = 0
        self._iteration = 0
        values = [f"{field}={_json(value)}" for field, value in drawn.items()]
        command = [sys.executable, "-I", "-m", "sim2real.cli", "train", settings["task"], "--out", str(self.out)]
        # What Ray sets for its own worker is not for another Ray.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *settings["words"], "--set", *values],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def next_result(self) -> dict[str, Any]:
        """Wait for the next iteration and return it, or what the end was like."""
        while True:
            running = self._process.poll() is None
            if (result := self._next_line()) is not None:
                return result
            if not running:
                return self._end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.2)

    def _next_line(self) -> dict[str, Any] | None:
        try:
            with (self.out / "metrics.jsonl").open("rb") as file:
                file.seek(self._read)
                line = file.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        self._read += len(line)
        metrics = msgspec.json.decode(line)
        self._iteration, value = metrics["iteration"], metrics[self._metric]
        return self._result(-math.inf if value is None else value)

    def _end(self) -> dict[str, Any]:
        lines = self._log.read_text(errors="replace").splitlines() or [""]
        error = lines[-1] if self._process.returncode else ""
        return self._result(-math.inf, error=error, done=True)

    def _result(self, metric: float, *, error: str = "", done: bool = False) -> dict[str, Any]:
        return {"iteration": self._iteration, "metric": metric, "out": str(self.out), "error": error, "done": done}

    def end(self) -> None:
        """End the training, as Ctrl-C does: its last checkpoint is whole."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _json(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _write(out: Path, result: TuneResult) -> None:
    from sim2real.files import atomic_write

    with atomic_write(out / "tune.json") as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(result, enc_hook=str), indent=1) + b"\n")


def _summary(result: TuneResult) -> str:
    lines = [f"{len(result.trials)} trials of {result.task}, best {result.metric} first:"]
    for trial in result.trials:
        settings = " ".join(f"{name}={_json(value)}" for name, value in trial.settings.items())
        value = "-" if trial.metric is None else f"{trial.metric:.4g}"
        lines.append(f"  {value:>9}  {trial.iterations:>5} iterations  {settings}  {trial.error or trial.out}")
    return "\n".join(lines)
