"""The recorder: it never makes the loop wait, and what it wrote can be read whatever died. About 6 s."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader

from sim2real.bundle import Bundle
from sim2real.contract import decode_contract, encode_contract
from sim2real.errors import InputError
from sim2real_edge.recorder import Recorder, RecorderOrder
from sim2real_edge.ring import RowReader, RowWriter, create_memory
from tests.edge import policies


def write(writer: RowWriter | Recorder, bundle: Bundle, number: int) -> None:
    """Write row `number`, which can be told from every other."""
    golden = bundle.golden
    row = number % len(golden.signals)
    writer.write(
        time_ns=1000 + number,
        scheduled_ns=2000 + number,
        sensed_ns=3000 + number,
        sent_ns=4000 + number,
        level=number % 4,
        missed=number % 7,
        signals=golden.signals[row],
        observation=golden.observations[row],
        action=golden.actions[row],
        command=golden.targets[row],
    )


def read(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as stream:
        return [json.loads(message.data) for _, _, message in make_reader(stream).iter_messages()]


def assert_is_row(message: dict[str, Any], bundle: Bundle, number: int) -> None:
    """Exactly what was written, floats included."""
    golden = bundle.golden
    row = number % len(golden.signals)
    stamps = [message[name] for name in ("time_ns", "scheduled_ns", "sensed_ns", "sent_ns", "level", "missed")]
    assert stamps == [1000 + number, 2000 + number, 3000 + number, 4000 + number, number % 4, number % 7]
    assert [value for values in message["signals"].values() for value in values] == golden.signals[row].tolist()
    assert message["observation"] == golden.observations[row].tolist()
    assert message["action"] == golden.actions[row].tolist()
    names = ("position", "velocity", "effort", "kp", "kd")
    assert [message["command"][name] for name in names] == golden.targets[row].tolist()


@settings(max_examples=50)
@given(steps=st.lists(st.one_of(st.just("write"), st.just("publish"), st.just("read")), max_size=120))
def test_rows_come_out_as_they_went_in_or_are_counted(pendulum: Bundle, steps: list[str]) -> None:
    capacity = 5
    descriptor = create_memory(pendulum.contract, capacity)
    writer = RowWriter(descriptor, pendulum.contract, capacity)
    reader = RowReader(descriptor, pendulum.contract, capacity)
    os.close(descriptor)
    expected: list[int] = []
    published = seen = offered = dropped = 0
    for step in steps:
        if step == "write":
            published = len(expected)
            if len(expected) - seen < capacity:
                expected.append(offered)
            else:
                dropped += 1
            write(writer, pendulum, offered)
            offered += 1
        elif step == "publish":
            published = len(expected)
            writer.publish()
        else:
            assert reader.pending() == published - seen
            while reader.pending():
                row = reader.peek()
                assert row.time_ns == 1000 + expected[seen]
                np.testing.assert_array_equal(row.signals, pendulum.golden.signals[expected[seen] % policies.STEPS])
                reader.advance()
                seen += 1
    assert (writer.written, writer.dropped) == (len(expected), dropped)


@pytest.mark.parametrize("name", ["pendulum", "quadruped"])
def test_a_recording_holds_every_tick_exactly(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    path = tmp_path / "new" / "run.mcap"
    with Recorder(path, bundle.contract, {"engine": "none"}, capacity=2000) as recorder:
        for number in range(1000):
            write(recorder, bundle, number)
    assert recorder.result.complete
    assert (recorder.result.rows, recorder.result.dropped) == (1000, 0)
    messages = read(path)
    assert len(messages) == 1000
    for number in (0, 1, 499, 999):
        assert_is_row(messages[number], bundle, number)
    with path.open("rb") as stream:
        reader = make_reader(stream)
        (attachment,) = reader.iter_attachments()
        (metadata,) = reader.iter_metadata()
        summary = reader.get_summary()
    assert decode_contract(attachment.data) == bundle.contract
    assert metadata.metadata["engine"] == "none"
    assert metadata.metadata["joint_names"].split() == list(bundle.contract.joint_names)
    assert summary is not None
    assert [channel.topic for channel in summary.channels.values()] == ["/sim2real/tick"]


def test_a_value_that_is_no_number_becomes_null(pendulum: Bundle, tmp_path: Path) -> None:
    golden = pendulum.golden
    with Recorder(tmp_path / "run.mcap", pendulum.contract, {}) as recorder:
        recorder.write(
            time_ns=1,
            scheduled_ns=1,
            sensed_ns=1,
            sent_ns=1,
            level=2,
            missed=0,
            signals=np.array([np.nan, np.inf, 1.0]),
            observation=golden.observations[0],
            action=np.array([np.nan], np.float32),
            command=golden.targets[0],
        )
    (message,) = read(tmp_path / "run.mcap")
    assert message["signals"] == {"joint_pos": [None], "joint_vel": [None], "joint_effort": [1.0]}
    assert message["action"] == [None]


def test_a_recorder_that_stands_still_costs_rows_and_no_time(pendulum: Bundle, tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.mcap", pendulum.contract, {}, capacity=64) as recorder:
        os.kill(recorder.pid, signal.SIGSTOP)
        for number in range(1000):
            # Returns while nobody makes room: waiting for it would take for ever.
            write(recorder, pendulum, number)
        os.kill(recorder.pid, signal.SIGCONT)
    assert (recorder.result.rows, recorder.result.dropped) == (64, 936)
    assert not recorder.result.complete
    assert [message["time_ns"] for message in read(tmp_path / "run.mcap")] == list(range(1000, 1064))


def test_a_full_disk_costs_what_no_longer_fits(pendulum: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path, pendulum.contract, {}, capacity=4000) as recorder:
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        for number in range(3000):
            write(recorder, pendulum, number)
    result = recorder.result
    assert "cannot be written on (File too large)" in result.error
    assert path.stat().st_size <= 20_000
    messages = read(path)
    # What the last chunk held went with it: at most a second.
    assert 0 < len(messages) < 3000
    assert result.rows == len(messages)
    assert result.rows + result.dropped == 3000
    for number, message in enumerate(messages):
        assert_is_row(message, pendulum, number)


@pytest.mark.parametrize("room", [0, 5, 200])
def test_a_disk_that_is_full_from_the_start_leaves_no_file(pendulum: Bundle, tmp_path: Path, room: int) -> None:
    path = tmp_path / "run.mcap"
    descriptor = create_memory(pendulum.contract, 64)
    contract = encode_contract(pendulum.contract).decode()
    order = RecorderOrder(path=str(path), contract=contract, descriptor=descriptor, capacity=64, metadata={})
    command = [sys.executable, "-I", "-m", "sim2real_edge.recorder_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(descriptor,)) as process:
        os.close(descriptor)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, room))
        stdout, _ = process.communicate(msgspec.json.encode(order) + b"\n", timeout=60)
    assert process.returncode == 0
    assert json.loads(stdout)["error"] == "cannot be created (File too large)"
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_that_is_killed_is_reported(pendulum: Bundle, tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.mcap", pendulum.contract, {}) as recorder:
        os.kill(recorder.pid, signal.SIGKILL)
        for number in range(100):
            write(recorder, pendulum, number)
    assert "was killed" in recorder.result.error
    assert not recorder.result.complete


KILLED_LOOP = """
import os, signal, sys
from pathlib import Path
from sim2real.bundle import read_bundle
from sim2real_edge.recorder import Recorder
from tests.edge.test_recorder import write

bundle = read_bundle(Path(sys.argv[1]))
recorder = Recorder(Path(sys.argv[2]), bundle.contract, {})
for number in range(300):
    write(recorder, bundle, number)
print(recorder.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_is_finished_when_the_loop_is_killed(pendulum: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    command = [sys.executable, "-c", KILLED_LOOP, str(pendulum.path), str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until_gone(int(done.stdout))
    messages = read(path)
    # The newest row becomes visible with the next one, or at the end.
    assert len(messages) == 299
    assert_is_row(messages[-1], pendulum, 298)


def wait_until_gone(pid: int) -> None:
    """Wait for a process that is not our child."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


def test_a_recording_is_never_replaced(pendulum: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    path.write_text("precious")
    with pytest.raises(InputError, match=r"run\.mcap: cannot be created \(File exists\); choose another --record"):
        Recorder(path, pendulum.contract, {})
    assert path.read_text() == "precious"


def test_a_place_that_cannot_be_written_is_said_at_once(pendulum: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be created \((Not a directory|File exists)\)"):
        Recorder(tmp_path / "file" / "run.mcap", pendulum.contract, {})
