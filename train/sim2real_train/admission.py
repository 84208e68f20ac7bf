"""How much may be collected before it is learned, and what is too old to be learned: accounting without any process.

A version is the number of updates that the weights have had. A chunk is what one simulator worker collects in one call,
with weights of one version; an update learns from B chunks. Simulators run ahead of the learner by at most η updates.

Two rules hold the bound. Admission, the rule of AReaL (arXiv 2505.24298), lets no more chunks begin than the next η + 1
updates can take. When chunks finish out of order that bounds their mean age only, so that a filter drops each one that
is too old when it would be learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

__all__ = ["Admission", "Arrival", "Ticket", "capacity"]

Chunk = TypeVar("Chunk")


class Ticket(msgspec.Struct, frozen=True, order=True):
    """Names one chunk for ever: no two calls share it, nor do a worker and the one that took its place."""

    rank: int
    """Which of the simulator workers."""
    incarnation: int
    """How many workers of this rank died before."""
    sequence: int
    """How many chunks this incarnation was asked for before."""


class Arrival(msgspec.Struct, Generic[Chunk], frozen=True):
    """A chunk that may be learned."""

    ticket: Ticket
    version: int
    """Of the weights that it was collected with; the oldest, if there were several."""
    chunk: Chunk


def capacity(
    *, max_concurrent: int, running: int, accepted: int, version: int, max_staleness: int, chunks_per_update: int
) -> int:
    """Return how many chunks more may begin; 0 or less: none.

    Args:
        max_concurrent: Chunks that can be collected at the same time.
        running: Chunks that are being collected.
        accepted: Chunks that were learned or wait for it, since the first version.
        version: Updates so far.
        max_staleness: η, updates that the weights of a chunk may miss.
        chunks_per_update: B.
    """
    # min(max_concurrent − running, (η + version + 1) B − (accepted + running))
    within_bound = (max_staleness + version + 1) * chunks_per_update - (accepted + running)
    return min(max_concurrent - running, within_bound)


class Admission(Generic[Chunk]):
    """Counts chunks from their beginning to their update; those that finished wait here.

    At most (η + 1) B chunks run or wait. Whatever way a chunk ends, its place is free again at once, so that the
    learner always gets its next batch, as long as calls end.

    Args:
        max_staleness: η; 0: nothing is collected while the learner learns.
        chunks_per_update: B.
        version: Updates so far. What ran or waited when a run stopped is lost, so that a resumed run has accepted
            version · B; with 0 it would collect as much at once, and learn from it ever later.

    Attributes:
        version: Updates so far.
        accepted: Chunks that were learned or wait for it.
        staleness: How many learned chunks missed how many updates.
        dropped: Chunks that were too old.
        lost: Chunks whose worker died, or the machine that held them.
        refused: Answers that belong to no running chunk, because they were counted before.
    """

    def __init__(self, *, max_staleness: int, chunks_per_update: int, version: int = 0) -> None:
        self.max_staleness = max_staleness
        self.chunks_per_update = chunks_per_update
        self.version = version
        self.accepted = version * chunks_per_update
        self.staleness: Counter[int] = Counter()
        self.dropped = 0
        self.lost = 0
        self.refused = 0
        self._running: set[Ticket] = set()
        self._begun: Counter[tuple[int, int]] = Counter()
        self._waiting: list[Arrival[Chunk]] = []

    @property
    def running(self) -> int:
        """Chunks that are being collected."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Chunks that wait to be learned."""
        return len(self._waiting)

    def capacity(self, max_concurrent: int) -> int:
        """Return how many chunks more may begin, if `max_concurrent` can be collected at the same time."""
        return capacity(
            max_concurrent=max_concurrent,
            running=self.running,
            accepted=self.accepted,
            version=self.version,
            max_staleness=self.max_staleness,
            chunks_per_update=self.chunks_per_update,
        )

    def begin(self, rank: int, incarnation: int) -> Ticket:
        """Take a place for a chunk that this worker begins; there must be `capacity`."""
        assert self.capacity(self.running + 1) > 0
        ticket = Ticket(rank, incarnation, self._begun[rank, incarnation])
        self._begun[rank, incarnation] += 1
        self._running.add(ticket)
        return ticket

    def finish(self, ticket: Ticket, version: int, chunk: Chunk) -> bool:
        """Let a chunk wait to be learned; return whether it may: neither too old, nor counted before."""
        if ticket not in self._running:
            self.refused += 1
            return False
        self._running.remove(ticket)
        arrival = Arrival(ticket, version, chunk)
        if self._too_old(arrival):
            self.dropped += 1
            return False
        self.accepted += 1
        self._waiting.append(arrival)
        return True

    def lose(self, ticket: Ticket) -> None:
        """Give back the place of a chunk whose worker died."""
        if ticket in self._running:
            self._running.remove(ticket)
            self.lost += 1

    def take(self) -> list[Arrival[Chunk]] | None:
        """Return the next batch, the chunks that finished first; None: there are not enough yet."""
        self._drop_old()
        if self.waiting < self.chunks_per_update:
            return None
        batch, self._waiting = self._waiting[: self.chunks_per_update], self._waiting[self.chunks_per_update :]
        self.staleness.update(self.version - arrival.version for arrival in batch)
        return batch

    def give_back(self, batch: Sequence[Arrival[Chunk]], lost: Sequence[Arrival[Chunk]]) -> None:
        """Take a batch back that cannot be learned, because some of it is `lost`; the rest is the first of the next."""
        self.staleness.subtract(self.version - arrival.version for arrival in batch)
        self.accepted -= len(lost)
        self.lost += len(lost)
        gone = {arrival.ticket for arrival in lost}
        self._waiting = [*(arrival for arrival in batch if arrival.ticket not in gone), *self._waiting]

    def updated(self) -> None:
        """Count an update of the weights."""
        self.version += 1

    def _drop_old(self) -> None:
        kept = [arrival for arrival in self._waiting if not self._too_old(arrival)]
        old = len(self._waiting) - len(kept)
        self.dropped += old
        self.accepted -= old
        self._waiting = kept

    def _too_old(self, arrival: Arrival[Chunk]) -> bool:
        return arrival.version < self.version - self.max_staleness
