"""Frames: what goes in comes out, and what was damaged is counted by its reason and changes nothing."""

from __future__ import annotations

import json
import math
import tracemalloc

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sim2real.wire import (
    HEADER_SIZE,
    MAX_CONTROL_SIZE,
    Drop,
    DropCounts,
    FrameReader,
    FrameWriter,
    MessageType,
    Received,
    Status,
    decode_control,
    encode_control,
)
from sim2real.wire_messages import LATEST_NS, Bye, Hello, Ping, Pong, Start, make_hello, mismatch
from tests.core.strategies import pendulum_contract

HASH = bytes(range(32))
OTHER_HASH = bytes(32)
SHAPES = st.sampled_from([(3,), (17,), (5, 1), (5, 12)])
STAMPS = st.integers(-LATEST_NS, LATEST_NS)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def put(reader: FrameReader, frame: bytes | bytearray) -> int:
    """Do what a socket does: fill the buffer as far as it goes, and return the size of what arrived."""
    size = min(len(frame), len(reader.buffer))
    reader.buffer[:size] = frame[:size]
    return len(frame)


def command_frame(*, sequence: int = 1, status: int = 0, contract: bytes = HASH, value: float = 1.5) -> bytes:
    writer = FrameWriter(MessageType.COMMAND, contract, (5, 1))
    return bytes(
        writer.write(
            np.full((5, 1), value), status=status, sequence=sequence, scheduled_ns=2, sensed_ns=3, received_ns=4
        )
    )


def command_reader() -> FrameReader:
    return FrameReader(MessageType.COMMAND, HASH, (5, 1))


@given(data=st.data(), shape=SHAPES, kind=st.sampled_from([MessageType.STATE, MessageType.COMMAND]))
def test_everything_comes_out_as_it_went_in(data: st.DataObject, shape: tuple[int, ...], kind: MessageType) -> None:
    values = data.draw(npst.arrays(np.float64, shape, elements=FINITE))
    sequence, answered = (data.draw(st.integers(0, 2**64 - 1)) for _ in range(2))
    scheduled, sensed, received_at = (data.draw(STAMPS) for _ in range(3))
    status = data.draw(st.sampled_from(Status))
    writer, reader = FrameWriter(kind, HASH, shape), FrameReader(kind, HASH, shape)
    frame = writer.write(
        values,
        status=status,
        sequence=sequence,
        answered=answered,
        scheduled_ns=scheduled,
        sensed_ns=sensed,
        received_ns=received_at,
    )
    out, received = np.full(shape, 7.0), Received()

    assert reader.read(put(reader, frame), out, received) is kind

    assert out.tobytes() == values.tobytes()
    assert (received.type, received.status, received.sequence, received.answered) == (kind, status, sequence, answered)
    assert (received.scheduled_ns, received.sensed_ns, received.received_ns) == (scheduled, sensed, received_at)
    assert received.sent_ns == writer.sent_ns


def test_a_frame_is_one_header_and_the_values() -> None:
    assert HEADER_SIZE == 96
    assert len(command_frame()) == 96 + 5 * 8
    assert command_frame()[:7] == b"S2RW\x01\x00\x07"


NO_TIMES = st.integers(LATEST_NS + 1, 2**63 - 1) | st.integers(-(2**63), -LATEST_NS - 1)


@given(stamp=NO_TIMES, which=st.sampled_from(["scheduled_ns", "sensed_ns", "received_ns"]))
def test_a_stamp_that_no_clock_shows_is_dropped_and_changes_nothing(stamp: int, which: str) -> None:
    reader, writer = command_reader(), FrameWriter(MessageType.COMMAND, HASH, (5, 1))
    stamps = {"scheduled_ns": 0, "sensed_ns": 0, "received_ns": 0, which: stamp}
    size = put(reader, writer.write(np.ones((5, 1)), sequence=7, **stamps))
    out, received = np.zeros((5, 1)), Received()
    assert reader.read(size, out, received) is Drop.BAD_TIME
    assert not out.any()
    # Not even the sequence counts: the next good frame is taken.
    assert reader.read(put(reader, command_frame(sequence=1)), out, received) is MessageType.COMMAND


@given(stamp=STAMPS, offset=st.integers(-2 * LATEST_NS, 2 * LATEST_NS))
def test_a_stamp_that_passes_fits_into_a_frame_on_either_clock(stamp: int, offset: int) -> None:
    writer = FrameWriter(MessageType.COMMAND, HASH, (5, 1))
    for shifted in (stamp - offset, stamp + offset):
        writer.write(np.ones((5, 1)), sequence=1, scheduled_ns=shifted, sensed_ns=shifted, received_ns=shifted)


