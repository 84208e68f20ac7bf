"""The `colocated` placement: each Ray actor owns environments and a learner replica; gradients are averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from sim2real.errors import Sim2RealError
from sim2real_train.actors import answers, started
from sim2real_train.checkpoint import Arrays, Checkpoint
from sim2real_train.chunks import Collected, Spawn, WarmStart, WorkerState
from sim2real_train.config import TrainConfig
from sim2real_train.device import learning_device
from sim2real_train.evaluate import Episodes
from sim2real_train.hang import HangLimit
from sim2real_train.moments import Moments
from sim2real_train.peers import join_peers
from sim2real_train.stages import Stages
from sim2real_train.worker import Worker, building

__all__ = ["Colocated", "Replica"]


class Replica(Worker):
    """A worker that averages its gradients with its peers'."""

    def __init__(self) -> None:
        """Do nothing: of what a constructor raises, Ray says only that the actor died. `start` does the work."""

    def start(self, config: TrainConfig, rank: int, rendezvous: str, num_threads: int, dumps: Path) -> None:
        """Build the worker; see `Worker`."""
        device = learning_device(config.placement.device)
        average = join_peers(rank, config.num_workers, rendezvous, device)
        with building(f"worker {rank}"):
            super().__init__(config, rank, average, num_threads=num_threads, dumps=dumps, device=device)


class Colocated:
    """The `Placement` where nothing overlaps and nothing is old.

    Args:
        replicas: Starts a worker; it may wait for the others, all of which are started first.
        count: Number of workers.
        env_steps: Control steps of all workers together in an iteration.
        patience: How long [s] to wait for a place in the cluster.
        hang_limit: See `HangLimit`.
    """

    def __init__(
        self,
        replicas: Spawn,
        count: int,
        *,
        env_steps: int,
        patience: float = 120.0,
        hang_limit: float | None = None,
    ) -> None:
        self._env_steps = env_steps
        self._hang = HangLimit(hang_limit)
        spawned = [replicas(rank, 0) for rank in range(count)]
        self._workers = [actor for actor, _ in spawned]
        try:
            started([call for _, call in spawned], limit=patience)
        except Sim2RealError:
            self.close()
            raise
        self._stages = Stages()

    def collect(self) -> list[Collected]:
        """Let every worker act for T steps."""
        collected: list[Collected] = self._timed("collect")
        for each in collected:
            self._stages.add(each, env_steps=self._env_steps // len(self._workers))
        return collected

    def score(self) -> list[Moments]:
        """Let every worker compute advantages and value targets."""
        return self._timed("score")

    def learn(self, advantages: Moments) -> list[dict[str, float]]:
        """Let all workers learn, minibatch by minibatch together."""
        return self._timed("learn", advantages)

    def publish(self, observations: Moments) -> None:
        """Give every worker the observations of all, for its normaliser."""
        self._timed("publish", observations)

    def stages(self) -> dict[str, float]:
        """Return where time went since the last call (`Stages.report`)."""
        return self._stages.report(len(self._workers))

    def evaluate(self, starts: int, seed: int) -> list[Episodes]:
        """Run whole episodes of the present policy; the workers share the starts equally, rounded up."""
        share = math.ceil(starts / len(self._workers))
        with self._stages.spend("evaluate"):
            args_of_rank = [(share, seed + rank) for rank in range(len(self._workers))]
            return self._each("evaluate", "evaluate", args_of_rank, starts=share)

    def states(self) -> list[WorkerState]:
        """Return what each worker needs to go on exactly from here."""
        with self._stages.spend("save"):
            return self._all("save", "state")

    def learner(self) -> dict[str, Arrays]:
        """Return weights and optimiser; those of the first worker, because all have the same."""
        with self._stages.spend("save"), self._hang.timed("save") as limit:
            return answers([self._workers[0].learner_state.remote()], limit=limit)[0]

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on exactly from a checkpoint."""
        learner = {role: checkpoint.arrays[role] for role in ("weights", "learner")}
        states = [
            WorkerState(arrays=arrays, generator=generator)
            for arrays, generator in zip(checkpoint.workers, checkpoint.state.generators, strict=True)
        ]
        self._each("load", "load_state", [(learner, state) for state in states])

    def begin_with(self, warm: WarmStart) -> None:
        """Begin with what another run has learned."""
        self._all("load", "begin_with", warm)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            ray.kill(worker)

    def weights_sha256(self) -> list[str]:
        """Return a digest of each worker's weights; equal, or the replicas have drifted apart."""
        return self._all("save", "weights_sha256")

    def process_ids(self) -> list[int]:
        """Return the workers' process ids."""
        return self._all("save", "process_id")

    def _timed(self, method: str, *args: object) -> list[Any]:
        """Call `method` of every worker and count the time to it."""
        with self._stages.spend(method):
            return self._all(method, method, *args)

    def _all(self, work: str, method: str, *args: object) -> list[Any]:
        """Call `method` of every worker with the same arguments."""
        return self._each(work, method, [args] * len(self._workers))

    def _each(
        self, work: str, method: str, args_of_rank: Sequence[tuple[object, ...]], *, starts: int = 0
    ) -> list[Any]:
        """Call `method` of every worker, each with arguments of its own; `work` is what it is for (`HangLimit`)."""
        with self._hang.timed(work, starts=starts) as limit:
            return answers(
                [
                    getattr(worker, method).remote(*args)
                    for worker, args in zip(self._workers, args_of_rank, strict=True)
                ],
                limit=limit,
            )
