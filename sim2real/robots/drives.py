"""What lies between a joint's command and the torque on its link, as data; `sim2real.sim.drives` computes it."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["IDEAL", "DcMotor", "Drive", "DriveNetwork", "Friction"]


class DcMotor(msgspec.Struct, frozen=True, kw_only=True):
    """A torque–speed line: what is left of the torque falls linearly from stall to no load, also when braking."""

    stall_effort: float
    """Largest effort at standstill [N·m]; at least the joint's effort limit, which still bounds what is applied."""
    no_load_velocity: float
    """Velocity [rad/s] at which no driving effort is left."""


class Friction(msgspec.Struct, frozen=True, kw_only=True):
    """Friction of the gear, on top of what the MJCF's joint has (`damping`, `frictionloss`)."""

    coulomb: float
    """Effort [N·m] that opposes motion at any velocity."""
    viscous: float
    """Effort per velocity [N·m·s/rad]."""
    static: float
    """Largest effort [N·m] that keeps a resting joint at rest; at least `coulomb`: the Stribeck effect lies between."""
    stribeck_velocity: float
    """Velocity [rad/s] at which the excess of `static` over `coulomb` has fallen to 1/e."""
    load: float
    """Friction per transmitted effort [1]: a gear under load rubs more."""


class DriveNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A learned actuator: an ONNX model from a history of position errors and velocities to effort."""

    path: Path
    """Input ``(batch, 2 · history)``: errors [rad], newest first, then velocities [rad/s]; output ``(batch, 1)`` [N·m]."""
    history: int
    """Physics steps that it looks back, the present one included."""
    error_scale: float
    """Multiplies errors before the network."""
    velocity_scale: float
    """Multiplies velocities before the network."""
    effort_scale: float
    """Multiplies the network's output."""


class Drive(msgspec.Struct, frozen=True, kw_only=True):
    """The drive of one joint. Each part is absent when None, and then costs nothing."""

    motor: DcMotor | None = None
    friction: Friction | None = None
    backlash: float = 0.0
    """Play [rad] between motor and link, from one flank to the other."""
    network: DriveNetwork | None = None
    """Takes the place of the PD law and the motor."""


IDEAL = Drive()
"""PD law and effort limit, nothing else: the engine computes it inside its own step."""