@given(stamp=st.sampled_from([2**61 + 1, -(2**61) - 1, 2**63, 10**400]))
def test_clocks_that_cannot_be_are_not_compared(stamp: int) -> None:
    for name in ("ping_sent_ns", "received_ns", "sent_ns"):
        stamps = {"ping_sent_ns": 0, "received_ns": 0, "sent_ns": 0, name: stamp}
        assert decode_control(json.dumps(stamps).encode(), Pong) is None
    assert decode_control(json.dumps({"sent_ns": stamp}).encode(), Ping) is None
    for name in ("offset_ns", "uncertainty_ns"):
        start = {"offset_ns": 0, "uncertainty_ns": 0, name: 2 * stamp}
        assert decode_control(json.dumps(start).encode(), Start) is None
    assert decode_control(b'{"offset_ns": 0, "uncertainty_ns": -1}', Start) is None


@given(cut=st.integers(0, 96 + 40 - 1))
def test_a_truncated_frame_is_short(cut: int) -> None:
    reader, out = command_reader(), np.zeros((5, 1))
    assert reader.read(put(reader, command_frame()[:cut]), out, Received()) is Drop.SHORT
    assert not out.any()


@given(more=st.binary(min_size=1, max_size=40000))
def test_an_extended_frame_is_long(more: bytes) -> None:
    reader, out = command_reader(), np.zeros((5, 1))
    assert reader.read(put(reader, command_frame() + more), out, Received()) is Drop.LONG
    assert not out.any()


def test_every_single_flipped_bit_is_noticed() -> None:
    frame = command_frame()
    reader, out, received = command_reader(), np.zeros((5, 1)), Received()
    reasons: set[Drop] = set()
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        result = reader.read(put(reader, damaged), out, received)
        assert isinstance(result, Drop), f"bit {bit} was not noticed"
        reasons.add(result)
    assert not out.any()
    assert received.sequence == 0
    assert {Drop.WRONG_MAGIC, Drop.WRONG_VERSION, Drop.SHORT, Drop.LONG, Drop.CORRUPT} <= reasons
    assert reader.read(put(reader, frame), out, received) is MessageType.COMMAND


@given(noise=st.binary(max_size=400), position=st.integers(0, 136), keep_frame=st.booleans())
def test_noise_never_raises_and_never_passes(noise: bytes, position: int, keep_frame: bool) -> None:
    frame = command_frame()
    damaged = frame[:position] + noise + frame[position + len(noise) :] if keep_frame else noise
    reader, out = command_reader(), np.zeros((5, 1))
    result = reader.read(put(reader, damaged), out, Received())
    assert isinstance(result, Drop) or damaged == frame


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", range(5))
def test_values_that_are_not_finite_are_dropped(value: float, position: int) -> None:
    values = np.ones((5, 1))
    values[position] = value
    writer, reader, out = FrameWriter(MessageType.COMMAND, HASH, (5, 1)), command_reader(), np.zeros((5, 1))
    frame = writer.write(values, sequence=1, scheduled_ns=0, sensed_ns=0)
    assert reader.read(put(reader, frame), out, Received()) is Drop.NOT_FINITE
    assert not out.any()
    # The dropped frame does not use up its sequence.
    assert reader.read(put(reader, command_frame(sequence=1)), out, Received()) is MessageType.COMMAND


@given(sequences=st.lists(st.integers(0, 20), max_size=40))
def test_only_rising_sequences_pass(sequences: list[int]) -> None:
    reader, out = command_reader(), np.zeros((5, 1))
    last = -1
    for sequence in sequences:
        result = reader.read(put(reader, command_frame(sequence=sequence)), out, Received())
        assert result is (MessageType.COMMAND if sequence > last else Drop.OLD_SEQUENCE)
        last = max(last, sequence)
    reader.restart()
    assert reader.read(put(reader, command_frame(sequence=0)), out, Received()) is MessageType.COMMAND


def test_reasons_have_names() -> None:
    reader, out = command_reader(), np.zeros((5, 1))
    state = FrameWriter(MessageType.STATE, HASH, (5, 1)).write(out, sequence=1, scheduled_ns=0, sensed_ns=0)
    frames = {
        "wrong_contract": command_frame(contract=OTHER_HASH),
        "unknown_status": command_frame(status=4),
        "unexpected": bytes(state),
        "long": bytes(
            FrameWriter(MessageType.COMMAND, HASH, (5, 2)).write(
                np.zeros((5, 2)), sequence=1, scheduled_ns=0, sensed_ns=0
            )
        ),
    }
    counts = DropCounts()
    for frame in frames.values():
        result = reader.read(put(reader, frame), out, Received())
        assert isinstance(result, Drop)
        counts.add(result)
    assert counts.as_dict() == dict.fromkeys(frames, 1)
    assert counts.total == 4
    assert str(counts) == "long 1, unknown_status 1, wrong_contract 1, unexpected 1"


