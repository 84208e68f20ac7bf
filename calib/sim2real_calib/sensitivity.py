"""What few bits cost a policy's actions: of each matrix product alone, and of all together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.acceptance import LayerError
from sim2real.contract import Model
from sim2real_calib.batch_policy import OnnxBatch
from sim2real_calib.calibration_set import CalibrationSet
from sim2real_calib.products import Product
from sim2real_calib.quantize import Precision, quantized

__all__ = ["LOST", "layer_errors", "output_error", "replayed", "worst"]

LOST: Final = 1e30
"""Error of a policy whose actions are no numbers: larger than any other, and a number itself."""


def replayed(onnx_file: bytes, names: Model, content: CalibrationSet) -> npt.NDArray[np.float32]:
    """Return the actions of a policy that sees the set, shape (T, N, A), its memory its own."""
    policy = OnnxBatch(onnx_file, names)
    policy.reset(content.episode_start.shape[1])
    actions = np.empty((*content.episode_start.shape, names.action_size), np.float32)
    for step, (observation, starts) in enumerate(zip(content.observations, content.episode_start, strict=True)):
        policy.restart(starts)
        actions[step] = policy.act(observation)
    return actions


def output_error(actions: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Return the root mean square of the difference over that of what was expected; `LOST` if it is no number."""
    size = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64))))
    error = float(np.sqrt(np.mean(np.square(actions.astype(np.float64) - expected)))) / max(size, 1e-12)
    return error if math.isfinite(error) else LOST


def layer_errors(
    onnx_file: bytes,
    names: Model,
    products: tuple[Product, ...],
    precision: Precision,
    ranges: Mapping[str, float],
    content: CalibrationSet,
    *,
    expected: npt.NDArray[np.float32],
    progress: Callable[[], object],
) -> tuple[LayerError, ...]:
    """Return what each product costs if it alone is in `precision`.

    Args:
        onnx_file: The float32 policy.
        names: The contract's model.
        products: Its products.
        precision: Of one of them.
        ranges: Of what goes into each.
        content: What the policy sees.
        expected: The float32 policy's actions, shape (T, N, A).
        progress: Called after each product.
    """
    found: list[LayerError] = []
    for product in products:
        others = [each.name for each in products if each is not product]
        alone = quantized(onnx_file, precision, ranges, keep=others)
        error = output_error(replayed(alone, names, content), expected)
        found.append(LayerError(product=product.name, shape=product.shape, error=error, kept=False))
        progress()
    return tuple(found)


def worst(layers: Collection[LayerError], share: float) -> tuple[str, ...]:
    """Return the fewest products that together cost at least `share` of the sum of all squared errors, worst first.

    Rounding errors of different products have nothing to do with each other, so that their squares add up.
    """
    ordered = sorted(layers, key=lambda layer: -layer.error)
    total = sum(layer.error**2 for layer in ordered)
    chosen: list[str] = []
    cost = 0.0
    for layer in ordered:
        if cost >= share * total:
            break
        chosen.append(layer.product)
        cost += layer.error**2
    return tuple(chosen)
