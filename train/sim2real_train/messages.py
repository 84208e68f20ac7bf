"""What a run says on stderr while it goes on; whether anybody can read it never decides whether it goes on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["Stderr", "tell"]


def tell(line: str) -> None:
    """Write one line to stderr, if that is possible; above the progress bars, if there are any."""
    from tqdm import tqdm

    tqdm.write(line, file=Stderr())


@dataclass(frozen=True)
class Stderr:
    """A stream to stderr whose writing never fails: what cannot be written is lost, and so is all that comes after."""

    @property
    def encoding(self) -> str:
        """That of stderr, by which a progress bar chooses its characters."""
        return sys.stderr.encoding

    def fileno(self) -> int:
        """Return the descriptor, which knows how wide the terminal is."""
        return sys.stderr.fileno()

    def isatty(self) -> bool:
        """Whether there is a screen to move about on."""
        return not sys.stderr.closed and sys.stderr.isatty()

    def write(self, text: str) -> int:
        """Write, and return how many characters were taken."""
        with contextlib.suppress(OSError, ValueError), _null_once_broken():
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        with contextlib.suppress(OSError, ValueError), _null_once_broken():
            sys.stderr.flush()


@contextlib.contextmanager
def _null_once_broken() -> Generator[None]:
    """Send stderr to the null device once it cannot be written: what is held back would fail again at every flush.

    The last of these is the interpreter's own as it exits, and gives an exit code to a run that was fine.
    """
    try:
        yield
    except BlockingIOError:
        # Whoever reads is slow, not gone.
        raise
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, sys.stderr.fileno())
        finally:
            os.close(null)
        raise
