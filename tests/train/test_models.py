from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real_train.encoder import ConvConfig, ConvEncoder, term_columns
from sim2real_train.memory import CELLS, RecurrentCell
from sim2real_train.models import Actor, ActorCritic, ModelConfig, Network, encoder_columns
from sim2real_train.moments import Moments
from tests.core.strategies import contracts, pendulum_contract, with_field

OBSERVATION, SEEN, ACTION = 9, 11, 2
COLUMNS = np.array([[1, 3, 0], [5, 2, 8]])
"""A term of two frames of three elements, scattered over the observation."""
HISTORY = ConvConfig(term="scan", channels=(4,), kernel=2)
GRID = ConvConfig(term="scan", grid=(3, 1), channels=(3, 2), kernel=1)

KINDS = {
    "mlp": ModelConfig(hidden=(8,)),
    "gru": ModelConfig(hidden=(8,), recurrent="gru", recurrent_size=5, recurrent_critic=True),
    "lstm": ModelConfig(hidden=(8,), recurrent="lstm", recurrent_size=5, recurrent_critic=True),
    "cnn": ModelConfig(hidden=(8,), encoder=HISTORY, activation="silu"),
    "grid-lstm": ModelConfig(
        hidden=(8,), encoder=GRID, activation="tanh", recurrent="lstm", recurrent_size=4, recurrent_critic=True
    ),
}
WITH_MEMORY = [name for name, config in KINDS.items() if config.recurrent != "none"]


def make_model(config: ModelConfig, seed: int = 0, columns: npt.NDArray[np.intp] | None = COLUMNS) -> ActorCritic:
    """A model of small sizes whose outputs are not small."""
    torch.manual_seed(seed)
    model = ActorCritic(config, OBSERVATION, SEEN, ACTION, columns)
    for name, parameter in model.named_parameters():
        if "network" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def networks(model: ActorCritic) -> list[Network]:
    return [model.actor, model.critic]


def random_state(network: Network, batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn_like(tensor) for tensor in network.initial_state(batch))


@pytest.mark.parametrize(("kind", "reference"), [("gru", nn.GRUCell), ("lstm", nn.LSTMCell)])
def test_cells_are_torchs(kind: str, reference: type[nn.GRUCell | nn.LSTMCell]) -> None:
    torch.manual_seed(0)
    ours: RecurrentCell = CELLS[kind](3, 4)
    theirs = reference(3, 4)
    for name, layer in (("ih", ours.input), ("hh", ours.hidden)):
        layer.weight.data.copy_(theirs.get_parameter(f"weight_{name}"))
        layer.bias.data.copy_(theirs.get_parameter(f"bias_{name}"))
    state = tuple(torch.zeros(2, 4) for _ in ours.state_names)
    other: Any = state if kind == "lstm" else state[0]
    for _ in range(200):
        inputs = 3.0 * torch.randn(2, 3)
        state, other = ours(inputs, *state), theirs(inputs, other)
    expected = other if kind == "lstm" else (other,)
    for tensor, wanted in zip(state, expected, strict=True):
        torch.testing.assert_close(tensor, wanted, rtol=0.0, atol=1e-6)


@given(
    kind=st.sampled_from(list(KINDS)),
    steps=st.integers(1, 12),
    batch=st.integers(1, 5),
    share=st.sampled_from((0.0, 0.3, 1.0)),
    seed=st.integers(0, 999),
)
def test_a_sequence_equals_its_steps(kind: str, steps: int, batch: int, share: float, seed: int) -> None:
    """Learning sees what acting computed, with the state reset where episodes began; so does scoring."""
    for network in networks(make_model(KINDS[kind], seed)):
        observations = torch.randn(steps, batch, network.observation_size)
        starts = torch.rand(steps, batch) < share
        state = random_state(network, batch)
        unrolled, states = network.unroll_states(observations, state, starts)
        assert torch.equal(unrolled, network.unroll(observations, state, starts))
        for step in range(steps):
            state = tuple(tensor * ~starts[step][:, None] for tensor in state)
            output, *following = network(observations[step], *state)
            state = tuple(following)
            torch.testing.assert_close(unrolled[step], output, rtol=1e-6, atol=1e-6)
            for tensor, wanted in zip(states, state, strict=True):
                torch.testing.assert_close(tensor[step], wanted, rtol=1e-6, atol=1e-6)


