"""The ground's height as tasks see it, against an independent interpolation and against MuJoCo's rays."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from sim2real.sim.model import load_model
from sim2real.sim.scene import EMPTY, FLAT, HeightField, Scene
from tests.core.sim_robots import walker

Array = npt.NDArray[np.float64]

ROWS, COLUMNS, SIZE = 6, 9, (4.0, 2.5)


def hilly(seed: int) -> Scene:
    heights = np.random.default_rng(seed).uniform(-0.5, 0.8, (ROWS, COLUMNS)).astype(np.float32)
    return Scene(ground=True, terrain=HeightField(heights=heights, size=SIZE), friction=1.0)


def grid() -> tuple[Array, Array]:
    """Where the samples are along x and y [m]."""
    return np.linspace(-2.0, 2.0, COLUMNS), np.linspace(-1.25, 1.25, ROWS)


points = st.lists(st.tuples(st.floats(-2.0, 2.0), st.floats(-1.25, 1.25)), min_size=1, max_size=20)


@given(seed=st.integers(0, 99), where=points)
def test_heights_between_samples_are_bilinear(seed: int, where: list[tuple[float, float]]) -> None:
    scene, (x, y) = hilly(seed), np.array(where).T
    assert scene.terrain is not None
    along_x, along_y = grid()
    expected = RegularGridInterpolator((along_y, along_x), scene.terrain.heights.astype(np.float64))((y, x))
    # At the far edges the last thousandth of a cell is cut off: 1.3 m × 0.001 at most, twice.
    inside = (x < 1.999) & (y < 1.249)
    found = scene.ground_height(x, y)
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-6)
    np.testing.assert_allclose(found, expected, atol=3e-3)


@given(st.floats(2.0, 1e6), st.floats(-1.25, 1.25), st.sampled_from([-1.0, 1.0]))
def test_beyond_its_edge_the_ground_goes_on_level(far: float, y: float, side: float) -> None:
    scene = hilly(1)
    at, beyond = (scene.ground_height(np.array([side * x]), np.array([y])) for x in (2.0, far))
    np.testing.assert_array_equal(at, beyond)


def test_shapes_are_those_of_the_positions() -> None:
    x, y = np.zeros((3, 1, 2)), np.zeros((4, 1))
    for scene in (EMPTY, FLAT, hilly(0)):
        assert scene.ground_height(x, y).shape == (3, 4, 2)
    assert not FLAT.ground_height(x, y).any()


def test_a_robot_that_is_nowhere_has_some_ground_below_it() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e300])
    assert np.isfinite(hilly(0).ground_height(x, -x)).all()


def test_mujoco_has_the_ground_where_we_say(tmp_path: Path) -> None:
    """At the samples; between them MuJoCo has two triangles to a cell, and we have a curved patch."""
    scene = hilly(3)
    model = load_model(walker(tmp_path), scene)[1]
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(model, data)

    def ray(x: float, y: float) -> float:
        start, geom = 5.0, np.zeros(1, np.int32)
        down = np.array([0.0, 0.0, -1.0])
        distance = mujoco.mj_ray(model, data, np.array([x, y, start]), down, None, 1, -1, geom)
        assert model.geom(geom[0]).name == "ground"
        return start - distance

    assert scene.terrain is not None
    heights = scene.terrain.heights
    along_x, along_y = grid()
    for row in range(1, ROWS - 1):
        for column in range(1, COLUMNS - 1):
            x, y = along_x[column] + 1e-7, along_y[row] + 1e-7
            assert abs(ray(x, y) - heights[row, column]) < 1e-5
            assert abs(ray(x, y) - scene.ground_height(np.array([x]), np.array([y]))[0]) < 1e-5
            corners = heights[row : row + 2, column : column + 2]
            assert corners.min() - 1e-6 <= ray(x + 0.2, y + 0.3) <= corners.max() + 1e-6
