from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from sim2real_train.models import ActorCritic, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.ppo import PpoConfig, PpoLearner, adapt_learning_rate
from sim2real_train.ppo_loss import gaussian_kl, gaussian_log_prob, ppo_loss
from sim2real_train.rollout import Rollout, Samples
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


def random_batch(model: ActorCritic, size: int) -> Samples:
    observations = torch.randn(size, 3)
    means = model.actor.unroll(observations, (), torch.zeros(size, dtype=torch.bool)).detach()
    actions = means + torch.randn(size, 2)
    behaviour_means = means + 0.3 * torch.randn(size, 2)
    return Samples(
        critic_observations=observations,
        observation_size=observations.shape[-1],
        actions=actions,
        means=behaviour_means,
        log_probs=gaussian_log_prob(actions, behaviour_means, model.log_std.detach()),
        advantages=torch.randn(size),
        targets=torch.randn(size),
        values=torch.zeros(size),
        weights=torch.rand(size),
        episode_start=torch.zeros(size, dtype=torch.bool),
        state=(),
        critic_state=(),
        mirrored=torch.zeros(size, 0),
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
            ratio = math.exp(float(new.log_prob(batch.actions[i]) - batch.log_probs[i]))
            advantage = float(batch.advantages[i])
            policy -= float(batch.weights[i]) * min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / 64
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
        batch = Samples(
            critic_observations=observations,
            observation_size=observations.shape[-1],
            actions=actions,
            means=means.detach(),
            # ratio = e^-shift: e beyond the upper bound, 1/e beyond the lower one
            log_probs=present + shift,
            advantages=torch.full((4,), advantage),
            targets=torch.zeros(4),
            values=torch.zeros(4),
            weights=torch.ones(4),
            episode_start=torch.zeros(4, dtype=torch.bool),
            state=(),
            critic_state=(),
            mirrored=torch.zeros(4, 0),
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


def learner_of(config: PpoConfig, average: Callable[[torch.Tensor], None] = keep) -> PpoLearner:
    torch.manual_seed(0)
    model = ActorCritic(ModelConfig(hidden=(16,)), 2, 2, 1)
    return PpoLearner(model, config, average, observation_size=2, seed=0)


def own_samples(learner: PpoLearner, generator: torch.Generator) -> Samples:
    """Samples of the learner's own actions, with advantages that have nothing to do with them."""
    observations = torch.randn(32, 16, 2, generator=generator)
    episode_start, log_std = torch.zeros(32, 16, dtype=torch.bool), learner.behaviour.log_std().clone()
    with torch.no_grad():
        means = learner.actor.unroll(observations, (), episode_start)
    actions = means + torch.randn(32, 16, 1, generator=generator) * log_std.exp()
    return Samples(
        critic_observations=observations,
        observation_size=observations.shape[-1],
        actions=actions,
        means=means,
        log_probs=gaussian_log_prob(actions, means, log_std),
        advantages=torch.randn(32, 16, generator=generator),
        targets=torch.zeros(32, 16),
        values=torch.zeros(32, 16),
        weights=torch.ones(32, 16),
        episode_start=episode_start,
        state=(),
        critic_state=(),
        mirrored=torch.zeros(32, 16, 0),
    )


STANDARD = Moments(1.0, np.zeros(1), np.ones(1))
"""Of advantages that are normalised already."""


def test_learning_moves_the_actions_to_where_the_advantage_is() -> None:
    """A task of one step whose best action is known: a = 0.5."""
    learner = learner_of(PpoConfig(learning_rate=3e-3, learning_rate_bounds=(1e-4, 1e-2)))
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        samples = own_samples(learner, generator)
        score = -(samples.actions[..., 0] - 0.5).square()
        learner.samples = replace(samples, advantages=(score - score.mean()) / score.std())
        learner.learn(STANDARD)
    (action,) = learner.actor(torch.randn(100, 2, generator=generator))
    assert (action - 0.5).abs().max() < 0.1
    assert learner.behaviour.log_std().exp().item() < 0.5
    assert learner.version == 40


def test_an_iteration_ends_where_the_policy_has_moved_far_enough() -> None:
    kls: dict[float, float] = {}
    for learning_rate in (1e-4, 3e-2):
        config = PpoConfig(epochs=10, minibatches=4, desired_kl=0.01, learning_rate=learning_rate)
        learner = learner_of(config)
        samples = learner.samples = own_samples(learner, torch.Generator().manual_seed(0))
        old_log_std = learner.behaviour.log_std().clone()
        figures = learner.learn(STANDARD)
        assert (figures["minibatches"] == 40) == (learning_rate == 1e-4)
        # What was too far is known to be: the next iteration's learning rate is lower.
        assert (learner.learning_rate < learning_rate) == (learning_rate == 3e-2)
        with torch.no_grad():
            means = learner.actor.unroll(samples.observations, (), samples.episode_start)
            kls[learning_rate] = (
                gaussian_kl(samples.means, old_log_std, means, learner.behaviour.log_std()).mean().item()
            )
    assert kls[1e-4] < 0.02 < kls[3e-2]


def test_the_gradient_and_the_decision_to_end_are_those_of_all_workers() -> None:
    """A peer that has moved far ends this worker's iteration too."""
    seen: list[int] = []

    def average(vector: torch.Tensor) -> None:
        seen.append(len(vector))
        if len(seen) > 3:
            vector[-1] = 1.0

    learner = learner_of(PpoConfig(), average)
    learner.samples = own_samples(learner, torch.Generator().manual_seed(0))
    figures = learner.learn(STANDARD)
    assert figures["minibatches"] == 3
    assert figures["kl"] == 1.0
    assert seen == [sum(parameter.numel() for parameter in learner.model.parameters()) + 1] * 4


def test_a_policy_that_others_have_acted_for_is_corrected_for() -> None:
    """Decoupled PPO: w = π_proximal / π_behaviour, and 0 where it is beyond the limit; the ratio begins at 1."""
    learner = learner_of(PpoConfig(weight_limit=1.5))
    generator = torch.Generator().manual_seed(1)
    samples = own_samples(learner, generator)
    rollout = Rollout(32, 16, 2, 2, 1)
    rollout.observations[:-1] = samples.observations
    rollout.means = samples.means + 0.2
    rollout.log_std = learner.behaviour.log_std() - 0.3
    rollout.actions = rollout.means + torch.randn(32, 16, 1, generator=generator) * rollout.log_std.exp()
    rollout.version = learner.version - 1
    learner.score([rollout])
    scored = learner.samples
    assert scored is not None
    behaviour = normal(rollout.means, rollout.log_std).log_prob(rollout.actions)
    proximal = normal(samples.means, learner.behaviour.log_std()).log_prob(rollout.actions)
    weights = torch.exp(proximal - behaviour)
    torch.testing.assert_close(scored.log_probs, proximal)
    torch.testing.assert_close(scored.weights, torch.where(weights <= 1.5, weights, 0.0))
    assert 0 < (scored.weights == 0.0).sum() < scored.weights.numel()


def test_rollouts_side_by_side_are_scored_as_each_alone() -> None:
    learner = learner_of(PpoConfig())
    generator = torch.Generator().manual_seed(2)
    rollouts: list[Rollout] = []
    alone: list[Samples] = []
    for _ in range(3):
        rollout = Rollout(32, 4, 2, 2, 1)
        rollout.observations[:] = torch.randn(33, 4, 2, generator=generator)
        rollout.rewards = torch.randn(32, 4, generator=generator)
        rollout.terminated[5, 2] = True
        rollout.final_observations.append((torch.tensor([5]), torch.tensor([2]), torch.randn(1, 2)))
        learner.score([rollout])
        assert learner.samples is not None
        alone.append(learner.samples)
        rollouts.append(Rollout.of(rollout.arrays()))
    learner.score(rollouts)
    assert learner.samples is not None
    for name in ("observations", "advantages", "targets", "log_probs"):
        together = torch.cat([getattr(samples, name) for samples in alone], dim=1)
        torch.testing.assert_close(getattr(learner.samples, name), together)


def test_vtrace_tells_old_experience_from_new() -> None:
    """On what the newest weights did, both estimates are the same; on what others did, V-trace corrects for it."""
    scored: dict[tuple[str, bool], Samples] = {}
    for advantage in ("gae", "vtrace"):
        for stale in (False, True):
            learner = learner_of(PpoConfig(advantage=advantage))  # pyright: ignore[reportArgumentType]
            generator = torch.Generator().manual_seed(3)
            samples = own_samples(learner, generator)
            rollout = Rollout(32, 16, 2, 2, 1)
            rollout.observations[:-1] = samples.observations
            rollout.log_std = learner.behaviour.log_std()
            rollout.means, rollout.actions = samples.means + 0.5 * stale, samples.actions
            rollout.rewards = torch.randn(32, 16, generator=generator)
            rollout.version = learner.version - int(stale)
            learner.score([rollout])
            assert learner.samples is not None
            scored[advantage, stale] = learner.samples
    for name in ("advantages", "targets", "weights"):
        torch.testing.assert_close(getattr(scored["vtrace", False], name), getattr(scored["gae", False], name))
    torch.testing.assert_close(scored["vtrace", True].weights, scored["gae", True].weights)
    assert (scored["vtrace", True].targets - scored["gae", True].targets).abs().max() > 1e-3
    torch.testing.assert_close(scored["gae", True].targets, scored["gae", False].targets)
