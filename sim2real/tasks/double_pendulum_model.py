"""Closed forms of the double pendulum: its energy, and what it costs to bring it to rest upright.

Both links are rigid and swing in one plane, joints have neither friction nor rotors.
State: x = (q₁ − π, q₂, q̇₁, q̇₂), upright at rest where it is 0.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.robots.double_pendulum import ROBOT
from sim2real.sim.scene import EMPTY

__all__ = ["NOMINAL", "TIP", "DoublePendulum", "measured"]

Array = npt.NDArray[np.float64]

TIP: Final = "tip"
"""Site at the end of the lower link."""
GRAVITY: Final = 9.81
"""[m/s²]"""
_CLOSE: Final = 0.01
"""How far another arm may be from these closed forms, over the largest of what is compared."""


class DoublePendulum(NamedTuple):
    """What the motion of one depends on; q = 0 hangs, and the lower link's angle is relative to the upper one."""

    inertias: tuple[float, float]
    """I₁ + m₁ r₁² + m₂ l₁² and I₂ + m₂ r₂² [kg·m²]."""
    bent: float
    """m₂ l₁ r₂ [kg·m²]: couples both links."""
    weights: tuple[float, float]
    """(m₁ r₁ + m₂ l₁) g and m₂ r₂ g [N·m]: moment of each link, held out level."""
    lengths: tuple[float, float]
    """l₁ from shoulder to elbow, l₂ from elbow to tip [m]."""

    def energy(self, joint_pos: Array, joint_vel: Array) -> Array:
        """Return kinetic and potential energy over that of standing upright: 0 at rest hanging, 1 at rest upright.

        E = ½ (I₁ + m₁ r₁² + m₂ l₁²) q̇₁² + ½ (I₂ + m₂ r₂²) (q̇₁ + q̇₂)² + m₂ l₁ r₂ cos q₂ q̇₁ (q̇₁ + q̇₂)
            + (m₁ r₁ + m₂ l₁) g (1 − cos q₁) + m₂ r₂ g (1 − cos(q₁ + q₂))

        Args:
            joint_pos: Shoulder and elbow [rad], shape (N, 2).
            joint_vel: Their velocities [rad/s], shape (N, 2).
        """
        first, second = joint_vel[:, 0], joint_vel.sum(axis=1)
        kinetic = 0.5 * (self.inertias[0] * first**2 + self.inertias[1] * second**2)
        kinetic += self.bent * np.cos(joint_pos[:, 1]) * first * second
        upper, lower = self.weights
        potential = upper * (1.0 - np.cos(joint_pos[:, 0])) + lower * (1.0 - np.cos(joint_pos.sum(axis=1)))
        return (kinetic + potential) / (2.0 * sum(self.weights))

    def mass_matrix(self, elbow: float) -> Array:
        """Return M, shape (2, 2), where the elbow is bent by so much [rad]."""
        bent = self.bent * math.cos(elbow)
        lower = self.inertias[1] + bent
        return np.array([[self.inertias[0] + lower + bent, lower], [lower, self.inertias[1]]])

    def moments(self, shoulder: float, elbow: float) -> Array:
        """Return what gravity turns the joints back by [N·m], shape (2,)."""
        lower = self.weights[1] * math.sin(shoulder + elbow)
        return np.array([self.weights[0] * math.sin(shoulder) + lower, lower])

    def heights(self, shoulder: float, elbow: float) -> Array:
        """Return how far elbow and tip are above the shoulder [m], shape (2,)."""
        upper = -self.lengths[0] * math.cos(shoulder)
        return np.array([upper, upper - self.lengths[1] * math.cos(shoulder + elbow)])

    def linearised(self, driven: int) -> tuple[Array, Array]:
        """Return A and B of ẋ = A x + B τ about upright, τ [N·m] being at joint `driven`: 0 shoulder, 1 elbow."""
        # M(0) q̈ = G x + e τ;  M and the stiffness G of gravity in relative angles.
        mass, weights = self.mass_matrix(0.0), self.weights
        gravity = np.array([[sum(weights), weights[1]], [weights[1], weights[1]]])
        a, b = np.zeros((4, 4)), np.zeros((4, 1))
        a[:2, 2:] = np.eye(2)
        a[2:, :2] = np.linalg.solve(mass, gravity)
        b[2:, 0] = np.linalg.solve(mass, np.eye(2)[driven])
        return a, b

    def cost_to_stand(self, driven: int) -> Array:
        """Return P, shape (4, 4): xᵀ P x is the least cost ∫ |q − upright|² + 0.1 s² |q̇|² + τ² / (N·m)² dt from x on.

        P solves the Riccati equation Aᵀ P + P A − P B Bᵀ P + Q = 0: its columns come from the Hamiltonian's stable
        eigenvectors. Source: Laub, "A Schur method for solving algebraic Riccati equations" (1979), here with
        eigenvectors.
        """
        a, b = self.linearised(driven)
        weights = np.diag([1.0, 1.0, 0.1, 0.1])
        values, vectors = np.linalg.eig(np.block([[a, -b @ b.T], [-weights, -a.T]]))
        stable = vectors[:, np.real(values) < 0.0]
        cost = np.real(stable[4:] @ np.linalg.inv(stable[:4]))
        return 0.5 * (cost + cost.T)


