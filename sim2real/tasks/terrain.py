"""Generated ground: a grid of patches, harder from row to row, of another kind from column to column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.sim.scene import HeightField

__all__ = ["KINDS", "PATCH", "Terrain"]

Array = npt.NDArray[np.float64]

PATCH: Final = 8.0
"""Side of a patch [m]."""
RESOLUTION: Final = 0.1
"""Distance between two samples of the ground [m]."""
_SAMPLES: Final = round(PATCH / RESOLUTION)
_PLATFORM: Final = 1.0
"""Half of the side [m] of the level square in the middle of a patch, where episodes begin."""


def _from_platform() -> Array:
    """How far [m] the samples of a patch lie from its platform, shape (S, S), in squares around it: 0 on it."""
    line: Array = np.abs((np.arange(_SAMPLES, dtype=np.float64) + 0.5) * RESOLUTION - 0.5 * PATCH)
    return np.maximum(np.maximum(line, line[:, None]) - _PLATFORM, 0.0)


def _off_platform() -> Array:
    """1 where a patch may be uneven, 0 on its platform, shape (S, S)."""
    return (_from_platform() > 0.0).astype(np.float64)


def slope(rng: np.random.Generator, difficulty: float) -> Array:
    """Return a hill or a pit with its platform at the top or bottom, of up to 22°; its edge is at height 0."""
    away = _from_platform()
    return (away.max() - away) * 0.4 * difficulty * rng.choice([-1.0, 1.0])


def rough(rng: np.random.Generator, difficulty: float) -> Array:
    """Return uneven ground: steps of 2.5 mm, up to 4 cm, each 0.2 m wide."""
    coarse = rng.uniform(-1.0, 1.0, (_SAMPLES // 2, _SAMPLES // 2)) * (0.005 + 0.035 * difficulty)
    heights = np.kron(np.round(coarse / 0.0025) * 0.0025, np.ones((2, 2)))
    return heights * _off_platform()


def stairs(rng: np.random.Generator, difficulty: float) -> Array:
    """Return the same as `slope` in steps: treads of 0.4 m, risers of 2 to 12 cm."""
    steps = np.ceil(_from_platform() / 0.4)
    return (steps.max() - steps) * (0.02 + 0.1 * difficulty) * rng.choice([-1.0, 1.0])


def blocks(rng: np.random.Generator, difficulty: float) -> Array:
    """Return forty blocks of 0.4 to 1.2 m side, up to 10 cm high or deep."""
    heights = np.zeros((_SAMPLES, _SAMPLES))
    for _ in range(40):
        rows, columns = (int(side) for side in rng.integers(4, 13, 2))
        row, column = int(rng.integers(0, _SAMPLES - rows)), int(rng.integers(0, _SAMPLES - columns))
        heights[row : row + rows, column : column + columns] = rng.uniform(-1.0, 1.0) * 0.1 * difficulty
    return heights * _off_platform()


KINDS: Final[tuple[Callable[[np.random.Generator, float], Array], ...]] = (slope, rough, stairs, blocks)
"""One of them in each column of a terrain."""


class Terrain:
    """Patches of rising difficulty along x, of each of `KINDS` in turn along y; level ground all around.

    Args:
        levels: Rows of rising difficulty.
        columns: Patches of each level.
        seed: Seeds the patches: the same seed gives the same ground.

    Attributes:
        field: The whole ground.
    """

    def __init__(self, *, levels: int, columns: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.levels = levels
        self.columns = columns
        border = _SAMPLES // 2
        heights = np.zeros((columns * _SAMPLES + 2 * border, levels * _SAMPLES + 2 * border), np.float32)
        for level in range(levels):
            for column in range(columns):
                patch = KINDS[column % len(KINDS)](rng, level / max(levels - 1, 1))
                top, left = border + column * _SAMPLES, border + level * _SAMPLES
                heights[top : top + _SAMPLES, left : left + _SAMPLES] = patch
        size = ((heights.shape[1] - 1) * RESOLUTION, (heights.shape[0] - 1) * RESOLUTION)
        self.field = HeightField(heights=heights, size=size)

    def origin(self, rng: np.random.Generator, level: npt.NDArray[np.int64]) -> Array:
        """Return the middle of a random patch of each level: x and y in the world [m], shape (n, 2)."""
        column = rng.integers(0, self.columns, len(level))
        x = (level - 0.5 * (self.levels - 1)) * PATCH
        y = (column - 0.5 * (self.columns - 1)) * PATCH
        return np.stack((x, y), axis=1).astype(np.float64)
