"""The workers of split placements: one simulates, the other learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sim2real.errors import InputError
from sim2real_train.admission import Ticket
from sim2real_train.algorithms import make_algorithm
from sim2real_train.behaviour import Behaviour
from sim2real_train.checkpoint import Arrays
from sim2real_train.chunks import ChunkInfo, WarmStart, WorkerState
from sim2real_train.collector import Collector
from sim2real_train.config import TrainConfig
from sim2real_train.device import array_of, learning_device
from sim2real_train.environments import evaluate_on, sizes_of
from sim2real_train.evaluate import Episodes
from sim2real_train.inference import RemoteBehaviour
from sim2real_train.moments import Moments
from sim2real_train.peers import join_peers
from sim2real_train.policy import TorchPolicy
from sim2real_train.rollout import Rollout
from sim2real_train.worker import building

__all__ = ["LearnerWorker", "SimWorker", "behaviour_of", "chunk_envs", "chunks_per_update"]


def chunks_per_update(config: TrainConfig) -> int:
    """Return how many chunks an update learns from, so that workers of both sides have equal shares."""
    return math.lcm(config.num_workers, config.placement.learners)


def chunk_envs(config: TrainConfig) -> int:
    """Return how many environments each simulator worker has."""
    return config.num_envs // chunks_per_update(config)


def behaviour_of(config: TrainConfig) -> Behaviour:
    """Return what acts in the run's environments, with the weights of its first iteration."""
    return make_algorithm(config, sizes_of(config), rank=0, average=_never).behaviour


class SimWorker:
    """Simulates, and acts with the weights that it is given."""

    def start(
        self, config: TrainConfig, rank: int, incarnation: int, num_threads: int, dumps: Path, server: Any = None
    ) -> None:
        """Build environments and policy.

        Args:
            config: The run.
            rank: Which of the simulator workers this is, from 0.
            incarnation: How many before it had this rank and died.
            num_threads: Threads that step the simulation.
            dumps: Folder for what led to diverged simulations.
            server: The inference server that acts; None: this worker does.
        """
        torch.set_num_threads(1)
        num_envs = chunk_envs(config)
        with building(f"simulator worker {rank}"):
            self._collector = Collector(
                config,
                num_envs,
                rank=rank,
                incarnation=incarnation,
                groups=min(2, num_envs),
                num_threads=num_threads,
                dumps=dumps,
            )
            behaviour = make_algorithm(config, self._collector.sizes, rank=0, average=_never).behaviour
        self._remote = None if server is None else RemoteBehaviour(behaviour, server)
        self._behaviour = self._remote or behaviour
        self._source = (rank, incarnation)
        self._sequence = 0

    def collect(self, weights: Arrays | None, version: int) -> tuple[ChunkInfo, Arrays]:
        """Act for T control steps; return what it was like, and the rollout's arrays.

        Args:
            weights: What to act with; None: the inference server has its own.
            version: Of the weights.
        """
        if weights is not None:
            with torch.no_grad():
                for name, tensor in self._behaviour.weights().items():
                    tensor.copy_(torch.tensor(weights[name]))
        collected = self._collector.collect(self._behaviour, version)
        rollout = self._collector.rollout
        if self._remote is not None:
            rollout.version = version = self._remote.oldest
        arrays = rollout.arrays()
        info = ChunkInfo(
            ticket=Ticket(*self._source, self._sequence),
            version=version,
            collected=collected,
            env_steps=rollout.rewards.numel(),
            num_bytes=sum(array.nbytes for array in arrays.values()),
            weight_bytes=sum(array.nbytes for array in (weights or {}).values()),
        )
        self._sequence += 1
        return info, arrays

    def state(self) -> WorkerState:
        """Return what later chunks depend on, beside the weights."""
        return self._collector.state()

    def load_state(self, state: WorkerState) -> None:
        """Go on from what `state` returned.

        Raises:
            InputError: It does not fit this run.
        """
        try:
            self._collector.load_state(state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"checkpoint: does not fit this run (simulator worker {self._source[0]}: {type(error).__name__}); "
                "train anew"
            ) from error


class LearnerWorker:
    """Learns from chunks that others collected."""

    def start(self, config: TrainConfig, rank: int, rendezvous: str, num_threads: int) -> None:
        """Build the learner.

        Args:
            config: The run.
            rank: Which of the replicas this is, from 0.
            rendezvous: File by which they find each other.
            num_threads: Threads that step the simulation when the policy is measured.
        """
        torch.set_num_threads(1)
        self._config = config
        self._num_threads = num_threads
        device = learning_device(config.placement.device)
        average = join_peers(rank, config.placement.learners, rendezvous, device)
        with building(f"learner {rank}"):
            self._algorithm = make_algorithm(config, sizes_of(config), rank=rank, average=average, device=device)
        self._rollouts: list[Rollout] = []

    def feed(self, infos: Sequence[ChunkInfo], *chunks: Arrays) -> None:
        """Take in this replica's share of a batch."""
        self._rollouts = [Rollout.of(arrays) for arrays in chunks]

    def score(self) -> Moments:
        """Compute advantages and value targets; return the moments of the advantages."""
        return self._algorithm.score(self._rollouts)

    def learn(self, advantages: Moments) -> dict[str, float]:
        """Learn, advantages normalised by the moments of all replicas'."""
        return self._algorithm.learn(advantages)

    def publish(self, observations: Moments) -> None:
        """Take the observations of the batch into the normaliser."""
        self._algorithm.publish(observations)

    def acting_weights(self) -> Arrays:
        """Return what simulators act with."""
        return {name: array_of(tensor) for name, tensor in self._algorithm.behaviour.weights().items()}

    def evaluate(self, starts: int, seed: int) -> Episodes:
        """Run whole episodes of the deterministic policy on plants of the training ranges."""
        policy = TorchPolicy(self._algorithm.actor)
        return evaluate_on(self._config, policy, starts=starts, seed=seed, num_threads=self._num_threads)

    def state(self) -> WorkerState:
        """Return what this replica does not share with the others."""
        return WorkerState(arrays=self._algorithm.replica_state(), generator={})

    def learner_state(self) -> dict[str, Arrays]:
        """Return weights and optimiser."""
        return self._algorithm.state()

    def load_state(self, learner: dict[str, Arrays], state: WorkerState) -> None:
        """Go on exactly from what `learner_state` and `state` returned.

        Raises:
            InputError: They do not fit this run.
        """
        try:
            self._algorithm.load_state(learner)
            self._algorithm.load_replica_state(state.arrays)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"checkpoint: does not fit this run ({type(error).__name__}); train anew") from error

    def begin_with(self, warm: WarmStart) -> None:
        """Begin with what another run has learned."""
        self._algorithm.begin_with(warm)


def _never(gradient: torch.Tensor) -> None:
    """Nothing is learned where this is given."""
    raise AssertionError("a simulator worker does not learn")
