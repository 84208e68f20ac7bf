"""Simulator workers of which any may die at any time, and which others may join."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import RayError

from sim2real.errors import InputError
from sim2real_train.actors import HUNG, answers, died, free, has_place, ready
from sim2real_train.admission import Ticket
from sim2real_train.chunks import ChunkInfo, Spawn
from sim2real_train.hang import LOOK, HangLimit, Silence
from sim2real_train.messages import tell
from sim2real_train.watch import WHY, WorkerLostError

__all__ = ["Finished", "Lost", "SimPool"]

DIED: Final = f"died ({WHY})"
"""What is said of a worker that ended."""


@dataclass(frozen=True)
class Finished:
    """A worker has answered."""

    ticket: Ticket
    info: ChunkInfo
    chunk: Any
    """Reference to the chunk's arrays."""


@dataclass(frozen=True)
class Lost:
    """A worker died over this chunk."""

    ticket: Ticket


@dataclass(eq=False)
class _Sim:
    """One rank: the worker that has it, and what it was asked."""

    rank: int
    incarnation: int
    actor: Any
    call: Any
    """Reference to its next answer: of being built, or what a chunk is like; None: it is idle."""
    ticket: Ticket | None = None
    chunk: Any = None
    began: float = 0.0
    """When it was asked for the chunk [s]."""
    deaths: int = 0
    """Workers of this rank that died since one finished a chunk."""
    idle_since: int = 0
    """Count of events when it became idle."""
    silent: float = 0.0
    """How long [s] an answer has been waited for."""
    placed: bool = False
    """Whether it is known to have a place in the cluster; one without may wait for it."""


