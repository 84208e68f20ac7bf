"""The garbage collector, out of the way of a loop that must not wait for it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator

__all__ = ["frozen_heap"]


@contextlib.contextmanager
def frozen_heap() -> Generator[None]:
    """Collect garbage once, and leave what is alive out of later collections until the block ends.

    What was frozen before, e.g. by a program that loaded much and cannot wait for a collection of it, stays so.
    """
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
