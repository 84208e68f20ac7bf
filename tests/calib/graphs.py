"""A small sound quantised graph, of which tests spoil a part each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
INT8, FP8 = np.dtype(np.int8), np.dtype(ml_dtypes.float8_e4m3fn)


class Sound:
    """x (1, 4) through one quantised Gemm of 3 outputs and tanh; tests spoil a copy of it."""

    def __init__(self, kind: np.dtype[Any] = INT8) -> None:
        self.opset = 19
        self.constants: dict[str, Array] = {
            "x_scale": np.array(0.02, np.float32),
            "x_zero": np.zeros((), kind),
            "w_codes": np.arange(-6, 6).reshape(3, 4).astype(kind),
            "w_scale": np.array([0.1, 0.2, 0.3], np.float32),
            "w_zero": np.zeros(3, kind),
            "bias": np.array([0.1, -0.1, 0.0], np.float32),
        }
        self.nodes = [
            helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_codes"]),
            helper.make_node("DequantizeLinear", ["x_codes", "x_scale", "x_zero"], ["x_rounded"]),
            helper.make_node("DequantizeLinear", ["w_codes", "w_scale", "w_zero"], ["w"], axis=0),
            helper.make_node("Gemm", ["x_rounded", "w", "bias"], ["h"], transB=1),
            helper.make_node("Tanh", ["h"], ["y"]),
        ]
        self.input_type = self.output_type = TensorProto.FLOAT

    def file(self) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "sound",
            [helper.make_tensor_value_info("x", self.input_type, (1, 4))],
            [helper.make_tensor_value_info("y", self.output_type, (1, 3))],
            [numpy_helper.from_array(values, name) for name, values in self.constants.items()],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9
        ).SerializeToString()


def setting(name: str, *values: float) -> Callable[[Sound], None]:
    """Sets the first numbers of a constant."""

    def change(graph: Sound) -> None:
        flat = graph.constants[name].copy().reshape(-1)
        flat[: len(values)] = np.array(values).astype(flat.dtype)
        graph.constants[name] = flat.reshape(graph.constants[name].shape)

    return change
