"""Ranges chosen from magnitudes, beside closed forms; and that what is looked at leaves nothing out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import numpy_helper

from sim2real.errors import InputError
from sim2real_calib.amax import METHODS, Method, inputs_of, ranges_of
from sim2real_calib.calibration_set import CalibrationSet
from sim2real_calib.products import normalizer_of
from tests.calib.policies import exported

Array = npt.NDArray[np.float32]


def range_of(values: npt.ArrayLike, method: Method) -> float:
    return ranges_of({"gemm_0": np.abs(np.asarray(values, np.float32))}, method)["gemm_0"]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_spread_evenly_is_covered_as_a_whole(method: Method) -> None:
    values = np.random.default_rng(0).uniform(-3.0, 3.0, 200_000)
    assert range_of(values, method) == pytest.approx(3.0, rel=1e-3)
    assert range_of(np.full(1000, 2.5), method) == pytest.approx(2.5)


def test_minmax_is_the_largest_and_percentile_leaves_out_one_in_10000() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, 50_001.0))
    assert range_of(values, "minmax") == 50_000.0
    assert range_of(values, "percentile") == 49_995.0
    assert range_of([4.0], "percentile") == 4.0


def test_percentile_ignores_one_outlier_among_a_few_thousand() -> None:
    # Case 11. The percentile 99.999 of 3,072 numbers is as good as the largest of them.
    values = np.append(np.random.default_rng(0).standard_normal(3071), 1e4)
    assert np.percentile(np.abs(values), 99.999) > 9000.0
    assert range_of(values, "percentile") < 4.0
    assert range_of(values, "minmax") == 1e4


@pytest.mark.parametrize(("name", "expected"), [("standard_normal", 3.92), ("laplace", 9.89)])
def test_mse_finds_the_clip_that_is_known_to_be_best_for_8_bits(name: str, expected: float) -> None:
    """Source: Banner, Nahshan, Soudry, "Post training 4-bit quantization of convolutional networks" (2019)."""
    rng = np.random.default_rng(0)
    values: npt.NDArray[np.float64] = getattr(rng, name)(size=1_000_000)
    # The error is flat around its least.
    assert range_of(values, "mse") == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "minmax"])
def test_of_numbers_with_tails_less_than_the_largest_is_covered(method: Method) -> None:
    values = np.random.default_rng(0).laplace(size=1_000_000)
    found = range_of(values, method)
    assert 8.0 < found < 11.0
    assert np.abs(values).max() > 13.0
    assert range_of(values, method) == found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [[0.0] * 100, [1.0, np.nan], [1.0, np.inf]], ids=["zeros", "nan", "inf"])
def test_what_has_no_range_is_refused_by_its_products_name(method: Method, values: list[float]) -> None:
    # Case 10: all zeros would be a scale of 0.
    with pytest.raises(InputError, match=r"calibration: the range of what goes into gemm_0 is (0|nan|inf); record"):
        range_of(values, method)


def test_an_outlier_among_zeros_is_no_range() -> None:
    values = np.zeros(3000)
    values[7] = 1.0
    assert range_of(values, "minmax") == 1.0
    with pytest.raises(InputError, match="gemm_0 is 0"):
        range_of(values, "percentile")


@given(
    hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(0.5, 8.0, width=32)),
    st.sampled_from(METHODS),
    st.integers(-20, 20),
)
def test_a_range_is_within_the_numbers_and_grows_with_them(values: Array, method: Method, exponent: int) -> None:
    found = range_of(values, method)
    assert 0.0 < found <= float(values.max()) * (1.0 + 1e-6)
    # In other units the same is chosen.
    assert range_of(values * np.float32(2.0**exponent), method) == pytest.approx(found * 2.0**exponent, rel=1e-5)


def test_no_unit_is_left_out_where_not_all_is_looked_at() -> None:
    """Of 2.4 million numbers, 24 in a row, every second one is looked at."""
    policy = exported("mlp")
    model = onnx.load_model_from_string(policy.onnx)
    bias = next(each for each in model.graph.initializer if each.name == policy.products[0].bias)
    for unit in (4, 5):
        values = numpy_helper.to_array(bias).copy()
        values[unit] = 500.0
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        next(each for each in changed.graph.initializer if each.name == bias.name).CopyFrom(
            numpy_helper.from_array(values, bias.name)
        )
        content = CalibrationSet(
            observations=np.zeros((50, 2000, policy.names.observation_size), np.float32),
            episode_start=np.arange(50)[:, None] == np.zeros(2000, np.int64),
        )
        found = inputs_of(changed.SerializeToString(), policy.names, policy.products, content, lambda: None)
        assert len(found["gemm_1"]) == 50 * 2000 * 24 / 2
        assert found["gemm_1"].max() == pytest.approx(500.0, rel=0.01)
        # Fewer than the most that is looked at: all of it.
        assert len(found["gemm_0"]) == 50 * 2000 * 4


def test_what_goes_into_a_recurrent_product_is_the_state_of_its_own_sequence() -> None:
    policy = exported("gru")
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((20, 3, policy.names.observation_size), np.float32)
    starts = np.zeros((20, 3), np.bool_)
    starts[[0, 10]] = True
    found = inputs_of(policy.onnx, policy.names, policy.products, CalibrationSet(observations, starts), lambda: None)
    states = found["gemm_1"].reshape(20, 3, 12)
    assert not states[[0, 10]].any()
    assert states[[1, 9, 11, 19]].any(axis=2).all()
    assert found["gemm_0"].shape == (observations.size,)
    # What the normaliser gives, clipped.
    limit = normalizer_of(onnx.load_model_from_string(policy.onnx))[2]
    assert 0.0 < found["gemm_0"].max() <= limit
