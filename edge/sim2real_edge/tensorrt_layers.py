"""Which datatype each matrix product was asked for, in which it was built, and whether the two agree.

TensorRT may fall back to wider numbers without a word (NVIDIA/TensorRT#4590). So what was asked is read off the network
that its parser made, what was built off the engine's inspector, and the two are held against each other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sim2real.errors import EngineError

if TYPE_CHECKING:
    import tensorrt  # pyright: ignore[reportMissingModuleSource]

__all__ = ["BuiltLayer", "Product", "asked_products", "built_layers", "check_products"]

_EIGHT_BITS: Final = ("int8", "fp8")
_KINDS: Final = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "FP8": "fp8"}
"""TensorRT's names of datatypes, as Python shows them, to ours."""
_WORDS: Final = (
    ("int8", re.compile(r"int8", re.IGNORECASE)),
    ("fp8", re.compile(r"fp8", re.IGNORECASE)),
    ("bfloat16", re.compile(r"bf(?:loat)?16", re.IGNORECASE)),
    ("float16", re.compile(r"half|fp16", re.IGNORECASE)),
    ("float32", re.compile(r"float|fp32", re.IGNORECASE)),
)
"""The inspector's words for them, which differ between releases and kernels; the first that is found counts."""
_PRODUCT: Final = re.compile(r"gemm|correlation|conv|matrixmultiply|matmul", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"\[ONNX Layer: (.+?)\]")


class Product(msgspec.Struct, frozen=True):
    """A matrix product of the network."""

    layer: str
    """Name of the ONNX node that it came from."""
    precision: str
    """Of both its operands; the float they are added in where one is no code of eight bits."""


class BuiltLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of an engine."""

    name: str
    kind: str
    """As TensorRT calls it: ``gemm`` is a product of its own, ``kgen`` a kernel that was made for what it fuses."""
    product: bool
    """Whether it is a matrix product or a convolution; one that was fused into a kernel is not."""
    inputs: tuple[str, ...]
    """Datatype of each."""
    constants: tuple[str, ...]
    """Datatype of each, weights among them; a fused kernel computes in theirs."""
    origins: tuple[str, ...]
    """Names of the ONNX nodes that it computes."""


def asked_products(trt: Any, network: tensorrt.INetworkDefinition) -> tuple[Product, ...]:
    """Return the products of a parsed network, in order.

    Args:
        trt: The module of TensorRT.
        network: As its parser made it: each Q and DQ is still there.
    """
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    makers = {layer.get_output(index).name: layer for layer in layers for index in range(layer.num_outputs)}
    products = (trt.LayerType.MATRIX_MULTIPLY, trt.LayerType.CONVOLUTION, trt.LayerType.DECONVOLUTION)
    found: list[Product] = []
    for layer in layers:
        if layer.type in products:
            # A convolution's weight, where it is a plain constant, is no input.
            inputs = [tensor for index in range(min(2, layer.num_inputs)) if (tensor := layer.get_input(index))]
            kinds = {_operand(trt, tensor, makers) for tensor in inputs}
            origin = _ORIGIN.search(layer.metadata)
            precision = kinds.pop() if len(kinds) == 1 else "float32"
            found.append(Product(origin[1] if origin else layer.name, precision))
    return tuple(found)


def _operand(trt: Any, tensor: tensorrt.ITensor, makers: dict[str, tensorrt.ILayer]) -> str:
    """Return in which datatype an operand comes: that of the codes which it is dequantised from, if it is."""
    kinds = trt.LayerType
    passed = (kinds.DEQUANTIZE, kinds.IDENTITY, kinds.SHUFFLE, kinds.SQUEEZE, kinds.UNSQUEEZE)
    while (maker := makers.get(tensor.name)) is not None and maker.type in passed:
        source = maker.get_input(0)
        if source is None:
            break
        tensor = source
    return _KINDS.get(tensor.dtype.name, tensor.dtype.name)


def built_layers(information: str) -> tuple[BuiltLayer, ...]:
    """Return the layers of an engine from what its inspector says in JSON.

    Raises:
        EngineError: It says nothing of layers: the engine was built without `ProfilingVerbosity.DETAILED`.
    """
    rows = msgspec.json.decode(information).get("Layers", [])
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise EngineError("TensorRT: the engine does not say what its layers are; build it again: sim2real edge build")
    return tuple(_built(row) for row in rows)


def _built(row: dict[str, Any]) -> BuiltLayer:
    kind, name = str(row.get("LayerType", "?")), str(row.get("Name", "?"))
    # A fusion is told by its kernel: of a product, or of anything else.
    telling = str(row.get("TacticName", "")) if kind == "fusion" else kind
    # Before there was metadata, the name alone told what was fused.
    origins = _ORIGIN.findall(str(row.get("Metadata", ""))) or name.split(" + ")
    return BuiltLayer(
        name=name,
        kind=kind,
        product=_PRODUCT.search(telling) is not None,
        inputs=_datatypes(row.get("Inputs", [])),
        constants=_datatypes(row.get("Constants", [])),
        origins=tuple(dict.fromkeys(origins)),
    )


def _datatypes(tensors: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(_word(str(each.get("Format/Datatype") or each.get("Datatype") or "?")) for each in tensors)


def _word(told: str) -> str:
    return next((precision for precision, word in _WORDS if word.search(told)), told)


def check_products(name: str, precision: str, asked: Sequence[Product], built: Sequence[BuiltLayer]) -> None:
    """Check that each product which was asked for in eight bits was built so.

    Floating point products are fused with their surroundings and do not show; a strongly typed network keeps their
    types.

    Args:
        name: Of the model, for the error.
        precision: Of the model.
        asked: Products of the network.
        built: Layers of the engine.

    Raises:
        EngineError: A product fell back, which is named with what was built in its place, or none was asked for at all.
    """
    wanted = [product for product in asked if product.precision in _EIGHT_BITS]
    if precision in _EIGHT_BITS and not any(product.precision == precision for product in wanted):
        raise EngineError(f"{name}: expected products in {precision}, got none in the graph; quantize the policy again")
    lost = [product for product in wanted if not _is_built(product, built)]
    if lost:
        told = "; ".join(f"{product.layer} ({_instead(product, built)})" for product in lost)
        raise EngineError(
            f"{name}: expected {len(wanted)} products in eight bits, got {len(wanted) - len(lost)}: TensorRT fell back "
            f"in silence for {told}; use another --precision or another TensorRT"
        )


def _is_built(product: Product, built: Sequence[BuiltLayer]) -> bool:
    return any(
        layer.product and product.layer in layer.origins and product.precision in layer.inputs for layer in built
    )


def _instead(product: Product, built: Sequence[BuiltLayer]) -> str:
    """Return what computes a product, in words."""
    layers = [layer for layer in built if product.layer in layer.origins]
    kinds = [f"{layer.kind} of {'+'.join(sorted(set(layer.inputs)))}" for layer in layers]
    return f"asked {product.precision}, built {', '.join(kinds) or 'nothing that names it'}"
