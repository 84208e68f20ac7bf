"""Policies on ONNX Runtime, on buffers bound once: a call copies, converts and allocates nothing in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

# Official builds would otherwise note what runs here, keep it with an identifier of the device in the home folder, and
# send it to their maker: not from a robot. The variable counts at import; the call below is for builds without it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from sim2real.bundle import Bundle
from sim2real.contract import RecurrentState, encode_contract
from sim2real.errors import EngineError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real_edge.engine import Engine, EngineInfo

__all__ = ["CpuEngine", "CudaEngine", "load_cpu", "load_cuda", "why_no_cpu", "why_no_cuda"]

ort.disable_telemetry_events()

_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"
_FLOAT32: Final = "tensor(float)"
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
    """Return a `CudaEngine`; see `sim2real_edge.engine.load_engine`."""
    return CudaEngine(bundle, precision)


def why_no_cpu() -> str | None:
    """Every build of ONNX Runtime runs on the CPU."""
    return None


def why_no_cuda() -> str | None:
    """Return why there is no CUDA, or None."""
    if _CUDA in ort.get_available_providers():
        return None
    return (
        "the installed onnxruntime is a build without CUDA: needs the 'edge-gpu' extra: "
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
        self._session = _open_session(bundle, precision, [_CPU])
        self.observation: npt.NDArray[np.float32] = np.zeros((1, model.observation_size), np.float32)
        self.action: npt.NDArray[np.float32] = np.zeros((1, model.action_size), np.float32)
        self._recurrent = model.recurrent
        self._states = [[_initial(state) for state in model.recurrent] for _ in range(2)]
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


class CudaEngine:
    """ONNX Runtime on an NVIDIA GPU; the recurrent state never leaves it.

    Attributes:
        observation: Live input in host memory, shape (1, observation_size).
        action: Live output in host memory, shape (1, action_size).
    """

    name: str = "onnxruntime-cuda"

    def __init__(self, bundle: Bundle, precision: str) -> None:
        model = bundle.contract.model
        self.precision = precision
        self._session = _open_session(bundle, precision, [_CUDA])
        self.observation: npt.NDArray[np.float32] = np.zeros((1, model.observation_size), np.float32)
        self.action: npt.NDArray[np.float32] = np.zeros((1, model.action_size), np.float32)
        self._input = _on_gpu(self.observation)
        self._initial = [_initial(state) for state in model.recurrent]
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


def _open_session(bundle: Bundle, precision: str, providers: Sequence[str]) -> ort.InferenceSession:
    """Load a model with one thread and check it against the contract."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # A pool that spins between calls takes whole cores from the control loop (huggingface/lerobot#4264).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # What it says of a model that loads is said by our own checks, with names.
    options.log_severity_level = 3
    name = f"{bundle.path}: policy.{precision}.onnx"
    try:
        session = ort.InferenceSession(
            bundle.models[precision],
            options,
            providers=providers,
            # It knows no FP8, and fails on a clip before a quantization.
            disabled_optimizers=["ClipQuantRewrite"],
        )
    except _LOAD_ERRORS as error:
        told = " ".join(str(error).split())
        raise EngineError(f"{name}: cannot be loaded by onnxruntime {ort.__version__}: {told}; {_AGAIN}") from error
    _check_provider(name, session, providers[0])
    _check_contract(name, session, bundle)
    _check_tensors(name, session, bundle)
    return session


def _check_provider(name: str, session: ort.InferenceSession, provider: str) -> None:
    # Without this, a GPU that cannot be used means a CPU that silently is.
    built = session.get_providers()
    if not built or built[0] != provider:
        raise EngineError(f"{name}: expected to run on {provider}, got {', '.join(built)}; check the GPU's driver")


def _check_contract(name: str, session: ort.InferenceSession, bundle: Bundle) -> None:
    carried = session.get_modelmeta().custom_metadata_map.get(CONTRACT_METADATA_KEY)
    if carried != encode_contract(bundle.contract).decode():
        came = "none" if carried is None else "another one"
        raise EngineError(f"{name}: expected the bundle's contract in the model's metadata, got {came}; {_AGAIN}")


def _check_tensors(name: str, session: ort.InferenceSession, bundle: Bundle) -> None:
    model = bundle.contract.model
    inputs = {model.observation_name: (1, model.observation_size)}
    outputs = {model.action_name: (1, model.action_size)}
    inputs |= {state.input_name: state.shape for state in model.recurrent}
    outputs |= {state.output_name: state.shape for state in model.recurrent}
    for kind, expected, tensors in (
        ("input", inputs, session.get_inputs()),
        ("output", outputs, session.get_outputs()),
    ):
        came = [tensor.name for tensor in tensors]
        if sorted(came) != sorted(expected):
            raise EngineError(f"{name}: expected the {kind}s {', '.join(expected)}, got {', '.join(came)}; {_AGAIN}")
        for tensor in tensors:
            shape = expected[tensor.name]
            if tensor.type != _FLOAT32 or not _fits(tensor.shape, shape):
                raise EngineError(
                    f"{name}: {kind} {tensor.name!r}: expected {_FLOAT32} of shape {list(shape)}, "
                    f"got {tensor.type} of shape {tensor.shape}; {_AGAIN}"
                )


def _fits(declared: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    """Whether a declared shape, in which names and None are free dimensions, allows `shape`."""
    return len(declared) == len(shape) and all(
        size == wanted if isinstance(size, int) else True for size, wanted in zip(declared, shape, strict=True)
    )


def _initial(state: RecurrentState) -> npt.NDArray[np.float32]:
    return np.full(state.shape, state.initial_value, np.float32)


def _on_gpu(values: npt.NDArray[np.float32]) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(values, "cuda", 0)


def _bind_input(binding: ort.IOBinding, name: str, values: npt.NDArray[np.float32]) -> None:
    binding.bind_input(name, "cpu", 0, np.float32, values.shape, values.ctypes.data)


def _bind_output(binding: ort.IOBinding, name: str, values: npt.NDArray[np.float32]) -> None:
    binding.bind_output(name, "cpu", 0, np.float32, values.shape, values.ctypes.data)
