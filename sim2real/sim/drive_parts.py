"""The parts of a drive, each for all environments and joints at once: torque–speed line, friction, backlash.

Arrays are (N, J). A joint that lacks a part has parameters under which the part changes no bit of its effort. What is
allocated is allocated once; nothing loops over environments or joints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.robots.drives import Drive

__all__ = ["Backlash", "GearFriction", "MotorLimit", "spread"]

Array = npt.NDArray[np.float64]

_AT_REST: Final = 1e-3
"""Part of the breakaway effort that would stop within a step a joint that counts as resting."""


def spread(values: Sequence[float], num_envs: int) -> Array:
    """Return one value per joint for each environment, shape (N, J)."""
    return np.tile(np.array(values, np.float64), (num_envs, 1))


class MotorLimit:
    """The torque–speed line of a DC motor under a limited voltage, cut at the effort limit.

    With stall effort S, no-load velocity v₀ and effort limit L, an effort u at velocity v becomes
    ``clip(u, clip(−S (1 + v/v₀), −L, L), clip(S (1 − v/v₀), −L, L))``: τ = Kt/R (V − Ke v) for −V_max ≤ V ≤ V_max with
    S = Kt V_max / R and v₀ = V_max / Ke (MuJoCo, "DC Motor Model", eq. 2; as in Isaac Lab's `DCMotor`).

    Attributes:
        parameters: Live randomizable values.
        state: Nothing.
    """

    def __init__(self, drives: Sequence[Drive], num_envs: int) -> None:
        motors = [drive.motor for drive in drives]
        self._stall = spread([np.inf if motor is None else motor.stall_effort for motor in motors], num_envs)
        self._no_load = spread([np.inf if motor is None else motor.no_load_velocity for motor in motors], num_envs)
        self.parameters = {"motor.stall_effort": self._stall, "motor.no_load_velocity": self._no_load}
        self.state: dict[str, Array] = {}
        self._ratio = np.empty_like(self._stall)
        self._bound = np.empty_like(self._stall)

    def derive(self) -> None:
        """Nothing follows from the parameters."""

    def apply(self, velocity: Array, floor: Array, limit: Array, effort: Array) -> None:
        """Limit `effort` in place; `floor` is −L and `limit` L. All shapes (N, J)."""
        np.divide(velocity, self._no_load, out=self._ratio)
        np.subtract(1.0, self._ratio, out=self._bound)
        self._clip_bound(floor, limit)
        np.minimum(effort, self._bound, out=effort)
        np.subtract(-1.0, self._ratio, out=self._bound)
        self._clip_bound(floor, limit)
        np.maximum(effort, self._bound, out=effort)

    def _clip_bound(self, floor: Array, limit: Array) -> None:
        self._bound *= self._stall
        np.minimum(self._bound, limit, out=self._bound)
        np.maximum(self._bound, floor, out=self._bound)


class GearFriction:
    """Coulomb, viscous, Stribeck and load-dependent friction with true stiction.

    What friction can give at most, at velocity v and motor effort u, is

        G = coulomb + viscous |v| + (static − coulomb) exp(−(v / stribeck_velocity)²) + load |u|

    (Armstrong-Hélouvry, Dupont, Canudas de Wit, "A survey of models, analysis tools and compensation methods for the
    control of machines with friction", 1994; load term and the use of G as one budget: Duclusaud, Passault, Padois, Ly,
    "Extended friction models for the physics simulation of servo actuators", 2024, model M4 with its Stribeck part
    independent of load). What it does give is what stops the joint, as far as G reaches, so that it never drives it:

        s_k = f_{k−1} + I/dt (2 v_k − v_{k−1}) + [held] (u_k − u_{k−1})
        f_k = clip(s_k, −G, G)          effort on the joint: u_k − f_k
        held: |s_{k−1}| ≤ G_{k−1}, and v_k (u_k − u_{k−1}) ≥ 0 or I/dt |v_k| is under a thousandth of the breakaway

    Why so. To stop a joint of inertia M under a load d within the step takes f = M v_k/dt + u_k + d. The load (gravity,
    contact, other joints) is known only from the last step, d = M (v_k − v_{k−1})/dt − u_{k−1} + f_{k−1}; the sum is
    the first line with I = M. A sliding joint thus stops dead in the step in which it would have reversed, and friction
    takes up every change of the motor's effort on a resting one at once: it stays exactly where it is. One that moves
    is not held against efforts that slow it down, or friction would undo the damping of the control loop.

    Summed up over steps, f is a spring of stiffness I/dt² with a damper I/dt that slips at G: an elastoplastic bristle
    (Dupont, Hayward, Armstrong, Altpeter, "Single state elastoplastic friction models", 2002), which neither creeps
    under a load below breakaway, as Dahl's and LuGre's do, nor needs the velocity band of Karnopp's (Olsson, Åström,
    Canudas de Wit, Gäfvert, Lischinsky, "Friction models and friction compensation", 1998). A load that comes up moves
    the joint by about d dt²/I before it is held. With I = 0.01 kg·m², 1 N·m and 2 ms that is 0.4 mrad; an inertia that
    is much too small makes the joint ring on its bristles.

    I need not be M. With r = I/M a stuck joint follows z² − 2 (1 − r) z + (1 − r) = 0, stable for 0 < r < 4/3; with
    several joints, r are the eigenvalues of M⁻¹ diag(I). A rotor's inertia is contained in the armature on M's
    diagonal, so that r ≤ 1 in every pose. Friction is bounded by what stops the joint, viscous friction included: no
    value of any parameter makes it unstable.

    Attributes:
        parameters: Live randomizable values. `static` below `coulomb` counts as equal to it.
        state: Live state of the episode.
    """

    def __init__(self, drives: Sequence[Drive], inertia: Array, dt: float) -> None:
        num_envs = len(inertia)
        parts = [drive.friction for drive in drives]
        self._coulomb = spread([0.0 if part is None else part.coulomb for part in parts], num_envs)
        self._viscous = spread([0.0 if part is None else part.viscous for part in parts], num_envs)
        self._static = spread([0.0 if part is None else part.static for part in parts], num_envs)
        self._velocity = spread([1.0 if part is None else part.stribeck_velocity for part in parts], num_envs)
        self._load = spread([0.0 if part is None else part.load for part in parts], num_envs)
        self.parameters = {
            "friction.coulomb": self._coulomb,
            "friction.viscous": self._viscous,
            "friction.static": self._static,
            "friction.stribeck_velocity": self._velocity,
            "friction.load": self._load,
        }
        self._inertia = inertia
        self._dt = dt
        self._held = np.zeros_like(inertia)
        self._stuck = np.ones(inertia.shape, np.bool_)
        self._last_velocity = np.zeros_like(inertia)
        self.state: dict[str, Array | npt.NDArray[np.bool_]] = {
            "friction.held": self._held,
            "friction.stuck": self._stuck,
            "friction.last_velocity": self._last_velocity,
        }
        self._excess = np.empty_like(inertia)
        self._inertia_over_dt = np.empty_like(inertia)
        self._stop = np.empty_like(inertia)
        self._budget = np.empty_like(inertia)
        self._term = np.empty_like(inertia)
        self._rest_velocity = np.empty_like(inertia)
        self._mask = np.empty(inertia.shape, np.bool_)
        self._slow = np.empty(inertia.shape, np.bool_)
        self.derive()

    def derive(self) -> None:
        """Compute what follows from the parameters."""
        np.subtract(self._static, self._coulomb, out=self._excess)
        np.maximum(self._excess, 0.0, out=self._excess)
        np.divide(self._inertia, self._dt, out=self._inertia_over_dt)
        np.maximum(self._static, self._coulomb, out=self._rest_velocity)
        self._rest_velocity *= _AT_REST
        self._rest_velocity /= self._inertia_over_dt
        self._has_excess = bool(self._excess.any())
        self._has_load = bool(self._load.any())

    def start(self, rows: npt.NDArray[np.bool_], velocity: Array) -> None:
        """Begin an episode in the environments of the mask `rows`, shape (N,)."""
        self._held[rows] = 0.0
        self._stuck[rows] = True
        self._last_velocity[rows] = velocity[rows]

    def forget_jump(self, where: npt.NDArray[np.bool_], velocity: Array) -> None:
        """Take the change of velocity at `where`, shape (N, J), for an impact rather than for the effect of a load."""
        np.copyto(self._last_velocity, velocity, where=where)

    def apply(self, velocity: Array, last_effort: Array, effort: Array) -> None:
        """Subtract friction from the motor's `effort` in place.

        Args:
            velocity: Of the rotors, shape (N, J).
            last_effort: Of the motors in the step before; becomes this step's.
            effort: Of the motors in this step, then what they leave for the link.
        """
        self._compute_budget(velocity, effort)
        np.subtract(effort, last_effort, out=self._term)
        self._find_held(velocity)
        np.multiply(velocity, 2.0, out=self._stop)
        self._stop -= self._last_velocity
        self._stop *= self._inertia_over_dt
        self._stop += self._held
        self._term *= self._mask
        self._stop += self._term
        np.minimum(self._stop, self._budget, out=self._held)
        np.negative(self._budget, out=self._budget)
        np.maximum(self._held, self._budget, out=self._held)
        np.equal(self._held, self._stop, out=self._stuck)
        np.copyto(self._last_velocity, velocity)
        np.copyto(last_effort, effort)
        effort -= self._held

    def _find_held(self, velocity: Array) -> None:
        """Find where friction takes up the change of the motor's effort, which is in `_term`."""
        np.multiply(self._term, velocity, out=self._stop)
        np.greater_equal(self._stop, 0.0, out=self._mask)
        np.absolute(velocity, out=self._stop)
        np.less_equal(self._stop, self._rest_velocity, out=self._slow)
        self._mask |= self._slow
        self._mask &= self._stuck

    def _compute_budget(self, velocity: Array, effort: Array) -> None:
        np.absolute(velocity, out=self._budget)
        self._budget *= self._viscous
        self._budget += self._coulomb
        if self._has_excess:
            np.divide(velocity, self._velocity, out=self._term)
            np.square(self._term, out=self._term)
            np.negative(self._term, out=self._term)
            np.exp(self._term, out=self._term)
            self._term *= self._excess
            self._budget += self._term
        if self._has_load:
            np.absolute(effort, out=self._term)
            self._term *= self._load
            self._budget += self._term


