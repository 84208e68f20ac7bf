"""Values that a critic learns in units of their own spread, whatever the size of the rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real_train.models import Critic
from sim2real_train.moments import Moments

__all__ = ["ValueNormalizer"]

_SMALLEST: Final = 1e-4
"""Least standard deviation: targets that are all alike are not blown up."""
_MOMENTS: Final = ("count", "mean", "squares")


class ValueNormalizer:
    """V = µ + σ × what the critic puts out; µ and σ are of all value targets so far, 0 and 1 before the first.

    Source: van Hasselt et al., "Learning values across many orders of magnitude" (2016), algorithm 1: the last layer is
    rescaled whenever µ and σ change, so that no value does.

    Args:
        critic: Whose last layer.

    Attributes:
        moments: Of the targets.
    """

    def __init__(self, critic: Critic) -> None:
        layers = critic.network
        assert isinstance(layers, nn.Sequential)
        last = layers[-1]
        assert isinstance(last, nn.Linear)
        self._last = last
        self.moments = Moments.none(1)

    @property
    def mean(self) -> float:
        """µ."""
        return float(self.moments.mean[0])

    @property
    def std(self) -> float:
        """σ."""
        return max(float(self.moments.std[0]), _SMALLEST) if self.moments.count else 1.0

    def restored(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return values of any shape from the critic's outputs."""
        return outputs * self.std + self.mean

    def normalized(self, values: torch.Tensor) -> torch.Tensor:
        """Return what the critic should put out for values of any shape."""
        return (values - self.mean) / self.std

    @torch.no_grad()
    def take(self, targets: Moments) -> None:
        """Take in the moments of new targets; the critic's values stay what they are."""
        old_mean, old_std = self.mean, self.std
        self.moments = self.moments.merged(targets)
        # w ← w σ / σ';  b ← (σ b + µ − µ') / σ'
        self._last.weight *= old_std / self.std
        self._last.bias.copy_((old_std * self._last.bias + old_mean - self.mean) / self.std)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the moments."""
        return {f"values/{name}": np.array(getattr(self.moments, name)) for name in _MOMENTS}

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `state` returned; other arrays are of no concern."""
        count, mean, squares = (arrays[f"values/{name}"] for name in _MOMENTS)
        self.moments = Moments(float(count), mean.copy(), squares.copy())