def _nominal() -> DoublePendulum:
    length, centres = 0.2, (0.2, 0.25569305436052964)
    upper, lower = (ROBOT.parameter(f"{link}_mass").nominal for link in ("upper", "lower"))
    return DoublePendulum(
        inertias=(
            ROBOT.parameter("upper_inertia").nominal + upper * centres[0] ** 2 + lower * length**2,
            ROBOT.parameter("lower_inertia").nominal + lower * centres[1] ** 2,
        ),
        bent=lower * length * centres[1],
        weights=(GRAVITY * (upper * centres[0] + lower * length), GRAVITY * lower * centres[1]),
        lengths=(length, 0.3),
    )


NOMINAL: Final = _nominal()
"""The robot `double_pendulum` with its datasheet's values."""


def measured(robot: Robot) -> DoublePendulum:
    """Return the closed form of another arm, from the inertias and moments that its MJCF has in a few poses.

    Args:
        robot: Its joints are shoulder and elbow.

    Raises:
        InputError: It is no double pendulum: two hinges about one horizontal axis that hang at rest at 0, and a site
            `TIP` at the end of the lower link, straight below both.
    """
    # Loads MuJoCo, without which the arm that ships with the toolkit can be named and described.
    import mujoco

    from sim2real.sim.model import load_model

    model = load_model(robot, EMPTY)[1]
    if model.nv != 2 or not (model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE).all():
        raise InputError(f"robot {robot.name}: expected a double pendulum: two hinges and no joint beside them")
    if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, TIP) < 0:
        raise InputError(f"robot {robot.name}: expected a site named {TIP!r} at the end of the lower link")
    data = mujoco.MjData(model)

    def at(shoulder: float, elbow: float) -> tuple[Array, Array, Array]:
        """Return the mass matrix, what gravity turns the joints back by [N·m], and heights of elbow and tip [m]."""
        data.qpos[:] = shoulder, elbow
        mujoco.mj_forward(model, data)
        mass = np.zeros((2, 2))
        for column in range(2):
            mujoco.mj_mulM(model, data, mass[column], np.eye(2)[column])
        heights = np.array([data.xanchor[1, 2], data.site(TIP).xpos[2]]) - data.xanchor[0, 2]
        return mass, data.qfrc_bias.copy(), heights

    stretched, _, (elbow, tip) = at(0.0, 0.0)
    folded = at(0.0, math.pi)[0]
    level, moments, _ = at(0.5 * math.pi, 0.5 * math.pi)
    arm = DoublePendulum(
        inertias=(float(level[0, 0] - level[1, 1]), float(level[1, 1])),
        bent=0.25 * float(stretched[0, 0] - folded[0, 0]),
        weights=(float(moments[0] - moments[1]), float(at(0.0, 0.5 * math.pi)[1][1])),
        lengths=(-float(elbow), float(elbow - tip)),
    )
    pose = (0.7, -1.9)
    expected = (arm.mass_matrix(pose[1]), arm.moments(*pose), arm.heights(*pose))
    pairs = list(zip(expected, at(*pose), strict=True))
    hangs = min(*arm.weights, *arm.lengths) > 0.0
    if not hangs or any(np.abs(one - other).max() > _CLOSE * np.abs(other).max() for one, other in pairs):
        raise InputError(
            f"robot {robot.name}: expected a double pendulum whose hinges turn about one horizontal axis, with both "
            f"links and the site {TIP!r} straight down at 0 rad; turn their frames in the MJCF"
        )
    return arm
