"""Logs are read by name, and a log that cannot be used is refused in one line that says where and what to do."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcap.writer import Writer

from sim2real_calib.csv_log import parse_csv
from sim2real_calib.log import LogError, gaps, read_log
from sim2real_calib.mcap_log import parse_mcap
from sim2real_calib.windows import cut
from tests.calib.plants import PERIOD, TRUTH, log_of, simulate, true_log, write_log

ROWS = 600
TIME = np.arange(ROWS, dtype=np.float64) * PERIOD
POSITION = 0.3 * np.sin(3.0 * TIME)
EFFORT = np.cos(3.0 * TIME)


def table(header: str, *columns: Sequence[float] | np.ndarray) -> str:
    lines = [header, *(",".join(repr(float(cell)) for cell in row) for row in zip(*columns, strict=True))]
    return "\n".join(lines) + "\n"


def good() -> list[str]:
    return table("time,position,velocity,torque", TIME, POSITION, POSITION, EFFORT).splitlines()


@pytest.mark.parametrize(
    "header",
    [
        "time,position,torque",
        "Time [s],Position [rad],Torque [N·m]",
        "t,q,tau",
        "timestamp,measured_position,measured_torque",
        "time,hinge_joint_pos,hinge_joint_effort",
    ],
)
def test_columns_are_found_by_name_whatever_their_case_unit_or_prefix(header: str) -> None:
    text = table(header, TIME, POSITION, EFFORT)
    log = parse_csv(Path("x.csv"), text.encode(), ("hinge",))
    np.testing.assert_array_equal(log.position[:, 0], POSITION)
    np.testing.assert_array_equal(log.effort[:, 0], EFFORT)
    assert log.command is None


def test_the_order_and_number_of_columns_do_not_matter() -> None:
    text = table("torque,current,position,torque_command,time", EFFORT, TIME, POSITION, 2 * EFFORT, TIME)
    log = parse_csv(Path("x.csv"), text.encode(), ("hinge",))
    np.testing.assert_array_equal(log.effort[:, 0], EFFORT)
    assert log.command is not None
    np.testing.assert_array_equal(log.command[:, 0], 2 * EFFORT)


def test_several_joints_are_told_apart_by_their_names() -> None:
    header = "time,position_b,position_a,torque_a,torque_b"
    text = table(header, TIME, POSITION, 2 * POSITION, EFFORT, 2 * EFFORT)
    log = parse_csv(Path("x.csv"), text.encode(), ("a", "b"))
    np.testing.assert_array_equal(log.position, np.stack((2 * POSITION, POSITION), axis=1))
    np.testing.assert_array_equal(log.effort, np.stack((EFFORT, 2 * EFFORT), axis=1))


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=120, max_size=120))
def test_numbers_are_read_exactly(values: list[float]) -> None:
    time = np.arange(120) * 0.04
    text = table("time,position,torque", time, values, -EFFORT[:120])
    assert parse_csv(Path("x.csv"), text.encode(), ("hinge",)).position[:, 0].tolist() == values


def broken(change: str) -> str:
    lines = good()
    time, position, velocity, torque = lines[10].split(",")
    changes = {
        "nan": ",".join((time, "nan", velocity, torque)),
        "empty cell": ",".join((time, position, velocity, "")),
        "infinite": ",".join((time, position, velocity, "-inf")),
        "huge": ",".join((time, position, velocity, "1e300")),
        "text": ",".join((time, position, velocity, "off")),
        "short row": ",".join((time, position)),
        "time goes back": ",".join(("0.001", position, velocity, torque)),
        "time repeats": ",".join((lines[9].split(",")[0], position, velocity, torque)),
    }
    lines[10] = changes[change]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (broken("nan"), "column position: expected finite numbers, got NaN or infinity in row 11; remove"),
        (broken("empty cell"), "column effort: expected finite numbers, got NaN or infinity in row 11"),
        (broken("infinite"), "column effort: expected finite numbers, got NaN or infinity in row 11"),
        (broken("huge"), "column effort: expected values up to 1e+06 in rad or N·m, got a larger one in row 11"),
        (
            table("time,position,torque", np.append(TIME[:-1], 1e12), POSITION, EFFORT),
            "expected at most 3600 s from first to last sample, got 1e+12 s",
        ),
        (broken("text"), "row 11, column torque: expected a number, got 'off'"),
        (broken("short row"), "row 11: expected 4 cells, as in the header, got 2"),
        (broken("time goes back"), "column time: expected increasing time, got a step back or a repeat in row 11"),
        (broken("time repeats"), "column time: expected increasing time, got a step back or a repeat in row 11"),
        (table("time,position,current", TIME, POSITION, EFFORT), "column torque: missing (also looked for effort"),
        (table("time,a_position,b_position,torque", TIME, POSITION, POSITION, EFFORT), "got a_position, b_position"),
        (table("time,position,torque", TIME * 1e3, POSITION, EFFORT), "expected seconds and a median period of at"),
        (table("time,position,torque", TIME[:150], POSITION[:150], EFFORT[:150]), "expected at least 2 s, got 0.745 s"),
        (table("time,position,torque", TIME[:50], POSITION[:50], EFFORT[:50]), "expected at least 100 samples, got 50"),
        (table("time,position,torque", TIME, POSITION, np.abs(EFFORT)), "expected a signed effort [N·m], got none be"),
        ("", "expected a header row"),
        ("time,position,torque\n", "expected at least 100 samples, got 0"),
    ],
)
def test_a_log_that_cannot_be_used_is_refused_with_the_place(text: str, expected: str) -> None:
    with pytest.raises(LogError) as raised:
        parse_csv(Path("logs/x.csv"), text.encode(), ("hinge",))
    assert str(raised.value).startswith("logs/x.csv: ")
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_available_column_is_named_when_one_is_missing() -> None:
    text = table("time,angle_of_rod,torque", TIME, POSITION, EFFORT)
    with pytest.raises(LogError, match=r"column position: missing .*the file has time, angle_of_rod, torque; rename"):
        parse_csv(Path("x.csv"), text.encode(), ("hinge",))


@given(st.binary(max_size=400))
def test_bytes_that_are_no_log_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for parse in (parse_csv, parse_mcap):
        with pytest.raises(LogError):
            parse(Path("x"), data, ("hinge",))


def test_an_unpowered_swing_is_a_log() -> None:
    swing = log_of(TIME, simulate(np.zeros(2 * ROWS), TRUTH, start=1.0)[::2], np.zeros(ROWS))
    text = table("time,position,torque", swing.time, swing.position[:, 0], swing.effort[:, 0])
    assert not parse_csv(Path("x.csv"), text.encode(), ("hinge",)).effort.any()


def test_an_unknown_ending_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"expected a log that ends in .csv or .mcap, got '.txt'"):
        read_log(tmp_path / "x.txt", ("hinge",))
    with pytest.raises(Exception, match="cannot be read"):
        read_log(tmp_path / "x.csv", ("hinge",))


def test_windows_that_touch_a_gap_are_left_out_and_the_gap_is_told(tmp_path: Path) -> None:
    log = true_log(6.0)
    keep = (log.time < 2.1) | (log.time > 2.4)
    holed = log_of(log.time[keep], log.position[keep, 0], log.effort[keep, 0])
    read = read_log(write_log(tmp_path / "holed.csv", holed), ("hinge",))
    assert gaps(read.time) == [pytest.approx((2.095, 2.405))]
    assert "nothing logged from 2.095 s to 2.405 s" in read.notes[0]
    windows = cut([read], dt=0.0025, length=0.5)
    assert [start for _, start in windows.skipped] == [2.0]
    assert 2.0 not in windows.start.tolist()
    assert len(windows) == len(cut([log], dt=0.0025, length=0.5)) - 1


def ticks(num: int = ROWS, joints: int = 1) -> list[dict[str, object]]:
    return [
        {
            "tick": k,
            "sensed_ns": 10**15 + round(k * PERIOD * 1e9),
            "signals": {
                "joint_pos": [POSITION[k]] * joints,
                "joint_vel": [1.0] * joints,
                "joint_effort": [EFFORT[k]] * joints,
            },
            "command": {
                "position": [3 * POSITION[k]] * joints,
                "velocity": [0.5] * joints,
                "effort": [EFFORT[k]] * joints,
                "kp": [2.0] * joints,
                "kd": [0.2] * joints,
            },
        }
        for k in range(num)
    ]


def mcap(messages: Sequence[object], topic: str = "/sim2real/tick") -> bytes:
    out = io.BytesIO()
    writer = Writer(out)
    writer.start()
    schema = writer.register_schema("tick", "jsonschema", b"{}")
    channel = writer.register_channel(topic, "json", schema)
    for k, message in enumerate(messages):
        writer.add_message(channel, log_time=k, publish_time=k, data=json.dumps(message).encode())
    writer.finish()
    return out.getvalue()


def test_a_recording_of_the_edge_runtime_is_read() -> None:
    log = parse_mcap(Path("x.mcap"), mcap(ticks()), ("hinge",))
    np.testing.assert_allclose(log.time, TIME, atol=1e-9)
    np.testing.assert_array_equal(log.position[:, 0], POSITION)
    np.testing.assert_array_equal(log.effort[:, 0], EFFORT)
    assert log.command is not None
    np.testing.assert_allclose(log.command[:, 0], 4 * POSITION - 0.1 + EFFORT, atol=1e-12)
    assert log.effort_held


def test_a_tick_without_a_new_measurement_says_nothing_of_the_robot() -> None:
    whole = ticks()
    stale = [tick for k, tick in enumerate(whole) for tick in [tick] * (3 if k % 7 == 0 else 1)]
    once, again = (parse_mcap(Path("x.mcap"), mcap(each), ("hinge",)) for each in (whole, stale))
    for name in ("time", "position", "effort", "command"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))


def test_a_held_effort_acted_since_the_sample_before() -> None:
    log = msgspec.structs.replace(
        log_of(np.array([0.0, 1.0, 3.0]), np.zeros(3), np.array([5.0, 1.0, -2.0])), effort_held=True
    )
    # A step across a sample has the mean of both efforts; outside, the first and the last hold.
    time = np.array([[-0.4, 0.5, 0.95], [1.0, 2.0, 3.4]])
    expected = [[5.0, 1.0, 1.0], [-0.5, -2.0, -2.0]]
    np.testing.assert_allclose(log.effort_around(time, 0.1)[..., 0], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (mcap([]), "expected messages on /sim2real/tick, got none"),
        (mcap(ticks(), topic="/other"), "expected messages on /sim2real/tick, got none"),
        (mcap(ticks(joints=2)), "message 1: expected 1 joints (hinge), got [2]"),
        (mcap([{"sensed_ns": 1}]), "a message on /sim2real/tick is not a tick"),
        (mcap(ticks(50)), "expected at least 100 samples, got 50"),
    ],
)
def test_a_recording_that_cannot_be_used_is_refused(data: bytes, expected: str) -> None:
    with pytest.raises(LogError) as raised:
        parse_mcap(Path("x.mcap"), data, ("hinge",))
    assert expected in str(raised.value)


RECORDING = mcap(ticks(120))


@settings(max_examples=60)
@given(st.integers(min_value=0, max_value=len(RECORDING) - 1))
def test_a_truncated_recording_is_refused(length: int) -> None:
    with pytest.raises(LogError):
        parse_mcap(Path("x.mcap"), RECORDING[:length], ("hinge",))


@settings(max_examples=60)
@given(st.integers(min_value=0, max_value=len(RECORDING) - 1), st.integers(min_value=1, max_value=255))
@example(place=74, change=128)
def test_a_damaged_recording_is_read_whole_or_refused(place: int, change: int) -> None:
    damaged = bytearray(RECORDING)
    damaged[place] ^= change
    with contextlib.suppress(LogError):
        log = parse_mcap(Path("x.mcap"), bytes(damaged), ("hinge",))
        np.testing.assert_array_equal(log.position[:, 0], POSITION[: len(log.time)])
