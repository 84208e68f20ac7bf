"""Where learners learn: on the CPU, with the very weights that act, or on a GPU, beside a copy of them that acts."""

from __future__ import annotations

import copy
import os
from typing import Any, Final, Literal, TypeVar

import numpy.typing as npt
import torch
from torch import nn

from sim2real.errors import InputError

__all__ = ["CPU", "DeviceName", "array_of", "learning_device", "set_apart", "why_no_gpu"]

DeviceName = Literal["cpu", "cuda"]
CPU: Final = torch.device("cpu")
_Model = TypeVar("_Model", bound=nn.Module)


def learning_device(name: DeviceName) -> torch.device | None:
    """Return this process's device, which will compute the same sums in the same order each time; None: the CPU.

    Ray shows a process that takes one GPU only that one.

    Raises:
        InputError: PyTorch has no GPU here.
    """
    if name == "cpu":
        return None
    # Read when cuBLAS is first called: without it, the order of its sums may be another each time.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if not torch.cuda.is_available():
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        which = "a GPU" if given is None else f"its GPU ({given})"
        raise InputError(f"placement.device=cuda: the learner cannot use {which}: {why_no_gpu()}")
    torch.use_deterministic_algorithms(True)
    # TensorFloat-32 has 10 bits of fraction: what the CPU computes and what the robot computes have 23.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", 0)


def why_no_gpu() -> str:
    """Return why PyTorch finds no GPU here, and what to do about it."""
    if not torch.backends.cuda.is_built():
        return (
            f"its PyTorch ({torch.__version__}) is built without CUDA; install the build that pytorch.org names for "
            "your driver, or leave out --device"
        )
    return (
        f"its PyTorch ({torch.__version__}, CUDA {torch.version.cuda}) sees none; look for it and its driver with "
        "nvidia-smi, or leave out --device"
    )


def set_apart(model: _Model, device: torch.device | None) -> _Model:
    """Move a model to a device; return what acts in its place: a copy that stays on the CPU, or itself without one."""
    if device is None:
        return model
    acting = copy.deepcopy(model).requires_grad_(False)
    model.to(device)
    return acting


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a copy of a tensor of any device."""
    return tensor.detach().cpu().numpy().copy()
