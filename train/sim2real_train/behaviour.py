"""What acts while experience is collected: the actor, and noise to explore with."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import nn

from sim2real_train.models import Actor

__all__ = ["Acted", "Behaviour", "GaussianBehaviour"]


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

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw the noise of a whole rollout, shape [T, B, A]."""
        ...

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Act on raw observations, shape [B, O], with the noise of this step, shape [B, A]."""
        ...

    def log_std(self) -> torch.Tensor:
        """Return the logarithm of the noise's standard deviation where it is the same everywhere, shape [A]."""
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

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw the noise of a whole rollout, shape [T, B, A]."""
        return torch.randn(shape, generator=generator) * self._log_std.exp()

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Act on raw observations, shape [B, O], with the noise of this step, shape [B, A]."""
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