def test_without_memory_shuffled_steps_go_in_and_values_have_the_shape_of_the_samples() -> None:
    for kind in ("mlp", "cnn"):
        model = make_model(KINDS[kind])
        observations = torch.randn(6, 4, SEEN)
        starts = torch.zeros(6, 4, dtype=torch.bool)
        for network in networks(model):
            seen = observations[..., : network.observation_size]
            flat = network.unroll(seen.flatten(0, 1), (), starts.flatten())
            torch.testing.assert_close(flat, network.unroll(seen, (), starts).flatten(0, 1))
        assert model.value(observations).shape == (6, 4)
        assert model.value(observations[0, 0]).shape == ()


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_memory_reaches_back_to_the_start_of_the_episode_and_no_further(kind: str) -> None:
    """Masks that are off by one, or of another environment, show here."""
    steps, batch, changed = 10, 3, (4, 1)
    for network in networks(make_model(KINDS[kind])):
        observations = torch.randn(steps, batch, network.observation_size)
        starts = torch.zeros(steps, batch, dtype=torch.bool)
        starts[7, 1] = True
        state = random_state(network, batch)
        before = network.unroll(observations, state, starts)
        for value in (5.0, math.nan):  # not a number: what a diverged simulation leaves behind
            other = observations.clone()
            other[changed] = value
            differs = (network.unroll(other, state, starts) != before).reshape(steps, batch, -1).any(-1)
            expected = torch.zeros(steps, batch, dtype=torch.bool)
            expected[4:7, 1] = True
            assert torch.equal(differs, expected)


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_the_state_before_an_episode_does_not_count(kind: str) -> None:
    for network in networks(make_model(KINDS[kind])):
        observations = torch.randn(4, 2, network.observation_size)
        starts = torch.zeros(4, 2, dtype=torch.bool)
        starts[0, 0] = True
        zeros, others = network.initial_state(2), random_state(network, 2)
        differs = network.unroll(observations, zeros, starts) != network.unroll(observations, others, starts)
        assert differs.reshape(4, 2, -1).any(-1).any(0).tolist() == [False, True]


