"""The vocabulary of signals: what a robot measures, with width, unit and frame.

A robot, a plant and a trainer exchange *measurements* as one flat float64 vector. Its layout follows from the contract
alone (`SignalLayout`), so nobody downstream types an index or an order again.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["SIGNALS", "Signal", "SignalName", "width_of"]

SignalName = str


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of measurement. A `per_joint` signal has one value for each joint of the contract, in its order."""

    name: SignalName
    per_joint: bool
    width: int
    """Values per robot, or per joint when `per_joint`."""
    unit: str
    frame: str
    """Frame in which the values are expressed: ``joint``, ``body`` (the base link) or ``world``."""
    meaning: str


def _signal(name: str, width: int, unit: str, frame: str, meaning: str, *, per_joint: bool = False) -> Signal:
    return Signal(name=name, per_joint=per_joint, width=width, unit=unit, frame=frame, meaning=meaning)


SIGNALS: Final[dict[SignalName, Signal]] = {
    signal.name: signal
    for signal in (
        _signal("joint_pos", 1, "rad", "joint", "Joint position.", per_joint=True),
        _signal("joint_vel", 1, "rad/s", "joint", "Joint velocity.", per_joint=True),
        _signal("joint_effort", 1, "N·m", "joint", "Joint effort as the actuator estimates it.", per_joint=True),
        _signal("base_quat", 4, "1", "world", "Orientation of the base link, wxyz, rotating body into world vectors."),
        _signal("base_ang_vel", 3, "rad/s", "body", "Angular velocity of the base link (gyroscope)."),
        _signal("base_lin_vel", 3, "m/s", "body", "Linear velocity of the base link (an estimate)."),
        _signal("base_lin_acc", 3, "m/s²", "body", "Specific force at the base link (accelerometer)."),
        _signal("projected_gravity", 3, "1", "body", "Unit vector of gravity seen from the base link."),
    )
}
"""Every signal that a contract may name."""


def width_of(name: SignalName, num_joints: int) -> int:
    """Return how many values the signal `name` has on a robot with `num_joints` joints."""
    signal = SIGNALS[name]
    return num_joints if signal.per_joint else signal.width
