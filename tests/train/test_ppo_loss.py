from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.tasks.mirror import Image
from sim2real_train.flat import FlatParameters
from sim2real_train.models import ActorCritic, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.ppo import PpoConfig
from sim2real_train.ppo_loss import gaussian_log_prob, gradient_for, ppo_loss
from sim2real_train.reflection import Reflection
from sim2real_train.rollout import Samples

OBSERVATIONS, SEEN, ACTIONS = 3, 5, 2


def random_model(config: ModelConfig, generator: torch.Generator) -> ActorCritic:
    """Weights of a trained network's size: the first ones of an actor are near 0."""
    model = ActorCritic(config, OBSERVATIONS, SEEN, ACTIONS)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.5, generator=generator)
    model.set_moments(Moments(2.0, np.linspace(-1.0, 1.0, SEEN), np.linspace(0.5, 4.0, SEEN)))
    return model


def random_samples(model: ActorCritic, count: int, generator: torch.Generator, *, spread: float) -> Samples:
    """Samples of a policy that differs from the model's by `spread`."""
    seen = 2.0 * torch.randn(count, SEEN, generator=generator)
    nowhere = torch.zeros(count, dtype=torch.bool)
    with torch.no_grad():
        present = model.actor.unroll(seen[:, :OBSERVATIONS], (), nowhere)
        values = model.critic.unroll(seen, (), nowhere)
    means = present + spread * torch.randn(count, ACTIONS, generator=generator)
    actions = means + model.log_std.detach().exp() * torch.randn(count, ACTIONS, generator=generator)
    return Samples(
        critic_observations=seen,
        observation_size=OBSERVATIONS,
        actions=actions,
        means=means,
        log_probs=gaussian_log_prob(actions, means, model.log_std.detach()),
        advantages=torch.randn(count, generator=generator),
        targets=torch.randn(count, generator=generator),
        values=values + spread * torch.randn(count, generator=generator),
        weights=torch.rand(count, generator=generator),
        episode_start=nowhere,
        state=(),
        critic_state=(),
        mirrored=2.0 * torch.randn(count, OBSERVATIONS, generator=generator),
    )


MIRROR = Reflection(Image(columns=(1, 0), signs=(-1, -1)))
"""Of actions."""

CONFIGS = st.builds(
    PpoConfig,
    clip=st.sampled_from([0.05, 0.2]),
    value_clip=st.sampled_from([None, 0.1, 1.0]),
    value_coefficient=st.sampled_from([0.5, 2.0]),
    entropy_coefficient=st.sampled_from([0.0, 0.1]),
    symmetry_coefficient=st.sampled_from([0.3, 3.0]),
)
MODELS = st.builds(
    ModelConfig,
    hidden=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    activation=st.sampled_from(["elu", "tanh", "relu", "silu"]),
)


