"""`sim2real tune`: many trainings of one task, whose settings Ray Tune draws, and stops where others do better.

Each trial is a `sim2real train` of its own: what a trial finds, the same command finds again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import tyro

from sim2real import interrupts
from sim2real.arguments import check_number, check_seed
from sim2real.command import Outcome
from sim2real.errors import InputError, Sim2RealError
from sim2real.extras import require
from sim2real.parsing import UsageError, parse
from sim2real_train.messages import Stderr
from sim2real_train.run_folder import claimed, writing
from sim2real_train.search_space import assignments_of, check_space, domain_of, parse_space
from sim2real_train.trial import Training, TrialSettings, await_end, last_of, was_started

if TYPE_CHECKING:
    from sim2real_train.config import TrainConfig

__all__ = ["SearchFailedError", "SearchStoppedError", "TrialResult", "TuneArgs", "TuneResult", "ranked", "run_tune"]

Metric = Literal["success", "mean_return", "mean_reward"]
_MOST: Final = 1e5
_OURS: Final = frozenset({"--out", "--resume", "--show", "--json", "--help", "-h"})
"""Options of a training that a search has no use for, or gives itself."""
_QUIET: Final = {
    # Its tables.
    "RAY_AIR_NEW_OUTPUT": "0",
    # Its own files, for which each trial has better ones.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Its Ctrl-C, which kills trainings that take more than five seconds to end.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}


@dataclass(frozen=True)
class TuneArgs:
    """Search for settings of a task's training: Ray Tune draws them, and ends trials early that fall behind.

    OUT gets one run per trial, as `sim2real train` makes them, and tune.json with all results, best first. Ctrl-C ends
    the trials, each with its last checkpoint whole, and tune.json tells of them.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """Name of the task; `sim2real tasks` lists them."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the search."""
    space: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUES")]
    """What is drawn: NAME=LOW..HIGH (evenly), NAME=log:LOW..HIGH (evenly in the logarithm) or NAME=A|B|C, where NAME is
    a field as of `sim2real train --show`, e.g. algorithm.learning_rate=log:1e-4..1e-2 'model.activation=elu|tanh'; of a
    field that takes integers, integers are drawn, both ends included."""
    trials: int = 8
    """Number of trainings."""
    at_once: int = 1
    """How many of them run at the same time."""
    iterations: Annotated[
        int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: that of the task's preset)")
    ] = None
    """Iterations of a trial that is not ended early."""
    metric: Metric = "mean_reward"
    """What is to be high: mean_reward per step, mean_return of episodes (none ends in the first iterations), or the
    success, where it is measured. Trials are ranked by the last value that they had."""
    grace: int = 20
    """Iterations that every trial may make before it can be ended."""
    seed: int = 0
    """Seeds what is drawn."""
    train_args: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="OPTION")] = ()
    """Further options of every training, e.g. --train-args=--num-envs=128."""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """One training."""

    out: Path
    settings: dict[str, Any]
    iterations: int
    metric: float | None
    """The last value that it had; None: it never had one."""
    error: str | None
    """Why it failed; None: it did not."""


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real tune` reports."""

    task: str
    metric: str
    interrupted: bool
    """Whether it was ended before all trials were made, and those that ran with it."""
    trials: tuple[TrialResult, ...]
    """Best first, and those that failed last."""


class SearchFailedError(Sim2RealError):
    """No trial came to a result."""


class SearchStoppedError(Sim2RealError):
    """The search was interrupted; the message says where to read what it found."""


def run_tune(args: TuneArgs) -> Outcome:
    """Search; the outcome is a `TuneResult`.

    Raises:
        InputError: The search, or a training that it could make, cannot be made; nothing was written then.
        SearchFailedError: No trial came to a result.
        SearchStoppedError: Interrupted.
    """
    require("ray.tune", "tune")
    _check(args)
    axes = parse_space(args.space)
    values = check_space(_base(args), axes)
    space = {axis.name: domain_of(axis, values[axis.name]) for axis in axes}
    with claimed(args.out):
        _check_fresh(args.out)
        interrupted, trials = _search(args, space)
        result = TuneResult(task=args.task, metric=args.metric, interrupted=interrupted, trials=ranked(trials))
        _write(args.out, result)
    if interrupted:
        raise SearchStoppedError(f"interrupted; {args.out / 'tune.json'} tells of the trials so far ({len(trials)})")
    if all(trial.error is not None or trial.metric is None for trial in trials):
        errors = {trial.error for trial in trials if trial.error is not None}
        raise SearchFailedError(f"no trial came to a result: {'; '.join(sorted(errors)) or 'none made an iteration'}")
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
    _check_fresh(args.out)


def _check_fresh(out: Path) -> None:
    """Check that a folder holds nothing, or is not there; a search that was refused may have left its lock."""
    with writing(out):
        if not out.exists():
            return
        if not out.is_dir():
            raise InputError(f"{out}: expected a folder, or a place for one, got a file; choose another --out")
        if any(entry.name != ".lock" for entry in out.iterdir()):
            raise InputError(f"{out}: is not empty; choose another --out")


def _base(args: TuneArgs) -> TrainConfig:
    """Return the configuration that all trainings have, but for what is drawn."""
    from sim2real_train.train_command import TrainArgs, check_said_once, config_of

    for word in args.train_args:
        if (option := word.partition("=")[0]) in _OURS:
            raise InputError(f"--train-args: {option}: is not for the trainings of a search; leave it out")
    try:
        training: TrainArgs = parse("train", TrainArgs, [args.task, "--out", str(args.out / "trial"), *args.train_args])
    except UsageError as error:
        raise InputError(f"--train-args: {error}") from error
    given = [assignment.partition("=")[0] for assignment in training.set]
    drawn = [assignment.partition("=")[0] for assignment in args.space]
    if "task" in given:
        raise InputError("--train-args: task: one search is about one task; leave it out")
    if twice := sorted(set(given) & set(drawn)):
        raise InputError(f"--space: {', '.join(twice)}: is set by --train-args too; keep one")
    if None not in (args.iterations, training.iterations):
        raise InputError(
            f"--iterations {args.iterations}: --train-args=--iterations={training.iterations} says it already; keep one"
        )
    for name in drawn:
        check_said_once(training, name, "--space", through="--train-args=")
    return config_of(training)


def _words(args: TuneArgs) -> tuple[str, ...]:
    iterations = () if args.iterations is None else ("--iterations", str(args.iterations))
    return (*iterations, *args.train_args)


def _search(args: TuneArgs, space: Mapping[str, Any]) -> tuple[bool, list[TrialResult]]:
    """Let Ray Tune run the trials; return whether they were interrupted, and what came of those that were begun."""
    from sim2real_train.cluster import environment_set, local_cluster

    tune: Any = require("ray.tune", "tune")
    out = args.out.absolute()
    drawing = require("ray.tune.search.basic_variant", "tune").BasicVariantGenerator(
        max_concurrent=args.at_once, random_state=args.seed
    )
    try:
        with local_cluster(args.at_once) as folder, _silent("ray"), environment_set(_QUIET):
            settings = _settings(args, out, folder / "stop")
            with _interruptible(folder / "stop", drawing.set_finished), _progress(args) as progress:
                trials = tune.run(
                    _trial_class(settings),
                    name="tune",
                    config={"settings": dict(space)},
                    num_samples=args.trials,
                    resources_per_trial={"cpu": 1},
                    search_alg=drawing,
                    scheduler=_scheduler(args),
                    # What Ray Tune keeps for itself is of no use afterwards.
                    storage_path=str(folder / "search"),
                    callbacks=[progress],
                    verbose=0,
                    raise_on_failed_trial=False,
                ).trials
            begun = [each for each in trials if each.status == "ERROR" or was_started(out / each.trial_id)]
            return (folder / "stop").exists(), [_result_of(out / each.trial_id, each, args.metric) for each in begun]
    finally:
        await_end(out)


def _settings(args: TuneArgs, out: Path, stop: Path) -> TrialSettings:
    return TrialSettings(
        task=args.task,
        words=_words(args),
        metric=args.metric,
        out=str(out),
        directory=str(Path.cwd()),
        stop=str(stop),
    )


def _scheduler(args: TuneArgs) -> Any:
    longest = int(args.iterations or _MOST)
    return require("ray.tune.schedulers", "tune").ASHAScheduler(
        time_attr="iteration", metric="metric", mode="max", grace_period=min(args.grace, longest), max_t=longest
    )


@contextlib.contextmanager
def _silent(name: str) -> Generator[None]:
    """Keep a library from telling at length what the results tell in a line."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _interruptible(stop: Path, finish: Callable[[], None]) -> Generator[None]:
    """On Ctrl-C or a polite kill have no more trials begun, and those that run end well; pressed again it does nothing.

    Args:
        stop: File that is made then, which the trials look for.
        finish: Called then, so that no more trials are drawn.

    Raises:
        KeyboardInterrupt: Pressed again when that had taken too long.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending: float | None = None

    def interrupt(*_: object) -> None:
        nonlocal ending
        if ending is None:
            ending = time.monotonic()
            stop.touch()
            finish()
        elif time.monotonic() > ending + interrupts.PATIENCE:
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        with interrupts.then_held_back():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _progress(args: TuneArgs) -> Generator[Any]:
    """Show how many trials are done and the best value so far, as Ray Tune's callback tells them."""
    from tqdm import tqdm

    tune: Any = require("ray.tune", "tune")
    # As a training, a search goes on where nobody can read how far it is.
    with tqdm(total=args.trials, desc="tune", unit="trial", dynamic_ncols=True, file=Stderr()) as bar:

        class Progress(tune.Callback):
            best = -math.inf

            def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **_: Any) -> None:
                if result["metric"] > self.best:
                    self.best = result["metric"]
                    bar.set_postfix({args.metric: f"{self.best:.4g}"})

            def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
                bar.update()

            def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
                bar.update()

        yield Progress()


def _trial_class(settings: TrialSettings) -> type:
    """Return the class that Ray Tune runs: it starts a training, and reads what it writes."""
    tune: Any = require("ray.tune", "tune")

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


def _result_of(out: Path, trial: Any, metric: Metric) -> TrialResult:
    iterations, last = last_of(out, metric)
    return TrialResult(
        out=out, settings=dict(trial.config["settings"]), iterations=iterations, metric=last, error=_error_of(trial)
    )


def _error_of(trial: Any) -> str | None:
    """Return why a trial failed; None: it did not."""
    if trial.status != "ERROR":
        last: dict[str, Any] = trial.last_result or {}
        return last.get("error") or None
    lines = str(trial.get_error()).strip().splitlines()
    if any("actor died" in line or "actor is dead" in line for line in lines):
        return "the process that watched it died (killed, or out of memory)"
    return lines[-1]


def ranked(trials: Sequence[TrialResult]) -> tuple[TrialResult, ...]:
    """Return trials best first; those without a figure after those with one, and those that failed last."""
    return tuple(
        sorted(trials, key=lambda each: (each.error is not None, math.inf if each.metric is None else -each.metric))
    )


def _write(out: Path, result: TuneResult) -> None:
    from sim2real.files import atomic_write

    with atomic_write(out / "tune.json") as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(result, enc_hook=str), indent=1) + b"\n")


def _summary(result: TuneResult) -> str:
    lines = [f"{len(result.trials)} trials of {result.task}, best {result.metric} first:"]
    for trial in result.trials:
        value = "-" if trial.metric is None else f"{trial.metric:.4g}"
        told = trial.out if trial.error is None else f"failed: {trial.error}"
        lines.append(
            f"  {value:>9}  {trial.iterations:>5} iterations  {' '.join(assignments_of(trial.settings))}  {told}"
        )
    return "\n".join(lines)
