"""From one of a bundle's models to a TensorRT engine: one path for 10.13, 10.16 and 11.4, on the GPU that will run it.

Types are those of the ONNX file, and no others: the network is strongly typed, so that no flag, and no tactic that
happens to be faster, changes what is computed in which precision. Batch 1 is the only shape.

The module of TensorRT is an argument, since TensorRT for RTX has the same interface and builds on a CPU.
"""

from __future__ import annotations

import functools
import importlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sim2real.bundle import Bundle
from sim2real.errors import EngineError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY, read_metadata
from sim2real_edge.model_contract import Tensor, check_contract, check_tensors, model_name

if TYPE_CHECKING:
    import tensorrt  # pyright: ignore[reportMissingModuleSource]

__all__ = [
    "Parsed",
    "build",
    "configure",
    "import_tensorrt",
    "log_of",
    "logged_errors",
    "logger_of",
    "parse",
    "parser_errors",
]

_LINES_KEPT: Final = 4096
_FLOAT32: Final = "FLOAT"


def import_tensorrt(name: str = "tensorrt") -> Any:
    """Return a module with TensorRT's interface.

    Raises:
        EngineError: It is not there, or one of its libraries is not.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise EngineError(
            f"{name}: cannot be imported ({error}); on a Jetson it comes with JetPack (python3-libnvinfer; make the "
            "environment with --system-site-packages), elsewhere: pip install 'sim2real[edge-trt]'"
        ) from error


def log_of(trt: Any) -> deque[tuple[str, str]]:
    """Return what TensorRT said last, severity and line; the oldest lines are dropped."""
    return logger_of(trt).lines


@functools.cache
def logger_of(trt: Any) -> Any:
    """Return the one logger of a module of TensorRT: only the first of a process is ever heard."""

    class Log(trt.ILogger):
        """Keeps lines in place of printing them."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: deque[tuple[str, str]] = deque(maxlen=_LINES_KEPT)

        def log(self, severity: tensorrt.ILogger.Severity, msg: str) -> None:
            self.lines.append((severity.name, msg))

    return Log()


def logged_errors(trt: Any) -> str:
    """Return the errors that TensorRT logged, as one line."""
    told = [line for severity, line in log_of(trt) if severity in ("INTERNAL_ERROR", "ERROR")]
    return _one_line(told) or "TensorRT does not say why"


def _one_line(lines: Iterable[str]) -> str:
    return "; ".join(" ".join(line.split()) for line in dict.fromkeys(lines))


@dataclass(frozen=True, eq=False)
class Parsed:
    """A model as TensorRT's parser made a network of it. The weights are the parser's: it must stay."""

    name: str
    """Of the model, for errors."""
    builder: tensorrt.Builder
    network: tensorrt.INetworkDefinition
    parser: tensorrt.OnnxParser


def parse(trt: Any, bundle: Bundle, precision: str) -> Parsed:
    """Parse one of the bundle's models, and hold it against the contract.

    Raises:
        EngineError: The parser refuses it, in its own words, or its contract or tensors are not the bundle's.
    """
    name, model = model_name(bundle, precision), bundle.models[precision]
    check_contract(name, read_metadata(model).get(CONTRACT_METADATA_KEY), bundle)
    log_of(trt).clear()
    try:
        builder: tensorrt.Builder = trt.Builder(logger_of(trt))
    except TypeError as error:
        # What the bindings raise where the library gives no builder, as it does without a GPU.
        raise EngineError(f"TensorRT {trt.__version__}: cannot build here: {logged_errors(trt)}") from error
    network = builder.create_network(_network_flags(trt))
    parser: tensorrt.OnnxParser = trt.OnnxParser(network, logger_of(trt))
    if not parser.parse(model):
        raise EngineError(
            f"{name}: TensorRT {trt.__version__} refuses it: {parser_errors(parser)}; export or quantize the policy "
            "again"
        )
    check_tensors(
        name,
        bundle,
        inputs=[_tensor(network.get_input(index)) for index in range(network.num_inputs)],
        outputs=[_tensor(network.get_output(index)) for index in range(network.num_outputs)],
        float32=_FLOAT32,
    )
    return Parsed(name, builder, network, parser)


def _network_flags(trt: Any) -> int:
    # From TensorRT 11 on every network is strongly typed, and the flag may go.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def parser_errors(parser: tensorrt.OnnxParser | tensorrt.OnnxParserRefitter) -> str:
    """Return what a parser refused, as one line; as text, since its errors die with it."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    return _one_line(f"{each.node_name()}: {each.desc()}" for each in errors) or "it does not say why"


def _tensor(tensor: tensorrt.ITensor) -> Tensor:
    return Tensor(tensor.name, tensor.dtype.name, list(tensor.shape))


def configure(trt: Any, parsed: Parsed, bundle: Bundle, *, refittable: bool) -> tensorrt.IBuilderConfig:
    """Return how to build: batch 1, no TF32, and every layer told.

    Args:
        trt: The module of TensorRT.
        parsed: The model.
        bundle: The bundle that it is of.
        refittable: Whether the engine shall take new weights later; what it knows of its weights it cannot use then.
    """
    config = parsed.builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    # On by default, and three digits of a float32 product.
    config.clear_flag(trt.BuilderFlag.TF32)
    if refittable:
        config.set_flag(trt.BuilderFlag.REFIT)
    model = bundle.contract.model
    profile = parsed.builder.create_optimization_profile()
    shapes = {model.observation_name: (1, model.observation_size)}
    for name, shape in (shapes | {state.input_name: state.shape for state in model.recurrent}).items():
        profile.set_shape(name, shape, shape, shape)
    if config.add_optimization_profile(profile) < 0:
        raise EngineError(f"{parsed.name}: TensorRT {trt.__version__} takes no batch of 1: {logged_errors(trt)}")
    return config


def build(trt: Any, parsed: Parsed, config: tensorrt.IBuilderConfig, timings: bytes = b"") -> tuple[bytes, bytes]:
    """Return the engine, serialized, and what was measured of kernels, for the next build.

    Args:
        trt: The module of TensorRT.
        parsed: The model.
        config: What `configure` returned.
        timings: What an earlier build on this GPU with this TensorRT measured.

    Raises:
        EngineError: It cannot be built; in TensorRT's own words.
    """
    # Of another release or GPU it is of no use, and is refused; then all is measured anew.
    if not config.set_timing_cache(config.create_timing_cache(timings), False):
        config.set_timing_cache(config.create_timing_cache(b""), False)
    log_of(trt).clear()
    plan = parsed.builder.build_serialized_network(parsed.network, config)
    if plan is None:
        raise EngineError(f"{parsed.name}: TensorRT {trt.__version__} cannot build it: {logged_errors(trt)}")
    measured = config.get_timing_cache()
    return bytes(plan), b"" if measured is None else bytes(measured.serialize())
