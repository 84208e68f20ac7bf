"""Networks: an actor that takes raw observations and knows how it is exported, and a critic built alike.

Everything between the observation vector of the contract and the action is inside the actor: normaliser, clip, encoder,
memory, layers, deterministic head. What is exported is the very module that was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real.contract import Model, PolicyContract, RecurrentState
from sim2real.errors import InputError
from sim2real_train.encoder import ConvConfig, ConvEncoder, term_columns
from sim2real_train.limits import Width
from sim2real_train.memory import CELLS, run_sequence
from sim2real_train.moments import Moments

__all__ = [
    "Actor",
    "ActorCritic",
    "Critic",
    "ModelConfig",
    "Network",
    "ObservationNormalizer",
    "encoder_columns",
    "make_encoder",
    "make_mlp",
]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"elu": nn.ELU, "tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of the networks."""

    hidden: Annotated[tuple[Width, ...], msgspec.Meta(min_length=1)] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["elu", "tanh", "relu", "silu"] = "elu"
    """What follows each hidden layer and each convolution."""
    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Which memory the actor has before its hidden layers."""
    recurrent_size: Width = 32
    """Width of that memory."""
    recurrent_critic: bool = False
    """Whether the critic has a memory of its own, of the same kind and width."""
    encoder: ConvConfig | None = None
    """Convolutions over one term of the observation, in actor and critic; None: it enters like the others."""
    privileged: bool = False
    """Whether the actor reads what the critic sees: a teacher to be distilled, which no robot can run."""
    observation_limit: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)] = 5.0
    """Standard deviations from the mean at which observations are cut off, in training and on the robot: what one
    outlier does to the range of a quantised policy, it does to all else."""
    initial_std: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] = 0.7
    """Standard deviation of the exploration noise at the start, in units of the action."""


def encoder_columns(config: ModelConfig, contract: PolicyContract) -> npt.NDArray[np.intp] | None:
    """Return where the term of the encoder lies in observations, shape (history, width); None without an encoder.

    Raises:
        InputError: The contract has no such term.
    """
    return None if config.encoder is None else term_columns(contract, config.encoder.term)


class ObservationNormalizer(nn.Module):
    """clip((observation − mean) / std, ±limit), with constants that training updates between iterations."""

    mean: torch.Tensor
    inverse_std: torch.Tensor

    def __init__(self, size: int, *, limit: float = 5.0, epsilon: float = 1e-2) -> None:
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


class Network(nn.Module):
    """Normaliser, encoder, memory, layers, in this order; the two in the middle only if they are configured.

    Without memory the state is an empty tuple, and every method takes and returns it alike.

    Args:
        config: Its shape.
        observation_size: O.
        output_size: Width of what it puts out.
        memory: Whether it has the configured memory.
        columns: Where the term of the encoder lies; see `encoder_columns`.
        output_gain: Scale of the last layer's first weights.

    Raises:
        InputError: The encoder does not fit the observation.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        output_size: int,
        *,
        memory: bool,
        columns: npt.NDArray[np.intp] | None,
        output_gain: float,
    ) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.normalizer = ObservationNormalizer(observation_size, limit=config.observation_limit)
        width = observation_size
        self.encoder = make_encoder(config, width, columns)
        if self.encoder is not None:
            width = self.encoder.output_size
        self.memory = CELLS[config.recurrent](width, config.recurrent_size) if memory else None
        if self.memory is not None:
            width = self.memory.size
        self.network = make_mlp(config, width, output_size, output_gain=output_gain)

    @property
    def is_perceptron(self) -> bool:
        """Whether there is neither encoder nor memory: normalised observations enter `network`."""
        return self.encoder is None and self.memory is None

    def initial_state(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the state at the start of episodes: zeros, each [B, H]; one tensor of a GRU, two of an LSTM."""
        if self.memory is None:
            return ()
        return tuple(self.normalizer.mean.new_zeros(batch, self.memory.size) for _ in self.memory.state_names)

    def forward(self, observation: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the output of one step, shape [B, ...], and the next state, each [B, H].

        Args:
            observation: Raw observation, shape [B, O].
            state: State before the step, each [B, H].
        """
        features = self._features(observation)
        if self.memory is None:
            return (self.head(features),)
        state = self.memory(features, *state)
        return self.head(state[0]), *state

    def unroll(
        self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], episode_start: torch.Tensor
    ) -> torch.Tensor:
        """Return the outputs of whole sequences, shape [T, B, ...]; gradients flow back to step 0 of each episode.

        Args:
            observations: Raw observations, shape [T, B, O]; without memory any [..., O].
            state: State before step 0, each [B, H].
            episode_start: Where the state is reset before the step, shape [T, B], bool.
        """
        return self.unroll_states(observations, state, episode_start)[0]

    def unroll_states(
        self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], episode_start: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return what `unroll` returns, and the state after each step, each [T, B, H]; arguments as of `unroll`."""
        features = self._features(observations)
        if self.memory is None:
            return self.head(features), ()
        states = run_sequence(self.memory, features, state, episode_start)
        return self.head(states[0]), states

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the output, shape [..., output_size], from what the memory puts out, or else from the inputs."""
        return self.network(features)

    def _features(self, observations: torch.Tensor) -> torch.Tensor:
        """Return what goes into the memory, or else into the layers."""
        features = self.normalizer(observations)
        return features if self.encoder is None else self.encoder(features)


