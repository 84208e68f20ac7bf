"""TensorRT's own parser and builder, ahead of time on a CPU: what they make of our graphs, and of bad ones.

A build takes about a second: some 20 s without the slow ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from sim2real.bundle import read_bundle
from sim2real.cli import main
from sim2real.errors import InputError
from sim2real_calib.graph_lint import lint
from sim2real_calib.quantize import Precision, quantized
from sim2real_calib.trt_check import TARGETS, Gate, check_graph, gate
from tests.calib.graphs import FP8, INT8, Sound, setting
from tests.calib.policies import KINDS, exported

pytest.importorskip("tensorrt_rtx_bindings", reason="needs the 'trt-check' extra")

SHOWN = {"int8": "Int8", "fp8": "FP8"}


@functools.cache
def built(kind: str, precision: str, target: str, keep: tuple[str, ...] = ()) -> Gate:
    return gate(content_of(kind, precision, keep), target)


def content_of(kind: str, precision: str, keep: tuple[str, ...] = ()) -> bytes:
    policy = exported(kind)
    ranges = {each.name: 4.0 for each in policy.products}
    known: dict[str, Precision] = {"int8": "int8", "fp8": "fp8", "float16": "float16", "bfloat16": "bfloat16"}
    return policy.onnx if precision == "float32" else quantized(policy.onnx, known[precision], ranges, keep=keep)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", SHOWN)
@pytest.mark.parametrize("target", ["SM120", pytest.param("SM89", marks=pytest.mark.slow)])
def test_every_product_computes_in_8_bits(kind: str, precision: str, target: str) -> None:
    found = built(kind, precision, target)
    assert (found.parsed, found.built, found.errors) == (True, True, ())
    assert found.products == {SHOWN[precision]: len(exported(kind).products)}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("cnn", "gru") else [pytest.mark.slow]) for kind in KINDS]
)
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_floating_point_graphs_are_built(kind: str, precision: str) -> None:
    found = built(kind, precision, "SM120")
    assert (found.parsed, found.built, found.errors) == (True, True, ())
    # Most products are fused with what follows, and do not show; those that do are of this type, and so are weights.
    assert set(found.products) <= {{"float32": "Float", "float16": "Half", "bfloat16": "BFloat16"}[precision]}
    whole = built(kind, "float32", "SM120").weight_bytes
    assert found.weight_bytes is not None
    assert whole is not None
    assert precision == "float32" or found.weight_bytes < 0.8 * whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_that_is_kept_is_missed_and_no_other(kind: str) -> None:
    """The negative control: what falls back is seen."""
    products = exported(kind).products
    kept = products[1].name
    content = content_of(kind, "int8", (kept,))
    found = built(kind, "int8", "SM120", (kept,))
    assert found.built
    assert found.products["Int8"] == len(products) - 1
    if kind == "mlp":
        with pytest.raises(
            InputError, match=r"expected 3 products in int8, got \{'Int8': 2\}: what is missing fell back"
        ):
            check_graph(content, "int8", expected=3)


def int32_bias(graph: Sound) -> None:
    """As onnxruntime's own quantizer writes it."""
    graph.constants |= {"bias_codes": np.ones(3, np.int32), "bias_scale": np.full(3, 0.01, np.float32)}
    del graph.constants["bias"]
    graph.nodes.insert(3, helper.make_node("DequantizeLinear", ["bias_codes", "bias_scale"], ["bias"], axis=0))


def unsigned_weights(graph: Sound) -> None:
    graph.constants["w_codes"] = np.full((3, 4), 130, np.uint8)
    graph.constants["w_zero"] = np.zeros(3, np.uint8)


def too_few_scales(graph: Sound) -> None:
    graph.constants["w_scale"], graph.constants["w_zero"] = np.full(2, 0.1, np.float32), np.zeros(2, np.int8)


def axis_outside(graph: Sound) -> None:
    graph.nodes[2].attribute[0].i = 2


def unknown_operator(graph: Sound) -> None:
    graph.nodes[-1] = helper.make_node("Swirl", ["h"], ["y"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (setting("w_scale", 0.0), "Scale coefficients must all be positive"),
        (setting("w_scale", 0.1, -0.1), "Scale coefficients must all be positive"),
        (setting("x_scale", np.nan), "Scale coefficients must all be positive"),
        (setting("w_zero", 0, 3), "Non-zero zero point is not supported"),
        (int32_bias, "has type Int32 but must have type"),
        (unsigned_weights, "UINT8"),
        (too_few_scales, "The number of scales is not equal to the number of output channels"),
        (axis_outside, "must index a dimension of the input"),
        (unknown_operator, "Plugin not found"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_bad_graphs_are_refused_with_a_reason(change: Callable[[Sound], None], expected: str) -> None:
    # Cases 9 and 10.
    graph = Sound()
    change(graph)
    found = gate(graph.file(), "SM120")
    assert not found.built
    assert any(expected in error for error in found.errors), found.errors


@pytest.mark.parametrize("kind", [INT8, FP8], ids=str)
def test_the_graph_that_they_are_made_from_is_built(kind: np.dtype[np.generic]) -> None:
    found = gate(Sound(kind).file(), "SM120")
    assert found.products == {"Int8" if kind == INT8 else "FP8": 1}


def infinite_scale(graph: Sound) -> None:
    setting("w_scale", np.inf)(graph)


def weight_alone(graph: Sound) -> None:
    """What comes in is not quantised."""
    graph.nodes[3].input[0] = "x"
    del graph.nodes[:2]


@pytest.mark.parametrize("change", [infinite_scale, weight_alone])
def test_what_is_built_in_silence_is_named_by_the_lint(change: Callable[[Sound], None]) -> None:
    graph = Sound()
    change(graph)
    assert gate(graph.file(), "SM120").built
    assert lint(graph.file())


def test_a_file_that_is_none_and_a_target_that_is_none_are_told() -> None:
    assert not gate(b"no model", "SM120").parsed
    with pytest.raises(InputError, match="refuses the int8 graph"):
        check_graph(b"no model", "int8", expected=1)
    found = gate(Sound().file(), "SM999")
    assert not found.built
    assert "SM999" in found.errors[0]


def test_the_command_checks_what_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = exported("gru").write(tmp_path / "policy.s2r")
    words = ["--precision", "fp8", "--steps", "60", "--envs", "4", "--no-acceptance", "--check"]
    assert main(["quantize", str(source), "--out", str(source), *words]) == 0
    told = capsys.readouterr().out
    assert all(f"TensorRT: {target}: built, products: 4 in FP8; weights" in told for target in TARGETS)
    assert "fp8" in read_bundle(source).models
