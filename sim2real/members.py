"""The files of a policy bundle: what they are called, and how they lie on disk as a folder or as one zip file."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sim2real.canonical_zip import MAX_BYTES, pack, unpack
from sim2real.errors import BundleError
from sim2real.files import atomic_directory, atomic_write

__all__ = [
    "ACCEPTANCE",
    "CALIBRATION",
    "CONTRACT",
    "GOLDEN",
    "MANIFEST",
    "MODEL_NAME",
    "PRECISIONS",
    "SIGNATURE",
    "is_member",
    "load_members",
    "store_members",
]

PRECISIONS: Final = ("float32", "float16", "bfloat16", "int8", "fp8")
CONTRACT: Final = "contract.json"
GOLDEN: Final = "golden.npz"
CALIBRATION: Final = "calibration.npz"
ACCEPTANCE: Final = "acceptance.json"
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
MODEL_NAME: Final = re.compile(rf"policy\.({'|'.join(PRECISIONS)})\.onnx")


def load_members(path: Path) -> dict[str, bytes]:
    """Read the files of the bundle at `path`, folder or zip, unchecked but for what the file system shows.

    Raises:
        BundleError: Nothing readable there, not a bundle, truncated, altered, or too large.
    """
    try:
        if path.is_dir():
            return _load_folder(path)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleError("expected a file or a folder, got something else; give the path of a policy bundle")
        if status.st_size > MAX_BYTES:
            raise BundleError(f"expected at most {MAX_BYTES} bytes, got {status.st_size}; copy or export it again")
        return unpack(path.read_bytes())
    except OSError as error:
        raise BundleError(f"cannot be read ({error.strerror}); give the path of an existing policy bundle") from error


def _load_folder(path: Path) -> dict[str, bytes]:
    files = sorted(path.iterdir())
    names = {file.name for file in files}
    if not names & {MANIFEST, SIGNATURE}:
        raise BundleError(
            "is a checkpoint or a run of training, not a policy bundle; make a bundle of it first: sim2real export"
            if names & {"state.json", "checkpoint"}
            else f"is not a policy bundle: has no {MANIFEST}; give the folder or file that sim2real export wrote"
        )
    for file in files:
        # Links too: what they point to is not part of the bundle and can change.
        if not stat.S_ISREG(file.lstat().st_mode):
            raise BundleError(
                f"unexpected {file.name!r}, which is not a plain file; remove it or copy or export it again"
            )
    total = sum(file.stat().st_size for file in files)
    if total > MAX_BYTES:
        raise BundleError(f"expected at most {MAX_BYTES} bytes, got {total}; copy or export it again")
    return {file.name: file.read_bytes() for file in files}


def store_members(path: Path, members: Mapping[str, bytes], *, folder: bool) -> None:
    """Write the files of a bundle to `path`, as a whole or not at all.

    Raises:
        BundleError: `folder`, and there is something at `path` that is not a bundle folder.
        InputError: It cannot be written.
    """
    if not folder:
        with atomic_write(path) as partial:
            partial.write_bytes(pack(members))
        return
    # The folder is replaced as a whole, so anything else in it would be lost.
    if path.exists() and not (path.is_dir() and all(is_member(file.name) for file in path.iterdir())):
        raise BundleError("exists and is not a bundle folder; choose another --out")
    with atomic_directory(path) as partial:
        for name, content in members.items():
            (partial / name).write_bytes(content)


def is_member(name: str) -> bool:
    """Tell whether a bundle may have a file called `name`."""
    fixed = (CONTRACT, GOLDEN, CALIBRATION, ACCEPTANCE, MANIFEST, SIGNATURE)
    return name in fixed or MODEL_NAME.fullmatch(name) is not None
