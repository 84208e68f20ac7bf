"""What travels from simulators to learners, and what a placement asks of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy.typing as npt

from sim2real_train.admission import Ticket
from sim2real_train.moments import Moments

if TYPE_CHECKING:
    from sim2real_train.checkpoint import Arrays
    from sim2real_train.evaluate import Episodes

__all__ = ["ChunkInfo", "Collected", "LearnerRole", "SimRole", "Spawn", "WarmStart", "WorkerState"]


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's rollout was like."""

    observations: Moments
    """Moments of what the critic sees, which begins with the observations."""
    mean_reward: float
    """Per control step."""
    episode_returns: list[float]
    """Sums of rewards of the episodes that ended in it."""
    terms: dict[str, float]
    """Mean of each term of the reward per control step, and other figures of the environments."""
    simulation_seconds: float
    """Time that was waited for the environments."""
    inference_seconds: float
    """Time that the policy took."""


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs, beside weights and optimiser, to go on exactly from here."""

    arrays: dict[str, npt.NDArray[Any]]
    generator: dict[str, Any]
    """State of the environments' NumPy generators, by group."""


class WarmStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes from another that it begins with."""

    weights: dict[str, npt.NDArray[Any]]
    normalisers: dict[str, npt.NDArray[Any]]
    """Moments, by their names in the state of a learner."""
    critic_differs: str = ""
    """In what the critic there is another, so that the one here begins anew; empty: it was taken, or there is none."""


class ChunkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk without its arrays, which go from one store to the other and not through the controller."""

    ticket: Ticket
    """Which chunk it is, as its worker counts."""
    version: int
    """Of the weights that it was collected with; the oldest, if there were several."""
    collected: Collected
    """What it was like."""
    env_steps: int
    """Control steps of all its environments."""
    num_bytes: int
    """Size of its arrays."""
    weight_bytes: int
    """Size of the weights that its worker was given for it."""


class SimRole(Protocol):
    """A worker that simulates; its class name contains ``Sim``, so that people find it among the processes."""

    def collect(self, weights: Arrays | None, version: int) -> tuple[ChunkInfo, Arrays]:
        """Act for T control steps; None: an inference server has the weights. Called for two answers."""
        ...

    def state(self) -> WorkerState:
        """Return what later chunks depend on, beside the weights."""
        ...

    def load_state(self, state: WorkerState) -> None:
        """Go on from what `state` returned."""
        ...


class LearnerRole(Protocol):
    """A replica of the learner, alone or with peers that average their gradients."""

    def feed(self, infos: Sequence[ChunkInfo], *chunks: Arrays) -> None:
        """Take in this replica's share of a batch, in place of one that was given and not yet scored.

        The arrays are of a store, and must be copied to be kept.
        """
        ...

    def score(self) -> Moments:
        """Compute advantages and value targets; return the moments of the advantages."""
        ...

    def learn(self, advantages: Moments) -> dict[str, float]:
        """Learn, advantages normalised by the moments of all replicas'; return figures to log."""
        ...

    def publish(self, observations: Moments) -> None:
        """Take the observations of the batch into the normaliser."""
        ...

    def acting_weights(self) -> Arrays:
        """Return what simulators act with."""
        ...

    def evaluate(self, starts: int, seed: int) -> Episodes:
        """Run whole episodes of the deterministic policy."""
        ...

    def state(self) -> WorkerState:
        """Return what this replica does not share with the others."""
        ...

    def learner_state(self) -> dict[str, Arrays]:
        """Return weights and optimiser."""
        ...

    def load_state(self, learner: dict[str, Arrays], state: WorkerState) -> None:
        """Go on exactly from what `learner_state` and `state` returned."""
        ...

    def begin_with(self, warm: WarmStart) -> None:
        """Begin with what another run has learned."""
        ...


class Spawn(Protocol):
    """Starts one worker."""

    def __call__(self, rank: int, incarnation: int) -> tuple[Any, Any]:
        """Return the actor and the pending answer of the call that builds it.

        Args:
            rank: Which of the workers of its kind it is, from 0.
            incarnation: How many before it had this rank and died; it must not draw what they drew.
        """
        ...
