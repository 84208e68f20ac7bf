"""Records every tick to an MCAP file (mcap.dev) without ever making the loop wait.

The loop copies each tick into shared memory; a process of its own, `sim2real_edge.recorder_process`, writes the file. A
slow or full disk costs rows, which are counted, and no time. The file is finished when the recorder is closed and also
when the loop's process vanishes, whatever killed it.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from sim2real.clock import NS_PER_S
from sim2real.contract import PolicyContract, encode_contract
from sim2real.errors import InputError
from sim2real_edge.ring import RowWriter, create_memory

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Recorder", "RecorderOrder", "RecorderReport", "RecorderResult"]

_BUFFERED_NS: Final = 8 * NS_PER_S
"""How long a disk may stall before rows are lost."""
_LEAST_ROWS: Final = 64
_START_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 5.0
_REAP_TIMEOUT_S: Final = 1.0


class RecorderOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the recorder's process is told, as one line of JSON on its stdin."""

    path: str
    contract: str
    descriptor: int
    capacity: int
    metadata: dict[str, str]


class RecorderReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the recorder's process says, as a line of JSON on its stdout: when it has begun, and at its end."""

    rows: int = 0
    """Rows in the file."""
    error: str = ""


class RecorderResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a recording."""

    path: str
    rows: int
    """Rows in the file."""
    dropped: int
    """Rows that are not, because the file could not be written or not fast enough."""
    error: str
    """Why, or why the file is not finished; empty if all is well."""

    @property
    def complete(self) -> bool:
        """Whether every row is in a finished file."""
        return not self.dropped and not self.error


class Recorder:
    """An MCAP file being written; use it as a context manager, then read `result`."""

    def __init__(self, path: Path, contract: PolicyContract, metadata: Mapping[str, str], capacity: int = 0) -> None:
        """Start the process that writes and wait until it has opened the file.

        Args:
            path: A file that does not exist yet: recordings are not replaced.
            contract: Says what the arrays are; goes into the file.
            metadata: More to say about the run, into the file.
            capacity: Rows that shared memory can hold; 0: eight seconds of them.

        Raises:
            InputError: The file exists or cannot be made.
        """
        capacity = capacity or max(_LEAST_ROWS, _BUFFERED_NS // contract.timing.control_period_ns)
        self._path = path
        self._result: RecorderResult | None = None
        descriptor = create_memory(contract, capacity)
        try:
            self._rows = RowWriter(descriptor, contract, capacity)
            order = RecorderOrder(
                path=str(path.absolute()),
                contract=encode_contract(contract).decode(),
                descriptor=descriptor,
                capacity=capacity,
                metadata=dict(metadata),
            )
            self._process = _spawn(descriptor)
        finally:
            os.close(descriptor)
        self._tell(order)
        report = self._hear(_START_TIMEOUT_S)
        if report is None or report.error:
            _pipe(self._process.stdin).close()
            self._process.kill()
            self._reap()
            told = report.error if report is not None else f"its process did not start within {_START_TIMEOUT_S:g} s"
            raise InputError(f"recording {path}: {told}; choose another --record")
        self.write = self._rows.write
        """Copy one tick into shared memory, see `sim2real_edge.ring.RowWriter.write`."""

    @property
    def pid(self) -> int:
        """The process that writes the file."""
        return self._process.pid

    @property
    def result(self) -> RecorderResult:
        """What became of the recording; it is closed first if it is not yet."""
        self.close()
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Let the process write what it has and finish the file; wait for that for 5 s at most."""
        if self._result is not None:
            return
        self._rows.publish()
        # The end of its stdin is the process's sign to finish: it is also what it sees if we are killed.
        _pipe(self._process.stdin).close()
        report = self._hear(_CLOSE_TIMEOUT_S)
        ended = self._reap()
        written = self._rows.written + self._rows.dropped
        if report is None:
            error = "its process was killed; what it had written can be read" if ended else "it is still being written"
            report = RecorderReport(error=error)
        self._result = RecorderResult(
            path=str(self._path), rows=report.rows, dropped=written - report.rows, error=report.error
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, order: RecorderOrder) -> None:
        # A process that has ended already says nothing, which is found when it is listened to.
        with contextlib.suppress(BrokenPipeError):
            rest = memoryview(msgspec.json.encode(order) + b"\n")
            while rest:
                rest = rest[_pipe(self._process.stdin).write(rest) :]

    def _hear(self, timeout_s: float) -> RecorderReport | None:
        """Return the next line of the process, or None if it ended or said nothing in time."""
        stdout = _pipe(self._process.stdout)
        ready, _, _ = select.select([stdout], [], [], timeout_s)
        line = stdout.readline() if ready else b""
        return msgspec.json.decode(line, type=RecorderReport) if line else None

    def _reap(self) -> bool:
        """Return whether the process has ended. One that still writes is left to it: what it writes is wanted."""
        _pipe(self._process.stdout).close()
        try:
            self._process.wait(_REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return True


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -I: neither the working directory nor the environment can put another module in the place of ours.
        [sys.executable, "-I", "-m", "sim2real_edge.recorder_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Unbuffered, so that what select sees is all there is.
        bufsize=0,
        pass_fds=(descriptor,),
        # A Ctrl-C is for the loop; the recorder ends after it.
        start_new_session=True,
    )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
