from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sim2real.errors import InputError
from sim2real.tasks.mirror import Image
from sim2real_train.environments import check_task, mirror_of
from sim2real_train.models import ActorCritic, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.ppo import PpoConfig, PpoLearner
from sim2real_train.ppo_loss import gaussian_log_prob
from sim2real_train.reflection import Reflection, Reflections
from sim2real_train.rollout import Rollout
from tests.train.builders import iterate, keep, make_worker, small_config

STANDARD = Moments(1.0, np.zeros(2), np.ones(2))
MIRROR = Reflections(
    critic_observation=Reflection(Image(columns=(1, 0, 2), signs=(1, 1, -1))),
    action=Reflection(Image(columns=(1, 0), signs=(1, 1))),
)
"""Two sides, of which the critic sees the difference."""


def learner_of(*, spread: float = 0.5, **config: Any) -> PpoLearner:
    """A policy whose weights are drawn, and far from symmetric where their `spread` is large."""
    torch.manual_seed(0)
    model = ActorCritic(ModelConfig(hidden=(16,)), 2, 3, 2)
    for parameter in model.actor.parameters():
        parameter.data.normal_(0.0, spread)
    return PpoLearner(model, PpoConfig(**config), keep, observation_size=3, seed=0, mirror=MIRROR)


def rollout_of(learner: PpoLearner, generator: torch.Generator) -> Rollout:
    """What the present policy does in states that are drawn, and a reward that only the first side pays."""
    rollout = Rollout(16, 32, 2, 3, 2)
    rollout.critic_observations[..., :2] = torch.randn(17, 32, 2, generator=generator)
    rollout.critic_observations[..., 2] = rollout.observations[..., 0] - rollout.observations[..., 1]
    with torch.no_grad():
        rollout.means[:] = learner.actor.unroll(rollout.observations[:-1], (), rollout.episode_start[:-1])
    rollout.log_std = learner.behaviour.log_std().clone()
    rollout.actions[:] = rollout.means + rollout.log_std.exp() * torch.randn(16, 32, 2, generator=generator)
    rollout.rewards[:] = -(rollout.actions[..., 0] - 0.5).square()
    rollout.terminated[:] = True
    rollout.version = learner.version
    return rollout


def asymmetry(learner: PpoLearner) -> float:
    observations = torch.randn(256, 2, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        (means,), (images,) = learner.actor(observations), learner.actor(observations.flip(-1))
    return float((images - means.flip(-1)).square().sum(-1).mean())


def test_images_join_the_samples_with_the_policy_that_they_meet() -> None:
    learner = learner_of(symmetry="augment")
    learner.score([rollout_of(learner, torch.Generator().manual_seed(0))])
    samples = learner.samples
    assert samples is not None
    both = learner._reflected(samples)  # pyright: ignore[reportPrivateUsage]
    images = replace(
        both, **{name: getattr(both, name)[:, 32:] for name in ("critic_observations", "actions", "means")}
    )
    assert torch.equal(both.critic_observations[:, :32], samples.critic_observations)
    assert torch.equal(images.observations, samples.observations.flip(-1))
    assert torch.equal(images.critic_observations[..., 2], -samples.critic_observations[..., 2])
    assert torch.equal(images.actions, samples.actions.flip(-1))
    assert torch.equal(both.advantages, samples.advantages.repeat(1, 2))
    with torch.no_grad():
        means = learner.actor.unroll(images.observations, (), samples.episode_start)
    assert torch.equal(images.means, means)
    expected = gaussian_log_prob(images.actions, means, learner.behaviour.log_std())
    assert torch.equal(both.log_probs[:, 32:], expected)


def test_images_count_as_far_as_the_policy_would_act_like_them() -> None:
    """Importance weights, as for samples of older weights: the mirrored policy acted."""
    learner = learner_of(spread=0.2, symmetry="augment", weight_limit=1.5)
    learner.score([rollout_of(learner, torch.Generator().manual_seed(0))])
    samples = learner.samples
    assert samples is not None
    both = learner._reflected(samples)  # pyright: ignore[reportPrivateUsage]
    assert torch.equal(both.weights[:, :32], samples.weights)
    ratios = torch.exp(both.log_probs[:, 32:] - samples.log_probs)
    assert (ratios > 1.5).any()
    assert ((ratios > 0.01) & (ratios < 1.5)).any()
    torch.testing.assert_close(both.weights[:, 32:], ratios * (ratios <= 1.5))
    # With little noise, nobody acts like the image of a policy that is not symmetric.
    sure = learner_of(spread=0.5, symmetry="augment")
    sure.behaviour.log_std().fill_(-5.0)
    sure.score([rollout_of(sure, torch.Generator().manual_seed(0))])
    assert sure.samples is not None
    images = sure._reflected(sure.samples).weights[:, 32:]  # pyright: ignore[reportPrivateUsage]
    assert images.mean() < 0.05
    assert images.isfinite().all()


@pytest.mark.parametrize(("symmetry", "spread"), [("augment", 0.15), ("loss", 0.5)])
def test_what_one_side_learns_the_other_does_too(symmetry: str, spread: float) -> None:
    """Only the first action is paid for; without the mirror, the second one would stay where it was.

    Images of a policy that is far from symmetric hardly count, so that `augment` begins close to it, as networks do.
    """
    actions: dict[str, float] = {}
    left: dict[str, float] = {}
    for name in ("none", symmetry):
        learner = learner_of(
            spread=spread, symmetry=name, symmetry_coefficient=5.0, learning_rate=3e-3, desired_kl=0.05
        )
        generator = torch.Generator().manual_seed(1)
        before = asymmetry(learner)
        for _ in range(30):
            moments = learner.score([rollout_of(learner, generator)])
            assert ("symmetry_loss" in learner.learn(moments)) == (name == "loss")
        left[name] = asymmetry(learner) / before
        (means,) = learner.actor(torch.randn(256, 2, generator=generator))
        actions[name] = float((means.detach()[:, 1] - 0.5).abs().mean())
    assert left[symmetry] < 0.5 * left["none"]
    assert actions[symmetry] < 0.2 < actions["none"]


@pytest.mark.parametrize("symmetry", ["augment", "loss"])
def test_a_run_goes_on_exactly(symmetry: str) -> None:
    algorithm = PpoConfig(num_steps=8, epochs=2, minibatches=2, symmetry=symmetry)  # pyright: ignore[reportArgumentType]
    config = small_config(task="go2-velocity-flat", num_envs=4, algorithm=algorithm)
    whole, first, second = (make_worker(config) for _ in range(3))
    for worker in (whole, whole, first):
        iterate(worker)
    second.load_state(first.learner_state(), first.state())
    iterate(second)
    assert whole.weights_sha256() == second.weights_sha256()


def test_what_has_no_image_is_refused() -> None:
    augment = PpoConfig(symmetry="augment")
    for task in ("pendulum-swingup", "gym:Pendulum-v1"):
        with pytest.raises(InputError, match=f"{task}: has no mirror"):
            check_task(small_config(task=task, algorithm=augment))
    gru = ModelConfig(recurrent="gru")
    with pytest.raises(InputError, match="memory has no image"):
        check_task(small_config(task="go2-velocity-flat", algorithm=augment, model=gru))
    assert mirror_of(small_config(task="go2-velocity-flat", model=gru)) is None
