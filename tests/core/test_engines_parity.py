"""One robot, three engines, the same motion.

MuJoCo computes in float64, the other two in float32 (eps = 6e-8). Motions here are not chaotic: gains hold the joints,
or they swing below the horizontal. So a rounding error of a step decays or adds up like a random walk, to eps √steps =
1e-6 of a state of order 1 over 200 steps; the bounds in the air leave a factor of 10. On the ground, errors of force
come in from solvers that stop at a tolerance of 1e-6 of their own scale, and a foot that touches a rounding error
earlier is pushed a step earlier: ten times that. Terrain has a test of its own: of a geom's contacts with
it, MuJoCo Warp takes at most 4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sim2real.layout import KD, KP, POSITION
from sim2real.robots import Robot, get_robot
from sim2real.sim.base import BatchedSim
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import EMPTY, FLAT, HeightField, Scene
from tests.core.sim_robots import robot as tiny_robot
from tests.core.sim_robots import walker

pytest.importorskip("mujoco_warp")
from sim2real.sim.mujoco_warp import MujocoWarpSim

Array = npt.NDArray[np.float64]
Engine = Callable[[Robot, int, Scene], BatchedSim]

CONTROL_STEPS, DECIMATION, NUM_ENVS = 50, 4, 3
IN_THE_AIR = (1e-5, 1e-4)  # rad, m and rad/s, m/s
ON_THE_GROUND = (1e-4, 1e-3)


def mujoco_warp(robot: Robot, num_envs: int, scene: Scene) -> BatchedSim:
    return MujocoWarpSim(robot, num_envs, scene=scene, device="cpu")


def newton(robot: Robot, num_envs: int, scene: Scene) -> BatchedSim:
    pytest.importorskip("newton")
    from sim2real.sim.newton import NewtonSim

    return NewtonSim(robot, num_envs, scene=scene, device="cpu")


ENGINES = pytest.mark.parametrize("engine", [mujoco_warp, newton])


def targets(robot: Robot, kp: float, kd: float) -> Array:
    """Slow waves around the default pose, other ones in each environment, shape (steps, N, 5, J)."""
    command = np.zeros((CONTROL_STEPS, NUM_ENVS, 5, len(robot.joints)))
    time, env, joint = np.ogrid[:CONTROL_STEPS, :NUM_ENVS, : len(robot.joints)]
    pose = np.array([each.default_position for each in robot.joints])
    command[:, :, POSITION] = pose + 0.1 * np.sin(0.15 * time + env + 0.5 * joint)
    command[:, :, KP], command[:, :, KD] = kp, kd
    return command


def play(sim: BatchedSim, commands: Array, start: Callable[[BatchedSim], None]) -> tuple[Array, Array]:
    """Return qpos and qvel after each control step."""
    sim.reset()
    start(sim)
    qpos, qvel = list[Array](), list[Array]()
    for command in commands:
        sim.set_command(command)
        sim.step(DECIMATION)
        qpos.append(sim.qpos.copy())
        qvel.append(sim.qvel.copy())
    return np.array(qpos), np.array(qvel)


def agree(robot: Robot, scene: Scene, engine: Engine, commands: Array, start: Callable[[BatchedSim], None]) -> None:
    reference = MujocoSim(robot, NUM_ENVS, scene=scene)
    other = engine(robot, NUM_ENVS, scene)
    expected_qpos, expected_qvel = play(reference, commands, start)
    qpos, qvel = play(other, commands, start)
    position_bound, velocity_bound = ON_THE_GROUND if scene.ground else IN_THE_AIR
    assert np.abs(qpos - expected_qpos).max() < position_bound
    assert np.abs(qvel - expected_qvel).max() < velocity_bound
    assert np.ptp(expected_qpos, axis=0).max() > 0.1  # something moved
    np.testing.assert_allclose(other.joint_pos, reference.joint_pos, atol=position_bound)
    np.testing.assert_allclose(other.joint_vel, reference.joint_vel, atol=velocity_bound)
    kp, kd = commands[0, 0, KP].max(), commands[0, 0, KD].max()
    effort_bound = kp * position_bound + kd * velocity_bound + 1e-6
    np.testing.assert_allclose(other.joint_effort, reference.joint_effort, atol=effort_bound)
    if robot.feet:
        assert reference.feet_force.max() > 1.0
        np.testing.assert_allclose(other.feet_force, reference.feet_force, rtol=1e-3, atol=0.02)
        # One physics step old in two engines: they are where velocity, at most 1 m/s, brings them in a step.
        np.testing.assert_allclose(other.feet_pos, reference.feet_pos, atol=reference.dt)
    first = qpos.tobytes()
    assert play(other, commands, start)[0].tobytes() == first


def swinging(sim: BatchedSim) -> None:
    sim.qpos[:] = np.linspace(0.3, 1.2, NUM_ENVS)[:, None]


@ENGINES
def test_a_pendulum_that_swings(engine: Engine) -> None:
    robot = get_robot("pendulum")
    agree(robot, EMPTY, engine, targets(robot, 0.0, 0.0), swinging)


@ENGINES
def test_two_links_that_are_held(engine: Engine) -> None:
    robot = get_robot("double_pendulum")
    agree(robot, EMPTY, engine, targets(robot, 2.0, 0.2), swinging)


@ENGINES
def test_a_trunk_on_legs(engine: Engine, tmp_path: Path) -> None:
    robot = walker(tmp_path)

    def start(sim: BatchedSim) -> None:
        sim.qpos[:, 2] = 0.285 + 0.01 * np.arange(NUM_ENVS)
        sim.qvel[:, 4] = 0.3

    agree(robot, FLAT, engine, targets(robot, 15.0, 0.8), start)


@ENGINES
def test_the_go2_that_stands_and_sways(engine: Engine) -> None:
    robot = get_robot("go2")

    def start(sim: BatchedSim) -> None:
        sim.qpos[:, 2] = robot.base_height + 0.01 * np.arange(NUM_ENVS)
        sim.qpos[:, 7:] = [joint.default_position for joint in robot.joints]

    agree(robot, FLAT, engine, targets(robot, 40.0, 1.0), start)


BALL = """
<mujoco>
  <option timestep="0.004" integrator="implicitfast"/>
  <worldbody>
    <body name="ball" pos="0 0 1">
      <freejoint/>
      <geom name="foot" type="sphere" size="0.05" mass="1"/>
      <body name="arm">
        <joint name="arm" axis="0 0 1"/>
        <inertial pos="0 0 0" mass="0.01" diaginertia="1e-4 1e-4 1e-4"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


