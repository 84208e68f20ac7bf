from __future__ import annotations

import pytest
import torch
from torch import nn

from sim2real_train.models import Actor, ActorCritic, ModelConfig
from sim2real_train.memory import GruCell
from sim2real_train.moments import Moments

GRU = ModelConfig(hidden=(8,), recurrent="gru", recurrent_size=5)


def test_gru_cell_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = GruCell(3, 4), nn.GRUCell(3, 4)
    ours.input.weight.data.copy_(theirs.weight_ih.data)
    ours.input.bias.data.copy_(theirs.bias_ih.data)
    ours.hidden.weight.data.copy_(theirs.weight_hh.data)
    ours.hidden.bias.data.copy_(theirs.bias_hh.data)
    state = other = torch.zeros(2, 4)
    for _ in range(200):
        inputs = 3.0 * torch.randn(2, 3)
        (state,), other = ours(inputs, state), theirs(inputs, other)
    torch.testing.assert_close(state, other, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("config", [ModelConfig(hidden=(8,)), GRU], ids=["mlp", "gru"])
def test_a_sequence_equals_its_steps(config: ModelConfig) -> None:
    """Learning sees what acting computed, with the state reset where episodes began."""
    torch.manual_seed(1)
    actor = Actor(config, 3, 2)
    observations = torch.randn(12, 4, 3)
    starts = torch.rand(12, 4) < 0.3
    state = tuple(torch.randn(4, 5) for _ in actor.initial_state(4))
    unrolled = actor.unroll(observations, state, starts)
    for step in range(12):
        state = tuple(tensor * ~starts[step][:, None] for tensor in state)
        action, *following = actor(observations[step], *state)
        state = tuple(following)
        torch.testing.assert_close(unrolled[step], action, rtol=0.0, atol=1e-6)


def test_actions_are_bounded_and_raw_observations_go_in() -> None:
    torch.manual_seed(2)
    model = ActorCritic(ModelConfig(hidden=(8,)), 2, 2, 1)
    model.set_moments(Moments.of(torch.tensor([[900.0, 0.0], [1100.0, 1e-3]]).numpy()))
    (action,) = model.actor(torch.tensor([[1000.0, 0.0], [1e9, -1e9]]))
    assert torch.isfinite(action).all()
    assert action.abs().max() <= 1.0
    normalised = model.actor.normalizer(torch.tensor([[1000.0, 5e-4]]))
    assert normalised.abs().max() < 0.1


def test_the_exported_form_is_described_by_the_model() -> None:
    actor = Actor(GRU, 3, 2)
    outputs = actor(*actor.dummy_inputs())
    assert [tuple(output.shape) for output in outputs] == [(1, 2), (1, 5)]
