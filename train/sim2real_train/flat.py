"""All parameters of a model in one vector: one optimiser step, one norm, one all-reduce in place of one for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

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

    Attributes:
        buffer: The gradient, shape [P], and one more number to be averaged with it; shape [P + 1].
        extra: That number, shape [1].
    """

    def __init__(self, model: nn.Module, *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float) -> None:
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
        self._betas, self._epsilon, self._steps = betas, epsilon, 0
        self._vector: npt.NDArray[Any] = vector.numpy()
        self._gradient: npt.NDArray[Any] = self.buffer.numpy()[:-1]
        self.extra: npt.NDArray[Any] = self.buffer.numpy()[-1:]
        self._moments = {name: np.zeros_like(self._vector) for name in ("exp_avg", "exp_avg_sq")}
        self._scratch = np.empty_like(self._vector)

    def gradient_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of the gradient that is a parameter's, of its shape; live."""
        return self._gradients[parameter].view_as(parameter)

    def differentiate(self, loss: torch.Tensor) -> None:
        """Set the gradient to that of a scalar."""
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        torch.cat([gradient.flatten() for gradient in gradients], out=self.buffer[:-1])

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Step along the gradient, which is shortened if it is longer; return its norm before."""
        gradient = self._gradient
        norm = math.sqrt(np.dot(gradient, gradient))
        if norm > max_grad_norm:
            gradient *= max_grad_norm / (norm + 1e-6)
        self._steps += 1
        first_decay, second_decay = self._betas
        first, second = self._moments.values()
        scratch = self._scratch
        # m ← m + (1 − β₁) (g − m);  v ← β₂ v + (1 − β₂) g²
        np.subtract(gradient, first, out=scratch)
        scratch *= 1.0 - first_decay
        first += scratch
        np.square(gradient, out=scratch)
        scratch *= 1.0 - second_decay
        second *= second_decay
        second += scratch
        # θ ← θ − α m̂ / (√v̂ + ε)  with  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
        np.sqrt(second, out=scratch)
        scratch *= 1.0 / math.sqrt(1.0 - second_decay**self._steps)
        scratch += self._epsilon
        np.divide(first, scratch, out=scratch)
        scratch *= learning_rate / (1.0 - first_decay**self._steps)
        self._vector -= scratch
        return norm

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the moments, by name of parameter and of moment, and the number of steps."""
        arrays = {
            f"{name}/{moment}": part.reshape(parameter.shape).copy()
            for moment, whole in self._moments.items()
            for (name, parameter), part in zip(self._parameters.items(), self._split(whole), strict=True)
        }
        return arrays | {"steps": np.array(self._steps)}

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `state` returned; other arrays are of no concern."""
        self._steps = int(arrays["steps"])
        for moment, whole in self._moments.items():
            for name, part in zip(self._parameters, self._split(whole), strict=True):
                part[:] = arrays[f"{name}/{moment}"].ravel()

    def _split(self, vector: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Return each parameter's part of a vector; live."""
        return np.split(vector, np.cumsum(self._sizes)[:-1])
