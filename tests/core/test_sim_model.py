"""What `load_model` makes of MJCFs: own actuators, the scene's ground, feet that feel, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION
from sim2real.robots import Robot
from sim2real.sim.model import GROUND, load_model
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import EMPTY, FLAT, HeightField, Scene
from tests.core.sim_robots import WALKER, robot, walker

GRAVITY = 9.81
FOREIGN = """
<mujoco model="foreign">
  <option timestep="0.002"/>
  <default>
    <general ctrlrange="-1 1" forcerange="-3 3" gear="7" biastype="affine" biasprm="1 2 3"/>
    <geom contype="0" conaffinity="0" condim="6" friction="0.1 0.1 0.1"/>
  </default>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" contype="2"/>
    <body name="arm" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" actuatorfrcrange="-2 2"/>
      <geom name="bob" size="0.1" pos="0 0 -0.3" mass="1"/>
      <body name="hand" pos="0 0 -0.6">
        <joint name="wrist" axis="0 1 0"/>
        <geom name="palm" size="0.05" mass="0.2" contype="0" conaffinity="2"/>
      </body>
    </body>
  </worldbody>
  <contact><pair name="touch" geom1="floor" geom2="bob" friction="0.3 0.3 0.1 0.1 0.1"/></contact>
  <actuator>
    <position name="servo" joint="shoulder" kp="5" gear="3" armature="0.1" damping="0.2"/>
    <motor name="spare" joint="wrist"/>
    <motor name="wrist" joint="shoulder"/>
  </actuator>
  <sensor><actuatorfrc name="torque" actuator="servo"/><jointpos name="angle" joint="shoulder"/></sensor>
  <keyframe><key name="home" qpos="0.3 0" ctrl="0.3 0 0"/></keyframe>
