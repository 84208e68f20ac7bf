"""Networks of soft actor-critic: the actor with a deviation of its own in each state, twin critics, their targets."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real_train.behaviour import SquashedBehaviour
from sim2real_train.models import Actor, ModelConfig, ObservationNormalizer, make_encoder, make_mlp
from sim2real_train.moments import Moments

__all__ = ["SacModel", "TwinCritics"]

_TWINS: Final = 2


class TwinCritics(nn.Module):
    """Q₁ and Q₂: what they see, raw, and an action in, the distribution of the return out.

    Args:
        config: Shape of the networks.
        observation_size: Width Oc of what they see.
        action_size: A.
        columns: Where the term of the encoder lies; see `models.encoder_columns`. Both have the same encoder.
        atoms: K, returns that the distribution is over; 1: the expected return itself.

    Raises:
        InputError: The encoder does not fit the observation.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        action_size: int,
        columns: npt.NDArray[np.intp] | None,
        *,
        atoms: int,
    ) -> None:
        super().__init__()
        self.normalizer = ObservationNormalizer(observation_size, limit=config.observation_limit)
        self.encoder = make_encoder(config, observation_size, columns)
        width = observation_size if self.encoder is None else self.encoder.output_size
        # Normalised layers keep values from growing where no experience is: Nauman et al., "Overestimation,
        # overfitting, and plasticity in actor-critic" (2024).
        self.networks = nn.ModuleList(
            make_mlp(config, width + action_size, atoms, output_gain=1.0, layer_norm=True) for _ in range(_TWINS)
        )

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the logits of both distributions, shape [2, N, K]; expected returns if K is 1."""
        features = self.normalizer(observations)
        if self.encoder is not None:
            features = self.encoder(features)
        inputs = torch.cat((features, actions), dim=-1)
        return torch.stack([network(inputs) for network in self.networks])


class SacModel(nn.Module):
    """All weights of soft actor-critic. The actor is the one that is exported.

    Args:
        config: Shape of actor and critics.
        observation_size: Width O of what the actor sees, unless it is privileged.
        critic_observation_size: Width Oc of what the critics see, which begins with it.
        action_size: A.
        columns: Where the term of the encoder lies; see `models.encoder_columns`.
        atoms: K; see `TwinCritics`.
        initial_alpha: Temperature at the start.

    Raises:
        InputError: The encoder does not fit the observation.
    """

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        critic_observation_size: int,
        action_size: int,
        columns: npt.NDArray[np.intp] | None = None,
        *,
        atoms: int = 1,
        initial_alpha: float = 0.1,
    ) -> None:
        super().__init__()
        seen = critic_observation_size if config.privileged else observation_size
        self.actor = Actor(config, seen, action_size, columns)
        self.log_std = SquashedBehaviour.log_std_layer(self.actor, config.initial_std)
        sizes = critic_observation_size, action_size
        self.critics = TwinCritics(config, *sizes, columns, atoms=atoms)
        self.targets = TwinCritics(config, *sizes, columns, atoms=atoms).requires_grad_(False)
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial_alpha)))

    def follow(self, polyak: float) -> None:
        """Move the targets towards the critics: target ← (1 − polyak) target + polyak critic."""
        with torch.no_grad():
            for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(critic, polyak)

    def set_moments(self, moments: Moments) -> None:
        """Normalise observations from now on by `moments` of what the critics see, which begins with the actor's."""
        for module in self.modules():
            if isinstance(module, ObservationNormalizer):
                module.set_moments(moments.first(len(module.mean)))
