"""Simulators apart from learners: what the `overlapped` and the `disaggregated` placement have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError

from sim2real.errors import InputError, Sim2RealError
from sim2real_train.actors import HUNG, DataLostError, answers, died, ready, silent, started
from sim2real_train.admission import Admission, Arrival
from sim2real_train.checkpoint import Arrays, Checkpoint
from sim2real_train.chunks import ChunkInfo, Collected, Spawn, WarmStart, WorkerState
from sim2real_train.cluster import spilled_bytes
from sim2real_train.evaluate import Episodes
from sim2real_train.hang import HangLimit, Silence
from sim2real_train.moments import Moments
from sim2real_train.sim_pool import Finished, Lost, SimPool
from sim2real_train.stages import Stages

__all__ = ["Pools", "Split"]

Chunk = tuple[ChunkInfo, Any]
"""What it is like, and the reference to its arrays."""


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The workers of either side."""

    sims: Spawn
    """Starts a simulator worker (`SimRole`)."""
    learners: Spawn
    """Starts a learner (`LearnerRole`); it may wait for the others, all of which are started first."""
    num_sims: int
    """Simulator workers at the start."""
    num_learners: int
    """Replicas of the learner."""
    chunks_per_update: int
    """B, a multiple of `num_learners`."""
    most_deaths: int = 3
    """See `SimPool`."""
    patience: float = 120.0
    """How long [s] to wait for a place in the cluster."""
    hang_limit: float | None = None
    """See `HangLimit`."""


