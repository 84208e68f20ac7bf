"""Inertias: whatever is drawn is a body that could be built, and MuJoCo takes it for the one that was meant."""

from __future__ import annotations

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.sim.inertia import (
    Inertia,
    from_log_cholesky,
    from_pseudo_inertia,
    log_cholesky,
    perturbed,
    pseudo_inertia,
)

Array = npt.NDArray[np.float64]


def numbers(count: int, size: float) -> st.SearchStrategy[Array]:
    return st.lists(st.floats(-size, size), min_size=count, max_size=count).map(np.array)


@st.composite
def bodies(draw: st.DrawFn) -> Inertia:
    """Return a body of some point masses in general position, as MuJoCo would hold it; anything from 1 g to 100 kg."""
    mass = 10.0 ** draw(st.floats(-3.0, 2.0))
    extent = 10.0 ** (draw(st.floats(-2.0, 0.0)) + draw(numbers(3, 1.0)))
    second = mass * np.square(extent)
    quat = draw(numbers(4, 1.0).filter(lambda q: float(np.linalg.norm(q)) > 0.1))
    return Inertia(
        mass=np.array([mass]),
        com=draw(numbers(3, 0.5))[None],
        principal=(second.sum() - second)[None],
        quat=quat[None] / np.linalg.norm(quat),
    )


def pseudo_of(body: Inertia) -> Array:
    return pseudo_inertia(body.mass, body.com, body.matrix)


def scale_of(body: Inertia) -> Array:
    """What each element of J is measured in: U's rows have these lengths. Shape (4, 4)."""
    lengths = np.sqrt(np.diagonal(pseudo_of(body)[0]))
    return np.outer(lengths, lengths)


@given(bodies())
def test_mass_centre_and_inertia_survive_the_pseudo_inertia(body: Inertia) -> None:
    mass, com, inertia = from_pseudo_inertia(pseudo_of(body))
    np.testing.assert_allclose(mass, body.mass, rtol=1e-14)
    np.testing.assert_allclose(com, body.com, rtol=1e-14, atol=1e-16)
    # What lies far from the origin has a large J; its own inertia is a small difference of it.
    np.testing.assert_allclose(inertia, body.matrix, atol=1e-10 * float(pseudo_of(body)[0].trace()))


@given(numbers(10, 2.0))
def test_coordinates_survive_the_pseudo_inertia_and_make_a_body(coordinates: Array) -> None:
    pseudo = from_log_cholesky(coordinates[None])
    assert np.linalg.eigvalsh(pseudo)[0, 0] > 0.0
    np.testing.assert_allclose(log_cholesky(pseudo)[0], coordinates, atol=1e-10)
    mass, _, inertia = from_pseudo_inertia(pseudo)
    assert mass[0] > 0.0
    first, second, third = np.linalg.eigvalsh(inertia)[0]
    assert first + second >= third


@given(bodies())
def test_a_body_survives_its_coordinates(body: Inertia) -> None:
    pseudo = pseudo_of(body)
    again = from_log_cholesky(log_cholesky(pseudo))
    np.testing.assert_allclose((again - pseudo)[0] / scale_of(body), 0.0, atol=1e-10)


@given(bodies(), numbers(10, 1.0))
def test_what_is_drawn_could_be_built(body: Inertia, coordinates: Array) -> None:
    drawn = perturbed(body, coordinates[None])
    assert drawn.mass[0] > 0.0
    assert (drawn.principal > 0.0).all()
    total = drawn.principal[0].sum()
    assert (2.0 * drawn.principal[0] <= total * (1.0 + 1e-12)).all()
    assert np.linalg.norm(drawn.quat[0]) == pytest.approx(1.0, abs=1e-12)


@given(bodies(), numbers(10, 1.0))
def test_a_draw_is_the_product_of_the_factors(body: Inertia, coordinates: Array) -> None:
    """J' = U G Gᵀ Uᵀ with U along the nominal principal axes, written out with plain matrices."""
    mass, frame = float(body.mass[0]), np.eye(4)
    axes = np.empty(9)
    mujoco.mju_quat2Mat(axes, body.quat[0])
    frame[:3, :3], frame[:3, 3] = axes.reshape(3, 3), body.com[0]
    second = 0.5 * body.principal[0].sum() - body.principal[0]
    # A frame that is moved and turned by (R, c) sees J as T J Tᵀ with T = [[R, c], [0, 1]].
    upper = frame @ np.diag(np.sqrt([*second, mass]))
    expected = upper @ from_log_cholesky(coordinates[None])[0] @ upper.T
    drawn = perturbed(body, coordinates[None])
    np.testing.assert_allclose((pseudo_of(drawn)[0] - expected) / scale_of(drawn), 0.0, atol=1e-10)


