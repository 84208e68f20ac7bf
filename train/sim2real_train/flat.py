"""All parameters of a model in one vector: one optimiser step, one norm, one all-reduce in place of one for each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real_train.device import array_of

__all__ = ["FlatParameters"]


class FlatParameters:
    """Makes the parameters of a model views of one vector, and steps it with Adam along a gradient that is another.

    Weights that are loaded must be copied into the parameters, as `load_state_dict` does: they stay where they are.

    Source: Kingma, Ba, "Adam: a method for stochastic optimization" (2015), algorithm 1. Written out, because of the
    time of `torch.optim.Adam` on a small vector a fifth is arithmetic.

    Args:
        model: Whose parameters; they move.
        betas: β₁ and β₂, the decay rates of both moments.
        epsilon: ε, which is added to the root of the second moment.
        in_torch: Step by PyTorch, on the model's device, and not by NumPy, whose calls cost less on the CPU.

    Attributes:
        buffer: The gradient, shape [P], and one more number to be averaged with it; shape [P + 1].
        extra: That number, shape [1]; live.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float,
        in_torch: bool = False,
    ) -> None:
        self._parameters = dict(model.named_parameters())
        parameters = list(self._parameters.values())
        self._sizes = [parameter.numel() for parameter in parameters]
        vector = torch.cat([parameter.detach().flatten() for parameter in parameters])
        for parameter, part in zip(parameters, torch.split(vector, self._sizes), strict=True):
            parameter.data = part.view_as(parameter)
        self.buffer = vector.new_zeros(len(vector) + 1)
        self._gradients: dict[torch.Tensor, torch.Tensor] = dict(
            zip(parameters, torch.split(self.buffer[:-1], self._sizes), strict=True)
        )
        self.extra: torch.Tensor | npt.NDArray[Any] = self.buffer[-1:] if in_torch else self.buffer.numpy()[-1:]
        self._steps = 0
        self._moments = {name: torch.zeros_like(vector) for name in ("exp_avg", "exp_avg_sq")}
        vectors = _Vectors(vector, self.buffer[:-1], *self._moments.values())
        self._adam = (_TorchAdam if in_torch else _NumpyAdam)(vectors, betas, epsilon)

    def gradient_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of the gradient that is a parameter's, of its shape; live."""
        return self._gradients[parameter].view_as(parameter)

    def differentiate(self, loss: torch.Tensor) -> None:
        """Set the gradient to that of a scalar."""
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        torch.cat([gradient.flatten() for gradient in gradients], out=self.buffer[:-1])

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Step along the gradient, which is shortened if it is longer; return its norm before."""
        norm = self._adam.shorten(max_grad_norm)
        self._steps += 1
        self._adam.step(learning_rate, self._steps)
        return norm

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the moments, by name of parameter and of moment, and the number of steps."""
        arrays = {
            f"{name}/{moment}": array_of(part.view_as(parameter))
            for moment, whole in self._moments.items()
            for (name, parameter), part in zip(self._parameters.items(), self._split(whole), strict=True)
        }
        return arrays | {"steps": np.array(self._steps)}

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `state` returned; other arrays are of no concern."""
        self._steps = int(arrays["steps"])
        for moment, whole in self._moments.items():
            for name, part in zip(self._parameters, self._split(whole), strict=True):
                part.copy_(torch.tensor(arrays[f"{name}/{moment}"]).flatten())

    def _split(self, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return each parameter's part of a vector; live."""
        return torch.split(vector, self._sizes)


class _Vectors(NamedTuple):
    """What a step reads and writes, each of shape [P]."""

    weights: torch.Tensor
    gradient: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


class _Adam(ABC):
    """The arithmetic of a step.

    m ← m + (1 − β₁) (g − m);  v ← β₂ v + (1 − β₂) g²;
    θ ← θ − α m̂ / (√v̂ + ε)  with  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ).
    """

    def __init__(self, vectors: _Vectors, betas: tuple[float, float], epsilon: float) -> None:
        self._betas, self._epsilon = betas, epsilon

    @abstractmethod
    def shorten(self, max_norm: float) -> float:
        """Shorten the gradient if it is longer; return its norm before."""

    @abstractmethod
    def step(self, learning_rate: float, number: int) -> None:
        """Take step t, from 1, with α."""


class _NumpyAdam(_Adam):
    def __init__(self, vectors: _Vectors, betas: tuple[float, float], epsilon: float) -> None:
        super().__init__(vectors, betas, epsilon)
        self._weights: npt.NDArray[Any] = vectors.weights.numpy()
        self._gradient: npt.NDArray[Any] = vectors.gradient.numpy()
        self._first: npt.NDArray[Any] = vectors.first.numpy()
        self._second: npt.NDArray[Any] = vectors.second.numpy()
        self._scratch = np.empty_like(self._weights)

    def shorten(self, max_norm: float) -> float:
        gradient = self._gradient
        norm = math.sqrt(float(np.dot(gradient, gradient)))
        if norm > max_norm:
            gradient *= max_norm / (norm + 1e-6)
        return norm

    def step(self, learning_rate: float, number: int) -> None:
        first_decay, second_decay = self._betas
        gradient, first, second, scratch = self._gradient, self._first, self._second, self._scratch
        np.subtract(gradient, first, out=scratch)
        scratch *= 1.0 - first_decay
        first += scratch
        np.square(gradient, out=scratch)
        scratch *= 1.0 - second_decay
        second *= second_decay
        second += scratch
        np.sqrt(second, out=scratch)
        scratch *= 1.0 / math.sqrt(1.0 - second_decay**number)
        scratch += self._epsilon
        np.divide(first, scratch, out=scratch)
        scratch *= learning_rate / (1.0 - first_decay**number)
        self._weights -= scratch


class _TorchAdam(_Adam):
    def __init__(self, vectors: _Vectors, betas: tuple[float, float], epsilon: float) -> None:
        super().__init__(vectors, betas, epsilon)
        self._weights, self._gradient, self._first, self._second = vectors

    def shorten(self, max_norm: float) -> float:
        norm = float(self._gradient.square().sum().sqrt())
        if norm > max_norm:
            self._gradient *= max_norm / (norm + 1e-6)
        return norm

    def step(self, learning_rate: float, number: int) -> None:
        first_decay, second_decay = self._betas
        gradient = self._gradient
        self._first.lerp_(gradient, 1.0 - first_decay)
        self._second.mul_(second_decay).addcmul_(gradient, gradient, value=1.0 - second_decay)
        spread = self._second.sqrt().mul_(1.0 / math.sqrt(1.0 - second_decay**number)).add_(self._epsilon)
        self._weights.addcdiv_(self._first, spread, value=-learning_rate / (1.0 - first_decay**number))
