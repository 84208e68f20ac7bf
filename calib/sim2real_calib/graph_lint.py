"""What TensorRT accepts without a word and computes wrongly, or slowly: found in the graph, before it gets there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim2real_calib.products import weights_of

__all__ = ["lint"]

_LEAST_SCALE: Final = 2.0**-60
_LARGEST_SCALE: Final = 2.0**60
_FP8_OPSET: Final = 19
_DOUBLE: Final = "expected float32, got float64, which TensorRT makes float32 of"


def lint(onnx_file: bytes) -> list[str]:
    """Return what is wrong with a graph, a sentence each; empty: nothing.

    - a file without nodes, or that is no ONNX;
    - numbers that are not finite, and float64, which is demoted;
    - scales that are not finite, not above 0, or so small or large that a product of them is lost;
    - zero-points other than 0;
    - weights quantised per channel along another axis than that of the outputs;
    - FP8 below opset 19;
    - a quantization that no product makes use of.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(onnx_file)
    except DecodeError:
        return ["the file is no ONNX model"]
    if not model.graph.node:
        return ["the graph has no nodes"]
    constants = {**weights_of(model), **_computed(model)}
    producers = {output: node for node in model.graph.node for output in node.output}
    found = (
        *_constants(constants),
        *_doubles(model),
        *_quantizations(model, constants),
        *_axes(model, constants, producers),
        *_unused(model, producers),
    )
    # A scale may be used twice.
    return list(dict.fromkeys(found))


def _computed(model: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return constants that are written as nodes."""
    from onnx import numpy_helper

    return {
        node.output[0]: numpy_helper.to_array(each.t)
        for node in model.graph.node
        if node.op_type == "Constant"
        for each in node.attribute
        if each.name == "value"
    }


def _doubles(model: Any) -> Iterator[str]:
    from onnx import TensorProto

    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            yield f"{value.name}: {_DOUBLE}"
    for node in model.graph.node:
        if node.op_type == "Cast" and any(each.i == TensorProto.DOUBLE for each in node.attribute):
            yield f"{node.output[0]}: {_DOUBLE}"


def _constants(constants: Mapping[str, npt.NDArray[Any]]) -> Iterator[str]:
    for name, values in constants.items():
        if values.dtype == np.float64:
            yield f"{name}: {_DOUBLE}"
        if values.dtype.kind not in "iub" and not np.isfinite(values.astype(np.float64)).all():
            yield f"{name}: holds numbers that are not finite"


def _quantizations(model: Any, constants: Mapping[str, npt.NDArray[Any]]) -> Iterator[str]:
    opset = max((each.version for each in model.opset_import if not each.domain), default=0)
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale = constants.get(node.input[1])
        if scale is None:
            yield f"{node.output[0]}: its scale is no constant"
            continue
        values = scale.astype(np.float64)
        if not ((values > _LEAST_SCALE) & (values < _LARGEST_SCALE)).all():
            yield (f"{node.input[1]}: expected scales between 2⁻⁶⁰ and 2⁶⁰, got {values.min():g} to {values.max():g}")
        zero = constants.get(node.input[2]) if len(node.input) > 2 else None
        if zero is not None and zero.astype(np.float64).any():
            yield f"{node.input[2]}: expected zero-points of 0, which are all that TensorRT knows"
        kinds = {str(values.dtype) for name in node.input if (values := constants.get(name)) is not None}
        if opset < _FP8_OPSET and any(kind.startswith("float8") for kind in kinds):
            yield f"{node.output[0]}: FP8 needs opset {_FP8_OPSET}, got {opset}"


def _axes(model: Any, constants: Mapping[str, npt.NDArray[Any]], producers: Mapping[str, Any]) -> Iterator[str]:
    for node in model.graph.node:
        if node.op_type not in ("Gemm", "Conv", "MatMul"):
            continue
        weight = producers.get(node.input[1])
        if weight is None or weight.op_type != "DequantizeLinear" or weight.input[1] not in constants:
            continue
        attributes = {each.name: each.i for each in node.attribute}
        outputs = 0 if node.op_type == "Conv" or attributes.get("transB") else 1
        axis = next((each.i for each in weight.attribute if each.name == "axis"), 1)
        codes, scale = constants.get(weight.input[0]), constants[weight.input[1]]
        if codes is None:
            yield f"{node.output[0]}: its weight is no constant"
        elif scale.ndim == 1 and axis % codes.ndim != outputs:
            yield f"{node.output[0]}: its weight is quantised along axis {axis}, and its outputs lie along {outputs}"


def _unused(model: Any, producers: Mapping[str, Any]) -> Iterator[str]:
    """A product computes in few bits only if both of its operands come out of a dequantization."""
    used: set[str] = set()
    for node in model.graph.node:
        if node.op_type in ("Gemm", "Conv", "MatMul"):
            operands = [producers[name] for name in node.input[:2] if name in producers]
            dequantized = [each for each in operands if each.op_type == "DequantizeLinear"]
            if len(dequantized) == 2:
                used.update(each.output[0] for each in dequantized)
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] not in used:
            yield f"{node.output[0]}: no product makes use of this quantization"
