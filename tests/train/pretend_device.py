"""A device that is none: memory of the CPU that keeps itself apart from the CPU's, as a GPU's does.

Its tensors are real and their sums are the CPU's, bit for bit; but tensors of two devices never meet in an operation,
and NumPy sees none of its memory: what would fail on a GPU fails here, on a machine without one.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["MixedDevicesError", "pretending"]

PRETEND: Final = torch.device("meta")
"""Of the devices that every build of PyTorch knows, the one without memory of its own."""
_CPU: Final = torch.device("cpu")
_ATEN: Final[Any] = torch.ops.aten
_TENSOR: Final[Any] = torch.Tensor
_COPIES: Final = (_ATEN.copy_.default, _ATEN._to_copy.default)
"""What may have tensors of two devices."""
_STRICT: Final = (_ATEN.cat.default, _ATEN.cat.out, _ATEN.stack.default, _ATEN._fused_adam_.default)
"""Where a GPU does not take a tensor of the CPU without axes for a number, as it does elsewhere."""


class MixedDevicesError(RuntimeError):
    """Tensors of two devices met."""


@contextlib.contextmanager
def pretending() -> Generator[torch.device]:
    """Let whoever asks PyTorch for the device get it, until the block ends."""
    with pytest.MonkeyPatch.context() as patch, _Made(), _Done():
        # PyTorch has kernels for it, as for GPUs.
        optimizer = importlib.import_module("torch.optim.optimizer")
        patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [_CPU.type, PRETEND.type])
        yield PRETEND


class _Made(TorchFunctionMode):
    """What is made of numbers is moved afterwards; in one step, PyTorch would hide it from `_Done`."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.tensor and given.get("device") is not None:
            device = given.pop("device")
            return func(*args, **given).to(device)
        return func(*args, **given)


class _Done(TorchDispatchMode):
    """Operations that make tensors, and those that autograd makes."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _done(func, args, dict(kwargs or {}))


class _Apart(_TENSOR):
    """A tensor of the device; `numbers` are where nobody else looks."""

    numbers: torch.Tensor
    is_meta = False
    __torch_function__: Any = importlib.import_module("torch._C")._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, numbers: torch.Tensor) -> _Apart:
        made: _Apart = _TENSOR._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=PRETEND,
            requires_grad=False,
        )
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _done(func, args, dict(kwargs or {}))

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, other: _Apart) -> None:
        self.numbers = other.numbers

    def tolist(self) -> Any:
        return self.cpu().tolist()


def _done(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do on the CPU what was asked of the device, or of the CPU."""
    values: list[Any] = tree_flatten((args, kwargs))[0]
    ours = any(isinstance(each, _Apart) for each in values)
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if ours and func not in _COPIES:
        least = 0 if func in _STRICT else 1
        strangers = [tuple(each.shape) for each in values if _is_stranger(each) and each.dim() >= least]
        if strangers:
            raise MixedDevicesError(f"{func}: the device meets tensors of the CPU, of shapes {strangers}")
    if asked == PRETEND:
        kwargs["device"] = _CPU
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    if func is _ATEN.copy_.default:
        return args[0]
    return tree_map(_outer, result) if (ours if asked is None else asked == PRETEND) else result


def _is_stranger(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, _Apart)


def _inner(value: Any) -> Any:
    return value.numbers if isinstance(value, _Apart) else value


def _outer(value: Any) -> Any:
    return _Apart(value) if _is_stranger(value) else value
