"""Where each signal lies in the flat measurement vector, and each target in the command block.

Both follow from the contract alone, so a plant and an edge that agree on its hash agree on every index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.signals import SIGNALS, width_of

__all__ = [
    "COMMAND_ROWS",
    "EFFORT",
    "KD",
    "KP",
    "POSITION",
    "VELOCITY",
    "SignalLayout",
    "columns_of",
    "command_shape",
    "observation_names",
    "zero_commands",
]

POSITION: Final = 0
VELOCITY: Final = 1
EFFORT: Final = 2
KP: Final = 3
KD: Final = 4
COMMAND_ROWS: Final = 5
"""Rows of a command block, shape (5, num_joints): position [rad], velocity [rad/s] and effort [N·m] targets, kp, kd.

The actuator applies effort = kp (position − q) + kd (velocity − qd) + effort, clamped to the joint's effort limit.
"""

_ALWAYS: Final = frozenset({"joint_pos", "joint_vel", "joint_effort"})


class SignalLayout:
    """Slices of the measurement vector, float64, shape (…, size), in the order of `SIGNALS`.

    Holds the joint signals (the safety supervisor needs them on every robot), every signal that an observation term
    names, and the base orientation when the contract limits the tilt.
    """

    def __init__(self, contract: PolicyContract) -> None:
        wanted = _ALWAYS | {term.source for term in contract.observation.terms}
        if contract.safety.max_tilt is not None:
            wanted |= {"base_quat"}
        slices: dict[str, slice] = {}
        start = 0
        for name in SIGNALS:
            if name in wanted:
                stop = start + width_of(name, len(contract.joints))
                slices[name] = slice(start, stop)
                start = stop
        self.slices: Mapping[str, slice] = MappingProxyType(slices)
        self.size = start

    @property
    def names(self) -> tuple[str, ...]:
        """Signals in the vector, in its order."""
        return tuple(self.slices)


def command_shape(contract: PolicyContract) -> tuple[int, int]:
    """Return the shape of one command block: (5, num_joints)."""
    return COMMAND_ROWS, len(contract.joints)


def zero_commands(num_envs: int, num_joints: int) -> npt.NDArray[np.float64]:
    """Return command blocks of zeros, shape (N, 5, J).

    In memory, each row of all blocks is in one piece: NumPy computes with it in a fraction of the time.
    """
    return np.zeros((COMMAND_ROWS, num_envs, num_joints)).swapaxes(0, 1)


def columns_of(indices: Sequence[int]) -> slice | npt.NDArray[np.intp]:
    """Return indices as a slice where they are evenly spaced, so that reading them is a view and not a copy."""
    if not indices:
        return slice(0)
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    even = range(indices[0], indices[0] + step * len(indices), step) if step > 0 else range(0)
    return slice(even.start, even.stop, step) if list(indices) == list(even) else np.array(indices, np.intp)


def observation_names(contract: PolicyContract) -> list[str]:
    """Return a name for each number of the observation, as the contract lays them out."""
    terms = contract.observation.terms
    blocks = [(term, position) for term in terms for position in range(term.history_length)]
    if contract.observation.layout == "frame_major":
        blocks.sort(key=lambda block: block[1])
    return [
        f"{term.name}[{index}]" + (f" of frame {position}" if term.history_length > 1 else "")
        for term, position in blocks
        for index in range(len(term.scale))
    ]
