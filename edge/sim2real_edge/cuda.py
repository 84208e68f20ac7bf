"""What an engine needs of CUDA: which GPU there is, memory that stays where it is, and work recorded once."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim2real.errors import EngineError
from sim2real.extras import require

if TYPE_CHECKING:
    from cuda.bindings import runtime
else:
    runtime = require("cuda.bindings.runtime", "edge-trt")

__all__ = ["DeviceArray", "Gpu", "Recording", "Stream", "find_gpu", "pinned"]

_FLOAT32_BYTES: Final = 4


class Gpu(NamedTuple):
    """The GPU that engines run on: the first one that CUDA shows."""

    name: str
    sm: str
    """Compute capability, e.g. ``"11.0"``."""


def find_gpu() -> Gpu:
    """Return the GPU.

    Raises:
        EngineError: There is none, or its driver is older than this CUDA.
    """
    error, count = runtime.cudaGetDeviceCount()
    if error == runtime.cudaError_t.cudaErrorInsufficientDriver:
        _raise_for_driver()
    if error == runtime.cudaError_t.cudaErrorNoDevice or (not error and count == 0):
        raise EngineError("no NVIDIA GPU on this machine: CUDA shows none; use a machine with one, or another --engine")
    _check(error, "cudaGetDeviceCount")
    error, properties = runtime.cudaGetDeviceProperties(0)
    _check(error, "cudaGetDeviceProperties")
    return Gpu(name=properties.name.split(b"\0")[0].decode(), sm=f"{properties.major}.{properties.minor}")


def _raise_for_driver() -> None:
    """Tell a machine without a driver from one whose driver is too old: CUDA has one error for both."""
    _, driver = runtime.cudaDriverGetVersion()
    if driver == 0:
        raise EngineError("no NVIDIA GPU on this machine: there is no driver; install it, or use another --engine")
    _, wanted = runtime.cudaRuntimeGetVersion()
    raise EngineError(
        f"the GPU's driver is too old: expected one for CUDA {_version(wanted)}, got one for {_version(driver)}; "
        f"update it, or: pip install 'cuda-bindings<={_version(driver)}.*'"
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


class _Pinned:
    """Host memory that the system never moves, so that the GPU copies from and to it by itself."""

    def __init__(self, shape: Sequence[int]) -> None:
        error, address = runtime.cudaHostAlloc(_FLOAT32_BYTES * math.prod(shape), runtime.cudaHostAllocDefault)
        _check(error, "cudaHostAlloc")
        weakref.finalize(self, runtime.cudaFreeHost, address)
        self.__array_interface__: dict[str, Any] = {
            "shape": tuple(shape),
            "typestr": np.dtype(np.float32).str,
            "data": (address, False),
            "version": 3,
        }


def pinned(shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return zeros in pinned memory, which lasts as long as any view of it."""
    values: npt.NDArray[np.float32] = np.asarray(_Pinned(shape))
    values.fill(0.0)
    return values


class DeviceArray:
    """Room for numbers on the GPU.

    Attributes:
        address: Where it begins.
        shape: Its shape; the numbers are float32.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.num_bytes = _FLOAT32_BYTES * math.prod(shape)
        error, self.address = runtime.cudaMalloc(self.num_bytes)
        _check(error, "cudaMalloc")
        weakref.finalize(self, runtime.cudaFree, self.address)


class Recording:
    """Work that was recorded as a CUDA graph."""

    def __init__(self, graph: runtime.cudaGraph_t) -> None:
        error, self.handle = runtime.cudaGraphInstantiate(graph, 0)
        runtime.cudaGraphDestroy(graph)
        _check(error, "cudaGraphInstantiate")
        weakref.finalize(self, runtime.cudaGraphExecDestroy, self.handle)


class Stream:
    """A queue of the GPU: what is put into it happens in order, and later."""

    def __init__(self) -> None:
        error, self._stream = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
        _check(error, "cudaStreamCreateWithFlags")
        weakref.finalize(self, runtime.cudaStreamDestroy, self._stream)

    @property
    def handle(self) -> int:
        """Its address, for TensorRT."""
        return int(self._stream)

    def upload(self, target: DeviceArray, source: npt.NDArray[np.float32]) -> None:
        """Copy to the GPU."""
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        (error,) = runtime.cudaMemcpyAsync(target.address, source.ctypes.data, target.num_bytes, kind, self._stream)
        _check(error, "cudaMemcpyAsync")

    def download(self, target: npt.NDArray[np.float32], source: DeviceArray) -> None:
        """Copy from the GPU."""
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        (error,) = runtime.cudaMemcpyAsync(target.ctypes.data, source.address, source.num_bytes, kind, self._stream)
        _check(error, "cudaMemcpyAsync")

    def record(self, work: Callable[[], None]) -> Recording:
        """Record what `work` puts into the stream, which does not happen now."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        (error,) = runtime.cudaStreamBeginCapture(self._stream, mode)
        _check(error, "cudaStreamBeginCapture")
        try:
            work()
        finally:
            # Also when it failed: the stream takes nothing else until the recording is ended.
            error, graph = runtime.cudaStreamEndCapture(self._stream)
        _check(error, "cudaStreamEndCapture")
        return Recording(graph)

    def replay(self, recording: Recording) -> None:
        """Do what was recorded, and wait for it."""
        (error,) = runtime.cudaGraphLaunch(recording.handle, self._stream)
        _check(error, "cudaGraphLaunch")
        self.wait()

    def wait(self) -> None:
        """Wait until the stream is empty."""
        (error,) = runtime.cudaStreamSynchronize(self._stream)
        _check(error, "cudaStreamSynchronize")


def _check(error: runtime.cudaError_t, function: str) -> None:
    if error:
        _, told = runtime.cudaGetErrorString(error)
        raise EngineError(f"CUDA: {function}: {told.decode()} ({int(error)}); check the GPU and its driver")
