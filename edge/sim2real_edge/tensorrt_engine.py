"""Policies on TensorRT: built on the GPU that runs them, kept on disk, and run as one recorded CUDA graph per call.

No Jetson and no GPU has run this code yet: up to the first call of the device it is tested with TensorRT for RTX, which
has the same interface and builds on a CPU; beyond, the golden run decides on each device before anything moves.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.bundle import Bundle
from sim2real.errors import EngineError, Sim2RealError
from sim2real_edge.engine import Engine, EngineInfo
from sim2real_edge.engine_cache import EngineCache, EngineKey, default_folder, l4t_release
from sim2real_edge.model_contract import Tensor, check_tensors, initial_state, model_name
from sim2real_edge.onnx_structure import structure_sha256
from sim2real_edge.targets import Target, check_precision, check_tensorrt, target_of
from sim2real_edge.tensorrt_build import (
    build,
    configure,
    import_tensorrt,
    log_of,
    logged_errors,
    logger_of,
    parse,
    parser_errors,
)
from sim2real_edge.tensorrt_layers import BuiltLayer, Product, asked_products, built_layers, check_products

if TYPE_CHECKING:
    from pathlib import Path

    import tensorrt  # pyright: ignore[reportMissingModuleSource]

    from sim2real_edge.cuda import Gpu, Recording

__all__ = [
    "Kept",
    "TensorrtEngine",
    "kept_engine",
    "key_of",
    "load",
    "open_engine",
    "precisions",
    "this_device",
    "why_not",
]

_FLOAT32: Final = "FLOAT"


def load(bundle: Bundle, precision: str) -> Engine:
    """Return a `TensorrtEngine`, from the cache or built now; see `sim2real_edge.engine.load_engine`."""
    return TensorrtEngine(bundle, precision, EngineCache(default_folder()))


def why_not() -> str | None:
    """Return why TensorRT cannot be used on this machine, or None."""
    try:
        this_device()
        check_tensorrt(import_tensorrt().__version__, l4t_release())
    except Sim2RealError as error:
        return str(error)
    return None


def precisions() -> tuple[str, ...]:
    """Return what this machine's GPU takes; there must be one."""
    return this_device()[1].precisions


def this_device() -> tuple[Gpu, Target]:
    """Return this machine's GPU, and what is known of its kind.

    Raises:
        EngineError: There is none, its driver is too old, or it is of a kind that is in no table.
        MissingExtraError: cuda-bindings is not installed.
    """
    from sim2real_edge.cuda import find_gpu

    gpu = find_gpu()
    return gpu, target_of(gpu.sm, gpu.name)


