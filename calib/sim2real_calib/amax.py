"""How far numbers reach that go into a matrix product: the range that 8 bits are spread over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from sim2real.contract import Model
from sim2real.errors import InputError
from sim2real_calib.batch_policy import OnnxBatch
from sim2real_calib.calibration_set import CalibrationSet
from sim2real_calib.products import Product

__all__ = ["METHODS", "Method", "inputs_of", "ranges_of"]

Method = Literal["percentile", "minmax", "mse", "entropy"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

_TAIL: Final = 1e-4
"""Share of the numbers that `percentile` takes for outliers."""
_LEVELS: Final = 127
_BINS: Final = 2048
_CANDIDATES: Final = 100
_KEPT: Final = 2_000_000
"""Numbers of a product that are looked at, evenly spread; more say nothing new."""


def inputs_of(
    onnx_file: bytes,
    names: Model,
    products: tuple[Product, ...],
    content: CalibrationSet,
    progress: Callable[[], object],
) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return the magnitudes of all that goes into each product when the policy sees the set, by the product's name."""
    watched = tuple(dict.fromkeys(product.input for product in products))
    policy = OnnxBatch(onnx_file, names, watched=watched)
    steps, num_envs = content.episode_start.shape
    policy.reset(num_envs)
    seen: dict[str, list[npt.NDArray[np.float32]]] = {name: [] for name in watched}
    for step, (observation, starts) in enumerate(zip(content.observations, content.episode_start, strict=True)):
        policy.restart(starts)
        policy.act(observation)
        for name, values in policy.values.items():
            # A part of every step, in place of some steps; another one each time, so that no unit is left out.
            stride = max(1, math.ceil(values.size * steps / _KEPT))
            seen[name].append(np.abs(values.ravel()[step % stride :: stride]))
        progress()
    magnitudes = {name: np.concatenate(parts) for name, parts in seen.items()}
    return {product.name: magnitudes[product.input] for product in products}


def ranges_of(inputs: Mapping[str, npt.NDArray[np.float32]], method: Method) -> Mapping[str, float]:
    """Return the range of each product, from the magnitudes that go into it.

    - ``minmax``: the largest.
    - ``percentile``: the largest but for one in 10,000, and never the largest itself: among a few thousand numbers, a
      single outlier would else set the scale of all.
    - ``mse``: that with the least mean square error of numbers rounded to 8 bits and cut off there.
    - ``entropy``: that with the least Kullback–Leibler divergence of the rounded distribution from the true one.
      Source: Migacz, "8-bit inference with TensorRT" (2017).

    Raises:
        InputError: Nothing but 0 goes into a product, or what is no finite number.
    """
    choose: dict[str, Callable[[npt.NDArray[np.float32]], float]] = {
        "minmax": _largest,
        "percentile": _percentile,
        "mse": _least_square_error,
        "entropy": _least_divergence,
    }
    found: dict[str, float] = {}
    for name, values in inputs.items():
        largest = _largest(values)
        found[name] = choose[method](values) if 0.0 < largest < math.inf else largest
        if not 0.0 < found[name] < math.inf:
            raise InputError(
                f"calibration: the range of what goes into {name} is {found[name]:g}; record more of what the policy "
                "does"
            )
    return found


def _largest(values: npt.NDArray[np.float32]) -> float:
    return float(values.max())


def _percentile(values: npt.NDArray[np.float32]) -> float:
    beyond = min(max(1, math.floor(_TAIL * len(values))), len(values) - 1)
    return float(np.partition(values, len(values) - 1 - beyond)[len(values) - 1 - beyond])


def _least_square_error(values: npt.NDArray[np.float32]) -> float:
    counts, edges = np.histogram(values, _BINS, (0.0, _largest(values)))
    centres = 0.5 * (edges[:-1] + edges[1:])
    candidates = edges[-1] * np.arange(1, _CANDIDATES + 1) / _CANDIDATES

    def error(limit: float) -> float:
        scale = limit / _LEVELS
        rounded = np.minimum(np.rint(centres / scale), _LEVELS) * scale
        return float(counts @ np.square(centres - rounded))

    return float(min(candidates.tolist(), key=error))


def _least_divergence(values: npt.NDArray[np.float32]) -> float:
    counts, edges = np.histogram(values, _BINS, (0.0, _largest(values)))
    best, least = float(edges[-1]), math.inf
    for kept in range(_LEVELS + 1, _BINS + 1, 16):
        divergence = _divergence(counts, kept)
        if divergence < least:
            best, least = float(edges[kept]), divergence
    return best


def _divergence(counts: npt.NDArray[np.int64], kept: int) -> float:
    """Return the divergence of the first `kept` bins, merged into 128 levels, from all; the rest is in the last."""
    true = counts[:kept].astype(np.float64)
    true[-1] += counts[kept:].sum()
    level = (np.arange(kept) * (_LEVELS + 1)) // kept
    filled = counts[:kept] > 0
    # Each level's count is spread evenly over those of its bins that are not empty.
    total = np.bincount(level, counts[:kept], _LEVELS + 1)
    width = np.bincount(level, filled, _LEVELS + 1)
    merged = np.where(filled, total[level] / np.maximum(width[level], 1), 0.0)
    where = true > 0.0
    if (merged[where] <= 0.0).any() or not merged.sum():
        return math.inf
    p, q = true[where] / true.sum(), merged[where] / merged.sum()
    return float(np.sum(p * np.log(p / q)))
