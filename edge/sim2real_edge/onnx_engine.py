"""Policies on ONNX Runtime, on buffers bound once: a call copies, converts and allocates nothing in Python."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import numpy.typing as npt

# Official builds would otherwise note what runs here, keep it with an identifier of the device in the home folder, and
# send it to their maker: not from a robot. The variable counts at import; the call below is for builds without it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from sim2real.bundle import Bundle
from sim2real.errors import EngineError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real_edge.engine import Engine, EngineInfo
from sim2real_edge.model_contract import Tensor, check_contract, check_tensors, initial_state, model_name

__all__ = [
    "CpuEngine",
    "GpuEngine",
    "load_cpu",
    "load_cuda",
    "load_tensorrt",
    "why_no_cpu",
    "why_no_cuda",
    "why_no_tensorrt",
]

ort.disable_telemetry_events()

_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"
_FLOAT32: Final = "tensor(float)"
_Provider = tuple[str, dict[str, str]]
"""Name and options; it is the only one that is asked for."""
_LOAD_ERRORS: Final = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
    RuntimeError,
    ValueError,
)
_AGAIN: Final = "export the policy again"


def load_cpu(bundle: Bundle, precision: str) -> Engine:
    """Return a `CpuEngine`; see `sim2real_edge.engine.load_engine`."""
    return CpuEngine(bundle, precision)


def load_cuda(bundle: Bundle, precision: str) -> Engine:
    """Return a `GpuEngine` on CUDA; see `sim2real_edge.engine.load_engine`."""
    # TF32 would leave float32 products three digits.
    return GpuEngine(bundle, precision, "onnxruntime-cuda", (_CUDA, {"use_tf32": "0"}))


def load_tensorrt(bundle: Bundle, precision: str) -> Engine:
    """Return a `GpuEngine` on ONNX Runtime's TensorRT; see `sim2real_edge.engine.load_engine`."""
    options = {
        # Its own cache knows a policy by its shape: one that was trained anew would run on the weights of the old one
        # (microsoft/onnxruntime#6455).
        "trt_engine_cache_enable": "0",
        "trt_fp16_enable": str(int(precision == "float16")),
        # Where the graph has Q and DQ, no table of ranges is asked for.
        "trt_int8_enable": str(int(precision == "int8")),
    }
    return GpuEngine(bundle, precision, "onnxruntime-tensorrt", (_TENSORRT, options))


def why_no_cpu() -> str | None:
    """Every build of ONNX Runtime runs on the CPU."""
    return None


def why_no_cuda() -> str | None:
    """Return why there is no CUDA, or None."""
    return _why_no(_CUDA, "CUDA")


def why_no_tensorrt() -> str | None:
    """Return why ONNX Runtime has no TensorRT, or None."""
    return _why_no(_TENSORRT, "TensorRT")


def _why_no(provider: str, called: str) -> str | None:
    if provider in ort.get_available_providers():
        return None
    return (
        f"the installed onnxruntime is a build without {called}: needs the 'edge-gpu' extra: "
        "pip uninstall onnxruntime; pip install 'sim2real[edge-gpu]'"
    )


class CpuEngine:
    """ONNX Runtime on one CPU thread that sleeps between calls.

    Recurrent states alternate between two sets of buffers: what one call writes, the next one reads.

    Attributes:
        observation: Live input, shape (1, observation_size).
        action: Live output, shape (1, action_size).
    """

    name: str = "onnxruntime-cpu"

    def __init__(self, bundle: Bundle, precision: str) -> None:
        model = bundle.contract.model
        self.precision = precision
        self._session = _open_session(bundle, precision, (_CPU, {}))
        self.observation: npt.NDArray[np.float32] = np.zeros((1, model.observation_size), np.float32)
        self.action: npt.NDArray[np.float32] = np.zeros((1, model.action_size), np.float32)
        self._recurrent = model.recurrent
        self._states = [[initial_state(state) for state in model.recurrent] for _ in range(2)]
        self._bindings = [self._bind(bundle, reads, writes) for reads, writes in ((0, 1), (1, 0))]
        self._turn = 0
        self.reset()

    def _bind(self, bundle: Bundle, reads: int, writes: int) -> ort.IOBinding:
        model = bundle.contract.model
        binding = self._session.io_binding()
        _bind_input(binding, model.observation_name, self.observation)
        _bind_output(binding, model.action_name, self.action)
        for tensor, read, write in zip(self._recurrent, self._states[reads], self._states[writes], strict=True):
            _bind_input(binding, tensor.input_name, read)
            _bind_output(binding, tensor.output_name, write)
        return binding

    def run(self) -> None:
        """Compute `action` from `observation` and carry the recurrent state on."""
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn ^= 1

    def reset(self) -> None:
        """Put the recurrent state back to its initial value."""
        for state, buffer in zip(self._recurrent, self._states[self._turn], strict=True):
            buffer.fill(state.initial_value)

    def describe(self) -> EngineInfo:
        """Return what runs the network."""
        return EngineInfo(
            name=self.name, precision=self.precision, runtime=f"onnxruntime {ort.__version__}", device="cpu", threads=1
        )


