"""Images of tensors in a task's mirror."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sim2real.tasks.mirror import Image, MirrorMaps

__all__ = ["Reflection", "Reflections"]


class Reflection:
    """The image of vectors in the last axis; of the image, the vectors.

    Args:
        image: Where each element is found.
    """

    def __init__(self, image: Image) -> None:
        self._columns: npt.NDArray[np.intp] = np.array(image.columns, np.intp)
        self._signs: npt.NDArray[np.float32] = np.array(image.signs, np.float32)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return the image of a tensor, shape [..., K]."""
        return values.index_select(-1, torch.from_numpy(self._columns)) * torch.from_numpy(self._signs)

    def of_array(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the image of an array, shape (..., K)."""
        return values[..., self._columns] * self._signs


class Reflections(NamedTuple):
    """Images of what goes into the networks, which begins with the observation, and of what comes out."""

    critic_observation: Reflection
    action: Reflection

    @staticmethod
    def of(maps: MirrorMaps) -> Reflections:
        """Return the images that a task's mirror gives."""
        return Reflections(Reflection(maps.critic_observation), Reflection(maps.action))
