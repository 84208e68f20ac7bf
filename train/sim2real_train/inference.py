"""One policy for many simulator workers: whichever of them are ready are answered together.

A worker with few environments spends more on calling the network than on its sums; several workers' environments in one
batch cost hardly more than one's. What vLLM's continuous batching does for language models: nobody waits for the
slowest, a batch leaves when it is full or its first request has waited long enough.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import ray
import torch

from sim2real_train.behaviour import Acted, Behaviour
from sim2real_train.checkpoint import Arrays

__all__ = ["Answer", "InferenceServer", "RemoteBehaviour"]

Array = npt.NDArray[np.float32]


class Answer(NamedTuple):
    """What a shard of B environments does next."""

    actions: Array
    """Shape [B, A]."""
    means: Array
    """Without noise, shape [B, A]."""
    state: tuple[Array, ...]
    """Recurrent state after the step, each [B, H]."""
    version: int
    """Of the weights."""


class _Request(NamedTuple):
    observations: Array
    state: tuple[Array, ...]
    noise: Array
    came: float
    answer: asyncio.Future[Answer]


class InferenceServer:
    """Acts for all simulator workers; as an actor its calls overlap, so that requests can be gathered.

    Memory stays with the workers, who send it along: a worker that dies takes nothing with it that the server keeps.
    """

    async def start(
        self, make_behaviour: Callable[[], Behaviour], most_rows: int, patience: float, num_threads: int
    ) -> None:
        """Build the policy.

        Args:
            make_behaviour: Builds it; weights come later.
            most_rows: Environments at which a batch leaves.
            patience: How long [s] a request waits for others.
            num_threads: Threads of the network.
        """
        torch.set_num_threads(num_threads)
        self._behaviour = make_behaviour()
        self._most_rows = most_rows
        self._patience = patience
        self._version = 0
        self._requests: list[_Request] = []
        self._timer: asyncio.TimerHandle | None = None
        self._batches = 0
        self._rows = 0
        self._waited = 0.0
        self._busy = 0.0

    async def set_weights(self, weights: Arrays, version: int) -> None:
        """Act with other weights from the next batch on, unless newer ones came first: calls overlap."""
        if version < self._version:
            return
        with torch.no_grad():
            for name, tensor in self._behaviour.weights().items():
                tensor.copy_(torch.tensor(weights[name]))
        self._version = version

    async def exploration(self) -> tuple[Arrays, int]:
        """Return the weights that noise is drawn with, which are few, and their version."""
        weights = self._behaviour.weights()
        return {name: weights[name].numpy().copy() for name in weights if not name.startswith("actor.")}, self._version

    async def act(self, observations: Array, state: tuple[Array, ...], noise: Array) -> Answer:
        """Answer when the batch that this request belongs to has been computed; shapes as in `Behaviour.act`."""
        loop = asyncio.get_running_loop()
        request = _Request(observations, state, noise, time.perf_counter(), loop.create_future())
        self._requests.append(request)
        if sum(len(each.observations) for each in self._requests) >= self._most_rows:
            self._answer_all()
        elif self._timer is None:
            self._timer = loop.call_later(self._patience, self._answer_all)
        return await request.answer

    async def figures(self) -> dict[str, float]:
        """Return the mean size of a batch, the mean wait for others, and the time in the network since the start."""
        requests = max(self._batches, 1)
        return {
            "inference_batches": float(self._batches),
            "inference_rows_per_batch": self._rows / requests,
            "inference_wait_seconds": self._waited / requests,
            "inference_busy_seconds": self._busy,
        }

    def _answer_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, self._requests = self._requests, []
        began = time.perf_counter()
        try:
            acted = self._act(requests)
        except (RuntimeError, ValueError) as error:
            for each in requests:
                each.answer.set_exception(error)
            return
        ends = np.cumsum([len(each.observations) for each in requests]).tolist()
        for request, start, end in zip(requests, [0, *ends[:-1]], ends, strict=True):
            rows = slice(start, end)
            state = tuple(tensor[rows].numpy() for tensor in acted.state)
            if not request.answer.done():
                request.answer.set_result(
                    Answer(acted.actions[rows].numpy(), acted.means[rows].numpy(), state, self._version)
                )
        self._batches += 1
        self._rows += ends[-1]
        self._waited += sum(began - each.came for each in requests) / len(requests)
        self._busy += time.perf_counter() - began

    @torch.no_grad()
    def _act(self, requests: list[_Request]) -> Acted:
        observations = _joined([each.observations for each in requests])
        noise = _joined([each.noise for each in requests])
        state = tuple(_joined(list(parts)) for parts in zip(*(each.state for each in requests), strict=True))
        return self._behaviour.act(observations, state, noise)


def _joined(parts: list[Array]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts))


class RemoteBehaviour(Behaviour):
    """A simulator worker's side of the server.

    Args:
        local: The same policy, of which the noise is used, and nothing of the actor but its sizes.
        server: The server's actor.

    Attributes:
        oldest: Version of the oldest weights that acted since noise was last drawn.
    """

    def __init__(self, local: Behaviour, server: Any) -> None:
        self.actor = local.actor
        self._local = local
        self._server = server
        self.oldest = 0

    @property
    def observation_size(self) -> int:
        """As of the policy itself."""
        return self._local.observation_size

    def initial_state(self, batch: int) -> tuple[torch.Tensor, ...]:
        """As of the policy itself."""
        return self._local.initial_state(batch)

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw the noise of a whole rollout, of the deviation that the server has now."""
        weights, self.oldest = cast("tuple[Arrays, int]", ray.get(self._server.exploration.remote()))
        with torch.no_grad():
            own = self._local.weights()
            for name, array in weights.items():
                own[name].copy_(torch.tensor(array))
        return self._local.noise(shape, generator)

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Ask the server."""
        asked = self._server.act.remote(observations.numpy(), tuple(each.numpy() for each in state), noise.numpy())
        answer: Answer = cast("Any", ray).get(asked)
        self.oldest = min(self.oldest, answer.version)
        # What comes from a store is read-only.
        following = tuple(torch.tensor(each) for each in answer.state)
        return Acted(torch.tensor(answer.actions), torch.tensor(answer.means), following)

    def log_std(self) -> torch.Tensor:
        """Return the deviation that the noise was drawn with."""
        return self._local.log_std()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the local policy's; only those that noise is drawn with are up to date."""
        return self._local.weights()
