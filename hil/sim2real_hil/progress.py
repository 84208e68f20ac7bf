"""Progress bars on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NoReturn

from tqdm import tqdm

if TYPE_CHECKING:
    Bar = tqdm[NoReturn]

__all__ = ["bar", "watched"]

_PERIOD_S: Final = 0.25


def bar(total: int | None, name: str, unit: str) -> Bar:
    """Return a bar that counts to `total` (None: without end); close it, or use it in a ``with`` statement.

    Where stderr is no terminal the bar ends without a trace: in a file it would stand before the line that counts.
    """
    return tqdm(total=total, desc=name, unit=unit, dynamic_ncols=True, leave=sys.stderr.isatty())


@contextlib.contextmanager
def watched(count: Callable[[], int], total: int | None, name: str, unit: str) -> Generator[None]:
    """Show what `count` returns, from a thread of its own: a loop in real time must not draw."""
    over = threading.Event()
    with bar(total, name, unit) as drawn:

        def draw() -> None:
            while not over.wait(_PERIOD_S):
                drawn.update(count() - drawn.n)

        thread = threading.Thread(target=draw, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            drawn.update(count() - drawn.n)
