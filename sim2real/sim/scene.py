"""What surrounds a robot: nothing, flat ground, or a height field."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "FLAT", "HeightField", "Scene"]


class HeightField(msgspec.Struct, frozen=True, kw_only=True):
    """Terrain on a regular grid, centred on the world's origin."""

    heights: npt.NDArray[np.float32]
    """Heights [m], shape (R, C): row along y, column along x, both rising."""
    size: tuple[float, float]
    """Extent [m] along x and y, from the first to the last sample."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """The ground below a robot, as geom ``ground`` of the world."""

    ground: bool
    """False: the robot hangs or stands in the air, fixed."""
    terrain: HeightField | None
    """None: the ground is the plane z = 0."""
    friction: float
    """Sliding friction coefficient of the ground."""

    def ground_height(self, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the ground's height [m] at world positions [m]; bilinear in a height field, level beyond its edge."""
        if self.terrain is None:
            return np.zeros(np.broadcast(x, y).shape)
        heights = self.terrain.heights
        rows, columns = heights.shape
        # A robot that has left the real numbers has no ground below it; any height will do.
        column = np.nan_to_num(np.clip((x / self.terrain.size[0] + 0.5) * (columns - 1), 0.0, columns - 1.001))
        row = np.nan_to_num(np.clip((y / self.terrain.size[1] + 0.5) * (rows - 1), 0.0, rows - 1.001))
        i, j = row.astype(np.intp), column.astype(np.intp)
        u, v = row - i, column - j
        low = heights[i, j] * (1.0 - v) + heights[i, j + 1] * v
        high = heights[i + 1, j] * (1.0 - v) + heights[i + 1, j + 1] * v
        return low * (1.0 - u) + high * u


EMPTY: Final = Scene(ground=False, terrain=None, friction=1.0)
FLAT: Final = Scene(ground=True, terrain=None, friction=1.0)
