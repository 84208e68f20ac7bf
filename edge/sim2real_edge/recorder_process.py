"""The process that writes a recording: drains the ring into an MCAP file until its stdin ends.

One channel, ``/sim2real/tick``, JSON: the schema below says what is in a message. The contract is an attachment,
``contract.json``. Times are monotonic nanoseconds. About once a second a chunk is completed and handed to the disk, so
that even a power cut costs little more than a second; a full disk costs what no longer fits.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec
from mcap.data_stream import RecordBuilder
from mcap.records import DataEnd, Footer
from mcap.writer import MCAP0_MAGIC, Writer

from sim2real.clock import NS_PER_S, now_ns
from sim2real.contract import PolicyContract, decode_contract
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY, SignalLayout
from sim2real_edge.recorder import RecorderOrder, RecorderReport
from sim2real_edge.ring import Row, RowReader

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["TOPIC", "main"]

TOPIC: Final = "/sim2real/tick"
_STDIN: Final = 0
_POLL_S: Final = 0.02
_BYTES_PER_NUMBER: Final = 20
"""Of JSON, about; it decides how many rows make a chunk."""
_NICE: Final = 10

_NUMBERS: Final = {"type": "array", "items": {"type": ["number", "null"]}}
_TIME: Final = {"type": "integer", "description": "monotonic [ns]"}
_PER_JOINT: Final = ("position", "velocity", "effort", "kp", "kd")
SCHEMA: Final[dict[str, Any]] = {
    "title": "sim2real.Tick",
    "type": "object",
    "properties": {
        "time_ns": {**_TIME, "description": "when the tick began, monotonic [ns]"},
        "scheduled_ns": {**_TIME, "description": "when it should have begun"},
        "sensed_ns": {**_TIME, "description": "when the measurement was taken"},
        "sent_ns": {**_TIME, "description": "when the command was sent"},
        "signals": {"type": "object", "additionalProperties": _NUMBERS, "description": "by signal, robot-side axes"},
        "observation": _NUMBERS,
        "action": _NUMBERS,
        "command": {"type": "object", "properties": dict.fromkeys(_PER_JOINT, _NUMBERS)},
        "level": {"type": "integer", "description": "0 run, 1 hold, 2 damp, 3 stop"},
        "missed": {"type": "integer", "description": "ticks lost just before this one"},
    },
}


class _Output(io.BufferedIOBase):
    """A file in which a failed write leaves nothing behind: it always ends where a record ends."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._length = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._length

    def write(self, data: Buffer, /) -> int:
        rest = memoryview(data)
        size = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self._length)
            os.lseek(self._descriptor, self._length, os.SEEK_SET)
            raise
        self._length += size
        return size

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fdatasync(self._descriptor)


