"""Closed forms of the double pendulum: its energy, and what it costs to bring it to rest upright.

Masses and inertias are the nominal ones of the robot; both links are rigid, joints have neither friction nor rotors.
State: x = (q₁ − π, q₂, q̇₁, q̇₂), upright at rest where it is 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.robots.double_pendulum import ROBOT

__all__ = ["UPPER_LENGTH", "cost_to_stand", "energy"]

Array = npt.NDArray[np.float64]

UPPER_LENGTH: Final = 0.2
"""From shoulder to elbow [m]."""
CENTRES: Final = (0.2, 0.25569305436052964)
"""Distance [m] of each link's centre of mass from the joint that it hangs on."""
GRAVITY: Final = 9.81
"""[m/s²]"""

_UPPER, _LOWER = (ROBOT.parameter(f"{link}_mass").nominal for link in ("upper", "lower"))
_BENT: Final = _LOWER * UPPER_LENGTH * CENTRES[1]
"""m₂ l₁ r₂ [kg·m²]: couples both links."""
_INERTIAS: Final = (
    ROBOT.parameter("upper_inertia").nominal + _UPPER * CENTRES[0] ** 2 + _LOWER * UPPER_LENGTH**2,
    ROBOT.parameter("lower_inertia").nominal + _LOWER * CENTRES[1] ** 2,
)
"""I₁ + m₁ r₁² + m₂ l₁² and I₂ + m₂ r₂² [kg·m²]."""
_WEIGHTS: Final = (GRAVITY * (_UPPER * CENTRES[0] + _LOWER * UPPER_LENGTH), GRAVITY * _LOWER * CENTRES[1])
"""(m₁ r₁ + m₂ l₁) g and m₂ r₂ g [N·m]: moment of each link, held out level."""


def energy(joint_pos: Array, joint_vel: Array) -> Array:
    """Return kinetic and potential energy over that of standing upright: 0 at rest hanging, 1 at rest upright.

    E = ½ (I₁ + m₁ r₁² + m₂ l₁²) q̇₁² + ½ (I₂ + m₂ r₂²) (q̇₁ + q̇₂)² + m₂ l₁ r₂ cos q₂ q̇₁ (q̇₁ + q̇₂)
        + (m₁ r₁ + m₂ l₁) g (1 − cos q₁) + m₂ r₂ g (1 − cos(q₁ + q₂))

    Args:
        joint_pos: Shoulder and elbow [rad], shape (N, 2).
        joint_vel: Their velocities [rad/s], shape (N, 2).
    """
    first, second = joint_vel[:, 0], joint_vel.sum(axis=1)
    kinetic = 0.5 * (_INERTIAS[0] * first**2 + _INERTIAS[1] * second**2)
    kinetic += _BENT * np.cos(joint_pos[:, 1]) * first * second
    potential = _WEIGHTS[0] * (1.0 - np.cos(joint_pos[:, 0])) + _WEIGHTS[1] * (1.0 - np.cos(joint_pos.sum(axis=1)))
    return (kinetic + potential) / (2.0 * sum(_WEIGHTS))


def linearised(driven: int) -> tuple[Array, Array]:
    """Return A and B of ẋ = A x + B τ about upright, for a torque τ [N·m] at joint `driven`: 0 shoulder, 1 elbow."""
    # M(0) q̈ = G x + e τ;  M and the stiffness G of gravity in relative angles.
    lower = _INERTIAS[1] + _BENT
    mass = np.array([[_INERTIAS[0] + lower + _BENT, lower], [lower, _INERTIAS[1]]])
    gravity = np.array([[sum(_WEIGHTS), _WEIGHTS[1]], [_WEIGHTS[1], _WEIGHTS[1]]])
    a, b = np.zeros((4, 4)), np.zeros((4, 1))
    a[:2, 2:] = np.eye(2)
    a[2:, :2] = np.linalg.solve(mass, gravity)
    b[2:, 0] = np.linalg.solve(mass, np.eye(2)[driven])
    return a, b


def cost_to_stand(driven: int) -> Array:
    """Return P, shape (4, 4): xᵀ P x is the least cost ∫ |q − upright|² + 0.1 s² |q̇|² + τ² / (N·m)² dt from x on.

    P solves the Riccati equation Aᵀ P + P A − P B Bᵀ P + Q = 0: its columns come from the Hamiltonian's stable
    eigenvectors. Source: Laub, "A Schur method for solving algebraic Riccati equations" (1979), here with eigenvectors.
    """
    a, b = linearised(driven)
    weights = np.diag([1.0, 1.0, 0.1, 0.1])
    values, vectors = np.linalg.eig(np.block([[a, -b @ b.T], [-weights, -a.T]]))
    stable = vectors[:, np.real(values) < 0.0]
    cost = np.real(stable[4:] @ np.linalg.inv(stable[:4]))
    return 0.5 * (cost + cost.T)
