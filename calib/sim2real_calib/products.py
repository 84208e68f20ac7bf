"""The matrix products of an exported policy: all that is worth computing in few bits, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError

__all__ = ["Product", "batched", "normalizer_of", "products_of", "runnable", "weights_of"]

_PRODUCTS: Final = ("Gemm", "Conv")


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One ``Gemm`` or ``Conv``, whose weight W has the output channels along its first axis."""

    name: str
    """``gemm_0`` and the like: the operator, and which of the products it is."""
    node: int
    """Where in the graph."""
    input: str
    weight: str
    bias: str
    output: str
    shape: tuple[int, ...]
    """Of the weight."""


def products_of(model: Any) -> tuple[Product, ...]:
    """Return the products of an ONNX model, in the order of computation.

    Raises:
        InputError: One is written otherwise than `sim2real export` does: its weight is no constant, or lies transposed.
    """
    weights = weights_of(model)
    found: list[Product] = []
    for index, node in enumerate(model.graph.node):
        if node.op_type not in (*_PRODUCTS, "MatMul"):
            continue
        attributes = {each.name: each.i for each in node.attribute}
        transposed = node.op_type == "Conv" or attributes.get("transB") == 1
        plain = attributes.get("transA", 0) == 0
        constant = len(node.input) == 3 and all(name in weights for name in node.input[1:])
        if not (transposed and plain and constant):
            raise InputError(
                f"product {node.output[0]!r}: expected a Gemm with transB=1 or a Conv whose weight and bias are "
                f"constants, as sim2real export writes them, got {node.op_type}; such a policy stays float32"
            )
        found.append(
            Product(
                name=f"{node.op_type.lower()}_{len(found)}",
                node=index,
                input=node.input[0],
                weight=node.input[1],
                bias=node.input[2],
                output=node.output[0],
                shape=weights[node.input[1]].shape,
            )
        )
    return tuple(found)


def normalizer_of(model: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], float]:
    """Return what a policy takes off its observations, what it multiplies them by, and what it clips them to.

    These are the first three operators that `sim2real export` writes. Of one that begins otherwise: 0, 1, infinity.
    """
    first = model.graph.node[:3]
    if [node.op_type for node in first] != ["Sub", "Mul", "Clip"]:
        size = int(model.graph.input[0].type.tensor_type.shape.dim[1].dim_value)
        return np.zeros(size, np.float32), np.ones(size, np.float32), math.inf
    weights = weights_of(model)
    return weights[first[0].input[1]], weights[first[1].input[1]], float(weights[first[2].input[2]])


def weights_of(model: Any) -> Mapping[str, npt.NDArray[Any]]:
    """Return the constants of an ONNX model by their names."""
    from onnx import numpy_helper

    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def batched(onnx_file: bytes, num_envs: int, *, outputs: tuple[str, ...] = ()) -> bytes:
    """Return a policy's file for `num_envs` rows at once in place of one; rows do not know of each other.

    Args:
        onnx_file: As `sim2real export` writes it: batch 1.
        num_envs: N.
        outputs: Values within the graph that become outputs too.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_model_from_string(onnx_file)
    constants = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Reshape":
            shape: npt.NDArray[np.int64] = numpy_helper.to_array(constants[node.input[1]]).copy()
            shape[0] = num_envs
            constants[node.input[1]].CopyFrom(numpy_helper.from_array(shape, node.input[1]))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = num_envs
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs if name not in known)
    return model.SerializeToString(deterministic=True)


def runnable(onnx_file: bytes) -> bytes:
    """Return a policy's file as ONNX Runtime computes it on a CPU as others do elsewhere.

    It has no products of bfloat16, and computes those of float16 in float32 without rounding what goes in and comes
    out. Both become float32 products of the same rounded numbers, whose sum is rounded once, at the end.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load_model_from_string(onnx_file)
    constants = {each.name: each for each in model.graph.initializer}
    kinds = {name: each.data_type for name, each in constants.items()}
    short = {name for name, kind in kinds.items() if kind in (TensorProto.BFLOAT16, TensorProto.FLOAT16)}
    if not short:
        return onnx_file
    nodes: list[Any] = []
    for node in model.graph.node:
        if not short.intersection(node.input):
            nodes.append(node)
            continue
        nodes.append(helper.make_node("Cast", [node.input[0]], [f"{node.input[0]}_wide"], to=TensorProto.FLOAT))
        output, kind = node.output[0], kinds[node.input[1]]
        node.input[0], node.output[0] = f"{node.input[0]}_wide", f"{output}_wide"
        nodes += [node, helper.make_node("Cast", [f"{output}_wide"], [output], to=kind)]
    for name in short:
        constants[name].CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(constants[name]).astype(np.float32), name)
        )
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model.SerializeToString(deterministic=True)
