"""What the tests of the bench share: a bundle, and commands as real processes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO

import psutil
import pytest

from sim2real.bundle import Bundle
from sim2real.errors import InputError
from sim2real.robots import get_robot
from sim2real.sim.scene import EMPTY
from sim2real_hil.scenery import Scenery
from sim2real_hil.video import Renderer
from tests.edge import policies


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A pendulum bundle whose policy hardly moves."""
    contract = policies.pendulum_contract()
    return policies.mlp(contract).write(tmp_path_factory.mktemp("bundle") / "policy.s2r")


class Process:
    """A ``sim2real`` command in a process of its own, with its stderr at hand."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self.popen = process
        self._stderr: IO[bytes] = process.stderr
        self.told = ""

    def until(self, pattern: str) -> str:
        """Read stderr until it holds `pattern`; return what its first group matched."""
        while (match := re.search(pattern, self.told)) is None:
            data = os.read(self._stderr.fileno(), 4096)
            assert data, f"ended before it said {pattern!r}: {self.told}"
            self.told += data.decode()
        return match.group(1) if match.groups() else match.group()

    def end(self, timeout: float) -> tuple[int, str, str]:
        """Wait for the end; return exit code, stdout, and the last line of stderr."""
        stdout, stderr = self.popen.communicate(timeout=timeout)
        self.told += stderr.decode()
        return self.popen.returncode, stdout.decode(), (self.told.strip().splitlines() or [""])[-1]

    def edge(self) -> int:
        """Process id of the edge that this bench has started."""
        (edge,) = psutil.Process(self.popen.pid).children()
        return edge.pid


@pytest.fixture
def command(tmp_path: Path) -> Generator[Callable[..., Process]]:
    """Starts commands in an empty folder, and sees to it that none stays behind."""
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> Process:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-I", "-m", "sim2real.cli", *words],
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            return Process(process)

        yield start


@pytest.fixture(scope="session")
def gl() -> None:
    """Something that draws without a screen."""
    try:
        with Renderer(Scenery(get_robot("pendulum"), EMPTY)):
            pass
    except InputError as error:
        pytest.skip(f"nothing draws here: {error}")
