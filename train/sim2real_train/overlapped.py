"""The `overlapped` placement: the next batch is collected while this one is learned, in lock step.

What verl's one-step-off and OpenRLHF's asynchronous mode do for language models. A batch is collected with the weights
before the update that runs meanwhile, so that it has missed one update when it is learned; the first has missed none.
Which chunks are learned when, and with which weights they were collected, does not depend on how fast anything was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim2real.errors import InputError
from sim2real_train.admission import Arrival
from sim2real_train.chunks import Collected, WorkerState
from sim2real_train.sim_pool import Finished, Lost
from sim2real_train.split import Chunk, Pools, Split

__all__ = ["Overlapped"]


class Overlapped(Split):
    """The `Placement` in lock step: as long as no worker dies, the same seed gives the same weights.

    Args:
        pools: The workers; B is a multiple of the simulator workers too, of which each collects as many chunks.
    """

    def __init__(self, pools: Pools) -> None:
        if pools.chunks_per_update % pools.num_sims:
            raise InputError(
                f"{pools.chunks_per_update} chunks an update cannot be shared equally by {pools.num_sims} simulator "
                "workers; give a multiple"
            )
        super().__init__(pools, max_staleness=1)
        self._chunks_per_sim = pools.chunks_per_update // pools.num_sims
        self._to_begin: Counter[int] = Counter()
        self._behaviour = (self._weights, 0)

    def collect(self) -> list[Collected]:
        """Return the batch that was collected meanwhile, and let the next one begin with the weights of now."""
        with self._stages.spend("collect"):
            if not self._has_begun():
                self._begin_batch()
            while (collected := self._take_batch()) is None:
                self._pump()
            self._begin_batch()
            return collected

    def _has_begun(self) -> bool:
        return self.admission.running + self.admission.waiting + self._to_begin.total() > 0

    def _begin_batch(self) -> None:
        self._behaviour = (self._weights, self.admission.version)
        self._to_begin.update(dict.fromkeys(range(len(self.pool)), self._chunks_per_sim))
        self._begin_chunks()

    def _begin_chunks(self) -> None:
        weights, version = self._behaviour
        for rank, incarnation in self.pool.idle():
            if self._to_begin[rank]:
                self._to_begin[rank] -= 1
                self.pool.collect(self.admission.begin(rank, incarnation), weights, version)

    def _take_in(self, news: Finished | Lost | None) -> None:
        super()._take_in(news)
        if isinstance(news, Lost):
            # Another chunk in its place, with the weights of the others.
            self._to_begin[news.ticket.rank] += 1

    def _lose(self, batch: Sequence[Arrival[Chunk]], lost: Sequence[Arrival[Chunk]]) -> None:
        super()._lose(batch, lost)
        self._to_begin.update(arrival.ticket.rank for arrival in lost)

    def _sim_states(self) -> list[WorkerState]:
        """Once the next batch is there, since when a worker is asked in between depends on the others."""
        while self._to_begin.total() or self.admission.running:
            self._pump()
        return super()._sim_states()
