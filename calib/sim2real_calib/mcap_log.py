"""Logs as MCAP: what the edge runtime records, one JSON message per tick."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from sim2real.extras import require
from sim2real_calib.log import Log, LogError, make_log

__all__ = ["TICK_TOPIC", "parse_mcap"]

TICK_TOPIC: Final = "/sim2real/tick"


class _Signals(msgspec.Struct):
    joint_pos: list[float]
    joint_effort: list[float]


class _Command(msgspec.Struct):
    effort: list[float]


class _Tick(msgspec.Struct):
    """What calibration needs of a message; the other keys are not its business."""

    time_ns: int
    signals: _Signals
    command: _Command | None = None


def parse_mcap(path: Path, data: bytes, joint_names: Sequence[str]) -> Log:
    """Parse a recording of the edge runtime; see `sim2real_calib.log.Log`.

    Raises:
        LogError: Not MCAP, truncated, without ticks, or with values that cannot be used.
    """
    ticks = list(_ticks(path, data))
    if not ticks:
        raise LogError(f"{path}: expected messages on {TICK_TOPIC}, got none; record with: sim2real edge run")
    num_joints = len(joint_names)
    for number, tick in enumerate(ticks, start=1):
        sizes = {len(tick.signals.joint_pos), len(tick.signals.joint_effort)}
        if tick.command is not None:
            sizes.add(len(tick.command.effort))
        if sizes != {num_joints}:
            raise LogError(
                f"{path}: message {number}: expected {num_joints} joints ({', '.join(joint_names)}), "
                f"got {sorted(sizes)}; name the robot that was recorded"
            )
    command = [tick.command.effort for tick in ticks if tick.command is not None]
    start = ticks[0].time_ns
    return make_log(
        path,
        data,
        # Differences of integers first: a float holds only microseconds of the time since boot.
        time=np.array([tick.time_ns - start for tick in ticks], np.float64) * 1e-9,
        position=np.array([tick.signals.joint_pos for tick in ticks], np.float64),
        effort=np.array([tick.signals.joint_effort for tick in ticks], np.float64),
        command=np.array(command, np.float64) if len(command) == len(ticks) else None,
        simulated=False,
        row_numbers=np.arange(1, len(ticks) + 1, dtype=np.intp),
    )


def _ticks(path: Path, data: bytes) -> Iterator[_Tick]:
    reader = require("mcap.reader", "calib")
    # What the reader and its decompressors raise on a file that was cut or damaged.
    damaged = (
        require("mcap.exceptions", "calib").McapError,
        require("zstandard", "calib").ZstdError,
        ValueError,
        LookupError,
        RuntimeError,
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