class _TimingKey(msgspec.Struct, frozen=True, kw_only=True):
    """Where measured times of kernels hold."""

    tensorrt: str
    sm: str
    gpu: str


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as it lies in the cache."""

    plan: bytes
    """Serialized."""
    model_sha256: str
    """Of the ONNX file whose weights are in it."""
    products: tuple[Product, ...]
    """That were asked for."""


class _Extra(msgspec.Struct, frozen=True, kw_only=True):
    model_sha256: str
    products: tuple[Product, ...]


def key_of(trt: Any, gpu: Gpu, l4t: str | None, model: bytes, *, refittable: bool) -> EngineKey:
    """Return the key of the engine that is made of an ONNX file here."""
    return EngineKey(
        model_sha256=structure_sha256(model) if refittable else hashlib.sha256(model).hexdigest(),
        tensorrt=trt.__version__,
        sm=gpu.sm,
        gpu=gpu.name,
        l4t=l4t,
        refittable=refittable,
    )


def choose_key(
    trt: Any, gpu: Gpu, l4t: str | None, model: bytes, cache: EngineCache, *, refittable: bool | None
) -> EngineKey:
    """Return the key of the engine to run an ONNX file with.

    Args:
        trt: The module of TensorRT.
        gpu: The GPU.
        l4t: Release of a Jetson's Linux; None: no Jetson.
        model: The ONNX file.
        cache: Where engines are kept.
        refittable: Whether it must take new weights; None: it need not, but one that does and is there will do.
    """
    kinds = (False, True) if refittable is None else (refittable,)
    keys = [key_of(trt, gpu, l4t, model, refittable=kind) for kind in kinds]
    return next((key for key in keys if cache.holds(key.file)), keys[0])


def kept_engine(trt: Any, bundle: Bundle, precision: str, cache: EngineCache, key: EngineKey) -> Kept:
    """Return the engine of this key: from the cache, or built now and then kept there.

    Raises:
        EngineError: What lies there is damaged or not ours, or the model is refused or cannot be built.
        InputError: The cache cannot be written.
    """
    found = cache.read(key.file, key)
    if found is not None:
        plan, about = found
        extra = msgspec.json.decode(about, type=_Extra)
        return Kept(plan=plan, model_sha256=extra.model_sha256, products=extra.products)
    parsed = parse(trt, bundle, precision)
    config = configure(trt, parsed, bundle, refittable=key.refittable)
    timing_key = _TimingKey(tensorrt=key.tensorrt, sm=key.sm, gpu=key.gpu)
    timing_name = f"{hashlib.sha256(msgspec.json.encode(timing_key)).hexdigest()}.timing"
    timings = cache.read(timing_name, timing_key)
    plan, measured = build(trt, parsed, config, b"" if timings is None else timings[0])
    extra = _Extra(
        model_sha256=hashlib.sha256(bundle.models[precision]).hexdigest(),
        products=asked_products(trt, parsed.network),
    )
    cache.write(timing_name, timing_key, measured)
    cache.write(key.file, key, plan, extra)
    return Kept(plan=plan, model_sha256=extra.model_sha256, products=extra.products)


class TensorrtEngine:
    """TensorRT on this machine's GPU; the recurrent state never leaves it.

    A call is one CUDA graph: the observation goes up, the network runs, the action comes down. There are two of them,
    between which the recurrent state's two sets of buffers change places.

    Attributes:
        observation: Live input in pinned host memory, shape (1, observation_size).
        action: Live output in pinned host memory, shape (1, action_size).
        layers: What the engine computes in which precision, as it says itself.
    """

    name: str = "tensorrt"

    def __init__(self, bundle: Bundle, precision: str, cache: EngineCache, *, refittable: bool | None = None) -> None:
        from sim2real_edge.cuda import DeviceArray, Stream, pinned

        model = bundle.contract.model
        self.precision = precision
        self._gpu, target = this_device()
        check_precision(target, precision)
        self._trt = trt = import_tensorrt()
        check_tensorrt(trt.__version__, l4t := l4t_release())
        key = choose_key(trt, self._gpu, l4t, bundle.models[precision], cache, refittable=refittable)
        kept = kept_engine(trt, bundle, precision, cache, key)
        self._engine = open_engine(trt, bundle, precision, kept, cache.path(key.file))
        self.layers = _proved_layers(trt, self._engine, bundle, precision, kept.products)
        self.observation: npt.NDArray[np.float32] = pinned((1, model.observation_size))
        self.action: npt.NDArray[np.float32] = pinned((1, model.action_size))
        self._stream = Stream()
        self._input, self._output = DeviceArray(self.observation.shape), DeviceArray(self.action.shape)
        self._initial = [initial_state(state) for state in model.recurrent]
        self._states = [[DeviceArray(state.shape) for state in model.recurrent] for _ in range(2)]
        self._context = self._open_context(bundle)
        self._calls = [self._record(bundle, reads, writes) for reads, writes in ((0, 1), (1, 0))]
        self._turn = 0
        self.reset()

    def _open_context(self, bundle: Bundle) -> tensorrt.IExecutionContext:
        model = bundle.contract.model
        context = self._engine.create_execution_context()
        if context is None:
            raise EngineError(f"{bundle.path}: TensorRT gives no context: {logged_errors(self._trt)}; free GPU memory")
        # The engine can tell of its layers, but need not tell profilers of each call.
        context.nvtx_verbosity = self._trt.ProfilingVerbosity.NONE
        self._must(context.set_input_shape(model.observation_name, (1, model.observation_size)))
        for state in model.recurrent:
            self._must(context.set_input_shape(state.input_name, state.shape))
        return context

    def _record(self, bundle: Bundle, reads: int, writes: int) -> Recording:
        """Record a call that reads one set of states and writes the other; the addresses stay as they are now."""
        model, context = bundle.contract.model, self._context
        self._must(context.set_tensor_address(model.observation_name, self._input.address))
        self._must(context.set_tensor_address(model.action_name, self._output.address))
        for state, read, write in zip(model.recurrent, self._states[reads], self._states[writes], strict=True):
            self._must(context.set_tensor_address(state.input_name, read.address))
            self._must(context.set_tensor_address(state.output_name, write.address))
        # Once without recording: the first call also allocates, which cannot be recorded.
        self._call()
        self._stream.wait()
        return self._stream.record(self._call)

    def _call(self) -> None:
        self._stream.upload(self._input, self.observation)
        self._must(self._context.execute_async_v3(self._stream.handle))
        self._stream.download(self.action, self._output)

    def _must(self, done: bool) -> None:
        if not done:
            raise EngineError(
                f"TensorRT {self._trt.__version__}: {logged_errors(self._trt)}; build it again: sim2real edge build"
            )

    def run(self) -> None:
        """Compute `action` from `observation` and carry the recurrent state on."""
        self._stream.replay(self._calls[self._turn])
        self._turn ^= 1

    def reset(self) -> None:
        """Put the recurrent state back to its initial value."""
        for value, buffer in zip(self._initial, self._states[self._turn], strict=True):
            self._stream.upload(buffer, value)
        self._stream.wait()

    def describe(self) -> EngineInfo:
        """Return what runs the network."""
        return EngineInfo(
            name=self.name,
            precision=self.precision,
            runtime=f"tensorrt {self._trt.__version__}",
            device=f"{self._gpu.name}, SM {self._gpu.sm}",
            threads=1,
        )


def open_engine(trt: Any, bundle: Bundle, precision: str, kept: Kept, path: Path) -> tensorrt.ICudaEngine:
    """Return the engine with the weights of the bundle's model in it.

    Args:
        trt: The module of TensorRT.
        bundle: The bundle.
        precision: Which of its models.
        kept: From the cache.
        path: Where it lies there, for errors.

    Raises:
        EngineError: It does not run here, or takes no new weights; in TensorRT's own words.
    """
    log_of(trt).clear()
    runtime: tensorrt.Runtime = trt.Runtime(logger_of(trt))
    engine = runtime.deserialize_cuda_engine(kept.plan)
    if engine is None:
        raise EngineError(f"{path}: TensorRT {trt.__version__} does not take it: {logged_errors(trt)}; delete it")
    model = bundle.models[precision]
    if kept.model_sha256 != hashlib.sha256(model).hexdigest():
        _refit(trt, engine, model, path)
    return engine


def _refit(trt: Any, engine: tensorrt.ICudaEngine, model: bytes, path: Path) -> None:
    """Put the weights of another model of the same structure into an engine; the golden run then proves them."""
    refitter: tensorrt.Refitter = trt.Refitter(engine, logger_of(trt))
    parser: tensorrt.OnnxParserRefitter = trt.OnnxParserRefitter(refitter, logger_of(trt))
    if not parser.refit_from_bytes(model):
        raise EngineError(
            f"{path}: takes no new weights: {parser_errors(parser)}; delete it, then: sim2real edge build"
        )
    if missing := refitter.get_missing_weights():
        raise EngineError(f"{path}: got no new weights for {', '.join(missing)}; delete it, then: sim2real edge build")
    if not refitter.refit_cuda_engine():
        raise EngineError(f"{path}: takes no new weights: {logged_errors(trt)}; delete it, then: sim2real edge build")


def _proved_layers(
    trt: Any, engine: tensorrt.ICudaEngine, bundle: Bundle, precision: str, asked: tuple[Product, ...]
) -> tuple[BuiltLayer, ...]:
    """Return the engine's layers, after its tensors and the precision of its products were checked."""
    name = model_name(bundle, precision)
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs, outputs = (
        [
            Tensor(each, engine.get_tensor_dtype(each).name, list(engine.get_tensor_shape(each)))
            for each in names
            if engine.get_tensor_mode(each) == mode
        ]
        for mode in (trt.TensorIOMode.INPUT, trt.TensorIOMode.OUTPUT)
    )
    check_tensors(name, bundle, inputs=inputs, outputs=outputs, float32=_FLOAT32)
    layers = built_layers(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
    check_products(name, precision, asked, layers)
    return layers