class Backlash:
    """Play between the rotor and the link: a gap in which no effort is transmitted.

    The rotor has a position and a velocity of its own within the gap, p and w; the link's are q and v. PD law, motor
    and friction act on the rotor, where most robots have their encoder. With half gap h and rotor inertia I:

    - In contact (c = ±1) the rotor rides on the flank, p = q + c h, w = v, and its effort goes to the link. It leaves
      the flank when its effort pulls away from it, c u < 0.
    - In the gap its effort moves the rotor alone and the link feels none:
      w += dt u / (I + dt (kd + dt kp)), p += dt w: linearly implicit in the PD law, because a loop that is tuned for
      the whole link would be unstable on the bare rotor.
    - It lands when |p − q| ≥ h. The impact is plastic, as in the limit of a stiff damped mesh (Nordin, Gutman,
      "Controlling mechanical systems with backlash: a survey", 2002): the link gets the rotor's momentum relative to
      it, as the effort I (w − v)/dt in that one step.

    Rotor and link are one inertia to the engine (`armature`) also in the gap: what a link gains in inertia there is the
    price of an engine that stays as stable as without backlash. A gap of 0 changes no bit.

    Attributes:
        parameters: Live randomizable values.
        state: Live state of the episode.
        position: Of the rotors [rad].
        velocity: Of the rotors [rad/s].
        landed: Where the rotor met a flank in this step, shape (N, J).
    """

    def __init__(self, drives: Sequence[Drive], inertia: Array, dt: float) -> None:
        self._gap = spread([drive.backlash for drive in drives], len(inertia))
        self.parameters = {"backlash": self._gap}
        self._inertia = inertia
        self._dt = dt
        self._contact = np.zeros_like(inertia)
        self.position = np.zeros_like(inertia)
        self.velocity = np.zeros_like(inertia)
        self.state = {
            "backlash.contact": self._contact,
            "backlash.position": self.position,
            "backlash.velocity": self.velocity,
        }
        self.landed = np.zeros(inertia.shape, np.bool_)
        self._mask = np.zeros(inertia.shape, np.bool_)
        self._plays = np.zeros(inertia.shape, np.bool_)
        self._half = np.empty_like(inertia)
        self._impact = np.empty_like(inertia)
        self._term = np.empty_like(inertia)
        self.derive()

    def derive(self) -> None:
        """Compute what follows from the parameters."""
        np.multiply(self._gap, 0.5, out=self._half)
        np.greater(self._gap, 0.0, out=self._plays)

    def start(self, rows: npt.NDArray[np.bool_], joint_pos: Array, joint_vel: Array) -> None:
        """Begin an episode in the environments of the mask `rows`, shape (N,): amid the gap, moving with the link."""
        self._contact[rows] = 0.0
        self.position[rows] = joint_pos[rows]
        self.velocity[rows] = joint_vel[rows]

    def meet(self, joint_pos: Array, joint_vel: Array) -> None:
        """Make `position` and `velocity` the rotor's now, given the link's, and find who lands."""
        np.subtract(self.position, joint_pos, out=self._term)
        np.absolute(self._term, out=self._impact)
        np.greater_equal(self._impact, self._half, out=self.landed)
        np.equal(self._contact, 0.0, out=self._mask)
        self.landed &= self._mask
        np.copysign(1.0, self._term, out=self._term)
        np.copyto(self._contact, self._term, where=self.landed)
        self._take_momentum(joint_vel)
        np.not_equal(self._contact, 0.0, out=self._mask)
        np.multiply(self._contact, self._half, out=self._term)
        self._term += joint_pos
        np.copyto(self.position, self._term, where=self._mask)
        np.copyto(self.velocity, joint_vel, where=self._mask)

    def _take_momentum(self, joint_vel: Array) -> None:
        """Compute the impact's effort: no flank pulls, so a rotor that is caught up with gives nothing."""
        np.subtract(self.velocity, joint_vel, out=self._impact)
        self._impact *= self._inertia
        self._impact /= self._dt
        np.multiply(self._impact, self._contact, out=self._term)
        np.greater(self._term, 0.0, out=self._mask)
        self._mask &= self.landed
        self._impact *= self._mask

    def transmit(self, kp: Array, kd: Array, effort: Array) -> None:
        """Move rotors in the gap by `effort`, then make it, in place, what the link feels. All shapes (N, J)."""
        np.multiply(self._contact, effort, out=self._term)
        np.less(self._term, 0.0, out=self._mask)
        self._mask &= self._plays
        np.copyto(self._contact, 0.0, where=self._mask)
        np.equal(self._contact, 0.0, out=self._mask)
        self._move_rotor(kp, kd, effort)
        np.copyto(effort, 0.0, where=self._mask)
        effort += self._impact

    def _move_rotor(self, kp: Array, kd: Array, effort: Array) -> None:
        """Advance the rotors of `_mask`, which are in the gap."""
        np.multiply(kp, self._dt, out=self._term)
        self._term += kd
        self._term *= self._dt
        self._term += self._inertia
        np.divide(effort, self._term, out=self._term)
        self._term *= self._dt
        self._term *= self._mask
        self.velocity += self._term
        np.multiply(self.velocity, self._dt, out=self._term)
        self._term *= self._mask
        self.position += self._term

    def read(self, joint_pos: Array, joint_vel: Array) -> None:
        """Turn the link's position and velocity into the rotor's in place, after the engine's step."""
        np.subtract(self.position, joint_pos, out=self._term)
        np.negative(self._half, out=self._impact)
        np.minimum(self._term, self._half, out=self._term)
        np.maximum(self._term, self._impact, out=self._term)
        np.equal(self._contact, 0.0, out=self._mask)
        self._mask ^= True
        np.multiply(self._contact, self._half, out=self._impact)
        np.copyto(self._term, self._impact, where=self._mask)
        joint_pos += self._term
        # On a flank, or just reaching it, the rotor moves with the link.
        np.absolute(self._term, out=self._term)
        np.less(self._term, self._half, out=self._mask)
        np.copyto(joint_vel, self.velocity, where=self._mask)
