"""Inference engines: one protocol, and a registry that loads an engine only when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.bundle import Bundle
from sim2real.errors import EngineError
from sim2real.members import PRECISIONS

__all__ = ["ENGINES", "Engine", "EngineInfo", "available_engines", "check_held", "load_engine", "precisions_here"]


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What runs the network, for reports."""

    name: str
    precision: str
    runtime: str
    """Library and version."""
    device: str
    threads: int
    """CPU threads that compute."""


class Engine(Protocol):
    """One policy network, loaded, bound to buffers that stay where they are, and ready to be called.

    Write `observation`, call `run`, read `action`. The recurrent state stays inside.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def precision(self) -> str:
        """Which of the bundle's models it runs."""
        ...

    @property
    def observation(self) -> npt.NDArray[np.float32]:
        """Live input, shape (1, observation_size)."""
        ...

    @property
    def action(self) -> npt.NDArray[np.float32]:
        """Live output, shape (1, action_size)."""
        ...

    def run(self) -> None:
        """Compute `action` from `observation` and carry the recurrent state on; allocates nothing."""
        ...

    def reset(self) -> None:
        """Put the recurrent state back to its initial value, for the first tick of an episode."""
        ...

    def describe(self) -> EngineInfo:
        """Return what runs the network."""
        ...


class _Entry(NamedTuple):
    package: str
    extra: str
    module: str
    factory: str
    usable: str
    """Function of the module that says why the engine cannot run here, or None."""
    precisions: tuple[str, ...]
    """What it can run."""
    takes: str = ""
    """Function of the module that says which of them this machine's device takes; empty: all."""
    hint: str = ""
    """What else to say where the package is missing."""


_ONNX: Final = "sim2real_edge.onnx_engine"
_TENSORRT: Final = "sim2real_edge.tensorrt_engine"
_JETPACK: Final = "; on a Jetson it comes with JetPack: make the environment with --system-site-packages"
ENGINES: Final = {
    "onnxruntime-cpu": _Entry(
        "onnxruntime", "edge", _ONNX, "load_cpu", "why_no_cpu", ("float32", "float16", "int8", "fp8")
    ),
    "onnxruntime-cuda": _Entry("onnxruntime", "edge-gpu", _ONNX, "load_cuda", "why_no_cuda", PRECISIONS),
    # Its network is not strongly typed, so that only what its flags name is computed as asked.
    "onnxruntime-tensorrt": _Entry(
        "onnxruntime", "edge-gpu", _ONNX, "load_tensorrt", "why_no_tensorrt", ("float32", "float16", "int8")
    ),
    "tensorrt": _Entry(
        "tensorrt", "edge-trt", _TENSORRT, "load", "why_not", PRECISIONS, takes="precisions", hint=_JETPACK
    ),
}
"""Every engine by name."""


def available_engines() -> dict[str, str | None]:
    """Return for every engine why it cannot be used on this machine; None: it can."""
    return {name: _why_unavailable(name) for name in ENGINES}


def precisions_here(name: str) -> tuple[str, ...]:
    """Return what an engine that is available runs on this machine."""
    entry = ENGINES[name]
    if not entry.takes:
        return entry.precisions
    taken: Callable[[], tuple[str, ...]] = getattr(importlib.import_module(entry.module), entry.takes)
    return taken()


def load_engine(name: str, bundle: Bundle, precision: str = "float32") -> Engine:
    """Load one of the bundle's models into the engine called `name`.

    An engine that loads has not yet been proved: see `sim2real_edge.golden.replay_golden`.

    Raises:
        EngineError: Unknown or unavailable engine, no such precision, or a model whose tensors or contract differ from
            the bundle's contract.
    """
    if name not in ENGINES:
        raise EngineError(f"engine {name!r}: unknown; allowed: {', '.join(ENGINES)}")
    check_held(bundle, precision)
    if (reason := _why_unavailable(name)) is not None:
        raise EngineError(f"engine {name!r}: {reason}")
    entry = ENGINES[name]
    if precision not in entry.precisions:
        raise EngineError(f"engine {name!r}: cannot run {precision}; allowed: {', '.join(entry.precisions)}")
    factory: Callable[[Bundle, str], Engine] = getattr(importlib.import_module(entry.module), entry.factory)
    return factory(bundle, precision)


def check_held(bundle: Bundle, precision: str) -> None:
    """Check that a bundle has a model of this precision.

    Raises:
        EngineError: It has none.
    """
    if precision not in bundle.models:
        held = ", ".join(bundle.models)
        raise EngineError(f"{bundle.path}: holds no {precision} model; allowed: {held}; choose one with --precision")


def _why_unavailable(name: str) -> str | None:
    entry = ENGINES[name]
    if importlib.util.find_spec(entry.package) is None:
        extra = entry.extra
        told = f"{entry.package} is not installed: needs the '{extra}' extra: pip install 'sim2real[{extra}]'"
        return told + entry.hint
    usable: Callable[[], str | None] = getattr(importlib.import_module(entry.module), entry.usable)
    return usable()
