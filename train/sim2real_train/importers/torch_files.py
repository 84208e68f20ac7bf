"""Files of torch as data: what is in them is tensors, numbers and names, or they are refused unread."""

from __future__ import annotations

import io
import pickle  # for the name of its error alone: torch's reader of weights raises it where it refuses
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from sim2real.errors import InputError

__all__ = ["MOST_BYTES", "is_zip", "load_weights", "open_zip", "read_source"]

MOST_BYTES: Final = 512 << 20
"""Of a source, and of what it holds when unpacked."""
_MOST_MEMBERS: Final = 100_000
_UNREADABLE: Final = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ImportError,
    OSError,
)


def read_source(path: Path) -> bytes:
    """Return the content of a source.

    Raises:
        InputError: It cannot be read or is too large.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give an existing file") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES >> 20} MiB; a policy is smaller")
    return content


def is_zip(content: bytes) -> bool:
    """Whether this is a zip file, as torch, TorchScript and Stable-Baselines3 write them."""
    return zipfile.is_zipfile(io.BytesIO(content))


def open_zip(content: bytes, name: str) -> zipfile.ZipFile:
    """Open a zip file of which no member, and not all of them together, is larger than a policy may be.

    Raises:
        InputError: It is damaged, or a bomb.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(f"{name}: expected a zip file, got a damaged one ({error}); copy it again") from error
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    if len(members) > _MOST_MEMBERS or total > MOST_BYTES:
        raise InputError(
            f"{name}: expected at most {MOST_BYTES >> 20} MiB unpacked, got {len(members)} members of {total >> 20} "
            "MiB together; a policy is smaller"
        )
    return archive


def load_weights(content: bytes, name: str) -> Mapping[str, Any]:
    """Return what `torch.save` wrote, if it is nothing but data.

    Raises:
        InputError: It holds something that reading it would run, is TorchScript, is damaged, or no mapping.
    """
    if is_zip(content):
        members = open_zip(content, name).namelist()
        if any(member.endswith("/constants.pkl") or "/code/" in member for member in members):
            raise InputError(
                f"{name}: is TorchScript, which is a program and not read here; export the policy to ONNX "
                "(torch.onnx.export) and import that, or import the checkpoint"
            )
    # rl_games saves its best reward as a number of numpy; these make numbers and nothing else.
    numpy_numbers: list[Any] = [np.dtype, *{type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")}]
    numpy_numbers += [np._core.multiarray.scalar]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
    try:
        with torch.serialization.safe_globals(numpy_numbers), warnings.catch_warnings():
            # It warns of dialects that it may not read; what it cannot read it refuses.
            warnings.simplefilter("ignore")
            loaded: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"{name}: expected a checkpoint of weights alone; nothing in it was run. Save the state dicts only. "
            f"torch says: {told[:300]}"
        ) from error
    if not isinstance(loaded, Mapping):
        raise InputError(f"{name}: expected a mapping of names to weights, got {type(loaded).__name__}")
    return loaded  # pyright: ignore[reportUnknownVariableType]
