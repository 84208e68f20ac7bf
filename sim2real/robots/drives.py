"""What lies between a joint's command and the torque on its link, as data; `sim2real.sim.drives` computes it.

A rotor's inertia belongs to the MJCF's joint (`armature`): the engine moves rotor and link as one, and randomizes it as
`dof_armature/<joint>`. A drive names it a second time, as `Drive.rotor_inertia`, only where a part needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError

__all__ = ["IDEAL", "PARAMETERS", "DcMotor", "Drive", "DriveNetwork", "Friction", "check_parameter"]

PARAMETERS: Final[dict[str, Literal["> 0", ">= 0", ">= 0 and < 1", "!= 0"]]] = {
    "effort_limit": "> 0",
    "rotor_inertia": "> 0",
    "motor.stall_effort": "> 0",
    "motor.no_load_velocity": "> 0",
    "friction.coulomb": ">= 0",
    "friction.viscous": ">= 0",
    "friction.static": ">= 0",
    "friction.stribeck_velocity": "> 0",
    "friction.load": ">= 0 and < 1",
    "backlash": ">= 0",
    "network.error_scale": "!= 0",
    "network.velocity_scale": "!= 0",
    "network.effort_scale": "!= 0",
}
"""Every number of a joint's drive, by the name under which it is randomized: what is allowed beside being finite."""


def check_parameter(name: str, values: float | npt.NDArray[np.float64]) -> None:
    """Check one or more values of a parameter of `PARAMETERS`.

    Raises:
        InputError: A value is not finite or not allowed.
    """
    array = np.asarray(values, np.float64)
    allowed = PARAMETERS[name]
    tests = {">": array > 0.0, ">=": array >= 0.0, "<": array < 1.0, "!=": array != 0.0}
    good = np.isfinite(array)
    for clause in allowed.split(" and "):
        good &= tests[clause.split()[0]]
    if not good.all():
        raise InputError(f"drive.{name}: expected finite and {allowed}, got {array[~good].flat[0]}")


class DcMotor(msgspec.Struct, frozen=True, kw_only=True):
    """A torque–speed line: what is left of the driving torque falls linearly from stall to no load.

    Braking keeps the whole effort limit. Above the no-load velocity the line goes on below zero: there the voltage
    cannot overcome the back-EMF, and the motor brakes whatever is commanded.
    """

    stall_effort: float
    """Driving effort at standstill [N·m]; the joint's effort limit, which is often lower, bounds it as well."""
    no_load_velocity: float
    """Velocity [rad/s] at which no driving effort is left."""

    def __post_init__(self) -> None:
        check_parameter("motor.stall_effort", self.stall_effort)
        check_parameter("motor.no_load_velocity", self.no_load_velocity)


class Friction(msgspec.Struct, frozen=True, kw_only=True):
    """Friction of the gear, on top of what the MJCF's joint has (`damping`, `frictionloss`).

    Where Coulomb and viscous friction are all there is, those two are the better place: the engine's solver knows every
    load on the joint. See `sim2real.sim.drive_parts.GearFriction` for what is computed here.
    """

    coulomb: float
    """Effort [N·m] that opposes motion at any velocity."""
    viscous: float
    """Effort per velocity [N·m·s/rad]."""
    static: float
    """Largest effort [N·m] that keeps a resting joint at rest; at least `coulomb`: the Stribeck effect lies between."""
    stribeck_velocity: float
    """Velocity [rad/s] at which the excess of `static` over `coulomb` has fallen to 1/e."""
    load: float
    """Friction per effort of the motor [1]: a gear under load rubs more. Below 1: the motor could not turn it."""

    def __post_init__(self) -> None:
        for name in ("coulomb", "viscous", "static", "stribeck_velocity", "load"):
            check_parameter(f"friction.{name}", getattr(self, name))
        if self.static < self.coulomb:
            raise InputError(
                f"drive.friction.static: expected at least coulomb ({self.coulomb} N·m), got {self.static}"
            )


class DriveNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A learned actuator: an ONNX model from a history of position errors and velocities to effort."""

    path: Path
    """One float32 input ``(batch, 2 · history)`` of any name, its batch free: position errors (target − position,
    [rad]), newest first, then velocities [rad/s], newest first; one float32 output ``(batch, 1)`` [N·m]."""
    history: int
    """Physics steps that it looks back, the present one included; before an episode's first, the first is repeated."""
    error_scale: float
    """Multiplies errors before the network."""
    velocity_scale: float
    """Multiplies velocities before the network."""
    effort_scale: float
    """Multiplies the network's output."""

    def __post_init__(self) -> None:
        if self.history < 1:
            raise InputError(f"drive.network.history: expected at least 1, got {self.history}")
        for name in ("error_scale", "velocity_scale", "effort_scale"):
            check_parameter(f"network.{name}", getattr(self, name))


class Drive(msgspec.Struct, frozen=True, kw_only=True):
    """The drive of one joint. A part is absent when None; what no joint of a robot has costs nothing."""

    motor: DcMotor | None = None
    friction: Friction | None = None
    backlash: float = 0.0
    """Play [rad] between motor and link, from one flank to the other."""
    network: DriveNetwork | None = None
    """Takes the place of the PD law and the motor; a command's effort is added to what it gives."""
    rotor_inertia: float | None = None
    """Inertia [kg·m²] of the rotor, reflected to the joint: part of the MJCF joint's `armature`.

    Needed by friction and backlash. A joint without armature may give friction any inertia up to the smallest that the
    joint has in any pose.
    """

    def __post_init__(self) -> None:
        check_parameter("backlash", self.backlash)
        if self.rotor_inertia is not None:
            check_parameter("rotor_inertia", self.rotor_inertia)
        elif self.friction is not None or self.backlash > 0.0:
            raise InputError("drive.rotor_inertia: friction and backlash need it, got none; give the joint's armature")
        if self.network is not None and self.motor is not None:
            raise InputError("drive: expected a motor or a network, which takes the motor's place, got both")

    @property
    def ideal(self) -> bool:
        """Whether it is the PD law and the effort limit, and nothing else."""
        return self.motor is None and self.friction is None and self.backlash == 0.0 and self.network is None


IDEAL = Drive()
"""PD law and effort limit, nothing else: the engine computes it inside its own step."""