class Split(ABC):
    """All of a `Placement` but when chunks begin.

    The controller passes references on: neither experience nor weights go through its process. While it waits for
    learners it goes on with the simulators.

    Args:
        pools: The workers.
        max_staleness: η, updates that the weights of a chunk may miss.
        server: An inference server, which gets the weights in place of the simulator workers.
    """

    def __init__(self, pools: Pools, *, max_staleness: int, server: Any = None) -> None:
        if pools.chunks_per_update % pools.num_learners:
            raise InputError(
                f"{pools.chunks_per_update} chunks an update cannot be shared equally by {pools.num_learners} "
                "learners; give a multiple"
            )
        self._hang = HangLimit(pools.hang_limit)
        # First, while there is room on the controller's own node: the run outlives every other one.
        spawned = [pools.learners(rank, 0) for rank in range(pools.num_learners)]
        self._learners = [actor for actor, _ in spawned]
        self.pool = SimPool(
            pools.sims, pools.num_sims, most_deaths=pools.most_deaths, patience=pools.patience, hang=self._hang
        )
        self.admission: Admission[Chunk] = Admission(
            max_staleness=max_staleness, chunks_per_update=pools.chunks_per_update
        )
        self._num_sims = pools.num_sims
        self._server = server
        try:
            started([call for _, call in spawned], limit=pools.patience)
        except Sim2RealError:
            self.close()
            raise
        self._weights: Any = None
        self._spread_first_weights()
        self._stages = Stages()

    @abstractmethod
    def collect(self) -> list[Collected]:
        """Return what the next batch is like, chunk by chunk."""

    @abstractmethod
    def _begin_chunks(self) -> None:
        """Let idle simulator workers begin what they may."""

    def score(self) -> list[Moments]:
        """Let all learners compute advantages and value targets of the batch."""
        with self._stages.spend("score"):
            return self._wait("score", self._all("score"))

    def learn(self, advantages: Moments) -> list[dict[str, float]]:
        """Let all learners learn, minibatch by minibatch together."""
        with self._stages.spend("learn"):
            return self._wait("learn", self._all("learn", advantages))

    def publish(self, observations: Moments) -> None:
        """Give every learner the observations of all, for its normaliser; what begins now has the new weights."""
        with self._stages.spend("publish"):
            self._wait("publish", self._all("publish", observations))
            # Who acts has them when it begins: a simulator that waited for a learner would seem to hang.
            weights = self._learners[0].acting_weights.remote()
            with self._hang.timed("publish") as limit:
                if self._pump_until_ready([weights], limit):
                    raise silent([weights], limit, "learner")
            self.admission.updated()
            self._wait("publish", self._spread(weights), who="inference server")

    def evaluate(self, starts: int, seed: int) -> list[Episodes]:
        """Run whole episodes of the present policy; the learners share the starts equally, rounded up."""
        share = math.ceil(starts / len(self._learners))
        with self._stages.spend("evaluate"):
            calls = [learner.evaluate.remote(share, seed + rank) for rank, learner in enumerate(self._learners)]
            return self._wait("evaluate", calls, starts=share)

    def states(self) -> list[WorkerState]:
        """Return the states of the simulator workers that there were at the start, by rank, then of the learners."""
        with self._stages.spend("save"):
            return [*self._sim_states(), *self._wait("save", self._all("state"))]

    def learner(self) -> dict[str, Arrays]:
        """Return weights and optimiser; those of the first learner, because all have the same."""
        with self._stages.spend("save"):
            return self._wait("save", [self._learners[0].learner_state.remote()])[0]

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; what was being collected when it was written is lost, and is not counted."""
        shared = {role: checkpoint.arrays[role] for role in ("weights", "learner")}
        states = [
            WorkerState(arrays=arrays, generator=generator)
            for arrays, generator in zip(checkpoint.workers, checkpoint.state.generators, strict=True)
        ]
        self.pool.load(states[: self._num_sims])
        of_learners = zip(self._learners, states[self._num_sims :], strict=True)
        calls = [learner.load_state.remote(shared, state) for learner, state in of_learners]
        answers(calls, limit=self._hang.of("load"), who="learner")
        self.admission = Admission(
            max_staleness=self.admission.max_staleness,
            chunks_per_update=self.admission.chunks_per_update,
            version=checkpoint.state.iteration,
        )
        self._spread_first_weights()

    def begin_with(self, warm: WarmStart) -> None:
        """Begin with what another run has learned; before anything is collected, since that is with those weights."""
        answers(self._all("begin_with", warm), limit=self._hang.of("load"), who="learner")
        self._spread_first_weights()

    def stages(self) -> dict[str, float]:
        """Return where time, bytes and chunks went since the last call (`Stages.report`), and counts of the run."""
        served: dict[str, float] = {}
        if self._server is not None:
            served = answers([self._server.figures.remote()], limit=self._hang.of("publish"), who="inference server")[0]
        counts = {
            "sim_workers": float(len(self.pool)),
            "replaced_workers": float(self.pool.replaced),
            "dropped_chunks": float(self.admission.dropped),
            "lost_chunks": float(self.admission.lost),
            "waiting_chunks": float(self.admission.waiting),
        }
        if (spilled := spilled_bytes()) is not None:
            counts["spilled_bytes"] = float(spilled)
        figures = self._stages.report(len(self.pool), busy_seconds=self.pool.busy_seconds())
        return figures | counts | served

    def close(self) -> None:
        """End all workers; their places are free for others then."""
        self.pool.close()
        for learner in self._learners:
            ray.kill(learner)

    def _spread_first_weights(self) -> None:
        """Let simulators act with what the learners begin with; none of them is at work yet."""
        weights = self._learners[0].acting_weights.remote()
        limit = self._hang.of("load")
        if not ready([weights], count=1, timeout=limit):
            raise silent([weights], limit, "learner")
        answers(self._spread(weights), limit=limit, who="inference server")

    def _spread(self, weights: Any) -> list[Any]:
        """Let weights be those that act, by reference and put once; return what to wait for."""
        if self._server is None:
            self._weights = weights
            return []
        return [self._server.set_weights.remote(weights, self.admission.version)]

    def _take_batch(self) -> list[Collected] | None:
        """Hand the next batch to the learners, if it is there; its order does not depend on what finished first."""
        taken = self.admission.take()
        if taken is None:
            return None
        batch = sorted(taken, key=lambda arrival: arrival.ticket)
        if not self._feed(batch):
            self._lose(batch, [arrival for arrival in batch if _is_lost(arrival.chunk[1])])
            return None
        for arrival in batch:
            info, staleness = arrival.chunk[0], self.admission.version - arrival.version
            self._stages.add(info.collected, env_steps=info.env_steps, staleness=staleness)
        return [arrival.chunk[0].collected for arrival in batch]

    def _feed(self, batch: Sequence[Arrival[Chunk]]) -> bool:
        """Give each learner an equal share of a batch; return whether all of it was still there."""
        share = len(batch) // len(self._learners)
        fed: list[Any] = []
        for rank, learner in enumerate(self._learners):
            infos, chunks = zip(*(each.chunk for each in batch[rank * share : (rank + 1) * share]), strict=True)
            fed.append(learner.feed.remote(infos, *chunks))
        try:
            self._wait("feed", fed)
        except DataLostError:
            return False
        return True

    def _lose(self, batch: Sequence[Arrival[Chunk]], lost: Sequence[Arrival[Chunk]]) -> None:
        """Account for chunks that went with the machine which held them."""
        self.admission.give_back(batch, lost)

    def _pump(self, others: Sequence[Any] = ()) -> None:
        """Begin what may begin, wait until a simulator worker or one of the `others` answers, and account for it."""
        self._begin_chunks()
        self._take_in(self.pool.wait(others))

    def _take_in(self, news: Finished | Lost | None) -> None:
        """Account for what became of a chunk."""
        if isinstance(news, Finished):
            info = news.info
            self._stages.add_bytes(info.num_bytes + info.weight_bytes)
            self.admission.finish(news.ticket, info.version, (info, news.chunk))
        elif isinstance(news, Lost):
            self.admission.lose(news.ticket)

    def _wait(self, work: str, calls: Sequence[Any], *, who: str = "learner", starts: int = 0) -> list[Any]:
        """Wait for all answers; simulator workers go on meanwhile.

        Raises:
            WorkerLostError: A worker died, or does not answer.
        """
        with self._hang.timed(work, starts=starts) as limit:
            if self._pump_until_ready(calls, limit):
                raise silent(calls, limit, who)
            return answers(calls, who=who)

    def _pump_until_ready(self, calls: Sequence[Any], limit: float) -> list[Any]:
        """Let simulator workers go on until all calls have an answer, or `limit` [s] is over; return the others."""
        pending = list(calls)
        silence = Silence()
        while pending and silence.seconds < limit:
            with silence.waiting():
                self._pump(pending)
            done = set(ready(pending, count=len(pending), timeout=0.0))
            pending = [call for call in pending if call not in done]
        return pending

    def _sim_states(self) -> list[WorkerState]:
        states: dict[int, WorkerState] = {}
        while missing := [rank for rank in range(self._num_sims) if rank not in states]:
            asked = {rank: self.pool.state(rank) for rank in missing}
            limit = self._hang.of("save")
            late = self._pump_until_ready([call for _, call in asked.values()], limit)
            for rank, (incarnation, call) in asked.items():
                if call in late:
                    self._take_in(self.pool.replace(rank, incarnation, HUNG.format(limit)))
                elif (state := self._sim_state(rank, incarnation, call)) is not None:
                    states[rank] = state
        return [states[rank] for rank in range(self._num_sims)]

    def _sim_state(self, rank: int, incarnation: int, call: Any) -> WorkerState | None:
        """Return what a simulator worker answered; None: it has died, and another has its place."""
        try:
            state: Any = ray.get(call)
        except RayError as error:
            if not died(error):
                answers([call])
            self._take_in(self.pool.replace(rank, incarnation))
            return None
        return state

    def _all(self, method: str, *args: object) -> list[Any]:
        return [getattr(learner, method).remote(*args) for learner in self._learners]


def _is_lost(chunk: Any) -> bool:
    """Whether nobody has the arrays of a chunk any more."""
    try:
        ray.get(chunk)
    except ObjectLostError:
        return True
    return False
