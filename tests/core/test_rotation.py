"""Rotations of many vectors against scipy's, whose formulas are others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.transform import Rotation

from sim2real.sim.rotation import rotate, rotate_inverse, unit, yaw_of

Array = npt.NDArray[np.float64]

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
vectors = hnp.arrays(np.float64, (5, 3), elements=numbers)
quaternions = (
    hnp.arrays(np.float64, (5, 4), elements=st.floats(-1.0, 1.0, allow_subnormal=False))
    .filter(lambda q: bool((np.linalg.norm(q, axis=1) > 0.1).all()))
    .map(lambda q: np.asarray(q / np.linalg.norm(q, axis=1, keepdims=True)))
)
TOLERANCE = 1e-11
"""Of components up to 1000: some thirty roundings of 2e-16 each."""


def of(quat: Array) -> Rotation:
    return Rotation.from_quat(quat, scalar_first=True)


@given(quaternions, vectors)
def test_body_to_world(quat: Array, vector: Array) -> None:
    np.testing.assert_allclose(rotate(quat, vector), of(quat).apply(vector), atol=TOLERANCE)


@given(quaternions, vectors)
def test_world_to_body_and_back(quat: Array, vector: Array) -> None:
    inside = rotate_inverse(quat, vector)
    np.testing.assert_allclose(inside, of(quat).apply(vector, inverse=True), atol=TOLERANCE)
    np.testing.assert_allclose(rotate(quat, inside), vector, atol=TOLERANCE)


@given(quaternions)
def test_the_heading_is_where_the_x_axis_points_on_the_ground(quat: Array) -> None:
    forward = of(quat).apply(np.array([1.0, 0.0, 0.0]))
    level = np.linalg.norm(forward[:, :2], axis=1) > 1e-3  # straight up it points nowhere
    difference = yaw_of(quat) - np.arctan2(forward[:, 1], forward[:, 0])
    np.testing.assert_allclose(np.exp(1j * difference[level]), 1.0, atol=1e-9)


@given(st.floats(-3.14, 3.14), st.floats(-1.5, 1.5), st.floats(-3.14, 3.14))
def test_neither_pitch_nor_roll_turns_the_heading(yaw: float, pitch: float, roll: float) -> None:
    quat = Rotation.from_euler("ZYX", [[yaw, pitch, roll]]).as_quat(scalar_first=True)
    np.testing.assert_allclose(yaw_of(quat), yaw, atol=1e-9)


@given(st.sampled_from([3, 4]), st.data())
def test_a_unit_vector_has_length_one_and_the_same_direction(width: int, data: st.DataObject) -> None:
    long_enough = hnp.arrays(np.float64, (5, width), elements=numbers).filter(
        lambda v: bool((np.linalg.norm(v, axis=1) > 1e-3).all())
    )
    given_vectors = data.draw(long_enough)
    of_length_one = unit(given_vectors)
    np.testing.assert_allclose(np.linalg.norm(of_length_one, axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(
        of_length_one * np.linalg.norm(given_vectors, axis=1, keepdims=True), given_vectors, atol=TOLERANCE
    )
