from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.models import ActorCritic, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.ppo import PpoConfig, PpoLearner
from sim2real_train.rollout import Rollout
from sim2real_train.value_normalizer import ValueNormalizer
from tests.train.builders import keep

MODELS = {"mlp": ModelConfig(hidden=(8,)), "gru": ModelConfig(hidden=(8,), recurrent="gru", recurrent_critic=True)}


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.0, 1e-3, 1.0, 1e3]))
def test_values_stay_what_they_are_and_targets_become_of_order_one(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    critic = ActorCritic(ModelConfig(hidden=(8,)), 3, 3, 2).critic
    normalizer = ValueNormalizer(critic)
    observations = torch.randn(20, 3)
    for targets in scale * (rng.normal(size=(3, 50, 1)) + 5.0):
        with torch.no_grad():
            before = normalizer.restored(critic(observations)[0])
            normalizer.take(Moments.of(targets))
            after = normalizer.restored(critic(observations)[0])
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3 * max(scale, 1.0))
        assert normalizer.normalized(torch.from_numpy(targets)).abs().max() < 6.0
    values = torch.randn(4)
    torch.testing.assert_close(normalizer.restored(normalizer.normalized(values)), values, rtol=1e-3, atol=1e-3)


def learner_of(model: ModelConfig, *, normalize: bool) -> PpoLearner:
    torch.manual_seed(0)
    config = PpoConfig(epochs=2, minibatches=2, normalize_values=normalize, value_clip=0.5)
    return PpoLearner(ActorCritic(model, 2, 2, 1), config, keep, observation_size=2, seed=0)


def rollout_of(learner: PpoLearner, generator: torch.Generator, scale: float) -> Rollout:
    rollout = Rollout(16, 8, 2, 2, 1)
    rollout.observations[:] = torch.randn(17, 8, 2, generator=generator)
    rollout.state = learner.actor.initial_state(8)
    with torch.no_grad():
        rollout.means[:] = learner.actor.unroll(rollout.observations[:-1], rollout.state, rollout.episode_start[:-1])
    rollout.log_std = learner.behaviour.log_std().clone()
    rollout.actions[:] = rollout.means + torch.randn(16, 8, 1, generator=generator)
    rollout.rewards[:] = scale * (torch.randn(16, 8, generator=generator) + 10.0)
    rollout.terminated[5, 2] = rollout.episode_start[6, 2] = True
    rollout.final_observations.append((torch.tensor([5]), torch.tensor([2]), torch.randn(1, 2, generator=generator)))
    rollout.version = learner.version
    return rollout


def run(learner: PpoLearner, seeds: range, scale: float = 1.0) -> dict[str, float]:
    figures: dict[str, float] = {}
    for seed in seeds:
        moments = learner.score([rollout_of(learner, torch.Generator().manual_seed(seed), scale)])
        figures = learner.learn(moments)
    return figures


def test_the_loss_of_values_does_not_know_the_size_of_the_rewards() -> None:
    losses = {
        scale: run(learner_of(MODELS["mlp"], normalize=True), range(4), scale)["value_loss"] for scale in (1, 1e4)
    }
    assert losses[1e4] == pytest.approx(losses[1], rel=0.3)
    assert losses[1e4] < 5.0
    assert run(learner_of(MODELS["mlp"], normalize=False), range(4), 1e4)["value_loss"] > 1e3


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_goes_on_exactly(model: ModelConfig) -> None:
    first, second = (learner_of(model, normalize=True) for _ in range(2))
    run(first, range(2))
    run(second, range(7, 8))  # whatever it did before must not show through
    second.load_state(first.state())
    second.load_replica_state(first.replica_state())
    run(first, range(2, 4))
    run(second, range(2, 4))
    for part, arrays in first.state().items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, second.state()[part][name], err_msg=name)
