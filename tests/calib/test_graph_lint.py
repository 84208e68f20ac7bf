"""Graphs that TensorRT accepts in silence and gets wrong: each is named; sound ones are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sim2real_calib.graph_lint import lint
from sim2real_calib.quantize import PRECISIONS, Precision, quantized
from tests.calib.graphs import FP8, INT8, Sound, setting
from tests.calib.policies import KINDS, exported


def along_inputs(graph: Sound) -> None:
    graph.nodes[2].attribute[0].i = 1
    graph.constants["w_scale"], graph.constants["w_zero"] = np.full(4, 0.1, np.float32), np.zeros(4, np.int8)


def along_inputs_of_a_matmul(graph: Sound) -> None:
    """A MatMul's weight is (inputs, outputs), and its scales lie along the inputs."""
    graph.constants["w_codes"] = np.ones((4, 3), np.int8)
    graph.constants["w_scale"], graph.constants["w_zero"] = np.full(4, 0.1, np.float32), np.zeros(4, np.int8)
    graph.nodes[3] = helper.make_node("MatMul", ["x_rounded", "w"], ["h"])


def weight_alone(graph: Sound) -> None:
    graph.nodes[3].input[0] = "x"
    del graph.nodes[:2]


def behind_the_product(graph: Sound) -> None:
    """Quantised is what comes out of it, which no product reads."""
    graph.constants["w"] = np.ones((3, 4), np.float32)
    graph.nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["h"], transB=1),
        helper.make_node("QuantizeLinear", ["h", "x_scale", "x_zero"], ["h_codes"]),
        helper.make_node("DequantizeLinear", ["h_codes", "x_scale", "x_zero"], ["h_rounded"]),
        helper.make_node("Tanh", ["h_rounded"], ["y"]),
    ]


def computed_scale(graph: Sound) -> None:
    graph.nodes.insert(0, helper.make_node("Abs", ["x_scale"], ["scale_of_x"]))
    graph.nodes[1].input[1] = "scale_of_x"


def computed_weight(graph: Sound) -> None:
    graph.nodes.insert(0, helper.make_node("Identity", ["w_codes"], ["codes"]))
    graph.nodes[3].input[0] = "codes"


def doubled(graph: Sound) -> None:
    graph.constants["bias"] = graph.constants["bias"].astype(np.float64)


def doubled_input(graph: Sound) -> None:
    graph.input_type = TensorProto.DOUBLE
    graph.nodes.insert(0, helper.make_node("Cast", ["x"], ["short"], to=TensorProto.FLOAT))
    graph.nodes[1].input[0] = "short"


