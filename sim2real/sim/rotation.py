"""Rotations of many vectors at once. Quaternions are wxyz and of unit length; they rotate body into world vectors."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["down", "quaternion_of", "rotate", "rotate_inverse", "unit", "yaw_of"]

Array = npt.NDArray[np.float64]

_TINY: Final = np.finfo(np.float64).tiny


def rotate(quat: Array, vector: Array) -> Array:
    """Return R v: v + 2 w (u × v) + 2 u × (u × v) for q = (w, u). Shapes (N, 4) and (N, 3) to (N, 3)."""
    return _rotate(quat[:, 0], quat[:, 1], quat[:, 2], quat[:, 3], vector)


def rotate_inverse(quat: Array, vector: Array) -> Array:
    """Return Rᵀ v, shapes (N, 4) and (N, 3) to (N, 3)."""
    return _rotate(-quat[:, 0], quat[:, 1], quat[:, 2], quat[:, 3], vector)


def down(quat: Array) -> Array:
    """Return where down is, Rᵀ (0, 0, −1): minus the last row of R, shape (N, 4) to (N, 3)."""
    w, x, y, z = quat.T
    out = np.empty((len(quat), 3))
    out[:, 0] = 2.0 * (w * y - x * z)
    out[:, 1] = -2.0 * (w * x + y * z)
    out[:, 2] = 2.0 * (x * x + y * y) - 1.0
    return out


def quaternion_of(rotation: Array) -> Array:
    """Return rotation vectors [rad], shape (N, 3), as quaternions, shape (N, 4): (cos ½|v|, v sin ½|v| / |v|)."""
    half = 0.5 * np.sqrt(np.einsum("ni,ni->n", rotation, rotation))
    quat = np.empty((len(rotation), 4))
    quat[:, 0] = np.cos(half)
    # sin x / x is 1 at 0; the least number in place of 0 makes it so.
    half += _TINY
    quat[:, 1:] = rotation * (0.5 * np.sin(half) / half)[:, None]
    return quat


def yaw_of(quat: Array) -> Array:
    """Return the heading [rad]: the angle about z of the body's x axis, shape (N, 4) to (N,)."""
    w, x, y, z = quat.T
    return np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def unit(vectors: Array) -> Array:
    """Return vectors or quaternions, shape (N, 3) or (N, 4), divided by their lengths."""
    # NumPy divides and sums along the long axis several times as fast.
    columns = vectors.T.copy()
    squares = columns * columns
    square = squares[0] + squares[2]
    square += squares[1] if len(squares) == 3 else squares[1] + squares[3]
    columns /= np.sqrt(square)
    return columns.T


def _rotate(w: Array, x: Array, y: Array, z: Array, vector: Array) -> Array:
    """Written out by components: np.cross costs several times as much."""
    a, b, c = vector[:, 0], vector[:, 1], vector[:, 2]
    # t = 2 u × v;  R v = v + w t + u × t
    t0, t1, t2 = 2.0 * (y * c - z * b), 2.0 * (z * a - x * c), 2.0 * (x * b - y * a)
    out = np.empty(vector.shape)
    out[:, 0] = a + w * t0 + (y * t2 - z * t1)
    out[:, 1] = b + w * t1 + (z * t0 - x * t2)
    out[:, 2] = c + w * t2 + (x * t1 - y * t0)
    return out
