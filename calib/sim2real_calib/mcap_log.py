"""Logs as MCAP: what the edge runtime records, one JSON message per tick."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.extras import require
from sim2real_calib.log import Log, LogError, make_log

__all__ = ["TICK_TOPIC", "parse_mcap"]

TICK_TOPIC: Final = "/sim2real/tick"


class _Signals(msgspec.Struct):
    joint_pos: list[float]
    joint_vel: list[float]
    joint_effort: list[float]


class _Command(msgspec.Struct):
    position: list[float]
    velocity: list[float]
    effort: list[float]
    kp: list[float]
    kd: list[float]


class _Tick(msgspec.Struct):
    """What calibration needs of a message; the other keys are not its business."""

    sensed_ns: int
    signals: _Signals
    command: _Command

    def sizes(self) -> set[int]:
        """Return the numbers of joints that its parts are of."""
        signals, command = self.signals, self.command
        return {
            *map(len, (signals.joint_pos, signals.joint_vel, signals.joint_effort)),
            *map(len, (command.position, command.velocity, command.effort, command.kp, command.kd)),
        }


def parse_mcap(path: Path, data: bytes, joint_names: Sequence[str]) -> Log:
    """Parse a recording of the edge runtime; see `sim2real_calib.log.Log`.

    A sample's time is that of its measurement. A tick that found no new measurement repeats the last one: it tells
    nothing of the robot and is left out. The effort of a measurement is that of the actuator's last step, so of the
    command before the one that answers the measurement: it has acted since the measurement before.

    Raises:
        LogError: Not MCAP, truncated, without ticks, or with values that cannot be used.
    """
    ticks = list(_ticks(path, data))
    if not ticks:
        raise LogError(f"{path}: expected messages on {TICK_TOPIC}, got none; record with: sim2real edge run")
    num_joints = len(joint_names)
    for number, tick in enumerate(ticks, start=1):
        sizes = tick.sizes()
        if sizes != {num_joints}:
            raise LogError(
                f"{path}: message {number}: expected {num_joints} joints ({', '.join(joint_names)}), "
                f"got {sorted(sizes)}; name the robot that was recorded"
            )
    sensed_ns = np.array([tick.sensed_ns for tick in ticks], np.int64)
    fresh = np.flatnonzero(np.diff(sensed_ns, prepend=sensed_ns[0] - 1) != 0)
    ticks = [ticks[index] for index in fresh]
    return make_log(
        path,
        data,
        # Differences of integers first: a float holds only microseconds of the time since boot.
        time=(sensed_ns[fresh] - sensed_ns[0]).astype(np.float64) * 1e-9,
        position=np.array([tick.signals.joint_pos for tick in ticks], np.float64),
        effort=np.array([tick.signals.joint_effort for tick in ticks], np.float64),
        effort_held=True,
        command=np.array([_commanded(tick) for tick in ticks], np.float64),
        simulated=False,
        row_numbers=fresh + 1,
    )


def _commanded(tick: _Tick) -> npt.NDArray[np.float64]:
    """Return the effort that a command asks for at the state that it answers [N·m], shape (J,)."""
    command, signals = tick.command, tick.signals
    stiff = np.multiply(command.kp, np.subtract(command.position, signals.joint_pos))
    damped = np.multiply(command.kd, np.subtract(command.velocity, signals.joint_vel))
    return np.asarray(stiff + damped + command.effort, np.float64)


def _ticks(path: Path, data: bytes) -> Iterator[_Tick]:
    reader = require("mcap.reader", "calib")
    # What the reader and its decompressors raise on a file that was cut or damaged.
    damaged = (
        require("mcap.exceptions", "calib").McapError,
        require("zstandard", "calib").ZstdError,
        ValueError,
        LookupError,
        RuntimeError,
        # A damaged length may ask for more than there is to have.
        OverflowError,
        MemoryError,
        struct.error,
    )
    decoder = msgspec.json.Decoder(_Tick)
    try:
        whole = reader.make_reader(io.BytesIO(data), validate_crcs=True)
        for _, _, message in whole.iter_messages(topics=[TICK_TOPIC]):
            yield decoder.decode(message.data)
    except msgspec.DecodeError as error:
        raise LogError(f"{path}: a message on {TICK_TOPIC} is not a tick ({error}); record it again") from error
    except damaged as error:
        raise LogError(
            f"{path}: not a whole MCAP file ({type(error).__name__}: {error}); copy it again, or record it again"
        ) from error
