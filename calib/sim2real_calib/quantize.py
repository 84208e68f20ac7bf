"""From a float32 policy to one whose matrix products are in few bits, in the rules of TensorRT's explicit quantization.

int8 and fp8: what goes into a product is quantised per tensor and dequantised again (Q/DQ), its weight is stored
quantised per output channel and dequantised, both symmetrically: zero-points are 0. The bias stays float32, since an
int32 one is refused by TensorRT. float16 and bfloat16: input, weight and bias of a product are cast, its output is cast
back. All else stays float32: the normaliser above all, whose range is that of the measurements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real_calib.products import Product, products_of, weights_of

__all__ = ["PRECISIONS", "Precision", "quantized"]

Precision = Literal["float16", "bfloat16", "int8", "fp8"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)

_LARGEST: Final = {"int8": 127.0, "fp8": 448.0}
"""Of what a code can hold: of FP8 the largest number of E4M3, of INT8 the largest that has its negative."""
_SMALLEST_SCALE: Final = 2.0**-40
"""Of a channel whose weights are all 0: any scale gives them back, and none may be 0."""
_OPSETS: Final = {"int8": 13, "fp8": 19, "float16": 13, "bfloat16": 19}
"""The first in which all that is written is known, or, of bfloat16, from which on a later one means the same."""
_BFLOAT16_OPSET: Final = 22
"""The first in which a convolution may be of bfloat16."""


def quantized(
    onnx_file: bytes, precision: Precision, ranges: Mapping[str, float], *, keep: Collection[str] = ()
) -> bytes:
    """Return the policy with its products in `precision`.

    Args:
        onnx_file: As `sim2real export` writes it.
        precision: Of the products.
        ranges: Largest magnitude that goes into each product, by its name; of ``int8`` and ``fp8`` alone. What is
            beyond is cut off.
        keep: Products that stay float32, by name.

    Raises:
        InputError: A range is missing or no finite number above 0, a constant is not finite or float16 cannot hold a
            weight, `keep` names what is no product, or the policy is of an opset that does not know the precision.
    """
    import onnx

    model = onnx.load_model_from_string(onnx_file)
    products = products_of(model)
    opset = next(each for each in model.opset_import if not each.domain)
    if opset.version < _OPSETS[precision]:
        raise InputError(
            f"policy: {precision} needs an ONNX opset of at least {_OPSETS[precision]}, got {opset.version}; export it "
            "for a later one"
        )
    _check_finite(weights_of(model))
    if unknown := [name for name in keep if name not in {product.name for product in products}]:
        raise InputError(
            f"keep: {unknown[0]!r}: no product of the policy; allowed: {', '.join(each.name for each in products)}"
        )
    chosen = {product.node: product for product in products if product.name not in keep}
    writer = _Writer(model)
    for index, node in enumerate(list(model.graph.node)):
        product = chosen.get(index)
        if product is None:
            writer.nodes.append(node)
        elif precision in _LARGEST:
            writer.add_quantized(node, product, precision, _range_of(product, ranges))
        else:
            writer.add_cast(node, product, precision)
    writer.finish()
    if precision == "bfloat16":
        opset.version = max(_BFLOAT16_OPSET, opset.version)
        model.ir_version = max(10, model.ir_version)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def _range_of(product: Product, ranges: Mapping[str, float]) -> float:
    found = ranges.get(product.name, 0.0)
    if not 0.0 < found < np.inf:
        raise InputError(
            f"range of {product.name}: expected a finite number > 0, the largest magnitude that goes into it, got "
            f"{found}; calibrate with measurements that move every input"
        )
    return found


def _check_finite(constants: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, values in constants.items():
        if not np.isfinite(values).all():
            raise InputError(f"{name}: a constant is not finite; the policy has diverged: train it anew")


class _Writer:
    """Writes the nodes of a model anew."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._weights = dict(weights_of(model))
        self._constants: dict[str, Any] = {each.name: each for each in model.graph.initializer}
        self._quantized_inputs: dict[tuple[str, float], str] = {}
        self.nodes: list[Any] = []

    def add_quantized(self, node: Any, product: Product, precision: str, largest_input: float) -> None:
        """Append a product of quantised numbers."""
        scale = np.float32(max(largest_input / _LARGEST[precision], _SMALLEST_SCALE))
        key = product.input, float(scale)
        if key not in self._quantized_inputs:
            # What goes into several products is quantised once.
            self._quantized_inputs[key] = self._quantize_input(product, precision, scale)
        weight = self._quantize_weight(product, precision)
        self._append(node, [self._quantized_inputs[key], weight, product.bias], product.output)

    def _quantize_input(self, product: Product, precision: str, scale: np.float32) -> str:
        name = product.name
        self._add_constant(f"{name}_input_scale", np.array(scale))
        self._add_constant(f"{name}_input_zero", _codes(np.zeros((), np.float32), precision))
        constants = [f"{name}_input_scale", f"{name}_input_zero"]
        self._node("QuantizeLinear", [product.input, *constants], f"{name}_input_codes")
        return self._node("DequantizeLinear", [f"{name}_input_codes", *constants], f"{name}_input")

    def _quantize_weight(self, product: Product, precision: str) -> str:
        name, weight = product.name, self._weights[product.weight]
        rows = weight.reshape(len(weight), -1)
        scale = np.maximum(np.abs(rows).max(axis=1) / _LARGEST[precision], _SMALLEST_SCALE).astype(np.float32)
        scaled = (rows / scale[:, None]).reshape(weight.shape)
        self._add_constant(f"{name}_weight_codes", _codes(scaled, precision))
        self._add_constant(f"{name}_weight_scale", scale)
        self._add_constant(f"{name}_weight_zero", _codes(np.zeros(len(scale), np.float32), precision))
        inputs = [f"{name}_weight_{part}" for part in ("codes", "scale", "zero")]
        return self._node("DequantizeLinear", inputs, f"{name}_weight", axis=0)

    def add_cast(self, node: Any, product: Product, precision: str) -> None:
        """Append a product of shorter floating point numbers."""
        from onnx import TensorProto

        kind = TensorProto.FLOAT16 if precision == "float16" else TensorProto.BFLOAT16
        name = product.name
        value = self._node("Cast", [product.input], f"{name}_input", to=kind)
        constants: list[str] = []
        for part, source in (("weight", product.weight), ("bias", product.bias)):
            self._add_constant(f"{name}_{part}", self._shortened(source, precision))
            constants.append(f"{name}_{part}")
        self._append(node, [value, *constants], f"{name}_output")
        self._node("Cast", [f"{name}_output"], product.output, to=TensorProto.FLOAT)

    def _shortened(self, name: str, precision: str) -> npt.NDArray[Any]:
        import ml_dtypes

        values = self._weights[name]
        if precision == "bfloat16":
            return values.astype(ml_dtypes.bfloat16)
        largest = float(np.abs(values).max(initial=0.0))
        if largest > float(np.finfo(np.float16).max):
            raise InputError(f"{name}: float16 cannot hold {largest:g}; use bfloat16")
        return values.astype(np.float16)

    def _append(self, node: Any, inputs: list[str], output: str) -> None:
        """Append a product with other inputs."""
        copy = type(node)()
        copy.CopyFrom(node)
        copy.input[:], copy.output[:] = inputs, [output]
        self.nodes.append(copy)

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def _add_constant(self, name: str, values: npt.NDArray[Any]) -> None:
        from onnx import numpy_helper

        self._constants[name] = numpy_helper.from_array(values, name)

    def finish(self) -> None:
        """Put the nodes, and the constants that they use, into the model."""
        graph = self._model.graph
        used = {name for node in self.nodes for name in node.input}
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(each for name, each in self._constants.items() if name in used)


def _codes(scaled: npt.NDArray[np.float32], precision: str) -> npt.NDArray[Any]:
    """Return numbers in units of their scale as codes, the nearest, ties to even."""
    if precision == "fp8":
        import ml_dtypes

        return np.clip(scaled, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn)
    return np.clip(np.rint(scaled), -127.0, 127.0).astype(np.int8)
