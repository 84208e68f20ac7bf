"""Commands as a user starts them: real processes in groups of their own, which no test leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

SIM2REAL = str(Path(sys.executable).with_name("sim2real"))
PATIENCE = 120.0
"""Seconds until a process that should have ended counts as hung."""


@contextmanager
def ended_at_last(process: subprocess.Popen[bytes]) -> Generator[subprocess.Popen[bytes]]:
    """Kill the process and its group at the end of the block, if it is still there; it leads a session."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


def read_until(process: subprocess.Popen[bytes], seen_enough: Callable[[bytes], bool]) -> None:
    """Read the process's stderr until what came last satisfies `seen_enough`."""
    assert process.stderr is not None
    seen = b""
    while not seen_enough(seen):
        chunk = os.read(process.stderr.fileno(), 4096)
        assert chunk, f"it ended early: {seen.decode()}"
        seen = seen[-200:] + chunk


def wait_for_iteration(process: subprocess.Popen[bytes], number: int) -> None:
    """Wait until the progress bar of an endless training shows that iteration."""
    read_until(process, lambda seen: any(int(each) >= number for each in re.findall(rb"\| (\d+)/1000000", seen)))


def told(stderr: bytes, bar: str) -> list[str]:
    """Return the lines of stderr but for those of the progress bar called `bar`."""
    lines = stderr.decode().replace("\r", "\n").splitlines()
    return [line for line in lines if line.strip() and not line.startswith(f"{bar}:")]
