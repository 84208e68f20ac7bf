"""A trained perceptron as its own trainer computes it, and the same as an actor of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real.errors import InputError
from sim2real_train.models import Actor, ModelConfig, ObservationNormalizer

__all__ = ["ACTIVATIONS", "Activation", "Head", "Layer", "Normalizer", "Perceptron", "SourcePolicy", "actor_from"]

Activation = Literal["elu", "tanh", "relu", "silu"]
ACTIVATIONS: Final[dict[Activation, type[nn.Module]]] = {
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}


@dataclass(frozen=True, eq=False)
class Layer:
    """weight @ x + bias, float32."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, eq=False)
class Normalizer:
    """clip((x − mean) / divisor, ±limit); float32, shape (O,)."""

    mean: torch.Tensor
    divisor: torch.Tensor
    limit: float
    """Infinite: it does not clip."""


@dataclass(frozen=True, eq=False)
class Head:
    """What becomes of the last layer's output: as it is, clipped to the bounds, or through tanh onto them."""

    kind: Literal["linear", "clip", "tanh"]
    low: torch.Tensor
    high: torch.Tensor
    """Bounds, shape (A,); ±1 where the source has none."""


@dataclass(frozen=True, eq=False)
class Perceptron:
    """Normaliser, layers with activations between them, head."""

    layers: tuple[Layer, ...]
    activation: Activation
    normalizer: Normalizer | None
    head: Head

    @property
    def observation_size(self) -> int:
        """O."""
        return self.layers[0].weight.shape[1]

    @property
    def action_size(self) -> int:
        """A."""
        return self.layers[-1].weight.shape[0]


class SourcePolicy:
    """The policy as its trainer computes it, operation by operation: what an imported one is compared with."""

    def __init__(self, network: Perceptron) -> None:
        self._network = network
        self._activation = ACTIVATIONS[network.activation]()

    def reset(self, num_envs: int) -> None:
        """Begin episodes; there is no state."""

    @torch.no_grad()
    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        network, values = self._network, torch.from_numpy(observation)
        if network.normalizer is not None:
            values = (values - network.normalizer.mean) / network.normalizer.divisor
            values = torch.clamp(values, -network.normalizer.limit, network.normalizer.limit)
        for layer in network.layers[:-1]:
            values = self._activation(nn.functional.linear(values, layer.weight, layer.bias))
        last, head = network.layers[-1], network.head
        values = nn.functional.linear(values, last.weight, last.bias)
        if head.kind == "tanh":
            values = head.low + 0.5 * (torch.tanh(values) + 1.0) * (head.high - head.low)
        elif head.kind == "clip":
            values = torch.minimum(torch.maximum(values, head.low), head.high)
        return values.numpy()


def actor_from(network: Perceptron) -> Actor:
    """Return the actor that computes what `network` does.

    Raises:
        InputError: It has no hidden layer.
    """
    hidden = tuple(layer.weight.shape[0] for layer in network.layers[:-1])
    if not hidden:
        raise InputError("source: expected a network with a hidden layer, got a single linear one")
    config = ModelConfig(hidden=hidden, activation=network.activation)
    actor = Actor(config, network.observation_size, network.action_size)
    actor.normalizer = _normalizer_from(network)
    modules: list[nn.Module] = []
    for layer in network.layers[:-1]:
        modules += [_linear(layer.weight, layer.bias), ACTIVATIONS[network.activation]()]
    actor.network = nn.Sequential(nn.Sequential(*modules, *_head_from(network)))
    actor.requires_grad_(False)
    return actor.eval()


def _normalizer_from(network: Perceptron) -> ObservationNormalizer:
    told = network.normalizer
    normalizer = ObservationNormalizer(network.observation_size, limit=float("inf") if told is None else told.limit)
    if told is not None:
        normalizer.mean.copy_(told.mean)
        normalizer.inverse_std.copy_(1.0 / told.divisor.double())
    return normalizer


def _head_from(network: Perceptron) -> list[nn.Module]:
    """Bounds that are not ±1 become a layer after the head, since ours ends at ±1."""
    last, head = network.layers[-1], network.head
    if head.kind == "linear":
        return [_linear(last.weight, last.bias)]
    middle, half = 0.5 * (head.high + head.low).double(), 0.5 * (head.high - head.low).double()
    plain = bool((middle == 0.0).all() and (half == 1.0).all())
    onto: list[nn.Module] = [] if plain else [_linear(torch.diag(half), middle)]
    if head.kind == "tanh":
        return [_linear(last.weight, last.bias), nn.Tanh(), *onto]
    weight, bias = last.weight.double() / half[:, None], (last.bias.double() - middle) / half
    return [_linear(weight, bias), nn.Hardtanh(-1.0, 1.0), *onto]


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