@settings(max_examples=60)
@given(
    config=CONFIGS,
    model=MODELS,
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    spread=st.sampled_from([0.0, 0.3, 1.0]),
    mirror=st.sampled_from([None, MIRROR]),
)
def test_closed_form_equals_autograd(
    config: PpoConfig, model: ModelConfig, seed: int, sizes: list[int], spread: float, mirror: Reflection | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = random_model(model, generator)
    flat = FlatParameters(network, epsilon=1e-5)
    gradient = gradient_for(network, flat, config, mirror)
    old_log_std = network.log_std.detach() + 0.1
    for size in sizes:
        samples = random_samples(network, size, generator, spread=spread)
        figures = gradient(gradient.prepared(samples), old_log_std)
        found = flat.buffer[:-1].clone()
        loss = ppo_loss(network, samples, old_log_std, config, mirror)
        flat.differentiate(loss.total)
        scale = float(flat.buffer[:-1].abs().max())
        assert float((found - flat.buffer[:-1]).abs().max()) <= 1e-5 * max(scale, 1.0)
        np.testing.assert_allclose(figures, [part.item() for part in loss[1:]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["elu", "tanh", "relu", "silu"])
def test_closed_form_equals_finite_differences(activation: Any) -> None:
    """In double precision, in random directions: (L(θ + hv) − L(θ − hv)) / 2h = ∇L · v + O(h²)."""
    generator = torch.Generator().manual_seed(0)
    config = PpoConfig(entropy_coefficient=0.1, value_clip=0.2)
    network = random_model(ModelConfig(hidden=(8, 7), activation=activation), generator)
    samples = random_samples(network, 50, generator, spread=0.3)
    network = network.double()
    samples = Samples(**{name: _double(value) for name, value in vars(samples).items()})
    flat = FlatParameters(network, epsilon=1e-5)
    gradient = gradient_for(network, flat, config, MIRROR)
    old_log_std = network.log_std.detach().clone()
    gradient(gradient.prepared(samples), old_log_std)
    found, parameters = flat.buffer[:-1].clone(), list(network.parameters())
    step = 1e-6
    for _ in range(10):
        direction = torch.randn(len(found), dtype=torch.float64, generator=generator)
        losses: list[float] = []
        for sign in (1.0, -2.0):
            moved = torch.split(sign * step * direction, [parameter.numel() for parameter in parameters])
            with torch.no_grad():
                for parameter, part in zip(parameters, moved, strict=True):
                    parameter += part.view_as(parameter)
                losses.append(float(ppo_loss(network, samples, old_log_std, config, MIRROR).total))
        with torch.no_grad():
            for parameter, part in zip(parameters, moved, strict=True):
                parameter -= 0.5 * part.view_as(parameter)
        assert (losses[0] - losses[1]) / (2.0 * step) == pytest.approx(float(found @ direction), rel=1e-5, abs=1e-6)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


@pytest.mark.parametrize("model", [ModelConfig(recurrent="gru"), ModelConfig(recurrent="lstm", recurrent_critic=True)])
def test_networks_with_memory_are_differentiated_through_time(model: ModelConfig) -> None:
    generator = torch.Generator().manual_seed(0)
    network = random_model(model, generator)
    rows = random_samples(random_model(ModelConfig(), generator), 12, generator, spread=0.3)
    sequences: dict[str, Any] = {
        name: value.reshape(4, 3, *value.shape[1:]) if isinstance(value, torch.Tensor) else value
        for name, value in vars(rows).items()
    }
    sequences |= {"state": network.actor.initial_state(3), "critic_state": network.critic_state(3)}
    samples = Samples(**sequences)
    flat = FlatParameters(network, epsilon=1e-5)
    gradient = gradient_for(network, flat, PpoConfig())
    figures = gradient(gradient.prepared(samples), network.log_std.detach())
    loss = ppo_loss(network, samples, network.log_std.detach(), PpoConfig())
    for name, parameter in network.named_parameters():
        (expected,) = torch.autograd.grad(loss.total, parameter, retain_graph=True)
        torch.testing.assert_close(flat.gradient_of(parameter), expected, msg=name)
    assert figures.value == pytest.approx(loss.value.item())


@pytest.mark.parametrize(("value", "moves"), [(0.9, True), (1.5, False), (-1.5, True), (3.0, True)])
def test_a_value_that_has_come_far_enough_is_left_alone(value: float, moves: bool) -> None:
    """It was 0 and should be 2: beyond 1, nothing pulls it further; what went the other way is pulled back."""
    generator = torch.Generator().manual_seed(0)
    network = random_model(ModelConfig(hidden=()), generator)
    with torch.no_grad():
        for parameter in network.critic.parameters():
            parameter.zero_()
        network.critic.get_parameter("network.0.bias").fill_(value)
    samples = replace(
        random_samples(network, 8, generator, spread=0.0), values=torch.zeros(8), targets=torch.full((8,), 2.0)
    )
    flat = FlatParameters(network, epsilon=1e-5)
    gradient = gradient_for(network, flat, PpoConfig(value_clip=1.0))
    figures = gradient(gradient.prepared(samples), network.log_std.detach())
    assert bool(flat.gradient_of(network.critic.get_parameter("network.0.bias")) != 0.0) == moves
    worse = max(abs(value - 2.0), abs(min(max(value, -1.0), 1.0) - 2.0))
    assert figures.value == pytest.approx(0.5 * worse**2)