class _Recording:
    """The MCAP file: rows until writing fails, and an end in either case."""

    def __init__(self, order: RecorderOrder, contract: PolicyContract) -> None:
        self._error = ""
        self._rows = 0
        """Rows in chunks that the file holds; those of the chunk that is being filled are `_open_rows`."""
        self._open_rows = 0
        self._slices = SignalLayout(contract).slices
        self._output = _Output(order.path)
        numbers = sum(part.stop - part.start for part in self._slices.values()) + contract.model.observation_size
        rows_per_second = NS_PER_S / contract.timing.control_period_ns
        output = cast("IO[bytes]", self._output)
        self._writer = Writer(output, chunk_size=int(_BYTES_PER_NUMBER * (numbers + 20) * rows_per_second))
        self._synced_ns = now_ns()
        try:
            self._channel = self._begin(order, contract)
        except OSError:
            # A disk that is full already: a file without even a beginning is of no use, and would be in the way.
            Path(order.path).unlink(missing_ok=True)
            raise

    def _begin(self, order: RecorderOrder, contract: PolicyContract) -> int:
        self._writer.start(profile="", library="sim2real")
        self._writer.add_attachment(0, 0, "contract.json", "application/json", order.contract.encode())
        self._writer.add_metadata("sim2real", {**order.metadata, "joint_names": " ".join(contract.joint_names)})
        schema = self._writer.register_schema("sim2real.Tick", "jsonschema", msgspec.json.encode(SCHEMA))
        return self._writer.register_channel(TOPIC, "json", schema)

    def add(self, row: Row) -> None:
        """Write one row; after a failure nothing is written any more."""
        if self._error:
            return
        written = self._output.tell()
        with self._noting_failure():
            data = msgspec.json.encode(_message(row, self._slices))
            self._writer.add_message(
                self._channel, row.time_ns, data, publish_time=row.sent_ns, sequence=self._rows + self._open_rows
            )
            self._open_rows += 1
        if self._output.tell() > written:
            self._close_rows()

    @property
    def report(self) -> RecorderReport:
        """What to say of it."""
        return RecorderReport(rows=self._rows, error=self._error)

    def _close_rows(self) -> None:
        self._rows += self._open_rows
        self._open_rows = 0

    def sync(self) -> None:
        """Hand what is complete to the disk, about once a second."""
        now = now_ns()
        if now - self._synced_ns >= NS_PER_S and not self._error:
            self._synced_ns = now
            with self._noting_failure():
                self._output.sync()

    def finish(self) -> None:
        """Write the end of the file."""
        if not self._error:
            with self._noting_failure():
                self._writer.finish()
                self._close_rows()
                self._output.sync()
        if self._error:
            self._finish_without_index()

    def _finish_without_index(self) -> None:
        """Write the 50 bytes that make a file without index valid; where not even they fit, nothing can be done."""
        end = RecordBuilder()
        DataEnd(data_section_crc=0).write(end)
        Footer(summary_start=0, summary_offset_start=0, summary_crc=0).write(end)
        with contextlib.suppress(OSError):
            self._output.write(end.end() + MCAP0_MAGIC)

    @contextlib.contextmanager
    def _noting_failure(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._error = f"cannot be written on ({error.strerror}); what was written before can be read"


def main() -> None:
    """Record as the first line on stdin says, until stdin ends."""
    # Whoever ends the loop may signal its whole group; the recorder ends when its stdin does.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    if not line:
        return
    order = msgspec.json.decode(line, type=RecorderOrder)
    contract = decode_contract(order.contract.encode())
    reader = RowReader(order.descriptor, contract, order.capacity)
    try:
        Path(order.path).parent.mkdir(parents=True, exist_ok=True)
        recording = _Recording(order, contract)
    except OSError as error:
        _say(RecorderReport(error=f"cannot be created ({error.strerror})"))
        return
    _say(recording.report)
    while not _stdin_ended():
        _drain(reader, recording)
        recording.sync()
    _drain(reader, recording)
    recording.finish()
    _say(recording.report)


def _drain(reader: RowReader, recording: _Recording) -> None:
    for _ in range(reader.pending()):
        recording.add(reader.peek())
        reader.advance()


def _stdin_ended() -> bool:
    """Wait a moment; nothing more is ever said on stdin, so that it can be read means that it has ended."""
    ready, _, _ = select.select([_STDIN], [], [], _POLL_S)
    return bool(ready)


def _say(report: RecorderReport) -> None:
    # Whoever would read it may be gone.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


def _message(row: Row, slices: Mapping[str, slice]) -> dict[str, Any]:
    command = row.command
    return {
        "time_ns": row.time_ns,
        "scheduled_ns": row.scheduled_ns,
        "sensed_ns": row.sensed_ns,
        "sent_ns": row.sent_ns,
        "signals": {name: row.signals[part].tolist() for name, part in slices.items()},
        "observation": row.observation.tolist(),
        "action": row.action.tolist(),
        "command": {
            "position": command[POSITION].tolist(),
            "velocity": command[VELOCITY].tolist(),
            "effort": command[EFFORT].tolist(),
            "kp": command[KP].tolist(),
            "kd": command[KD].tolist(),
        },
        "level": row.level,
        "missed": row.missed,
    }


if __name__ == "__main__":
    main()
