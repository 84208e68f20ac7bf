"""Adam along gradients that are means over all replicas, for some of a model's parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from sim2real_train.algorithm import Average
from sim2real_train.device import array_of

__all__ = ["Descent"]

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Descent:
    """Steps some of a model's parameters down a loss.

    Args:
        parameters: By name.
        learning_rate: Of each step.
        average: Replaces a flat vector by its mean over all replicas, in place.
        max_grad_norm: Longest gradient; longer ones are shortened to it.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        learning_rate: float,
        average: Average,
        *,
        max_grad_norm: float = float("inf"),
    ) -> None:
        self._parameters = dict(parameters)
        self._optimizer = torch.optim.Adam(self._parameters.values(), lr=learning_rate, fused=True)
        self._average = average
        self._max_grad_norm = max_grad_norm

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """Take one step; return the norm of the mean gradient before it was shortened."""
        parameters = list(self._parameters.values())
        flat = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, parameters)])
        self._average(flat)
        norm = flat.square().sum().sqrt()
        flat *= torch.clamp(self._max_grad_norm / (norm + 1e-6), max=1.0)
        parts = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self._optimizer.step()
        return norm

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the optimiser's moments, by name of parameter and of moment; none before the first step."""
        return {
            f"{name}/{key}": array_of(tensor)
            for name, parameter in self._parameters.items()
            for key, tensor in self._optimizer.state[parameter].items()
        }

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `state` returned; other arrays are of no concern."""
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            if f"{name}/step" in arrays:
                self._optimizer.state[parameter] = {
                    key: torch.tensor(arrays[f"{name}/{key}"], device=parameter.device) for key in _MOMENTS
                }
