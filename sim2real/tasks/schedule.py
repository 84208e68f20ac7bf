"""When events meet an environment and when its operator changes their mind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sim2real.tasks.base import Array, Event, Task

__all__ = ["Schedule"]


class Schedule:
    """Counts control steps down to the next event of each kind, and to the next commands, in every environment.

    Args:
        task: Whose events and commands.
        control_period: [s].
        num_envs: N.
    """

    def __init__(self, task: Task, control_period: float, num_envs: int) -> None:
        self._events = task.events
        self._commands = task.commands
        # One row per event; the last is the commands'.
        periods = [*(event.period for event in task.events), task.commands.period if task.commands else (0.0, 0.0)]
        steps = np.maximum(np.rint(np.array(periods) / control_period).astype(np.int64), 1)
        self._fewest = steps[:, :1]
        self._choices = steps[:, 1:] - steps[:, :1] + 1
        # Steps until it is due.
        self._left = np.zeros((len(periods), num_envs), np.int64)

    def start(self, rng: np.random.Generator, rows: npt.NDArray[np.intp], command: Array) -> None:
        """Begin episodes in `rows`: first commands into `command`, shape (N, C), and times of what comes later."""
        self._left[:, rows] = self._steps(rng, slice(None), (len(self._left), len(rows)))
        if self._commands is not None:
            command[rows] = self._commands.draw(rng, len(rows))

    def due_events(self, rng: np.random.Generator) -> Iterator[tuple[Event, npt.NDArray[np.intp]]]:
        """Let one control step pass; yield the events that are due and the environments that they meet."""
        self._left -= 1
        for index, event in enumerate(self._events):
            rows = np.flatnonzero(self._left[index] <= 0)
            if len(rows):
                self._left[index, rows] = self._steps(rng, index, len(rows))
                yield event, rows

    def renew_commands(self, rng: np.random.Generator, command: Array) -> None:
        """Draw commands where they are due, into `command`, shape (N, C)."""
        if self._commands is None:
            return
        rows = np.flatnonzero(self._left[-1] <= 0)
        if len(rows):
            command[rows] = self._commands.draw(rng, len(rows))
            self._left[-1, rows] = self._steps(rng, -1, len(rows))

    def _steps(
        self, rng: np.random.Generator, kind: int | slice, shape: int | tuple[int, int]
    ) -> npt.NDArray[np.int64]:
        """Draw times until something comes, all of its period alike; cheaper than `rng.integers` for a few."""
        return self._fewest[kind] + (self._choices[kind] * rng.random(shape)).astype(np.int64)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of everything that later steps depend on."""
        return {"left": self._left.copy()}

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue exactly from what `state` returned."""
        self._left[:] = state["left"]