def doubled_within(graph: Sound) -> None:
    graph.nodes[-1].input[0] = "back"
    graph.nodes[4:4] = [
        helper.make_node("Cast", ["h"], ["long"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["long"], ["back"], to=TensorProto.FLOAT),
    ]


def as_a_node(name: str, change: Callable[[Sound], None]) -> Callable[[Sound], None]:
    """Spoils a constant and then writes it as a node."""

    def moved(graph: Sound) -> None:
        change(graph)
        value = numpy_helper.from_array(graph.constants.pop(name), name)
        graph.nodes.insert(0, helper.make_node("Constant", [], [name], value=value))

    return moved


SPOILED: dict[str, tuple[Callable[[Sound], None], str]] = {
    "infinite scale": (setting("w_scale", 0.1, np.inf), "w_scale: expected scales between"),
    "scale that is not a number": (setting("x_scale", np.nan), "x_scale: expected scales between"),
    "denormal scale": (setting("w_scale", 1e-40), "w_scale: expected scales between"),
    "huge scale": (setting("x_scale", 1e30), "x_scale: expected scales between"),
    "scale of zero": (setting("w_scale", 0.0), "w_scale: expected scales between"),
    "negative scale": (setting("w_scale", 0.1, -0.1), "w_scale: expected scales between"),
    "bias that is not a number": (setting("bias", np.nan), "bias: holds numbers that are not finite"),
    "infinite bias": (setting("bias", 0.0, -np.inf), "bias: holds numbers that are not finite"),
    "zero-point of the input": (setting("x_zero", 3), "x_zero: expected zero-points of 0"),
    "zero-point of a channel": (setting("w_zero", 0, 1), "w_zero: expected zero-points of 0"),
    "float64 constant": (doubled, "bias: expected float32, got float64"),
    "float64 input": (doubled_input, "x: expected float32, got float64"),
    "float64 within": (doubled_within, "long: expected float32, got float64"),
    "scales along the inputs": (along_inputs, "h: its weight is quantised along axis 1, and its outputs lie along 0"),
    "the same of a MatMul": (
        along_inputs_of_a_matmul,
        "h: its weight is quantised along axis 0, and its outputs lie along 1",
    ),
    "weight alone": (weight_alone, "w: no product makes use of this quantization"),
    "behind the product": (behind_the_product, "h_rounded: no product makes use of this quantization"),
    "computed scale": (computed_scale, "x_codes: its scale is no constant"),
    "computed weight": (computed_weight, "h: its weight is no constant"),
    "infinite scale in a node": (
        as_a_node("w_scale", setting("w_scale", np.inf)),
        "w_scale: expected scales between",
    ),
    "bias in a node": (as_a_node("bias", setting("bias", np.nan)), "bias: holds numbers that are not finite"),
    "zero-point in a node": (as_a_node("x_zero", setting("x_zero", 1)), "x_zero: expected zero-points of 0"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_each_bad_graph_is_named(name: str) -> None:
    graph = Sound()
    change, expected = SPOILED[name]
    change(graph)
    found = lint(graph.file())
    assert any(told.startswith(expected) for told in found)
    # And nothing else.
    assert all(told.startswith(expected.split(":")[0]) for told in found)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (setting("x_zero", 0.5), "x_zero: expected zero-points of 0"),
        (setting("w_zero", 0.0, -2.0), "w_zero: expected zero-points of 0"),
        (setting("w_codes", np.nan), "w_codes: holds numbers that are not finite"),
    ],
)
def test_each_bad_graph_of_fp8_is_named(change: Callable[[Sound], None], expected: str) -> None:
    graph = Sound(FP8)
    change(graph)
    (told,) = lint(graph.file())
    assert told.startswith(expected)


def test_fp8_in_an_opset_that_does_not_know_it_is_named() -> None:
    graph = Sound(FP8)
    graph.opset = 17
    assert lint(graph.file()) == [f"{name}: FP8 needs opset 19, got 17" for name in ("x_codes", "x_rounded", "w")]


def test_weights_of_float32_that_are_not_finite_are_named() -> None:
    graph = Sound()
    graph.constants["w"] = np.full((3, 4), np.inf, np.float32)
    graph.nodes = [helper.make_node("Gemm", ["x", "w", "bias"], ["y"], transB=1)]
    graph.constants = {name: graph.constants[name] for name in ("w", "bias")}
    assert lint(graph.file()) == ["w: holds numbers that are not finite"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the graph has no nodes"),
        (b"\xff\xff\xff not a model", "the file is no ONNX model"),
        (exported("mlp").onnx[:-100], "the file is no ONNX model"),
        (helper.make_model(helper.make_graph([], "empty", [], [])).SerializeToString(), "the graph has no nodes"),
    ],
    ids=["no bytes", "no model", "cut short", "no nodes"],
)
def test_a_file_without_a_graph_is_named(content: bytes, expected: str) -> None:
    assert lint(content) == [expected]


@pytest.mark.parametrize("kind", [INT8, FP8], ids=str)
def test_sound_graphs_are_left_alone(kind: np.dtype[Any]) -> None:
    graph = Sound(kind)
    onnx.checker.check_model(onnx.load_model_from_string(graph.file()), full_check=True)
    assert lint(graph.file()) == []
    # Without zero-points, which are 0 then; per tensor; and along the last axis, from behind.
    for node in graph.nodes[1:3]:
        del node.input[2:]
    assert lint(graph.file()) == []
    graph.constants["w_scale"] = np.array(0.1, np.float32)
    assert lint(graph.file()) == []
    graph.constants["w_scale"], graph.constants["w_codes"] = np.full(3, 0.1, np.float32), np.ones((4, 3), kind)
    graph.nodes[2].attribute[0].i = -1
    graph.nodes[3] = helper.make_node("MatMul", ["x_rounded", "w"], ["h"])
    assert lint(graph.file()) == []
    as_a_node("w_scale", lambda _: None)(graph)
    assert lint(graph.file()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_the_quantizer_writes_is_sound(kind: str, precision: Precision) -> None:
    policy = exported(kind)
    assert lint(policy.onnx) == []
    assert lint(quantized(policy.onnx, precision, {each.name: 1.0 for each in policy.products})) == []