class SimPool:
    """Keeps workers alive and says what became of their chunks.

    Args:
        spawn: Starts a worker.
        count: Number of workers.
        most_deaths: How many workers of a rank may die one after the other before one finishes a chunk. More would die
            too: of the machine, or of something that they all meet.
        patience: How long [s] to wait while no worker has a place in the cluster.
        hang: How long a worker may be silent; it counts as dead then.

    Attributes:
        replaced: Workers that died and were replaced.
    """

    def __init__(
        self, spawn: Spawn, count: int, *, most_deaths: int = 3, patience: float = 120.0, hang: HangLimit | None = None
    ) -> None:
        self._spawn = spawn
        self._hang = hang or HangLimit()
        self._most_deaths = most_deaths
        self._patience = patience
        self._sims: list[_Sim] = []
        self.replaced = 0
        self._busy_seconds = 0.0
        self._events = 0
        self._last_alive = time.monotonic()
        for _ in range(count):
            self.join()

    def __len__(self) -> int:
        return len(self._sims)

    @property
    def building(self) -> int:
        """Workers that are not ready for their first chunk, be it because the cluster has no place for them."""
        return sum(sim.call is not None and sim.ticket is None for sim in self._sims)

    def busy_seconds(self) -> float:
        """Return how long the workers have been at chunks until now, all together, in vain or not."""
        now = time.monotonic()
        return self._busy_seconds + sum(now - sim.began for sim in self._sims if sim.ticket is not None)

    def join(self) -> None:
        """Start one worker more."""
        rank = len(self._sims)
        self._sims.append(_Sim(rank, 0, *self._spawn(rank, 0)))

    def idle(self) -> list[tuple[int, int]]:
        """Return rank and incarnation of each worker that can begin a chunk, the one first that has waited longest."""
        idle = sorted((sim for sim in self._sims if sim.call is None), key=lambda sim: sim.idle_since)
        return [(sim.rank, sim.incarnation) for sim in idle]

    def collect(self, ticket: Ticket, weights: Any, version: int) -> None:
        """Let an idle worker begin a chunk.

        Args:
            ticket: Names it, and the worker.
            weights: Reference to the weights; they are not copied for each worker.
            version: Of the weights.
        """
        sim = self._sims[ticket.rank]
        sim.ticket, sim.began, sim.silent = ticket, time.monotonic(), 0.0
        sim.call, sim.chunk = sim.actor.collect.options(num_returns=2).remote(weights, version)

    def wait(self, others: Sequence[Any] = ()) -> Finished | Lost | None:
        """Wait until a worker has news or one of the `others` an answer, for `LOOK` [s] at most.

        Args:
            others: Pending answers of other actors.

        Returns:
            What became of a chunk; None: something else happened, or nothing.

        Raises:
            WorkerLostError: Workers die as fast as they are replaced.
            InputError: No worker has had a place in the cluster for too long.
        """
        sims = {sim.call: sim for sim in self._sims if sim.call is not None}
        for sim in sims.values():
            if self._hangs(sim):
                return self._replace(sim, HUNG.format(self._limit(sim)))
        silence = Silence()
        with silence.waiting():
            answered = ready([*sims, *others], count=1, timeout=LOOK)
        for sim in sims.values():
            sim.silent += silence.seconds
        if self.building < len(self._sims):
            self._last_alive = time.monotonic()
        elif time.monotonic() - self._last_alive > self._patience:
            raise InputError(
                f"Ray: none of {len(self._sims)} simulator workers has started for {self._patience:.0f} s; "
                f"{free('CPU'):g} CPUs are free: ask for fewer workers, or wait until others leave the cluster"
            )
        return self._news(sims[answered[0]]) if answered and answered[0] in sims else None

    def state(self, rank: int) -> tuple[int, Any]:
        """Ask a worker for its state, after the chunk that it is at; return its incarnation and the pending answer."""
        sim = self._sims[rank]
        return sim.incarnation, sim.actor.state.remote()

    def replace(self, rank: int, incarnation: int, how: str = DIED) -> Lost | None:
        """Replace a worker that was found lost, unless that has been done; return the chunk that went with it."""
        sim = self._sims[rank]
        return self._replace(sim, how) if sim.incarnation == incarnation else None

    def load(self, states: Sequence[Any]) -> None:
        """Let each worker go on from a state; there are as many as there were workers.

        Raises:
            InputError: A state does not fit.
        """
        calls = [sim.actor.load_state.remote(state) for sim, state in zip(self._sims, states, strict=True)]
        answers(calls, limit=self._hang.of("load"), who="simulator worker")

    def close(self) -> None:
        """End all workers."""
        for sim in self._sims:
            ray.kill(sim.actor)

    def _news(self, sim: _Sim) -> Finished | Lost | None:
        try:
            info: Any = ray.get(sim.call)
        except RayError as error:
            if not died(error):
                answers([sim.call])
            return self._replace(sim)
        if sim.ticket is not None:
            self._hang.took("collect", time.monotonic() - sim.began)
        chunk, ticket = sim.chunk, self._end_chunk(sim)
        sim.call = None
        self._events += 1
        sim.idle_since = self._events
        if ticket is None:
            return None
        assert info.ticket == ticket, (info.ticket, ticket)
        sim.deaths = 0
        return Finished(ticket, info, chunk)

    def _limit(self, sim: _Sim) -> float:
        return self._hang.of("start" if sim.ticket is None else "collect")

    def _hangs(self, sim: _Sim) -> bool:
        """Whether a worker has been silent for too long, though nothing is there that it might wait for."""
        if sim.silent < self._limit(sim) or ready([sim.call], count=1, timeout=0.0):
            return False
        if sim.ticket is not None or sim.placed:
            return True
        # Only now does its time begin: nobody knows when it got its place.
        sim.placed, sim.silent = has_place(sim.actor), 0.0
        return False

    def _replace(self, sim: _Sim, how: str = DIED) -> Lost | None:
        sim.deaths += 1
        if sim.deaths > self._most_deaths:
            raise WorkerLostError(
                f"{sim.deaths} simulator workers of rank {sim.rank} were lost one after the other before one finished "
                f"a chunk; the last {how}: give fewer or smaller workers",
                f"simulator worker {sim.rank}",
            )
        ticket = self._end_chunk(sim)
        # It may also be alive, stopped or behind a broken connection, and would answer for its successor.
        ray.kill(sim.actor)
        sim.incarnation += 1
        sim.actor, sim.call = self._spawn(sim.rank, sim.incarnation)
        sim.silent, sim.placed = 0.0, False
        self.replaced += 1
        tell(f"simulator worker {sim.rank} {how} and was replaced; the run goes on")
        return None if ticket is None else Lost(ticket)

    def _end_chunk(self, sim: _Sim) -> Ticket | None:
        """Account for the time of the chunk that a worker was at; return its ticket."""
        ticket, sim.ticket, sim.chunk = sim.ticket, None, None
        if ticket is not None:
            self._busy_seconds += time.monotonic() - sim.began
        return ticket