def double_loss(network: Network, observations: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """A scalar in which every output of every step counts differently."""
    state = tuple(torch.full_like(tensor, 0.3) for tensor in network.initial_state(observations.shape[1]))
    outputs = network.unroll(observations, state, starts)
    weights = torch.linspace(-1.0, 2.0, outputs.numel(), dtype=torch.float64).view_as(outputs)
    return (weights * outputs.square()).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    """Through whole sequences with episodes that begin in them, parameter by parameter along a random direction."""
    model = make_model(KINDS[kind]).double()
    step = 1e-6
    for network in networks(model):
        observations = torch.randn(7, 3, network.observation_size, dtype=torch.float64)
        starts = torch.rand(7, 3) < 0.2
        parameters = list(network.parameters())
        gradients = torch.autograd.grad(double_loss(network, observations, starts), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            direction = torch.randn_like(parameter)
            losses: list[float] = []
            for sign in (1.0, -1.0):
                parameter.data += sign * step * direction
                losses.append(double_loss(network, observations, starts).item())
                parameter.data -= sign * step * direction
            slope = (losses[0] - losses[1]) / (2.0 * step)
            assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_gradients_flow_back_to_the_start_of_the_episode_and_no_further(kind: str) -> None:
    for network in networks(make_model(KINDS[kind])):
        observations = torch.randn(8, 2, network.observation_size, requires_grad=True)
        state = tuple(tensor.requires_grad_() for tensor in random_state(network, 2))
        starts = torch.zeros(8, 2, dtype=torch.bool)
        starts[5, 0] = True
        last = network.unroll(observations, state, starts)[-1].sum()
        of_observations, *of_state = torch.autograd.grad(last, [observations, *state])
        reached = (of_observations != 0.0).any(-1)
        assert reached[:, 0].tolist() == [False] * 5 + [True] * 3
        assert reached[:, 1].all()
        for gradient in of_state:
            assert (gradient != 0.0).any(-1).tolist() == [False, True]


@given(contract=contracts())
def test_terms_share_the_observation_out_among_them(contract: PolicyContract) -> None:
    terms = contract.observation.terms
    columns = [term_columns(contract, term.name) for term in terms]
    assert [each.shape for each in columns] == [(term.history_length, len(term.scale)) for term in terms]
    everything = np.sort(np.concatenate([each.ravel() for each in columns]))
    assert everything.tolist() == list(range(contract.model.observation_size))


def pendulum_with_history(layout: str) -> PolicyContract:
    """The observation of sin, cos and speed, each with three frames."""
    contract = with_field(pendulum_contract(), "observation.layout", layout)
    for index in range(3):
        contract = with_field(contract, f"observation.terms[{index}].history_length", 3)
    return with_field(contract, "model.observation_size", 9)


@pytest.mark.parametrize(("layout", "columns"), [("term_major", [3, 4, 5]), ("frame_major", [1, 4, 7])])
def test_columns_of_a_term_follow_the_layout(layout: str, columns: list[int]) -> None:
    assert term_columns(pendulum_with_history(layout), "cos").ravel().tolist() == columns


def by_hand(term: npt.NDArray[np.float64], layer: nn.Module) -> npt.NDArray[np.float64]:
    """The convolution of a term, shape (channels, rows, columns), as a direct sum."""
    weight = layer.get_parameter("weight").detach().double().numpy()
    bias = layer.get_parameter("bias").detach().double().numpy()
    weight = weight.reshape(*weight.shape[:2], -1, weight.shape[-1])
    outputs, _, high, wide = weight.shape
    rows, columns = term.shape[1] - high + 1, term.shape[2] - wide + 1
    result = np.empty((outputs, rows, columns))
    for output, row, column in np.ndindex(result.shape):
        patch = term[:, row : row + high, column : column + wide]
        result[output, row, column] = (patch * weight[output]).sum() + bias[output]
    return result


@pytest.mark.parametrize("grid", [None, (3, 2)])
def test_the_encoder_convolves_the_term_where_it_lies(grid: tuple[int, int] | None) -> None:
    """Frames of a history along time, the cells of a grid row by row; all else goes past it."""
    torch.manual_seed(0)
    history, width, size = 4, 6, 30
    columns = np.random.default_rng(0).permutation(size)[: history * width].reshape(history, width)
    encoder = ConvEncoder(ConvConfig(term="scan", grid=grid, channels=(5,), kernel=2), nn.Identity, size, columns)
    nn.init.normal_(encoder.layers[0].get_parameter("bias"))
    observation = torch.randn(2, size)
    got = encoder(observation).detach().numpy()
    rest = [column for column in range(size) if column not in columns]
    for row in range(2):
        frames = observation[row].double().numpy()[columns]
        term = frames.T[:, None, :] if grid is None else frames.reshape(history, *grid)
        expected = by_hand(term, encoder.layers[0])
        np.testing.assert_array_equal(got[row, : len(rest)], observation[row, rest])
        np.testing.assert_allclose(got[row, len(rest) :], expected.ravel(), atol=1e-5)
    assert got.shape[1] == encoder.output_size


def test_an_observation_that_is_one_term_has_no_rest() -> None:
    encoder = ConvEncoder(ConvConfig(term="scan", channels=(2, 3), kernel=2), nn.ELU, 6, np.arange(6).reshape(3, 2))
    assert encoder(torch.randn(4, 7, 6)).shape == (4, 7, encoder.output_size) == (4, 7, 3)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (ConvConfig(term="scan", kernel=3), "kernel of 3 is longer than what is left of term 'scan' in layer 1: 2"),
        (ConvConfig(term="scan", kernel=2, channels=(4, 4)), "in layer 2: 1;"),
        (ConvConfig(term="scan", grid=(3, 1), kernel=2), "in layer 1: 3 × 1"),
        (ConvConfig(term="scan", grid=(2, 2)), r"has 3 elements, which are no grid \(2, 2\)"),
    ],
)
def test_convolutions_that_do_not_fit_the_term_are_refused(encoder: ConvConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_model(ModelConfig(encoder=encoder))


def test_an_encoder_of_what_is_not_there_is_refused() -> None:
    config = ModelConfig(encoder=ConvConfig(term="scan"))
    with pytest.raises(InputError, match="no term 'scan'; allowed: sin, cos, speed"):
        encoder_columns(config, pendulum_contract())
    assert encoder_columns(ModelConfig(), pendulum_contract()) is None
    with pytest.raises(InputError, match="a foreign environment has none: leave out the encoder"):
        make_model(config, columns=None)


def test_the_critic_has_memory_only_where_it_is_asked_for() -> None:
    assert [len(make_model(config).critic_state(3)) for config in KINDS.values()] == [0, 1, 2, 0, 2]
    assert make_model(ModelConfig(recurrent="lstm")).critic_state(3) == ()


def test_weights_are_named_after_their_network_and_columns_are_none() -> None:
    """Checkpoints, and what acts in other processes, take the actor's weights by name."""
    names = make_model(KINDS["grid-lstm"]).state_dict()
    assert {name.partition(".")[0] for name in names} == {"actor", "critic", "log_std"}
    for part in ("normalizer.mean", "encoder.layers.0.weight", "memory.hidden.weight", "network.0.0.weight"):
        assert f"actor.{part}" in names
    assert not any(name.endswith((".term", ".rest")) for name in names)


def test_actions_are_bounded_and_raw_observations_go_in() -> None:
    torch.manual_seed(2)
    model = ActorCritic(ModelConfig(hidden=(8,)), 2, 2, 1)
    model.set_moments(Moments.of(torch.tensor([[900.0, 0.0], [1100.0, 1e-3]]).numpy()))
    (action,) = model.actor(torch.tensor([[1000.0, 0.0], [1e9, -1e9]]))
    assert torch.isfinite(action).all()
    assert action.abs().max() <= 1.0
    normalised = model.actor.normalizer(torch.tensor([[1000.0, 5e-4]]))
    assert normalised.abs().max() < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_form_is_described_by_the_model(kind: str) -> None:
    actor: Actor = make_model(KINDS[kind]).actor
    described = actor.contract_model(pendulum_contract().model)
    assert (described.observation_size, described.action_size) == (OBSERVATION, ACTION)
    outputs = actor(*actor.dummy_inputs())
    assert [tuple(output.shape) for output in outputs] == [(1, ACTION), *(each.shape for each in described.recurrent)]
    names = [name for each in described.recurrent for name in (each.input_name, each.output_name)]
    assert len(set(names)) == len(names) == 2 * len(actor.initial_state(1))
