"""Generated ground: what is promised of each patch, and of where episodes begin."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.robots import get_robot
from sim2real.sim.model import load_model
from sim2real.sim.scene import Scene
from sim2real.tasks.go2_velocity import TERRAIN
from sim2real.tasks.terrain import KINDS, PATCH, RESOLUTION, Terrain, blocks, rough, slope, stairs

Array = npt.NDArray[np.float64]
Kind = Callable[[np.random.Generator, float], Array]

SAMPLES = 80
"""Of a patch's side."""
seeds = st.integers(0, 2**32 - 1)
difficulties = st.floats(0.0, 1.0)


def patch_of(terrain: Terrain, level: int, column: int, *, around: int = 0) -> npt.NDArray[np.float32]:
    """Cut a patch out of the field, with some samples of its neighbours around it."""
    half = SAMPLES // 2
    top, left = half + column * SAMPLES, half + level * SAMPLES
    rows, columns = (slice(start - around, start + SAMPLES + around) for start in (top, left))
    return terrain.field.heights[rows, columns]


def steepest(heights: npt.NDArray[np.floating]) -> float:
    """Largest difference [m] of two neighbouring samples."""
    return float(max(np.abs(np.diff(heights, axis=axis)).max() for axis in (0, 1)))


@given(seeds, difficulties, st.sampled_from(KINDS))
def test_a_patch_has_a_level_platform_and_ends_at_the_height_of_its_neighbours(
    seed: int, difficulty: float, kind: Kind
) -> None:
    """Whoever walks off it meets no cliff, but at most the unevenness of the patch itself."""
    heights = kind(np.random.default_rng(seed), difficulty)
    assert heights.shape == (SAMPLES, SAMPLES)
    middle = SAMPLES // 2
    platform = heights[middle - 10 : middle + 10, middle - 10 : middle + 10]
    assert platform.min() == platform.max()
    edges = np.concatenate((heights[0], heights[-1], heights[:, 0], heights[:, -1]))
    uneven: dict[Kind, float] = {slope: 0.0, stairs: 0.0, rough: 0.00625 + 0.035 * difficulty, blocks: 0.1 * difficulty}
    assert np.abs(edges).max() <= uneven[kind]


@given(seeds, difficulties)
def test_each_kind_is_as_steep_as_it_says(seed: int, difficulty: float) -> None:
    def made(kind: Kind) -> Array:
        return kind(np.random.default_rng(seed), difficulty)

    assert steepest(made(slope)) == pytest.approx(0.4 * difficulty * RESOLUTION, abs=1e-9)
    assert np.abs(made(slope)).max() == pytest.approx(0.4 * difficulty * 2.95, abs=1e-9)
    riser = 0.02 + 0.1 * difficulty
    levels = np.abs(np.unique(np.round(made(stairs) / riser, 6)))
    assert sorted(levels.tolist()) == list(range(9))
    np.testing.assert_allclose(made(stairs) / riser, np.round(made(stairs) / riser), atol=1e-9)
    assert np.abs(made(rough)).max() <= 0.00625 + 0.035 * difficulty
    np.testing.assert_allclose(made(rough) / 0.0025, np.round(made(rough) / 0.0025), atol=1e-9)
    assert np.abs(made(blocks)).max() <= 0.1 * difficulty


@settings(max_examples=20)
@given(seeds)
def test_the_next_level_is_harder(seed: int) -> None:
    """Of the same draws: every height of every patch grows with the difficulty."""
    for kind in KINDS:
        roughness = [np.std(kind(np.random.default_rng(seed), difficulty)) for difficulty in np.linspace(0.0, 1.0, 6)]
        assert (np.diff(roughness) > 0.0).all()


def test_levels_rise_along_x_and_kinds_along_y() -> None:
    spread = np.array([[np.std(patch_of(TERRAIN, level, column)) for column in range(8)] for level in range(6)])
    assert (np.diff(spread.mean(axis=1)) > 0.0).all()
    # Where nothing is drawn but a sign it is so in each column.
    assert (np.diff(spread[:, [0, 2, 4, 6]], axis=0) > 0.0).all()
    assert spread[0, [0, 3, 4, 7]].tolist() == [0.0] * 4
    for level in range(6):
        risers = {round(steepest(patch_of(TERRAIN, level, column)), 5) for column in (2, 6)}
        assert risers == {round(0.02 + 0.1 * level / 5, 5)}


