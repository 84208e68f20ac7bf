from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.behaviour import GaussianBehaviour
from sim2real_train.mlp import Perceptron
from sim2real_train.models import Actor, ActorCritic, ModelConfig
from sim2real_train.moments import Moments

CONFIGS = st.builds(
    ModelConfig,
    hidden=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    activation=st.sampled_from(["elu", "tanh", "relu", "silu"]),
)


@given(config=CONFIGS, seed=st.integers(0, 2**32 - 1), counts=st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_equals_the_network_whatever_it_has_learned_since(config: ModelConfig, seed: int, counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = Actor(config, 3, 2)
    perceptron = Perceptron(network)
    for count in counts:
        # Of sums of about 1, whose single precision the tolerance is of.
        weights = {
            name: torch.randn(tensor.shape, generator=generator) / tensor.shape[-1] ** 0.5
            for name, tensor in network.state_dict().items()
        }
        network.load_state_dict(weights)
        # Values of all magnitudes: what is far from the mean is clipped, and saturates.
        observations = torch.randn(count, 3, generator=generator) * 10.0 ** torch.randn(count, 1, generator=generator)
        (expected,) = network(observations)
        torch.testing.assert_close(perceptron(observations), expected, rtol=0.0, atol=2e-6)


def test_acts_as_the_exported_network_does_and_returns_what_is_kept() -> None:
    torch.manual_seed(0)
    for recurrent in ("none", "gru"):
        model = ActorCritic(ModelConfig(recurrent=recurrent), 3, 3, 2)
        model.set_moments(Moments(2.0, np.array([1.0, 0.0, -1.0]), np.array([4.0, 1.0, 0.5])))
        behaviour = GaussianBehaviour(model.actor, model.log_std)
        observations, noise, state = torch.randn(4, 3), torch.randn(4, 2), model.actor.initial_state(4)
        with torch.no_grad():
            first = behaviour.act(observations, state, noise)
            kept = first.means.clone()
            means, *following = model.actor(observations, *state)
            behaviour.act(observations + 1.0, state, noise)
        torch.testing.assert_close(first.means, means, rtol=0.0, atol=1e-6)
        torch.testing.assert_close(first.actions, means + noise, rtol=0.0, atol=1e-6)
        assert torch.equal(first.means, kept)
        assert all(torch.equal(mine, other) for mine, other in zip(first.state, following, strict=True))