</mujoco>
"""


def foreign(folder: Path) -> Robot:
    return robot(folder, FOREIGN, "wrist", "shoulder", feet=("bob",))


def scene(heights: npt.NDArray[np.float32], size: tuple[float, float]) -> Scene:
    return Scene(ground=True, terrain=HeightField(heights=heights, size=size), friction=1.0)


def test_actuators_are_the_robots_own_whatever_the_file_had(tmp_path: Path) -> None:
    _, model = load_model(foreign(tmp_path), EMPTY, dt=0.001, effort_limits=[4.0, 9.0])
    assert [model.actuator(number).name for number in range(model.nu)] == ["wrist", "shoulder"]
    assert [int(model.actuator_trnid[number, 0]) for number in range(2)] == [1, 0]
    assert model.actuator_gear[:, 0].tolist() == [1.0, 1.0]
    assert model.actuator_gainprm[:, 0].tolist() == [1.0, 1.0]
    assert not model.actuator_biasprm.any()
    assert not model.actuator_ctrllimited.any()
    assert model.actuator_forcerange.tolist() == [[-4.0, 4.0], [-9.0, 9.0]]
    assert not model.jnt_actfrclimited.any()
    assert model.opt.timestep == 0.001
    assert model.nkey == 0
    # Rotor inertia acts through the gear, squared.
    np.testing.assert_allclose(model.actuator_armature, [0.0, 0.9])
    np.testing.assert_allclose(model.actuator_damping, [0.0, 1.8])


def test_the_effort_limit_is_the_only_limit(tmp_path: Path) -> None:
    sim = MujocoSim(foreign(tmp_path), 1)
    command = np.zeros((1, 5, 2))
    command[0, EFFORT] = [15.0, -50.0]
    sim.set_command(command)
    sim.step()
    assert sim.joint_effort.tolist() == [[15.0, -20.0]]
    assert sim.sensor("torque").tolist() == [[-20.0]]


def test_the_scenes_ground_takes_the_place_of_the_files_floor(tmp_path: Path) -> None:
    _, model = load_model(foreign(tmp_path), Scene(ground=True, terrain=None, friction=0.7))
    planes = [number for number in range(model.ngeom) if model.geom_type[number] == mujoco.mjtGeom.mjGEOM_PLANE]
    assert [model.geom(number).name for number in planes] == [GROUND]
    ground = model.geom(GROUND)
    assert ground.friction.tolist() == [0.7, 0.005, 0.0001]
    assert (ground.contype.item(), ground.conaffinity.item()) == (2, 0)  # it meets what the old floor met
    assert [int(model.pair_geom1[0]), int(model.pair_geom2[0])] == [model.geom(GROUND).id, model.geom("bob").id]


def test_without_ground_the_files_world_stays(tmp_path: Path) -> None:
    _, model = load_model(foreign(tmp_path), EMPTY)
    assert mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, GROUND) < 0
    assert model.geom("floor").type == mujoco.mjtGeom.mjGEOM_PLANE


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(2, 9), st.booleans())
def test_a_height_field_lies_where_the_scene_says(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, columns: int, level: bool
) -> None:
    """A ray from above meets the ground at `ground_height` between two samples along x or y.

    Inside a cell MuJoCo has two triangles where `ground_height` is bilinear. Heights are float32.
    """
    rng = np.random.default_rng(seed)
    heights = rng.uniform(-0.5, 0.7, (rows, columns)).astype(np.float32)
    if level:
        heights[:] = heights[0, 0]
    terrain = scene(heights, (3.0, 2.0))
    folder = tmp_path_factory.mktemp("terrain")
    _, model = load_model(robot(folder, WALKER, "left", "right", base="floating"), terrain)
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(model, data)
    column, row = rng.integers(columns - 1), rng.integers(rows - 1)
    along = rng.uniform(0.05, 0.95)
    for u, v in ((along, 1e-6), (1e-6, along)):
        x = np.array(3.0 * ((column + u) / (columns - 1) - 0.5))
        y = np.array(2.0 * ((row + v) / (rows - 1) - 0.5))
        geom = np.zeros(1, np.int32)
        start = np.array([float(x), float(y), 5.0])
        distance = mujoco.mj_ray(model, data, start, np.array([0.0, 0.0, -1.0]), None, 1, -1, geom)
        assert int(geom[0]) == model.geom(GROUND).id
        expected = float(terrain.ground_height(x, y))
        assert 5.0 - distance == pytest.approx(expected, abs=1e-5)


def test_feet_bear_the_robots_weight(tmp_path: Path) -> None:
    """Settled on stiff legs with its feet apart: the forces on the feet add up to m g, and are equal by symmetry."""
    quadruped = WALKER.replace('pos="0 0 -0.25"', 'pos="0.1 0 -0.25"').replace(
        '<site name="imu"', '<geom name="tail" type="sphere" size="0.03" pos="-0.1 0 -0.25"/><site name="imu"'
    )
    feet = ("left_foot", "right_foot", "tail")
    sim = MujocoSim(robot(tmp_path, quadruped, "left", "right", base="floating", feet=feet), 2, scene=FLAT)
    command = np.zeros((2, 5, 2))
    command[:, POSITION], command[:, KP], command[:, KD] = 0.0, 400.0, 10.0
    sim.set_command(command)
    sim.qpos[:, 2] = 0.28
    sim.step(1000)
    force = sim.feet_force
    assert force.shape == (2, 3)
    # Contacts are springs and dampers: 5 s later what is left of the fall is far below a millinewton.
    np.testing.assert_allclose(force.sum(axis=1), 5.0 * GRAVITY, rtol=1e-4)
    np.testing.assert_allclose(force[:, 0], force[:, 1], rtol=1e-4)
    assert np.all(force[:, 2] > 10.0)
    sim.qpos[:, 2] += 1.0
    sim.refresh()
    assert np.all(sim.feet_force == 0.0)


def test_feet_and_sites_are_where_kinematics_says(tmp_path: Path) -> None:
    """A foot hangs 0.25 m below its hip; turned by q about y it is at (−0.25 sin q, ±0.1, z − 0.25 cos q)."""
    sim = MujocoSim(walker(tmp_path), 3, scene=FLAT)
    q = np.array([0.0, 0.4, -1.1])
    sim.qpos[:, 2], sim.qpos[:, 7], sim.qpos[:, 8] = 2.0, q, -q
    sim.refresh()
    expected = np.stack((-0.25 * np.sin(q), np.full(3, 0.1), 2.0 - 0.25 * np.cos(q)), axis=1)
    np.testing.assert_allclose(sim.feet_pos[:, 0], expected, atol=1e-12)
    np.testing.assert_allclose(sim.feet_pos[:, 1], expected * [-1.0, -1.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(sim.site_pos("imu"), [[0.1, 0.0, 2.05]] * 3, atol=1e-12)


def test_feet_may_be_bodies(tmp_path: Path) -> None:
    feet = ("left_leg", "right_leg")
    sim = MujocoSim(robot(tmp_path, WALKER, "left", "right", base="floating", feet=feet), 1, scene=FLAT)
    sim.qpos[:, 2] = 0.28
    sim.refresh()
    np.testing.assert_allclose(sim.feet_pos[0], [[0.0, 0.1, 0.28], [0.0, -0.1, 0.28]], atol=1e-12)
    sim.qpos[:, 2] = 0.279
    sim.refresh()
    assert np.all(sim.feet_force > 0.0)


@pytest.mark.parametrize(
    ("xml", "joints", "feet", "message"),
    [
        ("<mujoco><wheel/></mujoco>", ("left",), (), r"robot tiny: .*robot\.xml: .*wheel"),
        (WALKER, ("left", "middle"), (), "no joint named 'middle'; add it"),
        (WALKER, ("left", "base"), (), "joint 'base': expected a hinge or a slide"),
        (WALKER, ("left", "right"), ("left_foot", "paw"), "foot 'paw': no geom or body of that name"),
        (WALKER, ("left", "right"), ("left_foot", "right_leg"), "expected geoms or bodies, got both"),
        (FOREIGN, ("wrist", "shoulder"), (), "base is floating, but the first joint of .* is no free joint"),
    ],
)
def test_a_file_that_does_not_fit_the_robot_is_refused_in_one_line(
    tmp_path: Path, xml: str, joints: tuple[str, ...], feet: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        MujocoSim(robot(tmp_path, xml, *joints, base="floating", feet=feet), 1)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    lost = walker(tmp_path)
    lost.mjcf.unlink()
    with pytest.raises(InputError, match=r"robot tiny: .*robot\.xml"):
        MujocoSim(lost, 1)
