"""What int8 and fp8 cost a policy one of whose measurements has rare outliers, beside a plain export of the same.

Five random policies (48 inputs, 256, 128 and 64 units, 12 outputs), whose first input is 100 times as large now and
then. Plain: the normaliser is folded into the first layer, without a clip, and ranges are the largest magnitudes: what
tools make of an export that says nothing else. Ours: as `sim2real export` and `sim2real quantize` do it.
Error: root mean square of the change of the actions, over their root mean square, on fresh measurements.
"""

from __future__ import annotations

import json
import statistics

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper

from sim2real.contract import PolicyContract
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from sim2real_calib.amax import inputs_of, ranges_of
from sim2real_calib.calibration_set import CalibrationSet
from sim2real_calib.products import products_of, weights_of
from sim2real_calib.quantize import Precision, quantized
from sim2real_calib.sensitivity import output_error, replayed
from sim2real_train.models import Actor, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.onnx_graph import actor_to_onnx

SEEDS = 5
SAMPLES = 4096
OUTLIERS = 0.001
SIZE = 100.0
PRECISIONS: tuple[Precision, ...] = ("int8", "fp8")


def measurements(rng: np.random.Generator, size: int) -> CalibrationSet:
    """Return normal numbers, the first of which is `SIZE` times as large now and then."""
    values = rng.standard_normal((SAMPLES // 16, 16, size), np.float32)
    values[..., 0] *= np.where(rng.random(values.shape[:2]) < OUTLIERS, SIZE, 1.0)
    starts = np.zeros(values.shape[:2], np.bool_)
    starts[0] = True
    return CalibrationSet(observations=values, episode_start=starts)


def folded(policy: bytes) -> bytes:
    """Return the policy with its normaliser in the first layer's weights, and no clip."""
    model = onnx.load_model_from_string(policy)
    weights = weights_of(model)
    subtract, multiply, clip, first = model.graph.node[:4]
    mean, inverse_std = weights[subtract.input[1]], weights[multiply.input[1]]
    weight: npt.NDArray[np.float32] = weights[first.input[1]] * inverse_std
    bias = weights[first.input[2]] - weight @ mean
    for name, values in ((first.input[1], weight), (first.input[2], bias)):
        next(each for each in model.graph.initializer if each.name == name).CopyFrom(
            numpy_helper.from_array(values.astype(np.float32), name)
        )
    first.input[0] = subtract.input[0]
    for node in (subtract, multiply, clip):
        model.graph.node.remove(node)
    return model.SerializeToString()


def errors_of(policy: bytes, contract: PolicyContract, rng: np.random.Generator, *, plain: bool) -> dict[str, float]:
    """Return each precision's error."""
    names, size = contract.model, contract.model.observation_size
    seen, fresh = measurements(rng, size), measurements(rng, size)
    exported = folded(policy) if plain else policy
    products = products_of(onnx.load_model_from_string(exported))
    ranges = ranges_of(inputs_of(exported, names, products, seen, lambda: None), "minmax" if plain else "percentile")
    expected = replayed(policy, names, fresh)
    return {
        precision: output_error(replayed(quantized(exported, precision, ranges), names, fresh), expected)
        for precision in PRECISIONS
    }


def policy_of(seed: int) -> tuple[bytes, PolicyContract]:
    """Return a random policy whose normaliser has seen such measurements."""
    task = get_task("go2-velocity-flat")
    contract = task.contract(unpublished(task))
    torch.manual_seed(seed)
    size = contract.model.observation_size
    actor = Actor(ModelConfig(hidden=(256, 128, 64)), size, contract.model.action_size)
    rows = measurements(np.random.default_rng(1000 + seed), size).observations.reshape(-1, size)
    actor.normalizer.set_moments(Moments.of(rows))
    return actor_to_onnx(actor, contract), contract


def main() -> None:
    """Print the table, and one line of JSON."""
    results: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        policy, contract = policy_of(seed)
        for how in ("plain", "ours"):
            found = errors_of(policy, contract, np.random.default_rng(seed), plain=how == "plain")
            for precision, error in found.items():
                results.setdefault(f"{precision} {how}", []).append(error)
    for name, values in results.items():
        print(f"{name:<12}{statistics.fmean(values):8.2%} ± {statistics.stdev(values):.2%}")
    print(json.dumps({name.replace(" ", "_"): statistics.fmean(values) for name, values in results.items()}))


if __name__ == "__main__":
    main()
