"""Where collecting, scoring and learning run: one protocol, so that the controller is the same everywhere."""

from __future__ import annotations

from typing import Protocol

from sim2real_train.checkpoint import Arrays, Checkpoint
from sim2real_train.chunks import Collected, WarmStart, WorkerState
from sim2real_train.evaluate import Episodes
from sim2real_train.moments import Moments

__all__ = ["Placement"]


class Placement(Protocol):
    """All workers as one: every method calls them at the same time and returns their answers by rank."""

    def collect(self) -> list[Collected]:
        """Let every worker act for T steps."""
        ...

    def score(self) -> list[Moments]:
        """Let every worker compute advantages and value targets; return the moments of the advantages."""
        ...

    def learn(self, advantages: Moments) -> list[dict[str, float]]:
        """Let all workers learn together, advantages normalised by the moments of all workers'; return figures."""
        ...

    def publish(self, observations: Moments) -> None:
        """Give every worker the observations of all, for its normaliser."""
        ...

    def stages(self) -> dict[str, float]:
        """Return where time, bytes and samples went since the last call, by name."""
        ...

    def evaluate(self, starts: int, seed: int) -> list[Episodes]:
        """Run at least `starts` whole episodes of the present policy, shared by the workers."""
        ...

    def states(self) -> list[WorkerState]:
        """Return what each worker needs, beside `learner`, to go on exactly from here."""
        ...

    def learner(self) -> dict[str, Arrays]:
        """Return weights and optimiser, which all workers share."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on exactly from a checkpoint."""
        ...

    def begin_with(self, warm: WarmStart) -> None:
        """Begin with what another run has learned; before anything is collected."""
        ...
