from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from sim2real_train.models import ActorCritic, ModelConfig
from sim2real_train.ppo import Learner, PpoConfig, adapt_learning_rate, gaussian_kl, gaussian_log_prob, ppo_loss
from sim2real_train.rollout import Batch, Rollout
from tests.train.builders import keep


def normal(means: torch.Tensor, log_std: torch.Tensor) -> Any:
    """Without a type: torch's distributions are typed in part."""
    return Independent(Normal(means, log_std.exp()), 1)


@given(seed=st.integers(0, 2**32 - 1))
def test_log_prob_and_kl_are_those_of_torch_distributions(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    actions, old, new = torch.randn(3, 5, 2, dtype=torch.float64, generator=generator)
    old_log_std, log_std = torch.randn(2, 2, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(gaussian_log_prob(actions, new, log_std), normal(new, log_std).log_prob(actions))
    torch.testing.assert_close(
        gaussian_kl(old, old_log_std, new, log_std), kl_divergence(normal(old, old_log_std), normal(new, log_std))
    )


def random_batch(model: ActorCritic, size: int) -> Batch:
    observations = torch.randn(size, 3)
    means = model.actor.unroll(observations, (), torch.zeros(size, dtype=torch.bool)).detach()
    actions = means + torch.randn(size, 2)
    behaviour_means = means + 0.3 * torch.randn(size, 2)
    return Batch(
        observations=observations,
        critic_observations=observations,
        actions=actions,
        behaviour_means=behaviour_means,
        behaviour_log_probs=gaussian_log_prob(actions, behaviour_means, model.log_std.detach()),
        advantages=torch.randn(size),
        targets=torch.randn(size),
        episode_start=torch.zeros(size, dtype=torch.bool),
        state=(),
    )


def test_loss_equals_the_papers_formula_sample_by_sample() -> None:
    torch.manual_seed(0)
    model = ActorCritic(ModelConfig(hidden=(8,)), 3, 3, 2)
    config = PpoConfig(clip=0.2, value_coefficient=0.7, entropy_coefficient=0.05)
    batch = random_batch(model, 64)
    loss = ppo_loss(model, batch, model.log_std.detach(), config)

    policy = value = 0.0
    with torch.no_grad():
        for i in range(64):
            (mean,) = model.actor(batch.observations[i : i + 1])
            new = normal(mean[0], model.log_std)
            ratio = math.exp(float(new.log_prob(batch.actions[i]) - batch.behaviour_log_probs[i]))
            advantage = float(batch.advantages[i])
            policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / 64
            value += 0.5 * float(model.value(batch.observations[i]) - batch.targets[i]) ** 2 / 64
        entropy = float(normal(torch.zeros(2), model.log_std).entropy())
    assert loss.policy.item() == pytest.approx(policy, abs=1e-5)
    assert loss.value.item() == pytest.approx(value, rel=1e-5)
    assert loss.entropy.item() == pytest.approx(entropy, rel=1e-5)
    assert loss.total.item() == pytest.approx(policy + 0.7 * value - 0.05 * entropy, abs=1e-5)
    assert 0.0 < loss.clipped.item() < 1.0


def test_no_gradient_beyond_the_clip_in_the_direction_of_the_advantage() -> None:
    torch.manual_seed(0)
    model = ActorCritic(ModelConfig(hidden=(8,)), 3, 3, 2)
    observations, actions = torch.randn(4, 3), torch.randn(4, 2)
    means = model.actor.unroll(observations, (), torch.zeros(4, dtype=torch.bool))
    present = gaussian_log_prob(actions, means, model.log_std).detach()
    for shift, advantage, moves in ((-1.0, 1.0, False), (-1.0, -1.0, True), (1.0, 1.0, True), (1.0, -1.0, False)):
        batch = Batch(
            observations=observations,
            critic_observations=observations,
            actions=actions,
            behaviour_means=means.detach(),
            # ratio = e^-shift: e beyond the upper bound, 1/e beyond the lower one
            behaviour_log_probs=present + shift,
            advantages=torch.full((4,), advantage),
            targets=torch.zeros(4),
            episode_start=torch.zeros(4, dtype=torch.bool),
            state=(),
        )
        loss = ppo_loss(model, batch, model.log_std.detach(), PpoConfig())
        gradients = torch.autograd.grad(loss.policy, list(model.actor.parameters()))
        assert any(bool(gradient.abs().max() > 0.0) for gradient in gradients) == moves


def test_learning_rate_follows_the_divergence_within_its_bounds() -> None:
    config = PpoConfig(desired_kl=0.01, learning_rate_bounds=(1e-4, 1e-2))
    assert adapt_learning_rate(1e-3, 0.03, config) == pytest.approx(1e-3 / 1.5)
    assert adapt_learning_rate(1e-3, 0.001, config) == pytest.approx(1.5e-3)
    assert adapt_learning_rate(1e-3, 0.01, config) == 1e-3
    assert adapt_learning_rate(1.1e-4, 1.0, config) == 1e-4
    assert adapt_learning_rate(9e-3, 0.0, config) == 1e-2


def test_learning_moves_the_actions_to_where_the_advantage_is() -> None:
    """A task of one step whose best action is known: a = 0.5."""
    torch.manual_seed(0)
    model = ActorCritic(ModelConfig(hidden=(16,)), 2, 2, 1)
    learner = Learner(model, PpoConfig(learning_rate_bounds=(1e-4, 1e-2)), keep)
    generator = torch.Generator().manual_seed(0)
    rollout = Rollout(32, 16, 2, 2, 1)
    for _ in range(40):
        rollout.observations = torch.randn(33, 16, 2, generator=generator)
        with torch.no_grad():
            rollout.means = model.actor.unroll(rollout.observations[:-1], (), rollout.episode_start[:-1])
            noise = torch.randn(32, 16, 1, generator=generator)
            rollout.actions = rollout.means + noise * model.log_std.exp()
            rollout.log_probs = gaussian_log_prob(rollout.actions, rollout.means, model.log_std)
        score = -(rollout.actions[..., 0] - 0.5).square()
        rollout.advantages = (score - score.mean()) / score.std()
        learner.learn(rollout, 3e-3, generator)
    (action,) = model.actor(torch.randn(100, 2, generator=generator))
    assert (action - 0.5).abs().max() < 0.1
    assert model.log_std.exp().item() < 0.5


def filled_rollout(model: ActorCritic, generator: torch.Generator) -> Rollout:
    """A rollout of the model's own actions, with advantages that have nothing to do with them."""
    rollout = Rollout(32, 16, 2, 2, 1)
    rollout.observations = torch.randn(33, 16, 2, generator=generator)
    with torch.no_grad():
        rollout.means = model.actor.unroll(rollout.observations[:-1], (), rollout.episode_start[:-1])
        rollout.actions = rollout.means + torch.randn(32, 16, 1, generator=generator) * model.log_std.exp()
        rollout.log_probs = gaussian_log_prob(rollout.actions, rollout.means, model.log_std)
    rollout.advantages = torch.randn(32, 16, generator=generator)
    return rollout


def test_an_iteration_ends_where_the_policy_has_moved_far_enough() -> None:
    config = PpoConfig(epochs=10, minibatches=4, desired_kl=0.01)
    kls: dict[float, float] = {}
    for learning_rate in (1e-4, 3e-2):
        torch.manual_seed(0)
        model = ActorCritic(ModelConfig(hidden=(16,)), 2, 2, 1)
        generator = torch.Generator().manual_seed(0)
        rollout = filled_rollout(model, generator)
        old_log_std = model.log_std.detach().clone()
        update = Learner(model, config, keep).learn(rollout, learning_rate, generator)
        assert (update.minibatches == 40) == (learning_rate == 1e-4)
        # What was too far is known to be: the next iteration's learning rate is lower.
        assert (adapt_learning_rate(learning_rate, update.kl, config) < learning_rate) == (learning_rate == 3e-2)
        with torch.no_grad():
            means = model.actor.unroll(rollout.observations[:-1], (), rollout.episode_start[:-1])
            kls[learning_rate] = gaussian_kl(rollout.means, old_log_std, means, model.log_std).mean().item()
    assert kls[1e-4] < 0.02 < kls[3e-2]


def test_the_gradient_and_the_decision_to_end_are_those_of_all_workers() -> None:
    """A peer that has moved far ends this worker's iteration too."""
    torch.manual_seed(0)
    model = ActorCritic(ModelConfig(hidden=(16,)), 2, 2, 1)
    seen: list[int] = []

    def average(vector: torch.Tensor) -> None:
        seen.append(len(vector))
        if len(seen) > 3:
            vector[-1] = 1.0

    generator = torch.Generator().manual_seed(0)
    update = Learner(model, PpoConfig(), average).learn(filled_rollout(model, generator), 1e-4, generator)
    assert update.minibatches == 3
    assert update.kl == 1.0
    assert seen == [sum(parameter.numel() for parameter in model.parameters()) + 1] * 4