class GpuEngine:
    """ONNX Runtime on an NVIDIA GPU, by CUDA or by TensorRT; the recurrent state never leaves it.

    Attributes:
        observation: Live input in host memory, shape (1, observation_size).
        action: Live output in host memory, shape (1, action_size).
    """

    def __init__(self, bundle: Bundle, precision: str, name: str, provider: _Provider) -> None:
        model = bundle.contract.model
        self.name = name
        self.precision = precision
        self._session = _open_session(bundle, precision, provider)
        self.observation: npt.NDArray[np.float32] = np.zeros((1, model.observation_size), np.float32)
        self.action: npt.NDArray[np.float32] = np.zeros((1, model.action_size), np.float32)
        self._input = _on_gpu(self.observation)
        self._initial = [initial_state(state) for state in model.recurrent]
        self._states = [[_on_gpu(value) for value in self._initial] for _ in range(2)]
        self._bindings = [self._bind(bundle, reads, writes) for reads, writes in ((0, 1), (1, 0))]
        self._turn = 0
        self.reset()

    def _bind(self, bundle: Bundle, reads: int, writes: int) -> ort.IOBinding:
        model = bundle.contract.model
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(model.observation_name, self._input)
        # Bound to host memory, the output is copied there at the end of each call, which then waits for the GPU.
        _bind_output(binding, model.action_name, self.action)
        for tensor, read, write in zip(model.recurrent, self._states[reads], self._states[writes], strict=True):
            binding.bind_ortvalue_input(tensor.input_name, read)
            binding.bind_ortvalue_output(tensor.output_name, write)
        return binding

    def run(self) -> None:
        """Compute `action` from `observation` and carry the recurrent state on."""
        # An input bound from host memory would be copied once, when it is bound, and never again.
        self._input.update_inplace(self.observation)
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn ^= 1

    def reset(self) -> None:
        """Put the recurrent state back to its initial value."""
        for value, buffer in zip(self._initial, self._states[self._turn], strict=True):
            buffer.update_inplace(value)

    def describe(self) -> EngineInfo:
        """Return what runs the network."""
        return EngineInfo(
            name=self.name, precision=self.precision, runtime=f"onnxruntime {ort.__version__}", device="cuda", threads=1
        )


def _open_session(bundle: Bundle, precision: str, provider: _Provider) -> ort.InferenceSession:
    """Load a model with one thread and check it against the contract."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # A pool that spins between calls takes whole cores from the control loop (huggingface/lerobot#4264).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if provider[0] != _CPU:
        # Else what the GPU cannot run, or all of it where there is no GPU, would run on the CPU without a word.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    # What it says of a model that loads is said by our own checks, with names.
    options.log_severity_level = 3
    name = model_name(bundle, precision)
    try:
        session = ort.InferenceSession(
            bundle.models[precision],
            options,
            providers=[provider],
            # It knows no FP8, and fails on a clip before a quantization.
            disabled_optimizers=["ClipQuantRewrite"],
            # Else it prints that there is no such provider, and tries the CPU.
            enable_fallback=0,
        )
    except _LOAD_ERRORS as error:
        told = " ".join(str(error).split())
        hint = _AGAIN if provider[0] == _CPU else "check the GPU's driver, or use another --engine"
        raise EngineError(f"{name}: cannot be loaded by onnxruntime {ort.__version__}: {told}; {hint}") from error
    _check_provider(name, session, provider[0])
    check_contract(name, session.get_modelmeta().custom_metadata_map.get(CONTRACT_METADATA_KEY), bundle)
    inputs, outputs = (
        [Tensor(each.name, each.type, each.shape) for each in found]
        for found in (session.get_inputs(), session.get_outputs())
    )
    check_tensors(name, bundle, inputs=inputs, outputs=outputs, float32=_FLOAT32)
    return session


def _check_provider(name: str, session: ort.InferenceSession, provider: str) -> None:
    # Without this, a GPU that cannot be used means a CPU that silently is.
    built = session.get_providers()
    if not built or built[0] != provider:
        raise EngineError(f"{name}: expected to run on {provider}, got {', '.join(built)}; check the GPU's driver")


def _on_gpu(values: npt.NDArray[np.float32]) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(values, "cuda", 0)


def _bind_input(binding: ort.IOBinding, name: str, values: npt.NDArray[np.float32]) -> None:
    binding.bind_input(name, "cpu", 0, np.float32, values.shape, values.ctypes.data)


def _bind_output(binding: ort.IOBinding, name: str, values: npt.NDArray[np.float32]) -> None:
    binding.bind_output(name, "cpu", 0, np.float32, values.shape, values.ctypes.data)
