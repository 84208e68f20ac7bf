from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sim2real_train.flat import FlatParameters


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@given(seed=st.integers(0, 2**32 - 1), max_norm=st.sampled_from([0.01, 1e9]))
def test_steps_as_adam_along_the_shortened_gradient(seed: int, max_norm: float) -> None:
    ours, theirs = network(seed), network(seed)
    flat = FlatParameters(ours, epsilon=1e-5)
    adam = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    inputs = torch.randn(5, 8, 3)
    for step, batch in enumerate(inputs):
        learning_rate = 0.01 / (step + 1)
        flat.differentiate(ours(batch).square().mean())
        norm = flat.step(learning_rate, max_norm)
        adam.zero_grad()
        theirs(batch).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        adam.param_groups[0]["lr"] = learning_rate
        adam.step()
        assert norm == pytest.approx(float(expected), rel=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_goes_on_exactly_from_its_state_with_weights_that_were_loaded() -> None:
    first, second = network(0), network(1)
    flats = [FlatParameters(each, epsilon=1e-5) for each in (first, second)]
    inputs = torch.randn(4, 8, 3)

    def learn(index: int, batches: torch.Tensor) -> None:
        for batch in batches:
            flats[index].differentiate((first, second)[index](batch).square().mean())
            flats[index].step(0.01, 1.0)

    learn(0, inputs[:2])
    learn(1, inputs[:1])  # whatever it did before must not show through
    state = flats[0].state()
    assert set(state) == {
        "steps",
        *(f"{name}/{key}" for name in first.state_dict() for key in ("exp_avg", "exp_avg_sq")),
    }
    second.load_state_dict(first.state_dict())
    flats[1].load_state(state)
    learn(0, inputs[2:])
    learn(1, inputs[2:])
    assert all(torch.equal(mine, other) for mine, other in zip(first.parameters(), second.parameters(), strict=True))
    for name, array in flats[0].state().items():
        np.testing.assert_array_equal(array, flats[1].state()[name])


def test_what_is_averaged_is_the_gradient_and_the_number_beside_it() -> None:
    model = network(0)
    flat = FlatParameters(model, epsilon=1e-5)
    flat.differentiate(model(torch.ones(1, 3)).sum())
    flat.extra[0] = 5.0
    assert flat.buffer[-1] == 5.0
    assert len(flat.buffer) == sum(parameter.numel() for parameter in model.parameters()) + 1
    bias = model.get_parameter("2.bias")
    assert torch.equal(flat.gradient_of(bias), torch.ones(2))
    flat.buffer *= 0.5
    assert torch.equal(flat.gradient_of(bias), torch.full((2,), 0.5))
