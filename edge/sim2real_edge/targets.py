"""The GPUs that policies are built for: what each computes in, with which TensorRT, and what is refused and why.

Sources:
    Compute capabilities and datatypes: TensorRT's support matrix
    (docs.nvidia.com/deeplearning/tensorrt/latest/getting-started/support-matrix.html). Thor is 11.0 from CUDA 13 on; it
    was called 10.1 before.
    JetPack: TensorRT's migration guide for Jetson (…/11.4.1/api/migration/tensorrt-10x-to-11x-jetson.html): 11.0 to
    11.4.0 support no JetPack; 11.4.1 supports 7.2.2 and later on Orin and Thor; JetPack 6 stays on an earlier 10.
    No FP8 on Orin: github.com/NVIDIA/TensorRT-Edge-LLM, support matrix.
    Faults: github.com/NVIDIA/TensorRT/issues/4590 (FP8 asked for, float32 built, without a word) and /4832 (an INT8
    file that builds on Thor and fails on Orin).
"""

from __future__ import annotations

from typing import Final

import msgspec

from sim2real.errors import EngineError
from sim2real.members import PRECISIONS

__all__ = ["TARGETS", "Release", "Target", "check_precision", "check_tensorrt", "target_named", "target_of"]

_OLDEST, _BEYOND = (10, 13), (12,)
_FIRST_11_ON_JETPACK: Final = (11, 4, 1)


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A TensorRT that is taken, and what brings it."""

    tensorrt: str
    jetpack: str | None
    """None: any Linux with a driver for CUDA 13."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU."""

    name: str
    title: str
    sm: str
    """Compute capability: an engine runs on the one that it was built on, and on no other."""
    precisions: tuple[str, ...]
    refused: dict[str, str]
    """Precision to the reason."""
    releases: tuple[Release, ...]
    notes: tuple[str, ...] = ()


_JETSON: Final = (
    Release(tensorrt="10.13", jetpack="7.0, 7.1"),
    Release(tensorrt="10.16", jetpack="7.2"),
    Release(tensorrt="11.4.1", jetpack="7.2.2 and later"),
)
_DESKTOP: Final = tuple(Release(tensorrt=version, jetpack=None) for version in ("10.13", "10.16", "11.4"))
_READ_BACK: Final = (
    "TensorRT 10.13 may build float32 where fp8 was asked for (TensorRT#4590): what was built is read back"
)


def _desktop(name: str, title: str, sm: str) -> Target:
    return Target(name=name, title=title, sm=sm, precisions=PRECISIONS, refused={}, releases=_DESKTOP)


TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        Target(
            name="thor",
            title="Jetson Thor",
            sm="11.0",
            precisions=PRECISIONS,
            refused={},
            releases=_JETSON,
            notes=(_READ_BACK, "has no DLA: the GPU runs all"),
        ),
        Target(
            name="orin",
            title="Jetson Orin",
            sm="8.7",
            precisions=("float32", "float16", "bfloat16", "int8"),
            refused={"fp8": "its tensor cores know no FP8; use int8"},
            releases=_JETSON[1:],
            notes=("may refuse an int8 graph that Thor takes (TensorRT#4832): the parser's own words are shown",),
        ),
        _desktop("ada", "GeForce RTX 40, RTX Ada, L4, L40", "8.9"),
        _desktop("hopper", "H100, H200", "9.0"),
        _desktop("blackwell", "GeForce RTX 50, RTX PRO Blackwell", "12.0"),
    )
}
"""Every target by name."""


def target_named(name: str) -> Target:
    """Return a target.

    Raises:
        EngineError: There is none of that name.
    """
    if name not in TARGETS:
        raise EngineError(f"target {name!r}: unknown; allowed: {', '.join(TARGETS)}")
    return TARGETS[name]


def target_of(sm: str, gpu: str) -> Target:
    """Return the target with this compute capability; `gpu` names the device in the error.

    Raises:
        EngineError: It is in no table, so that nobody knows what it computes in.
    """
    for target in TARGETS.values():
        if target.sm == sm:
            return target
    known = ", ".join(f"{target.sm} ({target.name})" for target in TARGETS.values())
    raise EngineError(
        f"{gpu}: expected a GPU of compute capability {known}, got {sm}; use --engine onnxruntime-cuda or "
        "onnxruntime-cpu"
    )


def check_precision(target: Target, precision: str) -> None:
    """Check that a target computes in a precision.

    Raises:
        EngineError: It does not; the message says why and what it takes.
    """
    if precision not in target.precisions:
        reason = target.refused.get(precision, "unknown to it")
        raise EngineError(
            f"{target.title} (SM {target.sm}): {precision} is refused: {reason}; allowed: "
            f"{', '.join(target.precisions)}"
        )


def check_tensorrt(version: str, l4t: str | None) -> None:
    """Check that a TensorRT is one that engines are built with.

    Args:
        version: As the package says it, e.g. ``"10.16.2.10"``.
        l4t: The release of a Jetson's Linux; None: no Jetson.

    Raises:
        EngineError: It is too old, too new, or supports no JetPack on a Jetson.
    """
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    if not _OLDEST <= numbers < _BEYOND:
        raise EngineError(
            f"tensorrt: expected version 10.13 to 11, got {version}; install another one (sim2real edge targets)"
        )
    if l4t is not None and (11,) <= numbers < _FIRST_11_ON_JETPACK:
        raise EngineError(
            f"tensorrt: {version} supports no JetPack: expected 10.13, 10.16, or 11.4.1 and later on a Jetson; "
            "install the one that JetPack brings"
        )