@ENGINES
def test_terrain_lies_where_it_should(engine: Engine, tmp_path: Path) -> None:
    """Balls set down on slopes that no swap of axes or signs leaves as they are sink in by as much as in MuJoCo."""
    x, y = np.linspace(-2.0, 2.0, 81), np.linspace(-1.5, 1.5, 41)
    heights = (0.1 * x[None] + 0.2 * np.maximum(y, 0.0)[:, None] - 0.1).astype(np.float32)
    scene = Scene(ground=True, friction=1.0, terrain=HeightField(heights=heights, size=(4.0, 3.0)))
    ball = tiny_robot(tmp_path, BALL, "arm", base="floating", feet=("foot",))
    spots = np.array([[-1.5, -1.0], [-0.5, 1.0], [0.5, 0.5], [1.5, -0.5], [1.0, 1.2]])
    sunk = list[Array]()
    for sim in (MujocoSim(ball, len(spots), scene=scene), engine(ball, len(spots), scene)):
        sim.qpos[:, :2] = spots
        sim.qpos[:, 2] = scene.ground_height(spots[:, 0], spots[:, 1]) + 0.055
        sim.step(20)
        sunk.append(sim.qpos[:, 2] - scene.ground_height(sim.qpos[:, 0], sim.qpos[:, 1]) - 0.05)
        assert (sim.feet_force > 5.0).all()
    np.testing.assert_allclose(sunk[1], sunk[0], atol=2e-4)
