"""Inertias that stay physically possible however they are varied.

A body's mass, centre of mass and rotational inertia are together its pseudo-inertia

    J = [[Σ, h], [hᵀ, m]],   h = m c,   Σ = ∫ r rᵀ dm = ½ tr(I) 1 − I   (I about the same origin as Σ)

and belong to some distribution of positive mass exactly when J is positive definite (Wensing, Kim and Slotine 2018);
the triangle inequalities of the principal inertias are a part of that. Every positive definite J is, in one way only,

    J = U Uᵀ,   U = e^α [[e^d1, s12, s13, t1], [0, e^d2, s23, t2], [0, 0, e^d3, t3], [0, 0, 0, 1]]

so the ten numbers (α, d1, d2, d3, s12, s23, s13, t1, t2, t3) may have any value: log-Cholesky coordinates (Rucker and
Wensing 2022, "Smooth parameterization of rigid-body inertia").

Randomization multiplies: U' = U_nominal G, with G made of ten coordinates [1] and U_nominal taken along the nominal
principal axes. All ten at 0 leave the body as it is. α alone scales its density: mass and inertia by e^(2α), the centre
of mass stays. d stretch its mass along the axes by e^d, s shear it, and t move the centre of mass, in units of the
mass's root mean square distance from it along each axis. So one small number, e.g. 0.1, is a spread for any body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.randomization import INERTIA, INERTIA_COORDINATES
from sim2real.sim.base import BatchedSim, EnvIds

__all__ = [
    "Inertia",
    "apply_inertia",
    "find_inertia",
    "from_log_cholesky",
    "from_pseudo_inertia",
    "inertia_places",
    "log_cholesky",
    "nominal_inertia",
    "perturbed",
    "pseudo_inertia",
]

Array = npt.NDArray[np.float64]

_NAME: Final = re.compile(re.escape(INERTIA) + r"(?P<body>.+?)(?:\[(?P<index>\d+)\])?")
_UPPER: Final = ((0, 1, 0), (1, 2, 2))
"""Rows and columns of s12, s23, s13 in U."""
_FLAT: Final = 1e-9
"""By what share of their sum principal inertias may break the triangle inequality: a model file's rounding."""


class Inertia(msgspec.Struct, frozen=True, kw_only=True):
    """The inertias of N bodies, as MuJoCo has them."""

    mass: Array
    """`body_mass` [kg], shape (N,)."""
    com: Array
    """`body_ipos`: centre of mass in the body's frame [m], shape (N, 3)."""
    principal: Array
    """`body_inertia`: moments about the principal axes through the centre of mass [kg·m²], shape (N, 3)."""
    quat: Array
    """`body_iquat`: attitude of the principal axes in the body's frame, wxyz, shape (N, 4)."""

    @property
    def matrix(self) -> Array:
        """Rotational inertia about the centre of mass, along the body's axes [kg·m²], shape (N, 3, 3)."""
        axes = _matrix_of(self.quat)
        return np.einsum("nij,nj,nkj->nik", axes, self.principal, axes)


def pseudo_inertia(mass: Array, com: Array, inertia: Array) -> Array:
    """Return J about the body's origin, shape (N, 4, 4).

    Args:
        mass: [kg], shape (N,).
        com: Centre of mass [m], shape (N, 3).
        inertia: Rotational inertia about the centre of mass, along the body's axes [kg·m²], shape (N, 3, 3).
    """
    first = mass[:, None] * com
    pseudo = np.empty((len(mass), 4, 4))
    pseudo[:, :3, :3] = _exchanged(inertia, 0.5) + first[:, :, None] * com[:, None, :]
    pseudo[:, :3, 3] = pseudo[:, 3, :3] = first
    pseudo[:, 3, 3] = mass
    return pseudo


def from_pseudo_inertia(pseudo: Array) -> tuple[Array, Array, Array]:
    """Return what `pseudo_inertia` was given: mass, centre of mass, inertia about it."""
    mass, first = pseudo[:, 3, 3], pseudo[:, :3, 3]
    com = first / mass[:, None]
    return mass, com, _exchanged(pseudo[:, :3, :3] - first[:, :, None] * com[:, None, :], 1.0)


def log_cholesky(pseudo: Array) -> Array:
    """Return the ten coordinates of each J, shape (N, 4, 4) to (N, 10).

    Raises:
        InputError: A J is not positive definite: no body has that inertia.
    """
    try:
        # Cholesky's factor is lower triangular; turned by half a turn, an upper triangular one.
        upper = np.linalg.cholesky(pseudo[:, ::-1, ::-1])[:, ::-1, ::-1]
    except np.linalg.LinAlgError as error:
        raise InputError(
            "inertia: expected a positive definite pseudo-inertia, got one that no body has; its mass must be positive "
            "and its principal moments must obey the triangle inequality"
        ) from error
    scale = upper[:, 3, 3]
    coordinates = np.empty((len(pseudo), INERTIA_COORDINATES))
    coordinates[:, 0] = np.log(scale)
    coordinates[:, 1:4] = np.log(np.diagonal(upper, axis1=1, axis2=2)[:, :3] / scale[:, None])
    coordinates[:, 4:7] = upper[:, _UPPER[0], _UPPER[1]] / scale[:, None]
    coordinates[:, 7:] = upper[:, :3, 3] / scale[:, None]
    return coordinates


