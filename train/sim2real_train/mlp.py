"""Multilayer perceptrons without a graph: of networks this small, autograd's own work is most of a gradient's time.

Products are PyTorch's, whose threads are set on purpose. What is done element by element is NumPy's on the same memory:
its calls cost less, and its tanh takes a sixth of the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real_train.flat import FlatParameters
from sim2real_train.models import Network

__all__ = ["Mlp", "Perceptron"]


class Mlp:
    """Both passes of linear layers and activations, in buffers that are kept.

    Args:
        network: Such layers, in sequences, however nested; its parameters are shared.
        flat: Where gradients go; None: there is no backward pass.
    """

    def __init__(self, network: nn.Module, flat: FlatParameters | None = None) -> None:
        layers = _leaves(network)
        self._passes = [_passes_of(layer, flat, first=index == 0) for index, layer in enumerate(layers)]
        self._rows = -1

    def forward(self, inputs: torch.Tensor) -> npt.NDArray[Any]:
        """Return the outputs, shape [N, O], of inputs, shape [N, I]; they hold until the next call."""
        if inputs.shape[0] != self._rows:
            self._rows = inputs.shape[0]
            for each in self._passes:
                each.resize(self._rows)
        matrix = _Matrix(inputs)
        for each in self._passes:
            matrix = each.forward(matrix)
        return matrix.array

    def backward(self, errors: npt.NDArray[Any]) -> None:
        """Set the parameters' gradients from that of the last outputs, shape [N, O], which is overwritten."""
        matrix = _Matrix(torch.from_numpy(errors))
        for each in reversed(self._passes):
            matrix = each.backward(matrix)


class Perceptron:
    """A network that `is_perceptron`, from raw observations on; weights and normaliser are shared."""

    def __init__(self, network: Network) -> None:
        self._mean = network.normalizer.mean.numpy()
        self._inverse_std = network.normalizer.inverse_std.numpy()
        self._limit = network.normalizer.limit
        self._mlp = Mlp(network.network)

    def __call__(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the outputs, shape [N, O'], of raw observations, shape [N, O]."""
        normalized: npt.NDArray[Any] = observations.numpy() - self._mean
        normalized *= self._inverse_std
        np.clip(normalized, -self._limit, self._limit, out=normalized)
        return torch.from_numpy(self._mlp.forward(torch.from_numpy(normalized)).copy())


class _Matrix:
    """A matrix as each library sees it, shape [N, K]: to make a view takes as long as a small operation."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.transposed = tensor.t()
        self.array: npt.NDArray[Any] = tensor.numpy()


class _Passes(ABC):
    """What one layer does with the outputs of the one before it, and with the gradient of its own outputs."""

    @abstractmethod
    def resize(self, rows: int) -> None: ...

    @abstractmethod
    def forward(self, inputs: _Matrix) -> _Matrix: ...

    @abstractmethod
    def backward(self, errors: _Matrix) -> _Matrix: ...


class _Linear(_Passes):
    """y = x Wᵀ + b."""

    def __init__(self, layer: nn.Linear, flat: FlatParameters | None, *, first: bool) -> None:
        self._weight = _Matrix(layer.weight.detach())
        self._bias = layer.bias.detach()
        self._flat = flat
        self._first = first
        if flat is not None:
            self._weight_gradient = flat.gradient_of(layer.weight)
            self._bias_gradient: npt.NDArray[Any] = flat.gradient_of(layer.bias).numpy()

    def resize(self, rows: int) -> None:
        outputs, inputs = self._weight.tensor.shape
        self._outputs = _Matrix(self._weight.tensor.new_empty(rows, outputs))
        if self._flat is not None:
            self._errors = _Matrix(self._weight.tensor.new_empty(rows, inputs))

    def forward(self, inputs: _Matrix) -> _Matrix:
        self._inputs = inputs
        torch.addmm(self._bias, inputs.tensor, self._weight.transposed, out=self._outputs.tensor)
        return self._outputs

    def backward(self, errors: _Matrix) -> _Matrix:
        # dW = δᵀ x;  db = Σ δ;  dx = δ W
        torch.mm(errors.transposed, self._inputs.tensor, out=self._weight_gradient)
        np.add.reduce(errors.array, 0, out=self._bias_gradient)
        if not self._first:
            torch.mm(errors.tensor, self._weight.tensor, out=self._errors.tensor)
        return self._errors


class _Activation(_Passes):
    """Overwrites what the linear layer before it put out, and the gradient that comes back."""

    _outputs: npt.NDArray[Any]

    def resize(self, rows: int) -> None:
        """Do nothing: the buffers are others'."""

    def forward(self, inputs: _Matrix) -> _Matrix:
        self._outputs = inputs.array
        self.apply()
        return inputs

    def backward(self, errors: _Matrix) -> _Matrix:
        array = errors.array
        array *= self.slope()
        return errors

    @abstractmethod
    def apply(self) -> None:
        """Replace the inputs, which `_outputs` holds, by outputs."""

    @abstractmethod
    def slope(self) -> npt.NDArray[Any]:
        """Return the derivative of the last outputs by the inputs."""


class _Tanh(_Activation):
    def apply(self) -> None:
        np.tanh(self._outputs, out=self._outputs)

    def slope(self) -> npt.NDArray[Any]:
        # 1 − tanh²
        slope = np.square(self._outputs)
        return np.subtract(1.0, slope, out=slope)


class _Elu(_Activation):
    def apply(self) -> None:
        # max(x, 0) + e^min(x, 0) − 1
        below = np.minimum(self._outputs, 0.0)
        np.exp(below, out=below)
        below -= 1.0
        np.maximum(self._outputs, 0.0, out=self._outputs)
        self._outputs += below

    def slope(self) -> npt.NDArray[Any]:
        # 1 above 0, eˣ = y + 1 below
        slope = np.minimum(self._outputs, 0.0)
        slope += 1.0
        return slope


class _Relu(_Activation):
    def apply(self) -> None:
        np.maximum(self._outputs, 0.0, out=self._outputs)

    def slope(self) -> npt.NDArray[Any]:
        return self._outputs > 0.0


class _Silu(_Activation):
    def apply(self) -> None:
        # σ(x) = ½ (1 + tanh ½ x), which overflows nowhere
        self._gate = 0.5 * self._outputs
        np.tanh(self._gate, out=self._gate)
        self._gate += 1.0
        self._gate *= 0.5
        self._outputs *= self._gate

    def slope(self) -> npt.NDArray[Any]:
        # d xσ / dx = σ + xσ (1 − σ)
        slope = np.subtract(1.0, self._gate)
        slope *= self._outputs
        slope += self._gate
        return slope


_ACTIVATIONS: Final[dict[type[nn.Module], type[_Activation]]] = {
    nn.ELU: _Elu,
    nn.ReLU: _Relu,
    nn.SiLU: _Silu,
    nn.Tanh: _Tanh,
}


def _leaves(network: nn.Module) -> list[nn.Module]:
    if isinstance(network, nn.Sequential):
        return [leaf for layer in network for leaf in _leaves(layer)]
    return [network]


def _passes_of(layer: nn.Module, flat: FlatParameters | None, *, first: bool) -> _Passes:
    if isinstance(layer, nn.Linear):
        return _Linear(layer, flat, first=first)
    return _ACTIVATIONS[type(layer)]()
