"""On which plants a policy is judged: drawn from what its run trained with, from the task's own ranges, or nominal."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from sim2real.files import read_bytes
from sim2real.randomization import COMMAND_DELAY, RandomizationFile, read_randomization, without_delays
from sim2real.tasks import Task
from sim2real.tasks.gym_tasks import is_foreign
from sim2real.tasks.ranges import with_own_ranges
from sim2real_train.config import FileRef, TrainConfig, training_ranges
from sim2real_train.environments import task_of_run

__all__ = ["Plants", "Told", "file_ref", "nominal_plants", "plants_of_file", "plants_of_run", "plants_of_task"]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Which plants a verdict is on."""

    source: Literal["nominal", "task", "run", "file", "environment"]
    """nominal: the robot as its model says. task: the task's own ranges. run: those that the policy's run trained with.
    file: a file's, and the task's own of all else. environment: somebody else's, which has its own physics."""
    ranges: int
    """How many quantities each episode draws anew."""
    file: FileRef | None
    """What ranges were read from; None: from no file."""
    measured_delays: bool
    """Whether commands are as late as a bench measured them."""
    text: str
    """All of this, for people."""


class Plants(msgspec.Struct, frozen=True, kw_only=True):
    """What episodes draw their plants from."""

    source: Literal["nominal", "task", "run", "file", "environment"]
    """See `Told`."""
    ranges: RandomizationFile | None
    """None: nothing is drawn."""
    file: FileRef | None = None
    measured_delays: bool = False

    def as_late_as_measured(self) -> Plants:
        """Return these plants for a task that has its delays from a bench."""
        ranges = None if self.ranges is None else without_delays(self.ranges)
        return msgspec.structs.replace(self, ranges=ranges, measured_delays=True)

    def told(self) -> Told:
        """Return what is reported of them."""
        parameters = () if self.ranges is None else self.ranges.parameters
        return Told(
            source=self.source,
            ranges=len(parameters),
            file=self.file,
            measured_delays=self.measured_delays,
            text=self._text(),
        )

    def _text(self) -> str:
        late = ", commands as late as measured" if self.measured_delays else ""
        if self.source == "environment":
            return "the environment's own physics"
        if self.ranges is None or not self.ranges.parameters:
            return "the nominal plant" + (", since the task has no ranges" if self.source == "task" else "") + late
        details = [
            f"commands {each.low:g} to {each.high:g} s late"
            for each in self.ranges.parameters
            if each.name == COMMAND_DELAY
        ]
        if self.file is not None:
            named = f"{self.file.name}, SHA-256 {self.file.sha256[:12]}…"
            details = [named, "the task's own of all else", *details]
        whose = {"task": "the task's own ", "run": "the run's "}.get(self.source, "")
        told = f" ({', '.join(details)})" if details else ""
        count = len(self.ranges.parameters)
        return f"plants of {whose}{count} range{'s' if count != 1 else ''}{told}{late}"


def nominal_plants() -> Plants:
    """Return the robot as its model says."""
    return Plants(source="nominal", ranges=None)


def plants_of_run(config: TrainConfig) -> Plants:
    """Return what a run trains on, and its own verdict is on."""
    if is_foreign(config.task):
        return Plants(source="environment", ranges=None)
    ranges = training_ranges(config, task_of_run(config))
    measured = config.delays is not None
    return Plants(source="run", ranges=ranges, file=config.randomization_file, measured_delays=measured)


def plants_of_task(task: Task) -> Plants:
    """Return the task's own ranges."""
    return Plants(source="task", ranges=with_own_ranges(None, task))


def plants_of_file(path: Path, task: Task) -> Plants:
    """Return the ranges of a file, and the task's own of all else.

    Raises:
        InputError: The file cannot be read, or is no such file.
    """
    return Plants(source="file", ranges=with_own_ranges(read_randomization(path), task), file=file_ref(path))


def file_ref(path: Path) -> FileRef:
    """Return the name and the hash of a file.

    Raises:
        InputError: It cannot be read.
    """
    return FileRef(name=path.name, sha256=hashlib.sha256(read_bytes(path, "randomization file")).hexdigest())
