"""Logs as CSV, read by the names of their columns: logs of one robot differ in order and number of columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real_calib.log import Log, LogError, make_log

__all__ = ["SIMULATED", "parse_csv"]

Floats = npt.NDArray[np.float64]

SIMULATED: Final = "simulated"
"""A column of this name says that the log is of a simulated robot."""
_TIME: Final = ("time", "t", "timestamp")
_POSITION: Final = ("position", "pos", "q", "joint_pos", "pos_meas", "angle")
_EFFORT: Final = ("torque", "effort", "tau", "joint_effort", "tau_meas", "measured_torque")
_COMMAND: Final = ("torque_command", "command", "tau_con", "desired_torque", "effort_command")
_UNIT: Final = re.compile(r"[\[(].*?[\])]")


def parse_csv(path: Path, data: bytes, joint_names: Sequence[str]) -> Log:
    """Parse CSV text with a header row; see `sim2real_calib.log.Log`.

    A column is found by its name, whatever its case and unit (``Position [rad]``). With a prefix it is found when no
    other column could be meant (``shoulder_position``); a robot of several joints needs the joint's name in the column
    (``position_shoulder``).

    Raises:
        LogError: Not CSV text, a missing or ambiguous column, a cell that is no number, or unusable values.
    """
    header, rows, row_numbers = _split(path, data)
    columns = {
        "time": [_find(path, header, _TIME, "")],
        "position": [_find(path, header, _POSITION, joint) for joint in _tags(joint_names)],
        "effort": [_find(path, header, _EFFORT, joint) for joint in _tags(joint_names)],
    }
    optional = [_match(header, _COMMAND, joint) for joint in _tags(joint_names)]
    command = [found[0] for found in optional if len(found) == 1]
    values = {name: _numbers(path, header, rows, row_numbers, wanted) for name, wanted in columns.items()}
    return make_log(
        path,
        data,
        time=values["time"][:, 0],
        position=values["position"],
        effort=values["effort"],
        effort_held=False,
        command=_numbers(path, header, rows, row_numbers, command) if len(command) == len(joint_names) else None,
        simulated=SIMULATED in header,
        row_numbers=row_numbers,
    )


def _split(path: Path, data: bytes) -> tuple[list[str], list[list[str]], npt.NDArray[np.intp]]:
    """Return the header, the rows with content, and the line number of each."""
    try:
        table = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise LogError(
            f"{path}: expected CSV text in UTF-8, got something else ({error}); export the log again"
        ) from error
    if not table or not any(table[0]):
        raise LogError(f"{path}: expected a header row with the names of the columns, got an empty file")
    header = [name.strip() for name in table[0]]
    numbered = [(number, row) for number, row in enumerate(table[1:], start=2) if row]
    for number, row in numbered:
        if len(row) != len(header):
            raise LogError(
                f"{path}: row {number}: expected {len(header)} cells, as in the header, got {len(row)}; "
                "the file may be truncated: copy it again, or remove the row"
            )
    return header, [row for _, row in numbered], np.array([number for number, _ in numbered], np.intp)


def _tags(joint_names: Sequence[str]) -> Sequence[str]:
    """Joint names as they must occur in column names; a single joint need not be named."""
    return joint_names if len(joint_names) > 1 else ("",)


def _find(path: Path, header: Sequence[str], names: Sequence[str], joint: str) -> int:
    found = _match(header, names, joint)
    if len(found) == 1:
        return found[0]
    wanted = f"{names[0]}_{joint}" if joint else names[0]
    if found:
        several = ", ".join(header[column] for column in found)
        raise LogError(f"{path}: column {wanted}: expected one, got {several}; rename the one that is meant {wanted!r}")
    raise LogError(
        f"{path}: column {wanted}: missing (also looked for {', '.join(names[1:])}); "
        f"the file has {', '.join(header)}; rename the column"
    )


def _match(header: Sequence[str], names: Sequence[str], joint: str) -> list[int]:
    """Return the columns that could be meant: by exact name, or else by name with a prefix."""
    plain = [_UNIT.sub("", name).strip().lower().replace(" ", "_") for name in header]
    for name in names:
        wanted = {name} if not joint else {f"{name}_{joint.lower()}", f"{joint.lower()}_{name}"}
        exact = [column for column, each in enumerate(plain) if each in wanted]
        if exact:
            return exact
    if joint:
        return []
    # Of names of one letter a prefix says nothing: set_t is not a time.
    return [column for column, each in enumerate(plain) if each.endswith(tuple(f"_{n}" for n in names if len(n) > 1))]


def _numbers(
    path: Path,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    row_numbers: npt.NDArray[np.intp],
    columns: Sequence[int],
) -> Floats:
    """Return the cells of `columns` as numbers, shape (T, len(columns)); an empty cell is NaN."""
    values = np.empty((len(rows), len(columns)))
    for place, column in enumerate(columns):
        cells = [row[column] or "nan" for row in rows]
        try:
            values[:, place] = [float(cell) for cell in cells]
        except ValueError as error:
            index = next(index for index, cell in enumerate(cells) if not _is_number(cell))
            raise LogError(
                f"{path}: row {row_numbers[index]}, column {header[column]}: expected a number, got {cells[index]!r}; "
                "repair or remove the row"
            ) from error
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