@given(bodies())
def test_nothing_drawn_is_nothing_changed(body: Inertia) -> None:
    drawn = perturbed(body, np.zeros((3, 10)))
    np.testing.assert_allclose(drawn.mass, np.repeat(body.mass, 3), rtol=1e-15)
    np.testing.assert_array_equal(drawn.com, np.repeat(body.com, 3, axis=0))
    np.testing.assert_allclose(drawn.matrix[2], body.matrix[0], atol=1e-12 * body.principal.max())
    np.testing.assert_allclose(drawn.principal[1], body.principal[0], atol=1e-12 * body.principal.max())


@given(bodies(), st.floats(-1.0, 1.0))
def test_density_alone_scales_everything(body: Inertia, density: float) -> None:
    drawn = perturbed(body, np.array([[density] + [0.0] * 9]))
    factor = np.exp(2.0 * density)
    np.testing.assert_allclose(drawn.mass, body.mass * factor, rtol=1e-12)
    np.testing.assert_array_equal(drawn.com, body.com)
    np.testing.assert_allclose(drawn.matrix, body.matrix * factor, atol=1e-12 * body.principal.max() * factor)


def test_the_last_three_move_the_centre_of_mass_by_shares_of_the_extent() -> None:
    body = Inertia(
        mass=np.array([2.0]),
        com=np.array([[0.1, 0.0, 0.0]]),
        principal=2.0 * np.array([[0.04 + 0.09, 0.01 + 0.09, 0.01 + 0.04]]),  # extents 0.1, 0.2, 0.3 m
        quat=np.array([[1.0, 0.0, 0.0, 0.0]]),
    )
    drawn = perturbed(body, np.array([[0.0] * 7 + [0.5, 0.5, -0.5]]))
    np.testing.assert_allclose(drawn.com, [[0.15, 0.1, -0.15]], rtol=1e-12)
    np.testing.assert_allclose(drawn.matrix, body.matrix, atol=1e-15)


def test_many_are_drawn_at_once_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    body = perturbed(
        Inertia(
            mass=np.ones(1),
            com=np.ones((1, 3)),
            principal=np.array([[3.0, 4.0, 5.0]]),
            quat=np.array([[0.6, 0.8, 0.0, 0.0]]),
        ),
        rng.normal(size=(1, 10)) * 0.3,
    )
    coordinates = rng.uniform(-0.5, 0.5, (100, 10))
    together = perturbed(body, coordinates)
    for row in range(100):
        alone = perturbed(body, coordinates[row : row + 1])
        for field in ("mass", "com", "principal", "quat"):
            np.testing.assert_array_equal(getattr(together, field)[row], getattr(alone, field)[0])


@pytest.mark.parametrize("moments", [(0.0, 0.0, 0.0), (0.02, 0.02, 0.0), (0.01, 0.02, 0.03)])
def test_points_rods_and_plates_are_bodies_too(moments: tuple[float, float, float]) -> None:
    body = Inertia(
        mass=np.ones(1), com=np.zeros((1, 3)), principal=np.array([moments]), quat=np.array([[1.0, 0.0, 0.0, 0.0]])
    )
    drawn = perturbed(body, np.full((1, 10), 0.1))
    assert np.isfinite(drawn.quat).all()
    assert (2.0 * drawn.principal[0] <= drawn.principal[0].sum() * (1.0 + 1e-12)).all()


def test_what_no_body_has_is_refused() -> None:
    broken = Inertia(
        mass=np.ones(1), com=np.zeros((1, 3)), principal=np.array([[1.0, 1.0, 2.1]]), quat=np.array([[1.0, 0, 0, 0]])
    )
    with pytest.raises(InputError, match=r"none exceeds the sum of the others, got 1\.0 kg and \[1\.0, 1\.0, 2\.1\]"):
        perturbed(broken, np.zeros((1, 10)))
    with pytest.raises(InputError, match="expected a positive definite pseudo-inertia"):
        log_cholesky(pseudo_of(broken))


@given(bodies(), bodies(), numbers(10, 1.0))
def test_different_bodies_are_varied_at_once(first: Inertia, second: Inertia, coordinates: Array) -> None:
    both = Inertia(
        mass=np.concatenate((first.mass, second.mass)),
        com=np.concatenate((first.com, second.com)),
        principal=np.concatenate((first.principal, second.principal)),
        quat=np.concatenate((first.quat, second.quat)),
    )
    drawn = perturbed(both, np.stack((coordinates, -coordinates)))
    for row, (body, sign) in enumerate(((first, 1.0), (second, -1.0))):
        alone = perturbed(body, sign * coordinates[None])
        for field in ("mass", "com", "principal", "quat"):
            np.testing.assert_array_equal(getattr(drawn, field)[row], getattr(alone, field)[0])
