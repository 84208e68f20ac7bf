"""What few bits cost: of one product alone, of all, and which of them are worth keeping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.acceptance import LayerError
from sim2real_calib.amax import inputs_of, ranges_of
from sim2real_calib.calibration_set import CalibrationSet
from sim2real_calib.quantize import quantized
from sim2real_calib.sensitivity import LOST, layer_errors, output_error, replayed, worst
from tests.calib.policies import KINDS, Exported, exported


def content_of(policy: Exported) -> CalibrationSet:
    observations = policy.observations(400).reshape(50, 8, -1)
    starts = np.zeros((50, 8), np.bool_)
    starts[[0, 25]] = True
    return CalibrationSet(observations, starts)


@pytest.mark.parametrize("kind", KINDS)
def test_each_product_costs_something_and_together_they_cost_as_much_as_their_squares(kind: str) -> None:
    policy = exported(kind)
    content, products = content_of(policy), policy.products
    expected = replayed(policy.onnx, policy.names, content)
    ranges = ranges_of(inputs_of(policy.onnx, policy.names, products, content, lambda: None), "minmax")
    counted: list[None] = []
    layers = layer_errors(
        policy.onnx,
        policy.names,
        products,
        "int8",
        ranges,
        content,
        expected=expected,
        progress=lambda: counted.append(None),
    )
    assert len(counted) == len(products)
    assert [(layer.product, layer.shape, layer.kept) for layer in layers] == [
        (each.name, each.shape, False) for each in products
    ]
    assert all(0.0 < layer.error < 0.05 for layer in layers)
    whole = output_error(replayed(quantized(policy.onnx, "int8", ranges), policy.names, content), expected)
    assert whole == pytest.approx(math.hypot(*(layer.error for layer in layers)), rel=0.4)


def test_output_error_is_that_of_the_root_mean_squares() -> None:
    expected = np.array([3.0, 4.0], np.float32)
    assert output_error(expected, expected) == 0.0
    assert output_error(expected * np.float32(1.5), expected) == pytest.approx(0.5)
    assert output_error(-expected, expected) == pytest.approx(2.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_costs_more_than_anything_and_is_a_number(value: float) -> None:
    broken = np.array([value, 4.0], np.float32)
    assert output_error(broken, np.ones(2, np.float32)) == LOST
    layers = [
        LayerError(product=name, shape=(1,), error=error, kept=False) for name, error in (("a", 9.0), ("b", LOST))
    ]
    assert worst(layers, 0.8) == ("b",)


@given(st.lists(st.floats(0.0, 10.0), max_size=8), st.floats(0.0, 1.0))
def test_the_worst_are_the_fewest_that_cost_that_share(errors: list[float], share: float) -> None:
    layers = [LayerError(product=str(index), shape=(1,), error=error, kept=False) for index, error in enumerate(errors)]
    chosen = [errors[int(name)] for name in worst(layers, share)]
    assert chosen == sorted(errors, reverse=True)[: len(chosen)]
    wanted = share * sum(error**2 for error in sorted(errors, reverse=True))
    assert sum(error**2 for error in chosen) >= wanted * (1 - 1e-9)
    assert not chosen or sum(error**2 for error in chosen[:-1]) < wanted
