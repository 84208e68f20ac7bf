"""Images of tensors in a task's mirror."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sim2real.tasks.mirror import Image, MirrorMaps
from sim2real_train.device import CPU

__all__ = ["Reflection", "Reflections"]


class Reflection:
    """The image of vectors in the last axis; of the image, the vectors.

    Args:
        image: Where each element is found.
        device: Of the tensors.
    """

    def __init__(self, image: Image, device: torch.device = CPU) -> None:
        self._image = image
        self._columns: npt.NDArray[np.intp] = np.array(image.columns, np.intp)
        self._signs: npt.NDArray[np.float32] = np.array(image.signs, np.float32)
        self._index = torch.from_numpy(self._columns).to(device)
        self._factors = torch.from_numpy(self._signs).to(device)

    def to(self, device: torch.device) -> Reflection:
        """Return the same for tensors of a device."""
        return Reflection(self._image, device)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return the image of a tensor, shape [..., K]."""
        return values.index_select(-1, self._index) * self._factors

    def of_array(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the image of an array, shape (..., K)."""
        return values[..., self._columns] * self._signs


class Reflections(NamedTuple):
    """Images of what goes into the networks, which begins with the observation, and of what comes out."""

    critic_observation: Reflection
    action: Reflection

    def to(self, device: torch.device) -> Reflections:
        """Return the same for tensors of a device."""
        return Reflections(self.critic_observation.to(device), self.action.to(device))

    @staticmethod
    def of(maps: MirrorMaps) -> Reflections:
        """Return the images that a task's mirror gives."""
        return Reflections(Reflection(maps.critic_observation), Reflection(maps.action))