def from_log_cholesky(coordinates: Array) -> Array:
    """Return J, shape (N, 10) to (N, 4, 4): positive definite whatever the coordinates."""
    upper = np.zeros((len(coordinates), 4, 4))
    upper[:, :3, :3] = _stretch(coordinates)
    upper[:, :3, 3] = coordinates[:, 7:]
    upper[:, 3, 3] = 1.0
    upper *= np.exp(coordinates[:, 0])[:, None, None]
    return upper @ upper.transpose(0, 2, 1)


def perturbed(nominal: Inertia, coordinates: Array) -> Inertia:
    """Return the inertia J' = U G Gᵀ Uᵀ of a body with J = U Uᵀ, G of the coordinates.

    Args:
        nominal: N bodies, or one for all coordinates.
        coordinates: Shape (N, 10), [1].

    Raises:
        InputError: No body has a nominal inertia.
    """
    extent = _extent(nominal)
    growth = np.exp(2.0 * coordinates[:, 0])
    # About the centre of mass, along the principal axes: U = [[E, 0], [0, √m]] with the diagonal E² = Σ.
    factor = extent[:, :, None] * _stretch(coordinates)
    second = growth[:, None, None] * (factor @ factor.transpose(0, 2, 1))
    shift = extent * coordinates[:, 7:] / np.sqrt(nominal.mass)[:, None]
    values, axes = _principal(second, order=np.argsort(extent, axis=1))
    frame = _matrix_of(nominal.quat)
    return Inertia(
        mass=nominal.mass * growth,
        # Not a matrix product: that of a BLAS depends on how many are multiplied in the last bit.
        com=nominal.com + np.einsum("nij,nj->ni", frame, shift),
        # A moment is the sum of the other two axes' second moments, so no two fall short of the third.
        principal=values[:, [1, 2, 0]] + values[:, [2, 0, 1]],
        quat=_quat_of(frame @ axes),
    )


