"""Networks: an actor that takes raw observations and knows how it is exported, and a critic.

Everything between the observation vector of the contract and the action is inside the actor: normaliser, clip, network,
deterministic head. What is exported is the very module that was trained.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from torch import nn

from sim2real.contract import Model, RecurrentState
from sim2real_train.moments import Moments

__all__ = ["Actor", "ActorCritic", "GruCell", "ModelConfig", "ObservationNormalizer"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"elu": nn.ELU, "tanh": nn.Tanh}


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of the networks."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["elu", "tanh"] = "elu"
    recurrent: Literal["none", "gru"] = "none"
    """Whether the actor has a memory: a GRU before its hidden layers."""
    recurrent_size: int = 32
    """Width of that memory."""
    initial_std: float = 0.7
    """Standard deviation of the exploration noise at the start, in units of the action."""


class ObservationNormalizer(nn.Module):
    """clip((observation − mean) / std, ±limit), with constants that training updates between iterations."""

    mean: torch.Tensor
    inverse_std: torch.Tensor

    def __init__(self, size: int, *, limit: float = 10.0, epsilon: float = 1e-2) -> None:
        super().__init__()
        self.limit = limit
        self.epsilon = epsilon
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("inverse_std", torch.ones(size))

    def set_moments(self, moments: Moments) -> None:
        """Normalise by the mean and standard deviation of `moments` from now on.

        A small constant is added to the deviation, so that an input that never moved does not become noise.
        """
        self.mean.copy_(torch.from_numpy(moments.mean))
        self.inverse_std.copy_(torch.from_numpy(1.0 / (moments.std + self.epsilon)))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the normalised observation, shape [..., O]."""
        return torch.clamp((observation - self.mean) * self.inverse_std, -self.limit, self.limit)


class GruCell(nn.Module):
    """One step of a gated recurrent unit, in plain matrix products that every exporter and engine computes alike.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder" (2014), in the form of
    `torch.nn.GRUCell` (reset gate applied after the hidden product), whose weights have the same names and layout.
    """

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.input = nn.Linear(input_size, 3 * size)
        self.hidden = nn.Linear(size, 3 * size)
        bound = size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state, shape [B, H], from inputs, shape [B, I], and state, shape [B, H]."""
        input_reset, input_update, input_new = self.input(inputs).chunk(3, dim=-1)
        hidden_reset, hidden_update, hidden_new = self.hidden(state).chunk(3, dim=-1)
        # r = σ(Wr x + Ur h);  z = σ(Wz x + Uz h);  n = tanh(Wn x + r ⊙ Un h);  h' = n + z ⊙ (h − n)
        reset = torch.sigmoid(input_reset + hidden_reset)
        update = torch.sigmoid(input_update + hidden_update)
        new = torch.tanh(input_new + reset * hidden_new)
        return new + update * (state - new)


class Actor(nn.Module):
    """The policy: raw observation and state in, action and next state out.

    Attributes:
        state_size: Width of the recurrent state; 0 for a policy without memory.
    """

    def __init__(self, config: ModelConfig, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.action_size = action_size
        self.state_size = config.recurrent_size if config.recurrent == "gru" else 0
        self.normalizer = ObservationNormalizer(observation_size)
        self.memory = GruCell(observation_size, self.state_size) if self.state_size else None
        self.network = nn.Sequential(
            _mlp(config, self.state_size or observation_size, action_size, output_gain=0.01), nn.Tanh()
        )

    def forward(self, observation: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the action, shape [B, A], and, of a recurrent policy, the next state, shape [B, H]."""
        features = self.normalizer(observation)
        if self.memory is None:
            return (self.network(features),)
        next_state = self.memory(features, *state)
        return self.network(next_state), next_state

    def unroll(
        self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], episode_start: torch.Tensor
    ) -> torch.Tensor:
        """Return the actions of whole sequences, shape [T, B, A].

        Args:
            observations: Raw observations, shape [T, B, O].
            state: State before step 0, shape [B, H]; empty for a policy without memory.
            episode_start: Where the state is reset before the step, shape [T, B], bool.
        """
        if self.memory is None:
            return self.network(self.normalizer(observations))
        features = self.normalizer(observations)
        (hidden,) = state
        states: list[torch.Tensor] = []
        for feature, starts in zip(features, episode_start, strict=True):
            hidden = self.memory(feature, hidden * ~starts[:, None])
            states.append(hidden)
        return self.network(torch.stack(states))

    def initial_state(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the state at the start of an episode: empty, or one tensor of zeros, shape [B, H]."""
        return (torch.zeros(batch, self.state_size),) if self.state_size else ()

    def contract_model(self, names: Model) -> Model:
        """Return what the contract says of this network: its sizes, and the state tensors that the runtime carries."""
        states = (
            RecurrentState(input_name="state", output_name="next_state", shape=(1, self.state_size), initial_value=0.0),
        )
        return msgspec.structs.replace(
            names,
            observation_size=self.observation_size,
            action_size=self.action_size,
            recurrent=states if self.state_size else (),
        )

    def dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return inputs of the exported shapes: batch 1."""
        return (torch.zeros(1, self.observation_size), *self.initial_state(1))


class ActorCritic(nn.Module):
    """Actor, critic and exploration noise. The critic has no memory, and may see more than the actor."""

    def __init__(
        self, config: ModelConfig, observation_size: int, critic_observation_size: int, action_size: int
    ) -> None:
        super().__init__()
        self.actor = Actor(config, observation_size, action_size)
        self.critic = nn.Sequential(
            ObservationNormalizer(critic_observation_size), _mlp(config, critic_observation_size, 1, output_gain=1.0)
        )
        self.log_std = nn.Parameter(torch.full((action_size,), config.initial_std).log())

    def value(self, observation: torch.Tensor) -> torch.Tensor:
        """Return V(observation), shape [...], of what the critic sees, raw, shape [..., Oc]."""
        return self.critic(observation).squeeze(-1)

    def set_moments(self, moments: Moments) -> None:
        """Normalise observations from now on by `moments` of what the critic sees, which begins with them."""
        for module in self.modules():
            if isinstance(module, ObservationNormalizer):
                module.set_moments(moments.first(len(module.mean)))


def _mlp(config: ModelConfig, input_size: int, output_size: int, *, output_gain: float) -> nn.Sequential:
    """Hidden layers with activations and a linear head; orthogonal weights, zero biases."""
    layers: list[nn.Module] = []
    width = input_size
    for hidden in config.hidden:
        layers += [_linear(width, hidden, gain=2.0**0.5), _ACTIVATIONS[config.activation]()]
        width = hidden
    return nn.Sequential(*layers, _linear(width, output_size, gain=output_gain))


def _linear(inputs: int, outputs: int, *, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
