"""What each iteration was like, and where it is written: TensorBoard, `metrics.jsonl`, W&B, a progress bar."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.files import written_file
from sim2real_train.messages import Stderr
from sim2real_train.run_folder import EVENTS, METRICS, writing

__all__ = ["Curve", "Metrics", "MetricsLog", "curve", "scalars"]


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One iteration, over all workers."""

    iteration: int
    """From 1."""
    env_steps: int
    """Control steps of all environments until the end of this iteration."""
    wall_seconds: float
    """Time since the run began, pauses between attempts left out; like `stages` not shared by equal
    runs."""
    mean_reward: float
    """Per control step."""
    mean_return: float | None
    """Mean sum of rewards of the episodes that ended in this iteration; None: no whole episode has yet."""
    learning: dict[str, float]
    """What the update was like, in the algorithm's own figures; means over all workers."""
    stages: dict[str, float]
    """Where the iteration's time went [s], and what else the placement has to tell; differs between equal runs."""
    terms: dict[str, float]
    """Means of the terms of the reward per control step, and other figures of the environments."""
    success: float | None
    """Success rate of the deterministic policy on plants of the training ranges; None: not measured here."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The learning curve as columns, for plots."""

    iteration: list[int]
    env_steps: list[int]
    wall_seconds: list[float]
    mean_reward: list[float]
    mean_return: list[float | None]
    success: list[float | None]


def scalars(metrics: Metrics) -> dict[str, float | None]:
    """Return every figure of an iteration by name."""
    figures = msgspec.structs.asdict(metrics)
    groups = {name: figures.pop(name) for name in ("learning", "stages", "terms")}
    named = {f"{group}/{name}": value for group in ("learning", "stages") for name, value in groups[group].items()}
    return groups["terms"] | named | figures


def curve(metrics: tuple[Metrics, ...]) -> Curve:
    """Return the columns of `metrics`."""
    names = Curve.__struct_fields__
    return Curve(**{name: [getattr(each, name) for each in metrics] for name in names})


class MetricsLog:
    """Writes metrics as they come; `past` ones are written again, so that the files hold each iteration once.

    Args:
        folder: Gets `metrics.jsonl` and `tensorboard/`; earlier ones are replaced.
        past: Metrics of the iterations before, from a checkpoint.
        total: Iterations that there will be.
        env_steps: Control steps of one iteration, for the rate on the progress bar.
        wandb_project: Project of Weights & Biases that gets them as well; None: none does.
        config: What the run is made from, for Weights & Biases.

    Raises:
        InputError: The files cannot be written, now or in `add`, or the folder is no longer there.
    """

    def __init__(
        self,
        folder: Path,
        past: tuple[Metrics, ...],
        *,
        total: int,
        env_steps: int,
        wandb_project: str | None = None,
        config: msgspec.Struct | None = None,
    ) -> None:
        from tqdm import tqdm

        self._folder = folder
        self._env_steps = env_steps
        self._success: float | None = None
        with writing(folder), contextlib.ExitStack() as opened:
            folder.mkdir(parents=True, exist_ok=True)
            self._folder_stat = folder.stat()
            self._lines = opened.enter_context(written_file(folder / METRICS).open("wb"))
            self._events = opened.enter_context(contextlib.closing(_event_file(folder / EVENTS)))
            stderr = Stderr()
            self._bar = opened.enter_context(
                tqdm(total=total, initial=len(past), desc="train", unit="it", dynamic_ncols=True, file=stderr)
            )
            # Below the bar, where there is a screen to move about on.
            self._terms = opened.enter_context(
                tqdm(total=0, position=1, bar_format="{desc}", leave=False, disable=not stderr.isatty(), file=stderr)
            )
            self._wandb = None if wandb_project is None else _wandb_run(wandb_project, folder, config)
            if self._wandb is not None:
                opened.callback(self._wandb.finish)
            for each in past:
                self._write(each)
            self._opened = opened.pop_all()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with writing(self._folder):
            self._opened.close()

    def add(self, metrics: Metrics) -> None:
        """Write one iteration and move the progress bar."""
        with writing(self._folder):
            self._check_folder()
            self._write(metrics)
            self._lines.flush()
            self._events.flush()
        if metrics.success is not None:
            self._success = metrics.success
        rate = self._bar.format_dict["rate"]
        shown: dict[str, Any] = {"reward": f"{metrics.mean_reward:.2f}"}
        if metrics.mean_return is not None:
            shown["return"] = f"{metrics.mean_return:.0f}"
        if self._success is not None:
            shown["success"] = f"{self._success:.0%}"
        if rate:
            shown["steps/s"] = f"{rate * self._env_steps:,.0f}"
        self._terms.set_description_str(_terms_line(metrics.terms), refresh=True)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def _check_folder(self) -> None:
        """Notice a folder that has gone: what is open can be written to for ever, and nobody would ever read it."""
        if not os.path.samestat(self._folder_stat, self._folder.stat()):
            raise InputError(f"{self._folder}: was replaced by another folder while it was written to; train anew")

    def _write(self, metrics: Metrics) -> None:
        self._lines.write(msgspec.json.encode(metrics) + b"\n")
        self._events.write(_event(metrics))
        if self._wandb is not None:
            self._wandb.log(scalars(metrics), step=metrics.iteration)


def _wandb_run(project: str, folder: Path, config: msgspec.Struct | None) -> Any:
    """Begin or go on with the run of this folder; the library reads WANDB_MODE and the like by itself."""
    # Read when it is imported; without them it writes to the home folder.
    for part in ("CACHE", "CONFIG", "DATA"):
        os.environ.setdefault(f"WANDB_{part}_DIR", str(folder.absolute() / "wandb" / part.lower()))
    wandb: Any = require("wandb", "wandb")
    return wandb.init(
        project=project,
        name=folder.name,
        id=hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16],
        resume="allow",
        dir=str(folder),
        config=msgspec.to_builtins(config),
        settings=wandb.Settings(console="off", silent=True),
    )


def _terms_line(terms: dict[str, float]) -> str:
    """Return the terms of the reward, largest first."""
    prefix = "reward/"
    rewards = {name.removeprefix(prefix): value for name, value in terms.items() if name.startswith(prefix)}
    ordered = sorted(rewards.items(), key=lambda term: -abs(term[1]))
    return "  ".join(f"{name} {value:+.3f}" for name, value in ordered)


def _event_file(folder: Path) -> Any:
    """Begin the only file of TensorBoard's in `folder`; return its `RecordWriter`.

    TensorBoard's own `EventFileWriter` writes in a thread, which prints a stack when it cannot.
    """
    records: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
    folder.mkdir(exist_ok=True)
    for earlier in folder.glob("events.out.tfevents.*"):
        earlier.unlink(missing_ok=True)
    name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
    writer = records.RecordWriter((folder / name).open("wb"))
    writer.write(_events().Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    return writer


def _events() -> Any:
    # Generated modules without types.
    return importlib.import_module("tensorboard.compat.proto.event_pb2")


def _event(metrics: Metrics) -> bytes:
    """Return the scalars of an iteration as TensorBoard's `Event`."""
    summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    figures = scalars(metrics)
    del figures["iteration"]
    values = [
        summaries.Summary.Value(tag=name, simple_value=value) for name, value in figures.items() if value is not None
    ]
    event = _events().Event(step=metrics.iteration, wall_time=time.time(), summary=summaries.Summary(value=values))
    return event.SerializeToString()
