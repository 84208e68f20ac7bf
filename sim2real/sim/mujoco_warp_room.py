"""Whether contacts and constraints fitted into the room that was set aside for them on the device."""

from __future__ import annotations

from typing import Any, Final

import mujoco_warp as mjw
import warp as wp

from sim2real.errors import InputError

__all__ = ["RoomWatch"]

_CONTACTS: Final = int(mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD)
_ROWS: Final = int(mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ)
_TERRAIN: Final = int(mjw.OverflowType.HFIELD)
_FOOT: Final = int(mjw.OverflowType.CONTACT_MATCH)
# The others (iteration limits of the solvers) lose precision, not contacts: MuJoCo goes on from there as well.
_FATAL: Final = _CONTACTS | _ROWS | _TERRAIN | _FOOT


class RoomWatch:
    """Keeps the peaks of what was needed, on the device, so that any number of steps is checked by one small copy.

    MuJoCo Warp itself drops what does not fit, and goes on.
    """

    def __init__(self, data: Any, max_matches: int) -> None:
        self._data = data
        self._max_matches = max_matches
        self._peaks = wp.zeros(4, dtype=wp.int32)

    def note(self) -> None:
        """Note what the last step needed; may be captured in a graph."""
        data = self._data
        inputs = [data.nacon, data.ncollision, data.nefc, data.overflow]
        wp.launch(_note, dim=data.nworld, inputs=inputs, outputs=[self._peaks])

    def check(self) -> None:
        """Look at all steps since the last look.

        Raises:
            InputError: Something did not fit; the message names the limit, by how much, and what to set.
        """
        contacts, candidates, rows, overflow = (int(peak) for peak in self._peaks.numpy())
        self._peaks.zero_()
        if overflow & _FATAL:
            self._data.overflow.zero_()
            raise InputError("mujoco_warp: " + self._shortage(max(contacts, candidates), rows, overflow))

    def _shortage(self, contacts: int, rows: int, overflow: int) -> str:
        data = self._data
        if overflow & _CONTACTS:
            worlds, room = data.nworld, data.naconmax
            return (
                f"nconmax: {contacts} contacts in {worlds} environments, {contacts - room} more than there is room for "
                f"({room // worlds} each, {room} in all); set nconmax to at least {-(-contacts // worlds)}"
            )
        if overflow & _ROWS and rows > data.njmax:
            return (
                f"njmax: an environment has {rows} constraint rows, {rows - data.njmax} more than there is room for "
                f"({data.njmax}); set njmax to at least {rows}"
            )
        if overflow & _ROWS:
            return f"njmax: the constraints' Jacobian does not fit beside {data.njmax} rows; set njmax to more"
        if overflow & _TERRAIN:
            return (
                "a geom meets more prisms of the height field than MuJoCo Warp takes; make the terrain's grid coarser"
            )
        return (
            f"a contact sensor matches more than {self._max_matches} contacts; give the MJCF a custom numeric "
            "'contact_sensor_maxmatch' of more"
        )


@wp.kernel(enable_backward=False)
def _note(
    nacon: wp.array[int],
    ncollision: wp.array[int],
    nefc: wp.array[int],
    overflow: wp.array[int],
    peaks: wp.array[int],
) -> None:
    world = wp.tid()
    if world == 0:
        wp.atomic_max(peaks, 0, nacon[0])
        wp.atomic_max(peaks, 1, ncollision[0])
    wp.atomic_max(peaks, 2, nefc[world])
    wp.atomic_or(peaks, 3, overflow[world])
