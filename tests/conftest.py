"""What all tests share: one thread per library, repeatable random examples, the real logs where they are at hand."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Two libraries that each start a thread per core measure one another, not the code. Set before any of them is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

# A failing example is printed with what reproduces it. On a build server the examples are the same in every run.
settings.register_profile("sim2real", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("sim2real")


def pytest_collection_finish() -> None:
    """Leave what all test modules have loaded out of every collection: loops that begin with one cannot wait for it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def sim2real_data() -> Path:
    """The folder with the real robots' logs."""
    folder = os.environ.get("SIM2REAL_DATA")
    if not folder:
        pytest.skip("set SIM2REAL_DATA to the folder with the real robot logs")
    return Path(folder)
