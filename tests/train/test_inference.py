from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from sim2real_train.actors import answers, place, started
from sim2real_train.behaviour import Behaviour, GaussianBehaviour
from sim2real_train.cluster import local_cluster
from sim2real_train.collector import Collector
from sim2real_train.inference import Answer, InferenceServer, RemoteBehaviour
from sim2real_train.models import Actor, ModelConfig
from tests.train.builders import small_config

GRU = ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=8)
SIZES = (3, 2)


def behaviour(seed: int = 0) -> GaussianBehaviour:
    torch.manual_seed(seed)
    return GaussianBehaviour(Actor(GRU, *SIZES), nn.Parameter(torch.full((SIZES[1],), -1.0 - seed)))


def arrays_of(policy: Behaviour) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in policy.weights().items()}


class Shard:
    """What one worker asks for: `rows` environments."""

    def __init__(self, rows: int, policy: Behaviour, seed: int) -> None:
        torch.manual_seed(seed)
        self.observations = torch.randn(rows, SIZES[0])
        self.state = tuple(torch.randn_like(part) for part in policy.initial_state(rows))
        self.noise = torch.randn(rows, SIZES[1])

    async def ask(self, server: InferenceServer) -> Answer:
        return await server.act(
            self.observations.numpy(), tuple(part.numpy() for part in self.state), self.noise.numpy()
        )

    @torch.no_grad()
    def check(self, answer: Answer, policy: Behaviour) -> None:
        acted = policy.act(self.observations, self.state, self.noise)
        np.testing.assert_allclose(answer.actions, acted.actions, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(answer.means, acted.means, rtol=1e-5, atol=1e-6)
        for got, expected in zip(answer.state, acted.state, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


async def serve(shards: Sequence[Shard], most_rows: int, patience: float) -> tuple[list[Answer], dict[str, float]]:
    server = InferenceServer()
    await server.start(behaviour, most_rows, patience, 1)
    answers = await asyncio.gather(*(shard.ask(server) for shard in shards))
    return answers, await server.figures()


def test_whoever_is_ready_is_answered_together_each_with_its_own() -> None:
    policy = behaviour()
    shards = [Shard(rows, policy, seed=rows) for rows in (1, 5, 2)]
    answers, figures = asyncio.run(serve(shards, most_rows=8, patience=60.0))
    for shard, answer in zip(shards, answers, strict=True):
        shard.check(answer, policy)
    assert (figures["inference_batches"], figures["inference_rows_per_batch"]) == (1.0, 8.0)


def test_a_batch_that_does_not_fill_leaves_after_its_time() -> None:
    policy = behaviour()
    shards = [Shard(2, policy, seed=1), Shard(3, policy, seed=2)]
    answers, figures = asyncio.run(serve(shards, most_rows=1000, patience=0.02))
    for shard, answer in zip(shards, answers, strict=True):
        shard.check(answer, policy)
    assert figures["inference_batches"] == 1.0
    assert figures["inference_wait_seconds"] >= 0.015


def test_one_full_shard_waits_for_nobody() -> None:
    policy = behaviour()
    _, figures = asyncio.run(serve([Shard(4, policy, seed=1), Shard(4, policy, seed=2)], most_rows=4, patience=60.0))
    assert figures["inference_batches"] == 2.0


def test_answers_say_which_weights_acted() -> None:
    first, second = behaviour(0), behaviour(1)
    shard = Shard(2, first, seed=1)

    async def serve_both() -> list[Answer]:
        server = InferenceServer()
        await server.start(behaviour, 2, 60.0, 1)
        answers = [await shard.ask(server)]
        await server.set_weights(arrays_of(second), 7)
        weights, version = await server.exploration()
        assert version == 7
        assert {name: array.tolist() for name, array in weights.items()} == {"log_std": [-2.0, -2.0]}
        return [*answers, await shard.ask(server)]

    before, after = asyncio.run(serve_both())
    assert (before.version, after.version) == (0, 7)
    shard.check(before, first)
    shard.check(after, second)


def test_a_request_that_does_not_fit_is_told_and_the_server_lives() -> None:
    policy = behaviour()
    shard, wrong = Shard(2, policy, seed=1), Shard(2, policy, seed=2)
    wrong.observations = torch.zeros(2, SIZES[0] + 1)

    async def serve_both() -> Answer:
        server = InferenceServer()
        await server.start(behaviour, 2, 60.0, 1)
        with pytest.raises(RuntimeError):
            await wrong.ask(server)
        return await shard.ask(server)

    shard.check(asyncio.run(serve_both()), policy)


def test_a_collector_acts_through_the_server() -> None:
    config = small_config(model=GRU)
    sizes = Collector(config, 8, rank=0).sizes

    def make() -> GaussianBehaviour:
        torch.manual_seed(1)
        return GaussianBehaviour(Actor(GRU, sizes[0], sizes[2]), nn.Parameter(torch.full((sizes[2],), -1.0)))

    here, there = Collector(config, 8, rank=0), Collector(config, 8, rank=0)
    here.collect(make())
    with local_cluster(1):
        server = place(InferenceServer, num_cpus=1, at_once=8)
        started([server.start.remote(make, 8, 1.0, 1)], limit=60.0)
        answers([server.set_weights.remote(arrays_of(make()), 5)])
        remote = RemoteBehaviour(make(), server)
        there.collect(remote)
        assert remote.oldest == 5
    torch.testing.assert_close(there.rollout.actions, here.rollout.actions)
    torch.testing.assert_close(there.rollout.rewards, here.rollout.rewards)
    torch.testing.assert_close(there.rollout.log_std, here.rollout.log_std)
