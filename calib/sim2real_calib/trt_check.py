"""TensorRT's own parser and builder as judges of a graph, ahead of time and without a GPU.

TensorRT for RTX builds engines for GPUs that are not there. Its log says of every layer of the engine in which datatype
it computes, so that a quantization which was understood, and one that fell back in silence, are told apart. It shows
datatypes and not speeds, and knows neither Thor nor Hopper: SM 12.0 stands for Blackwell.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from sim2real.errors import InputError
from sim2real.extras import require

__all__ = ["TARGETS", "Gate", "check_graph", "gate"]

TARGETS: Final = ("SM89", "SM120")
"""Compute capabilities that graphs are built for: Ada knows FP8 as well."""
_NAMES: Final = {"int8": "Int8", "fp8": "FP8", "float16": "Half", "bfloat16": "BFloat16", "float32": "Float"}
_TIMEOUT_S: Final = 300.0
_INPUTS: Final = re.compile(
    r"Inputs: \[(.*?)\](?=, (?:Constants|Outputs|TacticName|ParameterType|Weights|Origin|Inputs|$))"
)


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What TensorRT made of a graph."""

    target: str
    parsed: bool
    built: bool
    errors: tuple[str, ...]
    weight_bytes: int | None
    """Of the engine."""
    products: dict[str, int]
    """How many matrix products compute in which datatype; those that were fused away are not among them."""


def check_graph(onnx_file: bytes, precision: str, *, expected: int) -> tuple[str, ...]:
    """Return a line for each target: the graph is accepted, and as many products as `expected` are in `precision`.

    Raises:
        InputError: It is refused, or products fell back to another datatype; the message says which and how many.
        MissingExtraError: TensorRT for RTX is not installed.
    """
    lines: list[str] = []
    for target in TARGETS:
        found = gate(onnx_file, target)
        if not found.built:
            told = found.errors[0] if found.errors else "it does not say why"
            raise InputError(f"TensorRT for {target}: refuses the {precision} graph: {told}; please report this")
        count = found.products.get(_NAMES[precision], 0)
        # Products of short floating point numbers are fused with what follows, and do not show.
        if precision in ("int8", "fp8") and count != expected:
            raise InputError(
                f"TensorRT for {target}: expected {expected} products in {precision}, got {found.products}: what is "
                "missing fell back; please report this"
            )
        shown = ", ".join(f"{number} in {kind}" for kind, number in found.products.items()) or "all fused"
        lines.append(f"{target}: built, products: {shown}; weights {found.weight_bytes} bytes")
    return tuple(lines)


def gate(onnx_file: bytes, target: str) -> Gate:
    """Parse and build a graph in a process of its own: only the first logger of a process is heard.

    Raises:
        MissingExtraError: TensorRT for RTX is not installed.
    """
    require("tensorrt_rtx_bindings", "trt-check")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        path.write_bytes(onnx_file)
        done = subprocess.run(
            [sys.executable, "-I", "-m", "sim2real_calib.trt_check", str(path), target],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    if done.returncode or not last.startswith("{"):
        told = f"TensorRT's process ended with {done.returncode}: {done.stderr[-200:]}"
        return Gate(target=target, parsed=False, built=False, errors=(told,), weight_bytes=None, products={})
    return msgspec.json.decode(last, type=Gate)


def _build(path: str, target: str) -> dict[str, Any]:
    trt: Any = require("tensorrt_rtx_bindings", "trt-check")
    lines: list[tuple[Any, str]] = []

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            lines.append((severity, message))

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    parsed = bool(parser.parse_from_file(path))
    # As text before the parser goes, which takes them with it.
    errors = [str(parser.get_error(index).desc()) for index in range(parser.num_errors)]
    found: dict[str, Any] = {"target": target, "parsed": parsed, "built": False, "errors": errors}
    if not parsed:
        return found | {"weight_bytes": None, "products": {}}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, target), 0)
    engine = builder.build_serialized_network(network, config)
    errors += [message for severity, message in lines if severity <= trt.ILogger.Severity.ERROR]
    sizes = [int(size) for _, line in lines for size in re.findall(r"Total Weights Memory: (\d+)", line)]
    return found | {
        "built": engine is not None,
        "weight_bytes": sizes[0] if sizes else None,
        "products": _products([line for _, line in lines]),
    }


def _products(lines: list[str]) -> dict[str, int]:
    """Count the products of the engine's table of layers by the datatypes that go into them."""
    counted: Counter[str] = Counter()
    for line in lines:
        if not line.startswith("Layers:"):
            continue
        for row in line.split("I/O Tensors:")[0].splitlines()[1:]:
            kind = re.search(r"LayerType: (\w+)", row)
            if kind is None or kind[1] not in ("gemm", "correlation"):
                continue
            inputs = _INPUTS.search(row)
            types = sorted(set(re.findall(r"Datatype: (\w+)", inputs[1]))) if inputs else ["?"]
            counted["+".join(types)] += 1
    return dict(counted)


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(_build(sys.argv[1], sys.argv[2]))}\n")
