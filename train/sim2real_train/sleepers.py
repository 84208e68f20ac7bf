"""Workers that sleep instead of computing: what is left of a step's time is what its placement costs.

A sleeping worker takes no CPU, so that a machine of two cores holds sixteen of them, and how a placement scales shows.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sim2real_train.admission import Ticket
from sim2real_train.chunks import ChunkInfo, Collected, Spawn, WorkerState
from sim2real_train.moments import Moments

if TYPE_CHECKING:
    from sim2real_train.checkpoint import Arrays
    from sim2real_train.evaluate import Episodes

__all__ = [
    "Naps",
    "SleepingLearner",
    "SleepingReplica",
    "SleepingSim",
    "sleeping_learners",
    "sleeping_replicas",
    "sleeping_sims",
]


class Naps(msgspec.Struct, frozen=True, kw_only=True):
    """How long each stage takes [s]."""

    simulate: float = 0.0
    infer: float = 0.0
    score: float = 0.0
    learn: float = 0.0
    evaluate: float = 0.0
    straggle: tuple[float, float] = (0.0, 1.0)
    """How likely a chunk takes longer, and how many times as long."""
    env_steps: int = 1
    """Of a chunk."""
    num_bytes: int = 0
    """Of a chunk, beside its few figures; small ones are kept by whoever asked for them, large ones where they were
    made."""
    dies_at: tuple[int, int] = (-1, -1)
    """The worker of this rank (of every rank, if -1) ends itself when it is asked for the chunk of this sequence."""


class SleepingSim:
    """Stands in for a simulator worker; its chunk holds the version that it was given and its own ticket."""

    def start(self, rank: int, incarnation: int, naps: Naps) -> None:
        """Be the worker of this rank."""
        self._rank, self._incarnation, self._sequence = rank, incarnation, 0
        self._naps = naps
        self._draws = np.random.default_rng((rank, incarnation))

    def collect(self, weights: Arrays | None, version: int) -> tuple[ChunkInfo, Arrays]:
        """Sleep as long as simulation and inference take."""
        naps, ticket = self._naps, Ticket(self._rank, self._incarnation, self._sequence)
        rank, sequence = naps.dies_at
        if sequence == self._sequence and rank in (-1, self._rank):
            os.kill(os.getpid(), signal.SIGKILL)
        self._sequence += 1
        likely, factor = naps.straggle
        longer = factor if self._draws.random() < likely else 1.0
        time.sleep((naps.simulate + naps.infer) * longer)
        chunk = {
            "version": np.array(version if weights is None else weights["version"]),
            "ticket": np.array([self._rank, self._incarnation, ticket.sequence]),
            "rest": np.zeros(naps.num_bytes, np.uint8),
        }
        info = ChunkInfo(
            ticket=ticket,
            version=version,
            collected=Collected(
                observations=Moments.of(np.full((1, 1), float(self._rank))),
                mean_reward=0.0,
                episode_returns=[],
                terms={},
                simulation_seconds=naps.simulate * longer,
                inference_seconds=naps.infer * longer,
            ),
            env_steps=naps.env_steps,
            num_bytes=sum(array.nbytes for array in chunk.values()),
            weight_bytes=sum(array.nbytes for array in (weights or {}).values()),
        )
        return info, chunk

    def state(self) -> WorkerState:
        """Return how many chunks there were."""
        return WorkerState(arrays={"sequence": np.array(self._sequence)}, generator={})

    def load_state(self, state: WorkerState) -> None:
        """Take a state; the tickets of this process still begin at 0."""
        assert state.arrays["sequence"].shape == ()


class SleepingLearner:
    """Stands in for a learner: its weights are their version, and it keeps which chunks it was fed."""

    def start(self, naps: Naps) -> None:
        """Begin at version 0."""
        self._naps = naps
        self._version = 0
        self._fed: list[list[int]] = []
        self._share: list[list[int]] = []

    def feed(self, infos: tuple[ChunkInfo, ...], *chunks: Arrays) -> None:
        """Take version, version of the weights, and ticket of each chunk."""
        self._share = []
        for info, chunk in zip(infos, chunks, strict=True):
            assert [info.ticket.rank, info.ticket.incarnation, info.ticket.sequence] == chunk["ticket"].tolist()
            self._share.append([self._version, int(chunk["version"]), *chunk["ticket"].tolist()])

    def score(self) -> Moments:
        """Keep what it was fed; sleep as long as scoring takes."""
        self._fed += self._share
        self._share = []
        time.sleep(self._naps.score)
        return Moments.of(np.zeros((1, 1)))

    def learn(self, advantages: Moments) -> dict[str, float]:
        """Sleep as long as learning takes."""
        assert advantages.count > 0
        time.sleep(self._naps.learn)
        self._version += 1
        return {}

    def publish(self, observations: Moments) -> None:
        """Do nothing with the moments of the observations."""
        assert observations.count > 0

    def acting_weights(self) -> Arrays:
        """Return the version."""
        return {"version": np.array(self._version)}

    def evaluate(self, starts: int, seed: int) -> Episodes:
        """Succeed in every episode."""
        from sim2real_train.evaluate import Episodes

        time.sleep(self._naps.evaluate)
        return Episodes(
            success=[True] * starts,
            time_to_goal=[float(seed)] * starts,
            returns=[0.0] * starts,
            ended_early=[False] * starts,
            terms={},
        )

    def state(self) -> WorkerState:
        """Return which chunks it was fed, shape (n, 5): its version, theirs, and their tickets."""
        return WorkerState(arrays={"fed": np.array(self._fed).reshape(-1, 5)}, generator={})

    def learner_state(self) -> dict[str, Arrays]:
        """Return the version."""
        return {"weights": {"version": np.array(self._version)}, "learner": {}}

    def load_state(self, learner: dict[str, Arrays], state: WorkerState) -> None:
        """Go on from a version."""
        self._version = int(learner["weights"]["version"])
        self._fed = state.arrays["fed"].tolist()


class SleepingReplica:
    """Stands in for a worker that simulates and learns."""

    def start(self, rank: int, naps: Naps) -> None:
        """Be both at once."""
        self._sim, self._learner = SleepingSim(), SleepingLearner()
        self._sim.start(rank, 0, naps)
        self._learner.start(naps)

    def collect(self) -> Collected:
        """Sleep as long as simulation and inference take."""
        info, _ = self._sim.collect(self._learner.acting_weights(), 0)
        return info.collected

    def score(self) -> Moments:
        """Sleep as long as scoring takes."""
        return self._learner.score()

    def learn(self, advantages: Moments) -> dict[str, float]:
        """Sleep as long as learning takes."""
        return self._learner.learn(advantages)

    def publish(self, observations: Moments) -> None:
        """Do nothing with the moments of the observations."""
        self._learner.publish(observations)


def sleeping_sims(naps: Naps) -> Spawn:
    """Return what starts sleeping simulator workers."""
    from sim2real_train.actors import place

    def spawn(rank: int, incarnation: int) -> tuple[object, object]:
        actor = place(SleepingSim, num_cpus=1)
        return actor, actor.start.remote(rank, incarnation, naps)

    return spawn


def sleeping_learners(naps: Naps) -> Spawn:
    """Return what starts sleeping learners."""
    from sim2real_train.actors import place

    def spawn(rank: int, incarnation: int) -> tuple[object, object]:
        actor = place(SleepingLearner, num_cpus=1)
        return actor, actor.start.remote(naps)

    return spawn


def sleeping_replicas(naps: Naps) -> Spawn:
    """Return what starts sleeping workers that simulate and learn."""
    from sim2real_train.actors import place

    def spawn(rank: int, incarnation: int) -> tuple[object, object]:
        actor = place(SleepingReplica, num_cpus=1)
        return actor, actor.start.remote(rank, naps)

    return spawn