def test_nowhere_is_a_step_that_no_patch_is_meant_to_have() -> None:
    """The borders between patches included; two blocks of 10 cm, one up and one down, may lie side by side."""
    assert steepest(TERRAIN.field.heights) <= 0.2
    for level, column in np.ndindex(6, 8):
        if column % 4 != 3:
            riser = 0.02 + 0.1 * level / 5
            assert steepest(patch_of(TERRAIN, level, column, around=1)) <= riser + 0.12


def test_around_it_lies_level_ground() -> None:
    heights = TERRAIN.field.heights
    border = np.ones(heights.shape, np.bool_)
    border[40:-40, 40:-40] = False
    assert not heights[border].any()
    assert TERRAIN.field.size == pytest.approx((55.9, 71.9))


def test_the_same_seed_is_the_same_ground() -> None:
    again, other = (Terrain(levels=6, columns=8, seed=seed) for seed in (0, 1))
    assert np.array_equal(again.field.heights, TERRAIN.field.heights)
    assert not np.array_equal(other.field.heights, TERRAIN.field.heights)


@given(seed=seeds, levels=st.integers(1, 3), columns=st.integers(1, 5), wanted=st.lists(st.integers(0, 2), min_size=1))
@settings(max_examples=20)
def test_episodes_begin_in_the_middle_of_a_patch_of_their_level(
    seed: int, levels: int, columns: int, wanted: list[int]
) -> None:
    terrain = Terrain(levels=levels, columns=columns, seed=seed % 5)
    scene = Scene(ground=True, terrain=terrain.field, friction=1.0)
    level = np.minimum(np.array(wanted), levels - 1)
    origin = terrain.origin(np.random.default_rng(seed), level)
    assert origin.shape == (len(level), 2)
    from_corner = (origin + np.array(terrain.field.size) / 2.0 + RESOLUTION / 2.0) / PATCH - 0.5
    np.testing.assert_allclose(from_corner[:, 0], level + 0.5)
    column = from_corner[:, 1] - 0.5
    np.testing.assert_allclose(column, np.round(column), atol=1e-9)
    for place, row, number in zip(origin, level, np.round(column).astype(int), strict=True):
        assert 0 <= number < columns
        heights = patch_of(terrain, int(row), int(number))
        x, y = (place + np.random.default_rng(seed).uniform(-0.9, 0.9, (10, 2))).T
        found = scene.ground_height(x, y)
        np.testing.assert_allclose(found, heights[SAMPLES // 2, SAMPLES // 2], atol=1e-6)


def test_all_patches_of_a_level_are_used() -> None:
    origin = TERRAIN.origin(np.random.default_rng(0), np.full(200, 3))
    assert len(np.unique(origin[:, 1])) == 8


def test_mujoco_has_the_ground_where_tasks_see_it() -> None:
    """Its own rays, at samples all over the field, and at the places where episodes begin."""
    scene = Scene(ground=True, terrain=TERRAIN.field, friction=1.0)
    model = load_model(get_robot("go2"), scene)[1]
    data = mujoco.MjData(model)
    data.qpos[:3] = 0.0, 0.0, 90.0
    mujoco.mj_forward(model, data)
    rng = np.random.default_rng(0)
    rows, columns = TERRAIN.field.heights.shape
    row, column = rng.integers(1, rows - 1, 200), rng.integers(1, columns - 1, 200)
    samples = np.stack((column - 0.5 * (columns - 1), row - 0.5 * (rows - 1)), axis=1) * RESOLUTION
    origins = TERRAIN.origin(rng, rng.integers(0, 6, 30))
    for x, y in np.concatenate((samples, origins)) + 1e-6:
        geom = np.zeros(1, np.int32)
        distance = mujoco.mj_ray(model, data, np.array([x, y, 5.0]), np.array([0.0, 0.0, -1.0]), None, 1, -1, geom)
        assert model.geom(geom[0]).name == "ground"
        # A step is as wide as a cell: up to 20 cm of height over 10 cm, of which this is 1 µm away from the sample.
        assert 5.0 - distance == pytest.approx(scene.ground_height(np.array([x]), np.array([y]))[0], abs=1e-5)
