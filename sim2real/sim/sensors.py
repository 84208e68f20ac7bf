"""Errors of real sensors, as data and as arithmetic on measurement vectors.

The order of effects is that of the hardware: a sensor is *mounted* askew or its zero is off, so it sees another
quantity; it then adds its *bias* and *noise*; its converter *quantises* the sum; and the bus now and then *drops* the
finished sample, so that the last one stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from sim2real.errors import InputError

__all__ = ["SensorSpec", "SignalErrors"]


class SignalErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one signal, in its unit; each element has its own. 0: that error is absent, and costs nothing.

    Attitudes are no vectors: errors of ``base_quat`` are rotations about the body's axes [rad], and ``base_quat`` and
    ``projected_gravity`` keep unit length (before quantisation).
    """

    noise: float = 0.0
    """Standard deviation of the white noise in each sample."""
    bias: float = 0.0
    """A constant offset, drawn per episode from ± this, uniformly."""
    bias_walk: float = 0.0
    """The offset walks at random: its standard deviation grows by this after one second [unit/√s]."""
    step: float = 0.0
    """Distance of the values that the sensor can tell apart; a value becomes the nearest multiple of it."""
    dropout: float = 0.0
    """Probability per control step that the last value is repeated, for each joint or, elsewhere, the whole signal."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("noise", "bias", "bias_walk", "step"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InputError(f"sensor.{name}: expected a finite number >= 0, got {getattr(self, name)}")
        if not 0.0 <= self.dropout <= 1.0:
            raise InputError(f"sensor.dropout: expected a probability from 0 to 1, got {self.dropout}")


class SensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of all sensors of a robot."""

    signals: Mapping[str, SignalErrors]
    """By name, of `sim2real.signals.SIGNALS`; a signal that is not here is exact but for what follows."""
    imu_tilt: float = 0.0
    """The IMU is turned in its mount about a random axis by up to this [rad], drawn per episode; all signals of the
    base turn with it, consistently."""
    encoder_offset: float = 0.0
    """The zero of each joint's encoder is off by up to ± this [rad], drawn per episode. The joint's own position
    control reads the same encoder, so position targets are off by the same."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("imu_tilt", "encoder_offset"):
            if not 0.0 <= getattr(self, name) <= math.pi:
                raise InputError(f"sensor.{name}: expected 0 to π rad, got {getattr(self, name)}")