def find_inertia(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the body and the coordinates that ``inertia/<body>`` or ``inertia/<body>[k]`` stands for.

    Raises:
        InputError: It is no such name, or there is no k-th coordinate.
    """
    match = _NAME.fullmatch(name)
    index = -1 if match is None or match["index"] is None else int(match["index"])
    if match is None or index >= INERTIA_COORDINATES:
        raise InputError(
            f"parameter {name!r}: expected {INERTIA}body, or {INERTIA}body[k] with k from 0 to "
            f"{INERTIA_COORDINATES - 1}"
        )
    return match["body"], tuple(range(INERTIA_COORDINATES)) if index < 0 else (index,)


def inertia_places(body: str) -> tuple[str, ...]:
    """Return the places of a body's mass, centre of mass, principal moments and axes: eleven numbers."""
    widths = {"body_ipos": 3, "body_inertia": 3, "body_iquat": 4}
    return (
        f"body_mass/{body}",
        *(f"{field}/{body}[{index}]" for field, width in widths.items() for index in range(width)),
    )


def nominal_inertia(nominal: Callable[[str], float], body: str) -> Inertia:
    """Return the inertia that a model gives to a body, N = 1.

    Args:
        nominal: What the model holds at a place: `BatchedSim.nominal`.
        body: Name of the body.

    Raises:
        InputError: There is no such body, and the message lists near names; or no body has its inertia.
    """
    values = np.array([nominal(place) for place in inertia_places(body)])[None]
    inertia = Inertia(mass=values[:, 0], com=values[:, 1:4], principal=values[:, 4:7], quat=values[:, 7:])
    _extent(inertia)
    return inertia


def apply_inertia(
    sim: BatchedSim, bodies: Mapping[str, Inertia], coordinates: Mapping[str, Array], env_ids: EnvIds
) -> dict[str, Array]:
    """Give bodies their nominal inertias, varied, in `env_ids`, shape (n,): all bodies in one computation.

    Args:
        sim: The simulation.
        bodies: Name to what `nominal_inertia` gave.
        coordinates: Name to coordinates, shape (n, 10) each; see the module's text.
        env_ids: Which environments, shape (n,).

    Returns:
        What was set: place → shape (n,).

    Raises:
        InputError: There is no such body.
    """
    nominal = _repeated(list(bodies.values()), len(env_ids))
    new = perturbed(nominal, np.concatenate([coordinates[body] for body in bodies]))
    columns = np.column_stack((new.mass, new.com, new.principal, new.quat)).T
    of_bodies = np.split(columns, len(bodies), axis=1)
    done = {
        place: values
        for body, part in zip(bodies, of_bodies, strict=True)
        for place, values in zip(inertia_places(body), part, strict=True)
    }
    for place, values in done.items():
        sim.randomize(place, values, env_ids)
    return done


def _repeated(bodies: Sequence[Inertia], times: int) -> Inertia:
    """Return each body `times` times, the first one first."""

    def column(parts: list[Array]) -> Array:
        return np.repeat(np.concatenate(parts), times, axis=0)

    return Inertia(
        mass=column([body.mass for body in bodies]),
        com=column([body.com for body in bodies]),
        principal=column([body.principal for body in bodies]),
        quat=column([body.quat for body in bodies]),
    )


def _exchanged(matrix: Array, share: float) -> Array:
    """Return share · tr(M) 1 − M: with ½ from I to Σ, with 1 from Σ to I. Shape (N, 3, 3)."""
    trace = np.trace(matrix, axis1=1, axis2=2)
    return share * trace[:, None, None] * np.eye(3) - matrix


def _stretch(coordinates: Array) -> Array:
    """Return the upper triangular matrix of d and s, shape (N, 10) to (N, 3, 3)."""
    stretch = np.zeros((len(coordinates), 3, 3))
    stretch[:, range(3), range(3)] = np.exp(coordinates[:, 1:4])
    stretch[:, _UPPER[0], _UPPER[1]] = coordinates[:, 4:7]
    return stretch


def _extent(body: Inertia) -> Array:
    """Return the roots of the second moments ½ tr(I) − I along the principal axes [√kg·m], shape (N, 3)."""
    total = body.principal.sum(axis=1, keepdims=True)
    second = 0.5 * total - body.principal
    good = (body.mass > 0.0) & (second >= -_FLAT * total).all(axis=1)
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(
            "inertia: expected a positive mass and principal moments of which none exceeds the sum of the others, "
            f"got {body.mass[row]} kg and {body.principal[row].tolist()} kg·m²; mend the model"
        )
    return np.sqrt(np.maximum(second, 0.0))


def _principal(second: Array, order: npt.NDArray[np.intp]) -> tuple[Array, Array]:
    """Return principal second moments, shape (N, 3), and axes as columns, shape (N, 3, 3), right-handed.

    The axes keep to their place and sense as far as they can, so that a small change of the moments turns them little.
    """
    ascending, directions = np.linalg.eigh(second)
    values, axes = np.empty_like(ascending), np.empty_like(directions)
    np.put_along_axis(values, order, np.maximum(ascending, 0.0), axis=1)
    np.put_along_axis(axes, order[:, None, :], directions, axis=2)
    diagonal = np.diagonal(axes, axis1=1, axis2=2)
    axes = axes * np.where(diagonal < 0.0, -1.0, 1.0)[:, None, :]
    handed = np.linalg.det(axes) < 0.0
    least = np.argmin(np.abs(diagonal), axis=1)
    axes[handed, :, least[handed]] *= -1.0
    return values, axes


def _matrix_of(quat: Array) -> Array:
    """Return rotation matrices, shape (N, 4) to (N, 3, 3)."""
    w, x, y, z = quat.T
    rows = (
        (w * w + x * x - y * y - z * z, 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)),
        (2.0 * (x * y + w * z), w * w - x * x + y * y - z * z, 2.0 * (y * z - w * x)),
        (2.0 * (x * z - w * y), 2.0 * (y * z + w * x), w * w - x * x - y * y + z * z),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _quat_of(rotation: Array) -> Array:
    """Return unit quaternions (wxyz) of rotation matrices, shape (N, 3, 3) to (N, 4).

    The matrix 4 q qᵀ follows from R without a division; its row of the largest diagonal element is q times a number
    that is not small.
    """
    r = rotation
    trace = np.trace(r, axis1=1, axis2=2)
    outer = np.empty((len(r), 4, 4))
    outer[:, 0, 0] = 1.0 + trace
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        outer[:, i + 1, i + 1] = 1.0 + 2.0 * r[:, i, i] - trace
        outer[:, 0, i + 1] = outer[:, i + 1, 0] = r[:, k, j] - r[:, j, k]
        outer[:, i + 1, j + 1] = outer[:, j + 1, i + 1] = r[:, i, j] + r[:, j, i]
    largest = np.argmax(np.diagonal(outer, axis1=1, axis2=2), axis=1)
    quat = outer[np.arange(len(r)), largest]
    quat *= np.where(quat[:, :1] < 0.0, -1.0, 1.0)
    return quat / np.linalg.norm(quat, axis=1, keepdims=True)
