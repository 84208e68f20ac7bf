"""`golden.npz`: a recorded run that every engine must reproduce before it may drive, with each model of the bundle.

All models saw the same measurements. What the float32 policy answered lies in ``observations``, ``actions`` and
``targets``; what a quantized one answered, whose last action is among its observations, in ``actions.int8`` and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.errors import BundleError
from sim2real.layout import SignalLayout, command_shape
from sim2real.npz import read_npz, write_npz

__all__ = ["MIN_GOLDEN_STEPS", "Golden", "decode_goldens", "encode_goldens"]

MIN_GOLDEN_STEPS: Final = 200
"""Fewer steps do not show a recurrent export that drifts (pytorch/pytorch#189225)."""

_ASKED: Final = ("signals", "commands", "episode_start")
_ANSWERS: Final = ("observations", "actions", "targets")


@dataclass(frozen=True, eq=False)
class Golden:
    """A recorded run of T control steps that every engine must reproduce before it may drive."""

    signals: npt.NDArray[np.float64]
    """Measurement vectors, shape (T, SignalLayout.size), each signal in its SI unit and on the robot's axes."""
    commands: npt.NDArray[np.float64]
    """Operator inputs, shape (T, len(contract.commands)), in their units."""
    episode_start: npt.NDArray[np.bool_]
    """Shape (T,); True where history, last action and recurrent state are reset before the step; True at step 0."""
    observations: npt.NDArray[np.float32]
    """What the network was given, shape (T, model.observation_size)."""
    actions: npt.NDArray[np.float32]
    """What the network gave, shape (T, model.action_size)."""
    targets: npt.NDArray[np.float64]
    """Command blocks after limits, shape (T, 5, num_joints), rows as in `sim2real.layout`."""


def encode_goldens(goldens: Mapping[str, Golden]) -> bytes:
    """Return the file: precision to what was recorded, that of ``float32`` among them."""
    arrays = {field.name: getattr(goldens["float32"], field.name) for field in fields(Golden)}
    for precision, golden in sorted(goldens.items()):
        if precision != "float32":
            arrays |= {f"{name}.{precision}": getattr(golden, name) for name in _ANSWERS}
    return write_npz(arrays)


def decode_goldens(content: bytes, contract: PolicyContract, precisions: Iterable[str]) -> dict[str, Golden]:
    """Read the file; precision to what was recorded.

    Args:
        content: The file.
        contract: What it must fit.
        precisions: Of the bundle's models, each of which must be in it.

    Raises:
        BundleError: It does not fit, or something lacks or is too much; the message names the array.
    """
    arrays = read_npz(content)
    others = sorted(set(precisions) - {"float32"})
    layout = _layout(contract)
    expected = layout | {f"{name}.{other}": layout[name] for other in others for name in _ANSWERS}
    if sorted(arrays) != sorted(expected):
        raise BundleError(f"expected the arrays {sorted(expected)}, got {sorted(arrays)}; export it again")
    steps = len(arrays["episode_start"]) if arrays["episode_start"].ndim else 0
    if steps < MIN_GOLDEN_STEPS:
        raise BundleError(f"episode_start: expected at least {MIN_GOLDEN_STEPS} steps, got {steps}; export it again")
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        if array.dtype != dtype or array.shape != (steps, *shape):
            raise BundleError(
                f"{name}: expected {dtype} of shape {(steps, *shape)}, got {array.dtype} of shape {array.shape}; "
                "export it again"
            )
    if not arrays["episode_start"][0]:
        raise BundleError("episode_start[0]: expected True, got False; export it again")
    asked: dict[str, Any] = {name: arrays[name] for name in _ASKED}
    return {"float32": Golden(**asked, **{name: arrays[name] for name in _ANSWERS})} | {
        other: Golden(**asked, **{name: arrays[f"{name}.{other}"] for name in _ANSWERS}) for other in others
    }


def _layout(contract: PolicyContract) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Element type and shape of one step, for each array of `Golden`."""
    return {
        "signals": (np.dtype(np.float64), (SignalLayout(contract).size,)),
        "commands": (np.dtype(np.float64), (len(contract.commands),)),
        "episode_start": (np.dtype(np.bool_), ()),
        "observations": (np.dtype(np.float32), (contract.model.observation_size,)),
        "actions": (np.dtype(np.float32), (contract.model.action_size,)),
        "targets": (np.dtype(np.float64), command_shape(contract)),
    }
