"""Running moments that are merged exactly: across steps, across workers, across resumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

__all__ = ["Moments", "merge"]


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of samples of shape (D,), in float64."""

    count: float
    mean: npt.NDArray[np.float64]
    """Shape (D,)."""
    squares: npt.NDArray[np.float64]
    """Σ (x − mean)², shape (D,)."""

    @staticmethod
    def none(size: int) -> Moments:
        """Return the moments of no samples of width `size`."""
        return Moments(0.0, np.zeros(size), np.zeros(size))

    @staticmethod
    def of(samples: npt.NDArray[np.float32 | np.float64]) -> Moments:
        """Return the moments of `samples`, shape (..., D)."""
        rows = samples.reshape(-1, samples.shape[-1]).astype(np.float64)
        mean = rows.mean(axis=0)
        return Moments(float(len(rows)), mean, np.square(rows - mean).sum(axis=0))

    def first(self, size: int) -> Moments:
        """Return the moments of the first `size` elements of each sample."""
        return Moments(self.count, self.mean[:size], self.squares[:size])

    def last(self, size: int) -> Moments:
        """Return the moments of the last `size` elements of each sample."""
        return Moments(self.count, self.mean[-size:], self.squares[-size:])

    @property
    def std(self) -> npt.NDArray[np.float64]:
        """Standard deviation (of the samples, not of a population they were drawn from), shape (D,)."""
        return np.sqrt(self.squares / max(self.count, 1.0))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both sets of samples together.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979), eq. 2.1.
        """
        count = self.count + other.count
        if count == 0.0:
            return self
        delta = other.mean - self.mean
        # mean = mean_a + δ n_b / n;  squares = squares_a + squares_b + δ² n_a n_b / n
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + np.square(delta) * (self.count * other.count / count)
        return Moments(count, mean, squares)


def merge(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all `parts` together; the order decides the last bit, so workers are merged by rank."""
    return reduce(Moments.merged, parts)
