"""One worker that collects and learns. It knows nothing of where it runs or who its peers are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from sim2real.errors import InputError
from sim2real_train.algorithm import Average
from sim2real_train.algorithms import make_algorithm
from sim2real_train.chunks import Collected, WarmStart, WorkerState
from sim2real_train.collector import Collector
from sim2real_train.config import TrainConfig
from sim2real_train.environments import evaluate_on
from sim2real_train.evaluate import Episodes
from sim2real_train.moments import Moments
from sim2real_train.policy import TorchPolicy

__all__ = ["Worker", "building"]


@contextlib.contextmanager
def building(what: str) -> Generator[None]:
    """Say of what could not be built what to give less of.

    Raises:
        InputError: In place of an error of the block for want of memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # Both NumPy and PyTorch name the size that they could not get, the latter in a RuntimeError.
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{what}: cannot be built ({reason}); give smaller --num-envs, --num-steps or --hidden"
        ) from error


class Worker:
    """Collects, scores, learns and publishes; the controller calls the four in turn on every worker.

    Args:
        config: The run.
        rank: Which of the workers this is, from 0.
        average: Replaces a flat gradient by its mean over all workers, in place.
        num_threads: Threads that step the simulation.
        dumps: Folder for what led to diverged simulations; None: it is only counted.
        device: Where it learns (`make_algorithm`).
    """

    def __init__(
        self,
        config: TrainConfig,
        rank: int,
        average: Average,
        *,
        num_threads: int = 1,
        dumps: Path | None = None,
        device: torch.device | None = None,
    ) -> None:
        # More threads do not speed up networks this small, and their sums would depend on the number of cores.
        torch.set_num_threads(1)
        self.config = config
        self.rank = rank
        self._num_threads = num_threads
        num_envs = config.num_envs // config.num_workers
        self.collector = Collector(config, num_envs, rank=rank, num_threads=num_threads, dumps=dumps)
        self.algorithm = make_algorithm(config, self.collector.sizes, rank=rank, average=average, device=device)

    def collect(self) -> Collected:
        """Act for T control steps in every environment."""
        return self.collector.collect(self.algorithm.behaviour, self.algorithm.version)

    def score(self) -> Moments:
        """Take in what was collected; return the moments of the advantages."""
        return self.algorithm.score([self.collector.rollout])

    def learn(self, advantages: Moments) -> dict[str, float]:
        """Learn from what was collected, its advantages normalised by the moments of all workers'."""
        return self.algorithm.learn(advantages)

    def publish(self, observations: Moments) -> None:
        """Take the observations of all workers into the normaliser, for the next rollout."""
        self.algorithm.publish(observations)

    def evaluate(self, starts: int, seed: int) -> Episodes:
        """Run whole episodes of the deterministic policy on plants of the training ranges."""
        policy = TorchPolicy(self.algorithm.actor)
        return evaluate_on(self.config, policy, starts=starts, seed=seed, num_threads=self._num_threads)

    def state(self) -> WorkerState:
        """Return what later iterations depend on, beside `learner_state`."""
        state = self.collector.state()
        return WorkerState(
            arrays=state.arrays | {f"replica/{name}": array for name, array in self.algorithm.replica_state().items()},
            generator=state.generator,
        )

    def learner_state(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Return what all workers share: the weights, and what learning goes on with."""
        return self.algorithm.state()

    def load_state(self, learner: Mapping[str, Mapping[str, npt.NDArray[Any]]], state: WorkerState) -> None:
        """Continue exactly from what `learner_state` and `state` returned.

        Raises:
            InputError: They do not fit this run.
        """
        try:
            self.algorithm.load_state(learner)
            self.collector.load_state(state)
            prefix = "replica/"
            arrays = {name.removeprefix(prefix): each for name, each in state.arrays.items() if name.startswith(prefix)}
            self.algorithm.load_replica_state(arrays)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"checkpoint: does not fit this run (worker {self.rank}: {type(error).__name__}); train anew"
            ) from error

    def begin_with(self, warm: WarmStart) -> None:
        """Begin with what another run has learned."""
        self.algorithm.begin_with(warm)

    def weights_sha256(self) -> str:
        """Return a digest of all weights, for comparison with other workers'."""
        return self.algorithm.weights_sha256()

    def process_id(self) -> int:
        """Return the id of the process that this worker lives in."""
        return os.getpid()
