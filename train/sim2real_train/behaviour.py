"""What acts while experience is collected: the actor, and noise to explore with."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol

import torch
from torch import nn

from sim2real.errors import InputError
from sim2real_train.mlp import Perceptron
from sim2real_train.models import Actor

__all__ = ["Acted", "Behaviour", "GaussianBehaviour", "SquashedBehaviour"]


class Acted(NamedTuple):
    """One control step of B environments."""

    actions: torch.Tensor
    """What the robots are told, shape [B, A]."""
    means: torch.Tensor
    """What they would be told without noise, shape [B, A]."""
    state: tuple[torch.Tensor, ...]
    """Recurrent state after the step, shape [B, H]; empty without memory."""


class Behaviour(Protocol):
    """A policy that explores.

    Attributes:
        actor: What is exported in the end.
    """

    actor: Actor

    @property
    def observation_size(self) -> int:
        """How much it reads of what the critic sees, which begins with the observation: its first numbers."""
        return self.actor.observation_size

    def initial_state(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the state at the start of episodes, each [B, H]; empty without memory."""
        return self.actor.initial_state(batch)

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw what `act` needs in a whole rollout, whose actions have the shape [T, B, A]: shape [T, B, ...]."""
        ...

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Act on what it reads, raw, shape [B, observation_size], with the noise of this step, shape [B, ...]."""
        ...

    def log_std(self) -> torch.Tensor:
        """Return the logarithm of the noise's standard deviation, shape [A]; not a number if states differ in it."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """Return what it acts with, by the names of the model that it is part of; live."""
        ...


class GaussianBehaviour(Behaviour):
    """The actor's output, and noise of the same deviation everywhere.

    Args:
        actor: The actor; shared, not copied.
        log_std: Logarithm of the noise's standard deviation, shape [A]; shared, not copied.
    """

    def __init__(self, actor: Actor, log_std: nn.Parameter) -> None:
        self.actor = actor
        self._log_std = log_std
        # At the few environments of one process, more of the time of a step is overhead than arithmetic.
        self._perceptron = Perceptron(actor) if actor.is_perceptron else None

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw the noise of a whole rollout, shape [T, B, A]."""
        return torch.randn(shape, generator=generator) * self._log_std.exp()

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Act on raw observations, shape [B, O], with the noise of this step, shape [B, A]."""
        if self._perceptron is not None:
            means = self._perceptron(observations)
            return Acted(means + noise, means, state)
        means, *following = self.actor(observations, *state)
        return Acted(means + noise, means, tuple(following))

    def log_std(self) -> torch.Tensor:
        """Return the logarithm of the noise's standard deviation, shape [A]."""
        return self._log_std.detach()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return what it acts with: the actor's tensors and the deviation; live."""
        return {f"actor.{name}": tensor for name, tensor in self.actor.state_dict().items()} | {
            "log_std": self._log_std.detach()
        }


class SquashedBehaviour(Behaviour):
    """A Gaussian before the actor's tanh, of a deviation that depends on the state; its mean is what is exported.

    Args:
        actor: The actor, without memory; shared, not copied.
        log_std: From what goes into the actor's last layer to the raw deviation; shared, not copied.
    """

    BOUNDS: Final = (-5.0, 1.0)
    """Of the logarithm of the deviation: between, it is a scaled tanh, which has a gradient everywhere."""

    def __init__(self, actor: Actor, log_std: nn.Linear) -> None:
        self.actor = actor
        self._log_std = log_std

    @classmethod
    def log_std_layer(cls, actor: Actor, initial_std: float) -> nn.Linear:
        """Return a layer for the deviation, which is `initial_std` everywhere at the start.

        Raises:
            InputError: It is not within the bounds.
        """
        low, high = cls.BOUNDS
        if not math.exp(low) < initial_std < math.exp(high):
            raise InputError(
                f"initial_std: expected a number between {math.exp(low):.4f} and {math.exp(high):.2f}, got "
                f"{initial_std}"
            )
        layer = nn.Linear(actor.last_layer.in_features, actor.action_size)
        nn.init.zeros_(layer.weight)
        # log σ = low + (high − low) (1 + tanh x) / 2
        nn.init.constant_(layer.bias, math.atanh(2.0 * (math.log(initial_std) - low) / (high - low) - 1.0))
        return layer

    def distribution(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and logarithm of the deviation before the tanh, each [..., A], from raw observations."""
        features = self.actor.last_features(observations)
        low, high = self.BOUNDS
        return self.actor.last_layer(features), low + 0.5 * (high - low) * (1.0 + torch.tanh(self._log_std(features)))

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw the noise of a whole rollout in units of the deviation, shape [T, B, A]."""
        return torch.randn(shape, generator=generator)

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Act on raw observations, shape [B, O], with the noise of this step, shape [B, A]."""
        means, log_std = self.distribution(observations)
        return Acted(torch.tanh(means + log_std.exp() * noise), torch.tanh(means), state)

    def log_std(self) -> torch.Tensor:
        """Return that there is no deviation that holds everywhere, shape [A]."""
        return torch.full((self.actor.action_size,), math.nan)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return what it acts with: the tensors of the actor and of the layer for the deviation; live."""
        return {f"actor.{name}": tensor for name, tensor in self.actor.state_dict().items()} | {
            f"log_std.{name}": tensor for name, tensor in self._log_std.state_dict().items()
        }
