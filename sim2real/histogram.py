"""A histogram of durations that keeps three digits from a nanosecond to 100 seconds, tail included."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.typecheck import INT64_MAX

__all__ = ["HIGHEST_NS", "Histogram"]

HIGHEST_NS: Final = 100_000_000_000
"""Largest value told apart from larger ones [ns]: 100 s."""

# Values below 2·_HALF have a bucket each; above, each octave is cut into _HALF buckets of equal width, so a bucket is
# never wider than 1 / _HALF of the values in it: three significant digits.
_HALF: Final = 1024
_EXACT_BITS: Final = 11
_BUCKETS: Final = (HIGHEST_NS.bit_length() - _EXACT_BITS + 2) * _HALF


class Histogram:
    """Counts of durations [ns] in log-linear buckets, as HdrHistogram (hdrhistogram.org) lays them out.

    A percentile is never below the true one and at most 0.1 % above it; count, minimum and maximum are exact. All
    memory, 230 kB, is taken at construction. A value below 0 (a clock offset has an uncertainty) counts as 0 and one
    above `HIGHEST_NS` as that, save that the minimum and maximum stay exact, within the 64 bits that they are kept in.

    Attributes:
        count: Values recorded.
        min_ns: Smallest value; meaningless while `count` is 0.
        max_ns: Largest value; meaningless while `count` is 0.
    """

    __slots__ = ("_counts", "count", "max_ns", "min_ns")

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * _BUCKETS))
        self.count = 0
        self.min_ns = 2**63 - 1
        self.max_ns = -(2**63)

    @classmethod
    def from_buckets(cls, buckets: Iterable[tuple[int, int]], *, min_ns: int, max_ns: int) -> Histogram:
        """Return the histogram with these `buckets`, as `Histogram.buckets` gives them, and this minimum and maximum.

        Raises:
            ValueError: They do not belong together; the message begins with the part that is wrong.
        """
        result = cls()
        last = -1
        for position, (index, count) in enumerate(buckets):
            if not last < index < _BUCKETS:
                raise ValueError(
                    f"buckets[{position}][0]: expected an index of {last + 1} to {_BUCKETS - 1}, got {index}"
                )
            if not 0 < count <= INT64_MAX - result.count:
                raise ValueError(f"buckets[{position}][1]: expected a count > 0 within 64 bits, got {count}")
            result._counts[index] = count
            result.count += count
            last = index
        if last < 0:
            raise ValueError("buckets: expected at least one, got none")
        first = next(index for index in range(_BUCKETS) if result._counts[index])
        for name, value, index in (("min_ns", min_ns, first), ("max_ns", max_ns, last)):
            if not -INT64_MAX <= value <= INT64_MAX or _bucket_of(value) != index:
                raise ValueError(
                    f"{name}: expected {_lowest_in(index)} to {_highest_in(index)}, as the buckets say, got {value}"
                )
        result.min_ns, result.max_ns = min_ns, max_ns
        return result

    def record(self, value_ns: int) -> None:
        """Count one value [ns]."""
        if not -INT64_MAX <= value_ns <= INT64_MAX:
            value_ns = INT64_MAX if value_ns > 0 else -INT64_MAX
        self.count += 1
        if value_ns < self.min_ns:
            self.min_ns = value_ns
        if value_ns > self.max_ns:
            self.max_ns = value_ns
        self._counts[_bucket_of(value_ns)] += 1

    def merge(self, other: Histogram) -> None:
        """Count all values of `other` as well."""
        counts = np.frombuffer(self._counts, np.int64)
        counts += np.frombuffer(other._counts, np.int64)
        self.count += other.count
        self.min_ns = min(self.min_ns, other.min_ns)
        self.max_ns = max(self.max_ns, other.max_ns)

    def clear(self) -> None:
        """Forget all values."""
        np.frombuffer(self._counts, np.int64)[...] = 0
        self.count = 0
        self.min_ns = 2**63 - 1
        self.max_ns = -(2**63)

    def percentile(self, percent: float) -> int:
        """Return the smallest value [ns] that at least `percent` % of all values do not exceed.

        Raises:
            ValueError: There are no values, or `percent` is not within 0 to 100.
        """
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Iterable[float]) -> tuple[int, ...]:
        """Return `percentile` of each of `percents`, in one pass over the buckets."""
        if not self.count:
            raise ValueError("percentile: expected a histogram with values, got an empty one")
        reached = np.cumsum(np.frombuffer(self._counts, np.int64))
        return tuple(self._at_rank(reached, _rank(percent, self.count)) for percent in percents)

    def _at_rank(self, reached: npt.NDArray[np.int64], rank: int) -> int:
        if rank == self.count:
            return self.max_ns
        highest = _highest_in(int(np.searchsorted(reached, rank)))
        return min(max(highest, self.min_ns), self.max_ns)

    def mean_ns(self) -> float:
        """Return the mean [ns] of the values, each taken as the middle of its bucket; 0.0 if there are none."""
        if not self.count:
            return 0.0
        return sum(count * (_lowest_in(i) + _highest_in(i)) / 2 for i, count in self.buckets()) / self.count

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return (index, count) of each bucket that is not empty, in ascending order."""
        counts = np.frombuffer(self._counts, np.int64)
        return tuple((int(index), int(counts[index])) for index in np.flatnonzero(counts))

    def distribution(self) -> tuple[tuple[int, int, int], ...]:
        """Return (lowest value [ns], highest value [ns], count) of each bucket that is not empty, e.g. for plots."""
        return tuple((_lowest_in(index), _highest_in(index), count) for index, count in self.buckets())


def _bucket_of(value_ns: int) -> int:
    if value_ns < 0:
        value_ns = 0
    elif value_ns > HIGHEST_NS:
        value_ns = HIGHEST_NS
    shift = value_ns.bit_length() - _EXACT_BITS
    return value_ns if shift <= 0 else shift * _HALF + (value_ns >> shift)


def _lowest_in(index: int) -> int:
    if index < 2 * _HALF:
        return index
    shift = index // _HALF - 1
    return (index - shift * _HALF) << shift


def _highest_in(index: int) -> int:
    return _lowest_in(index + 1) - 1


def _rank(percent: float, count: int) -> int:
    if not 0 <= percent <= 100:
        raise ValueError(f"percent: expected 0 to 100, got {percent}")
    # In decimal, because 99.9 % of 1000 values are 999 of them, and in binary a little more.
    return max(1, int((Decimal(repr(percent)) * count / 100).to_integral_value(ROUND_CEILING)))