def test_a_command_has_no_place_where_only_control_messages_do() -> None:
    reader = command_reader()
    assert reader.read(put(reader, command_frame()), None, Received()) is Drop.UNEXPECTED


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(5), np.zeros((1, 5)), np.zeros((5, 2)), np.zeros((5, 1), np.float32), np.zeros((5, 2))[:, :1]],
    ids=["1-d", "turned", "wide", "float32", "strided"],
)
def test_arrays_of_another_kind_are_a_mistake_in_the_program(wrong: npt.NDArray[np.float64]) -> None:
    message = r"values: expected a contiguous float64 array of shape \(5, 1\), got"
    with pytest.raises(ValueError, match=message):
        FrameWriter(MessageType.COMMAND, HASH, (5, 1)).write(wrong, sequence=1, scheduled_ns=0, sensed_ns=0)
    reader = command_reader()
    size = put(reader, command_frame())
    with pytest.raises(ValueError, match=message):
        reader.read(size, wrong, Received())


@given(values=st.lists(FINITE, min_size=10, max_size=10))
def test_a_writer_and_a_reader_may_change_their_arrays(values: list[float]) -> None:
    writer, reader = FrameWriter(MessageType.COMMAND, HASH, (5, 1)), command_reader()
    arrays = [np.array(part).reshape(5, 1) for part in (values[:5], values[5:])]
    targets = [np.zeros((5, 1)), np.zeros((5, 1))]
    for sequence, which in enumerate((0, 1, 0, 0, 1)):
        frame = writer.write(arrays[which], sequence=sequence, scheduled_ns=0, sensed_ns=0)
        reader.read(put(reader, frame), targets[which], Received())
        assert targets[which].tobytes() == arrays[which].tobytes()
        arrays[which] += 1.0
        assert np.isfinite(arrays[which]).all()


def test_nothing_grows_from_message_to_message() -> None:
    writer, reader = FrameWriter(MessageType.COMMAND, HASH, (5, 12)), FrameReader(MessageType.COMMAND, HASH, (5, 12))
    values, out, received = np.ones((5, 12)), np.zeros((5, 12)), Received()

    def exchange(first: int, last: int) -> None:
        for sequence in range(first, last):
            frame = writer.write(values, sequence=sequence, scheduled_ns=1, sensed_ns=2, received_ns=3)
            reader.read(put(reader, frame), out, received)

    exchange(0, 100)
    tracemalloc.start()
    exchange(100, 200)
    before, _ = tracemalloc.get_traced_memory()
    exchange(200, 5200)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert received.sequence == 5199
    assert after - before < 1000


def test_control_messages_are_frames_too() -> None:
    reader = command_reader()
    for message in (make_hello(pendulum_contract(), mode="lockstep"), Bye(reason="schön war's"), Ping(sent_ns=-5)):
        kind = reader.read(put(reader, encode_control(message, HASH)), None, Received())
        assert kind is MessageType[type(message).__name__.upper()]
        assert decode_control(reader.control, type(message)) == message


def test_of_a_hello_alone_the_contract_may_be_another() -> None:
    reader = command_reader()
    hello = encode_control(make_hello(pendulum_contract(), mode="lockstep"), OTHER_HASH)
    assert reader.read(put(reader, hello), None, Received()) is MessageType.HELLO
    bye = encode_control(Bye(reason=""), OTHER_HASH)
    assert reader.read(put(reader, bye), None, Received()) is Drop.WRONG_CONTRACT


@given(payload=st.binary(max_size=50) | st.sampled_from([b"{}", b'{"reason":1}', b'{"reason":"x","y":1}', b"\xff"]))
def test_json_that_is_no_message_is_none(payload: bytes) -> None:
    assert decode_control(payload, Bye) is None


def test_a_message_too_long_for_the_wire_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_CONTROL_SIZE} bytes"):
        encode_control(Bye(reason="x" * MAX_CONTROL_SIZE), HASH)


def test_a_hello_says_what_the_contract_says() -> None:
    contract = pendulum_contract()
    hello = make_hello(contract, mode="realtime")
    assert hello.joint_names == contract.joint_names
    assert hello.command_shape == (5, 1)
    assert hello.control_period_ns == contract.timing.control_period_ns
    assert msgspec.json.decode(msgspec.json.encode(hello), type=Hello) == hello


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wire_version", 2),
        ("contract_sha256", "f" * 64),
        ("robot", "acrobot"),
        ("joint_names", ("elbow",)),
        ("control_period_ns", 1),
        ("mode", "realtime"),
    ],
)
def test_a_mismatch_names_both_values(name: str, value: object) -> None:
    plant = make_hello(pendulum_contract(), mode="lockstep")
    edge = msgspec.structs.replace(plant, **{name: value})
    assert mismatch(plant, plant) is None
    assert mismatch(plant, edge) == f"{name}: plant has {getattr(plant, name)!r}, edge has {value!r}"


def test_plant_and_edge_may_differ_in_toolkit_and_clock() -> None:
    plant = make_hello(pendulum_contract(), mode="lockstep")
    assert mismatch(plant, msgspec.structs.replace(plant, toolkit_version="9", clock_id="elsewhere")) is None
