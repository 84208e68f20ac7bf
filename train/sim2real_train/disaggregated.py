"""The `disaggregated` placement: simulator workers stream chunks to learners, which never wait for a particular one.

What AReaL (arXiv 2505.24298), StreamRL (arXiv 2504.15930) and verl's fully asynchronous trainer do for language models.
One thread, the controller's, begins chunks as `Admission` allows, and goes on doing so while it waits for learners.
"""

from __future__ import annotations

from typing import Any

from sim2real_train.actors import free
from sim2real_train.chunks import Collected
from sim2real_train.split import Pools, Split

__all__ = ["Disaggregated"]


class Disaggregated(Split):
    """The `Placement` of clusters: workers may die, be slow, and join.

    Args:
        pools: The workers.
        max_staleness: η, updates that the weights of a chunk may miss.
        max_sims: Simulator workers that there may be once the cluster has grown; 0: as many as at the start.
        cpus_per_sim: CPUs of each.
        server: An inference server, which gets the weights in place of the simulator workers.
    """

    def __init__(
        self, pools: Pools, *, max_staleness: int, max_sims: int = 0, cpus_per_sim: int = 1, server: Any = None
    ) -> None:
        super().__init__(pools, max_staleness=max_staleness, server=server)
        self._max_sims = max_sims
        self._cpus_per_sim = cpus_per_sim

    def collect(self) -> list[Collected]:
        """Return the next B chunks, whichever finish first, that are not too old to be learned."""
        self._grow()
        with self._stages.spend("collect"):
            while (collected := self._take_batch()) is None:
                self._pump()
            return collected

    def _begin_chunks(self) -> None:
        for rank, incarnation in self.pool.idle():
            if self.admission.capacity(len(self.pool)) <= 0:
                return
            ticket = self.admission.begin(rank, incarnation)
            self.pool.collect(ticket, self._weights, self.admission.version)

    def _grow(self) -> None:
        """Take in a worker if the cluster has a place; one at a time, because Ray tells of taken places late."""
        if len(self.pool) >= self._max_sims or self.pool.building:
            return
        if free("CPU") >= self._cpus_per_sim:
            self.pool.join()