class Actor(Network):
    """The policy: raw observation and state in, action, shape [B, A], and next state out."""

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        action_size: int,
        columns: npt.NDArray[np.intp] | None = None,
    ) -> None:
        super().__init__(
            config,
            observation_size,
            action_size,
            memory=config.recurrent != "none",
            columns=columns,
            output_gain=0.01,
        )
        self.action_size = action_size
        self.network = nn.Sequential(self.network, nn.Tanh())

    @property
    def last_layer(self) -> nn.Linear:
        """What is before the tanh."""
        layer = self._layers[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def _layers(self) -> nn.Sequential:
        layers = self.network[0]
        assert isinstance(layers, nn.Sequential)
        return layers

    def last_features(self, observations: torch.Tensor) -> torch.Tensor:
        """Return what goes into the last layer, shape [..., H], from raw observations; of an actor without memory."""
        return self._layers[:-1](self._features(observations))

    def load_weights(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take what a checkpoint's weights have under ``actor.``, and ask for no gradients of it.

        Raises:
            InputError: One is not finite: training diverged; or they do not fit this network.
        """
        for name, array in weights.items():
            if not np.isfinite(array).all():
                raise InputError(
                    f"checkpoint: the weights {name} are not finite, so training diverged; train anew with a lower "
                    "--learning-rate"
                )
        prefix = "actor."
        own = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
        try:
            self.load_state_dict({name: torch.tensor(array) for name, array in own.items()})
        except RuntimeError as error:
            raise InputError(
                "checkpoint: its weights do not fit the network of its configuration; train anew"
            ) from error
        self.requires_grad_(False)

    def contract_model(self, names: Model) -> Model:
        """Return what the contract says of this network: its sizes, and the state tensors that the runtime carries."""
        memory = self.memory
        states = (
            ()
            if memory is None
            else tuple(
                RecurrentState(input_name=name, output_name=f"next_{name}", shape=(1, memory.size), initial_value=0.0)
                for name in memory.state_names
            )
        )
        return msgspec.structs.replace(
            names, observation_size=self.observation_size, action_size=self.action_size, recurrent=states
        )

    def dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return inputs of the exported shapes: batch 1."""
        return (torch.zeros(1, self.observation_size), *self.initial_state(1))


class Critic(Network):
    """V: what it sees, raw, and its own state in, value, shape [B], and next state out."""

    def __init__(self, config: ModelConfig, observation_size: int, columns: npt.NDArray[np.intp] | None = None) -> None:
        super().__init__(config, observation_size, 1, memory=config.recurrent_critic, columns=columns, output_gain=1.0)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the value, shape [...], from what the memory puts out, or else from the inputs."""
        return self.network(features).squeeze(-1)


class ActorCritic(nn.Module):
    """Actor, critic and exploration noise.

    The critic may see more than the actor, unless that is privileged: what comes after its observation.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        critic_observation_size: int,
        action_size: int,
        columns: npt.NDArray[np.intp] | None = None,
    ) -> None:
        super().__init__()
        seen = critic_observation_size if config.privileged else observation_size
        self.actor = Actor(config, seen, action_size, columns)
        self.critic = Critic(config, critic_observation_size, columns)
        self.log_std = nn.Parameter(torch.full((action_size,), config.initial_std).log())

    def critic_state(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the critic's state at the start of episodes; empty where it has no memory."""
        return self.critic.initial_state(batch)

    def value(self, observation: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
        """Return V(observation), shape [...], of what the critic sees, raw, shape [..., Oc], in this state of it."""
        return self.critic(observation, *state)[0]

    def set_moments(self, moments: Moments) -> None:
        """Normalise observations from now on by `moments` of what the critic sees, which begins with them."""
        for module in self.modules():
            if isinstance(module, ObservationNormalizer):
                module.set_moments(moments.first(len(module.mean)))


def make_encoder(config: ModelConfig, input_size: int, columns: npt.NDArray[np.intp] | None) -> ConvEncoder | None:
    """Return the configured encoder of observations of this width, if there is one.

    Raises:
        InputError: It does not fit the observation.
    """
    if config.encoder is None:
        return None
    if columns is None:
        raise InputError(
            f"encoder: expected an observation of named terms, one of them {config.encoder.term!r}; a foreign "
            "environment has none: leave out the encoder"
        )
    return ConvEncoder(config.encoder, _ACTIVATIONS[config.activation], input_size, columns)


def make_mlp(
    config: ModelConfig, input_size: int, output_size: int, *, output_gain: float, layer_norm: bool = False
) -> nn.Sequential:
    """Hidden layers, normalised if asked for, with activations, and a linear head; orthogonal weights, zero biases."""
    layers: list[nn.Module] = []
    width = input_size
    for hidden in config.hidden:
        norm = [nn.LayerNorm(hidden)] if layer_norm else []
        layers += [_linear(width, hidden, gain=2.0**0.5), *norm, _ACTIVATIONS[config.activation]()]
        width = hidden
    return nn.Sequential(*layers, _linear(width, output_size, gain=output_gain))


def _linear(inputs: int, outputs: int, *, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
