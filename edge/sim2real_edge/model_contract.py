"""What a runtime made of a model, held against the bundle's contract; alike for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim2real.bundle import Bundle
from sim2real.contract import RecurrentState, encode_contract
from sim2real.errors import EngineError

__all__ = ["Tensor", "check_contract", "check_tensors", "initial_state", "model_name"]

_AGAIN: Final = "export the policy again"


class Tensor(NamedTuple):
    """An input or output, as a runtime describes it."""

    name: str
    type: str
    """In the runtime's own words."""
    shape: Sequence[int | str | None]
    """A free dimension is a name, None or -1."""


def model_name(bundle: Bundle, precision: str) -> str:
    """Return how errors call one of the bundle's models."""
    return f"{bundle.path}: policy.{precision}.onnx"


def check_contract(name: str, carried: str | None, bundle: Bundle) -> None:
    """Check that a model carries the bundle's contract in its metadata.

    Raises:
        EngineError: It carries none or another one.
    """
    if carried != encode_contract(bundle.contract).decode():
        came = "none" if carried is None else "another one"
        raise EngineError(f"{name}: expected the bundle's contract in the model's metadata, got {came}; {_AGAIN}")


def check_tensors(
    name: str, bundle: Bundle, *, inputs: Sequence[Tensor], outputs: Sequence[Tensor], float32: str
) -> None:
    """Check names, datatypes and shapes of a model's inputs and outputs.

    Args:
        name: Of the model, for the error.
        bundle: The bundle.
        inputs: What it takes.
        outputs: What it gives.
        float32: The runtime's word for float32.

    Raises:
        EngineError: One differs from the contract.
    """
    model = bundle.contract.model
    taken: dict[str, tuple[int, ...]] = {model.observation_name: (1, model.observation_size)}
    given: dict[str, tuple[int, ...]] = {model.action_name: (1, model.action_size)}
    taken |= {state.input_name: state.shape for state in model.recurrent}
    given |= {state.output_name: state.shape for state in model.recurrent}
    for kind, expected, tensors in (("input", taken, inputs), ("output", given, outputs)):
        came = [tensor.name for tensor in tensors]
        if sorted(came) != sorted(expected):
            raise EngineError(f"{name}: expected the {kind}s {', '.join(expected)}, got {', '.join(came)}; {_AGAIN}")
        for tensor in tensors:
            shape = expected[tensor.name]
            if tensor.type != float32 or not _fits(tensor.shape, shape):
                raise EngineError(
                    f"{name}: {kind} {tensor.name!r}: expected {float32} of shape {list(shape)}, "
                    f"got {tensor.type} of shape {list(tensor.shape)}; {_AGAIN}"
                )


def _fits(declared: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    return len(declared) == len(shape) and all(
        size in (wanted, -1) if isinstance(size, int) else True for size, wanted in zip(declared, shape, strict=True)
    )


def initial_state(state: RecurrentState) -> npt.NDArray[np.float32]:
    """Return a recurrent state as it is at the beginning of an episode."""
    return np.full(state.shape, state.initial_value, np.float32)
