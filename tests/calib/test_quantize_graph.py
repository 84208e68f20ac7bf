"""The graphs of quantised policies: what is in them, and what they compute, beside the same arithmetic in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from sim2real.contract import decode_contract
from sim2real.errors import InputError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY, read_metadata
from sim2real_calib.batch_policy import OnnxBatch
from sim2real_calib.graph_lint import lint
from sim2real_calib.products import batched, products_of, runnable, weights_of
from sim2real_calib.quantize import PRECISIONS, Precision, quantized
from tests.calib.policies import KINDS, Exported, exported

Array = npt.NDArray[np.float32]
EIGHT_BITS: tuple[Precision, ...] = ("int8", "fp8")
SHORT = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def ranges(policy: Exported, limit: float = 3.0) -> dict[str, float]:
    """One for each product; some of what goes in is beyond."""
    return {product.name: limit for product in policy.products}


def parsed(content: bytes) -> Any:
    return onnx.load_model_from_string(content)


def with_constant(content: bytes, name: str, change: Callable[[Array], Array]) -> bytes:
    """The same file with one constant changed."""
    model = parsed(content)
    constant = next(each for each in model.graph.initializer if each.name == name)
    constant.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(constant).copy()), name))
    return model.SerializeToString(deterministic=True)


def watched(content: bytes, policy: Exported, observations: Array, *, steps: int = 3) -> dict[str, Array]:
    """What goes into the products and comes out of them at the last of some steps."""
    names = tuple(dict.fromkeys(name for each in policy.products for name in (each.input, each.output)))
    batch = OnnxBatch(content, policy.names, watched=names)
    batch.reset(len(observations))
    for _ in range(steps):
        batch.act(observations)
    return batch.values


def product(inputs: Array, weight: Array, bias: Array) -> npt.NDArray[np.float64]:
    """A Gemm with transB = 1, or a Conv without padding whose stride is 1."""
    x, w = inputs.astype(np.float64), weight.astype(np.float64)
    if w.ndim == 2:
        return x @ w.T + bias
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2], axis=2)
    return np.einsum("nctk,ock->not", windows, w) + bias[:, None]


def rounded(values: Array, scale: Array | np.float32, precision: Precision) -> Array:
    """Quantise and dequantise."""
    if precision == "int8":
        return np.clip(np.rint(values / scale), -128, 127) * scale
    return np.clip(values / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


@pytest.fixture(params=KINDS)
def policy(request: pytest.FixtureRequest) -> Exported:
    return exported(request.param)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_graph_is_sound_and_says_whose_it_is(policy: Exported, precision: Precision) -> None:
    content = quantized(policy.onnx, precision, ranges(policy))
    assert content == quantized(policy.onnx, precision, ranges(policy))
    assert lint(content) == []
    model, before = parsed(content), parsed(policy.onnx)
    onnx.checker.check_model(model, full_check=True)
    assert decode_contract(read_metadata(content)[CONTRACT_METADATA_KEY].encode()) == policy.contract
    # Inputs and outputs are those of the contract, in float32.
    assert (list(model.graph.input), list(model.graph.output)) == (list(before.graph.input), list(before.graph.output))
    constants = weights_of(model)
    assert {name for node in model.graph.node for name in node.input} >= set(constants)
    assert not any(each.data_type in (TensorProto.INT32, TensorProto.UINT8) for each in model.graph.initializer)
    # The normaliser is left as it was.
    assert list(model.graph.node[:3]) == list(before.graph.node[:3])
    for name in (name for node in before.graph.node[:3] for name in node.input if name in weights_of(before)):
        np.testing.assert_array_equal(constants[name], weights_of(before)[name])


@pytest.mark.parametrize("precision", EIGHT_BITS)
def test_scales_and_zero_points_are_what_tensorrt_takes(policy: Exported, precision: Precision) -> None:
    model = parsed(quantized(policy.onnx, precision, ranges(policy)))
    constants = weights_of(model)
    kind = "int8" if precision == "int8" else "float8_e4m3fn"
    for name, values in constants.items():
        if name.endswith("_zero"):
            assert values.dtype == kind
            assert not values.astype(np.float32).any()
        elif name.endswith("_scale"):
            assert values.dtype == np.float32
            assert (values > 0.0).all()
    for each in policy.products:
        codes, scale = constants[f"{each.name}_weight_codes"], constants[f"{each.name}_weight_scale"]
        assert (codes.dtype, codes.shape, scale.shape) == (kind, each.shape, each.shape[:1])
        # All of the range is used: the largest weight of each channel has the largest code.
        largest = np.abs(codes.astype(np.float32)).reshape(len(codes), -1).max(axis=1)
        np.testing.assert_array_equal(largest, 127.0 if precision == "int8" else 448.0)
        assert constants[each.bias].dtype == np.float32
    dequantized = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    found = [node for node in model.graph.node if node.op_type in ("Gemm", "Conv")]
    assert len(found) == len(policy.products)
    for node in found:
        assert set(node.input[:2]) <= set(dequantized)
        (axis,) = (each.i for each in dequantized[node.input[1]].attribute if each.name == "axis")
        assert axis == 0


@pytest.mark.parametrize("precision", EIGHT_BITS)
def test_a_product_of_8_bits_is_quantise_dequantise_multiply(policy: Exported, precision: Precision) -> None:
    content = quantized(policy.onnx, precision, ranges(policy))
    values = watched(content, policy, policy.observations(64))
    constants, weights = weights_of(parsed(content)), weights_of(parsed(policy.onnx))
    beyond = 0
    for each in policy.products:
        inputs, weight = values[each.input], weights[each.weight]
        beyond += int((np.abs(inputs) > 3.0).sum())
        scale = constants[f"{each.name}_weight_scale"].reshape(-1, *[1] * (weight.ndim - 1))
        x = rounded(inputs, np.float32(3.0 / (127.0 if precision == "int8" else 448.0)), precision)
        np.testing.assert_allclose(
            values[each.output], product(x, rounded(weight, scale, precision), weights[each.bias]), atol=1e-6, rtol=1e-6
        )
    assert beyond


@pytest.mark.parametrize(("precision", "epsilon"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_a_product_of_16_bits_is_that_of_rounded_numbers_rounded_once(
    policy: Exported, precision: Precision, epsilon: float
) -> None:
    content = quantized(policy.onnx, precision, {})
    values = watched(content, policy, policy.observations(64))
    weights = weights_of(parsed(policy.onnx))
    for each in policy.products:
        x, w, b = (
            array.astype(SHORT[precision]).astype(np.float32)
            for array in (values[each.input], weights[each.weight], weights[each.bias])
        )
        exact = product(x, w, b)
        expected = exact.astype(np.float32).astype(SHORT[precision]).astype(np.float32)
        # Another order of the sum may round a number in the middle of two to the other one, and no more than that.
        np.testing.assert_allclose(values[each.output], exact, rtol=1.01 * epsilon, atol=1e-6)
        assert (values[each.output] == expected).mean() > 0.98


def test_what_needs_no_other_form_to_run_keeps_its_own(policy: Exported) -> None:
    for content in (policy.onnx, *(quantized(policy.onnx, each, ranges(policy)) for each in EIGHT_BITS)):
        assert runnable(content) is content


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_kept_stays_as_it_was(policy: Exported, precision: Precision) -> None:
    names = [each.name for each in policy.products]
    before = parsed(policy.onnx)
    for kept in names:
        model = parsed(quantized(policy.onnx, precision, ranges(policy), keep=[kept]))
        assert lint(model.SerializeToString()) == []
        same = [each.name for each in policy.products if before.graph.node[each.node] in model.graph.node]
        assert same == [kept]
        each = next(each for each in policy.products if each.name == kept)
        np.testing.assert_array_equal(weights_of(model)[each.weight], weights_of(before)[each.weight])
    whole = parsed(quantized(policy.onnx, precision, {}, keep=names))
    assert list(whole.graph.node) == list(before.graph.node)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("constant", ["weight", "bias", "normalizer"])
def test_what_is_not_finite_is_refused_by_its_name(precision: Precision, number: float, constant: str) -> None:
    policy = exported("mlp")
    names = {"weight": policy.products[1].weight, "bias": policy.products[1].bias, "normalizer": "weight_1"}

    def change(values: Array) -> Array:
        values.flat[3] = number
        return values

    broken = with_constant(policy.onnx, names[constant], change)
    with pytest.raises(InputError, match=f"{names[constant]}: a constant is not finite; the policy has diverged"):
        # Kept or not.
        quantized(broken, precision, ranges(policy), keep=["gemm_1"])


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_what_float16_cannot_hold_is_refused_and_bfloat16_named(part: str) -> None:
    policy = exported("mlp")
    name: str = getattr(policy.products[1], part)
    large = with_constant(policy.onnx, name, lambda values: (values / np.abs(values).max() * 7e4).astype(np.float32))
    with pytest.raises(InputError, match=f"{name}: float16 cannot hold 70000; use bfloat16"):
        quantized(large, "float16", {})
    assert lint(quantized(large, "bfloat16", {})) == []


@pytest.mark.parametrize("value", [None, 0.0, -1.0, np.nan, np.inf])
def test_a_range_that_is_none_is_refused(value: float | None) -> None:
    policy = exported("mlp")
    given_ranges = {name: limit for name, limit in ranges(policy).items() if name != "gemm_1"}
    if value is not None:
        given_ranges["gemm_1"] = value
    for precision in EIGHT_BITS:
        with pytest.raises(InputError, match="range of gemm_1: expected a finite number > 0"):
            quantized(policy.onnx, precision, given_ranges)
        # What stays float32 needs none.
        assert lint(quantized(policy.onnx, precision, given_ranges, keep=["gemm_1"])) == []


def test_an_unknown_product_in_keep_is_refused_with_those_that_there_are() -> None:
    policy = exported("mlp")
    with pytest.raises(InputError, match=r"keep: 'gemm_9': no product of the policy; allowed: gemm_0, gemm_1, gemm_2"):
        quantized(policy.onnx, "int8", ranges(policy), keep=["gemm_9"])


@pytest.mark.parametrize(("precision", "needed"), [("int8", 13), ("fp8", 19), ("float16", 13), ("bfloat16", 19)])
def test_an_opset_that_does_not_know_a_precision_is_refused(precision: Precision, needed: int) -> None:
    """Policies from elsewhere are of others."""
    policy = exported("mlp")
    model = parsed(policy.onnx)
    model.opset_import[0].version = needed - 1
    with pytest.raises(InputError, match=f"{precision} needs an ONNX opset of at least {needed}, got {needed - 1}"):
        quantized(model.SerializeToString(), precision, ranges(policy))
    model.opset_import[0].version = needed
    assert lint(quantized(model.SerializeToString(), precision, ranges(policy))) == []


@pytest.mark.parametrize("change", ["transposed", "matmul", "computed"])
def test_a_product_that_is_written_otherwise_is_refused(change: str) -> None:
    model = parsed(exported("mlp").onnx)
    node = next(node for node in model.graph.node if node.op_type == "Gemm")
    if change == "transposed":
        del node.attribute[:]
    elif change == "matmul":
        node.op_type = "MatMul"
        del node.attribute[:], node.input[2:]
    else:
        model.graph.node.insert(0, helper.make_node("Identity", [node.input[1]], ["computed"]))
        next(node for node in model.graph.node if node.op_type == "Gemm").input[1] = "computed"
    with pytest.raises(InputError, match=r"expected a Gemm with transB=1 or a Conv.*such a policy stays float32"):
        products_of(model)


NUMBERS = st.floats(-(2.0**40), 2.0**40, width=32) | st.floats(-1.0, 1.0, width=32)
WEIGHTS = hnp.arrays(np.float32, (16, 24), elements=NUMBERS, fill=st.just(0.0))


@given(WEIGHTS, st.sampled_from(EIGHT_BITS))
@example(np.zeros((16, 24), np.float32), "int8")
@example(np.full((16, 24), 1e-38, np.float32), "fp8")
def test_weights_are_off_by_half_a_step_of_their_channel_at_most(weights: Array, precision: Precision) -> None:
    policy = exported("mlp")
    content = quantized(
        with_constant(policy.onnx, policy.products[1].weight, lambda _: weights), precision, ranges(policy)
    )
    assert lint(content) == []
    constants = weights_of(parsed(content))
    scale = constants["gemm_1_weight_scale"][:, None].astype(np.float64)
    units = weights / scale
    error = np.abs(constants["gemm_1_weight_codes"].astype(np.float64) - units)
    # E4M3 has 3 bits after the point, and its numbers near 0 lie 2⁻⁹ apart.
    step = 1.0 if precision == "int8" else np.maximum(2.0 ** (np.floor(np.log2(np.abs(units) + 1e-30)) - 3), 2.0**-9)
    assert (error <= (0.5 + 1e-4) * step).all()


@pytest.mark.parametrize("precision", EIGHT_BITS)
def test_a_dead_channel_stays_dead_and_leaves_the_others_alone(precision: Precision) -> None:
    # Case 10: a scale of 0 is refused by TensorRT.
    policy = exported("mlp")

    def kill(weights: Array) -> Array:
        weights[5] = 0.0
        return weights

    dead = quantized(with_constant(policy.onnx, policy.products[1].weight, kill), precision, ranges(policy))
    assert lint(dead) == []
    observations = policy.observations(32)
    values = watched(dead, policy, observations)["value_5"]
    bias = weights_of(parsed(policy.onnx))[policy.products[1].bias]
    np.testing.assert_array_equal(values[:, 5], bias[5])
    before = watched(quantized(policy.onnx, precision, ranges(policy)), policy, observations)["value_5"]
    np.testing.assert_array_equal(np.delete(values, 5, axis=1), np.delete(before, 5, axis=1))


def sequences(policy: Exported, content: bytes, observations: Array, starts: npt.NDArray[np.bool_]) -> Array:
    """Actions, shape (T, N, A), for observations, shape (T, N, O), restarted where an episode starts."""
    batch = OnnxBatch(content, policy.names)
    batch.reset(observations.shape[1])

    def steps() -> Iterator[Array]:
        for observation, restarted in zip(observations, starts, strict=True):
            batch.restart(restarted)
            yield batch.act(observation)

    return np.array(list(steps()))


@pytest.mark.parametrize("precision", ["float32", *PRECISIONS])
def test_many_rows_are_as_many_policies_of_one(policy: Exported, precision: Precision | Literal["float32"]) -> None:
    content = policy.onnx if precision == "float32" else quantized(policy.onnx, precision, ranges(policy))
    rng = np.random.default_rng(1)
    observations = rng.standard_normal((30, 5, policy.names.observation_size), np.float32)
    starts = rng.random((30, 5)) < 0.1
    together = sequences(policy, content, observations, starts)
    alone = [sequences(policy, content, observations[:, [row]], starts[:, [row]]) for row in range(5)]
    # A kernel adds in another order for many rows; a sum on the edge between two codes falls to either side.
    tolerance = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2, "int8": 2e-2, "fp8": 5e-2}[precision]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=tolerance)
    if policy.names.recurrent:
        assert not np.allclose(together, sequences(policy, content, observations, np.zeros_like(starts)), atol=0.05)


def test_a_file_for_many_rows_says_so_and_shows_what_is_watched(policy: Exported) -> None:
    inner = policy.products[0].output
    model = parsed(batched(policy.onnx, 7, outputs=(inner, policy.names.action_name)))
    assert {value.type.tensor_type.shape.dim[0].dim_value for value in model.graph.input} == {7}
    assert [value.name for value in model.graph.output] == [
        policy.names.action_name,
        *(state.output_name for state in policy.names.recurrent),
        inner,
    ]
