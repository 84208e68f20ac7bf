"""The newton engine: conventions of free bodies, gradients, and clear words on what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION
from sim2real.robots import Robot, get_robot
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import EMPTY, FLAT
from tests.core.sim_robots import WALKER, robot, walker

pytest.importorskip("newton")
import newton
import warp

from sim2real.sim.newton import NewtonSim
from sim2real.sim.newton_model import Coordinates

Array = npt.NDArray[np.float64]
Solver = Literal["mujoco", "featherstone"]

SOLVERS = pytest.mark.parametrize("solver", ["mujoco", "featherstone"])

SPINNER = """
<mujoco>
  <option timestep="0.001" integrator="implicitfast"/>
  <worldbody>
    <body name="top" pos="0.1 0.2 0.3" quat="0.6 0.8 0 0">
      <freejoint/>
      <inertial pos="0.1 -0.05 0.02" quat="0.8 0 0.6 0" mass="2" diaginertia="0.03 0.05 0.06"/>
      <geom name="top" type="box" size="0.1 0.1 0.1"/>
      <site name="tip" pos="0 0 0.3"/>
      <body name="arm" pos="0 0 0.1">
        <joint name="arm" axis="1 0 0"/>
        <inertial pos="0 0 0.1" mass="0.001" diaginertia="1e-6 1e-6 1e-6"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""A body whose frame, centre of mass and principal axes all differ, with an arm that weighs next to nothing."""


def spinner(folder: Path) -> Robot:
    return robot(folder, SPINNER, "arm", base="floating")


def tumbling(num_envs: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    qpos, qvel = np.zeros((num_envs, 8)), np.zeros((num_envs, 7))
    qpos[:, :7] = rng.normal(size=(num_envs, 7))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    qvel[:, :6] = rng.normal(scale=2.0, size=(num_envs, 6))
    return qpos, qvel


@SOLVERS
def test_a_spinning_translating_body_moves_as_in_mujoco(tmp_path: Path, solver: Solver) -> None:
    """Each integrator errs by its own α dt of the path, of order 1; at dt = 1 ms over 0.3 s that is below 3e-3."""
    ours, reference = NewtonSim(spinner(tmp_path), 4, device="cpu", solver=solver), MujocoSim(spinner(tmp_path), 4)
    tip = ours.site_pos("tip")
    for sim in (ours, reference):
        sim.qpos[:], sim.qvel[:] = tumbling(4)
        sim.step(300)
    bound = 1e-4 if solver == "mujoco" else 3e-3
    sign = np.sign(np.sum(ours.qpos[:, 3:7] * reference.qpos[:, 3:7], axis=1, keepdims=True))
    np.testing.assert_allclose(ours.qpos[:, :3], reference.qpos[:, :3], atol=bound)
    np.testing.assert_allclose(ours.qpos[:, 3:7] * sign, reference.qpos[:, 3:7], atol=bound)
    np.testing.assert_allclose(ours.qvel[:, :6], reference.qvel[:, :6], atol=10.0 * bound)
    reference.refresh()
    np.testing.assert_allclose(tip, reference.site_pos("tip"), atol=2.0 * bound)


def test_velocities_are_those_of_mujocos_bodies(tmp_path: Path) -> None:
    """Newton's body_qd, of the centre of mass and in world axes, is MuJoCo's velocity of the body."""
    sim = NewtonSim(spinner(tmp_path), 4, device="cpu")
    qpos, qvel = tumbling(4)
    model, state = sim.newton_model, sim.newton_model.state()
    q, qd = Coordinates(sim.robot, sim.model, model, 4).to_newton(qpos, qvel)
    joint_q, joint_qd = (warp.array(values.ravel(), dtype=warp.float32) for values in (q, qd))
    newton.eval_fk(model, joint_q, joint_qd, state)
    velocities = state.body_qd.numpy().reshape(4, -1, 6)
    data, six = mujoco.MjData(sim.model), np.zeros(6)
    for env in range(4):
        data.qpos[:], data.qvel[:] = qpos[env], qvel[env]
        mujoco.mj_forward(sim.model, data)
        for number, name in enumerate(("top", "arm")):
            body = mujoco.mj_name2id(sim.model, mujoco.mjtObj.mjOBJ_BODY, name)
            mujoco.mj_objectVelocity(sim.model, data, mujoco.mjtObj.mjOBJ_BODY, body, six, 0)
            np.testing.assert_allclose(velocities[env, number], [*six[3:], *six[:3]], atol=1e-5)


@pytest.fixture(scope="module")
def tumbler(tmp_path_factory: pytest.TempPathFactory) -> NewtonSim:
    return NewtonSim(spinner(tmp_path_factory.mktemp("spinner")), 3, device="cpu")


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_coordinates_there_and_back(seed: int, tumbler: NewtonSim) -> None:
    rng = np.random.default_rng(seed)
    qpos, qvel = rng.normal(size=(3, 8)), rng.normal(size=(3, 7))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    coordinates = Coordinates(tumbler.robot, tumbler.model, tumbler.newton_model, 3)
    again = coordinates.to_mujoco(*coordinates.to_newton(qpos, qvel))
    np.testing.assert_allclose(again[0], qpos, atol=1e-12)
    np.testing.assert_allclose(again[1], qvel, atol=1e-12)


def held_links(num_envs: int = 2, dt: float = 0.002) -> NewtonSim:
    """Two links that swing while gains pull them to a pose, one of them at its effort limit half the way."""
    links = get_robot("double_pendulum")
    sim = NewtonSim(links, num_envs, dt=dt, effort_limits=[4.0, 4.0], device="cpu", solver="featherstone")
    command = np.zeros((num_envs, 5, 2))
    command[:, POSITION], command[:, KP], command[:, KD] = 0.4, 3.0, 0.05
    sim.qpos[:] = [[0.3, -0.5], [1.0, 0.4]][:num_envs]
    sim.qvel[:] = [[1.0, -2.0], [0.5, 3.0]][:num_envs]
    sim.set_command(command)
    return sim


def test_gradients_are_those_of_finite_differences() -> None:
    """Central differences of a float32 simulation err by eps / h + O(h²): 1e-5 + 1e-4 at h = 1e-2."""
    steps, h = 60, 1e-2
    weights = np.array([[1.0, 0.0], [-0.5, 2.0]])
    gradient = held_links().gradient(steps, weights)

    def objective(change: Callable[[NewtonSim], None]) -> Array:
        sim = held_links()
        change(sim)
        sim.step(steps)
        return np.sum(weights * sim.joint_pos, axis=1)

    def add(name: str, joint: int, amount: float) -> Callable[[NewtonSim], None]:
        def change(sim: NewtonSim) -> None:
            getattr(sim, name)[:, joint] += amount

        return change

    for name, found in (("qpos", gradient.joint_pos), ("qvel", gradient.joint_vel), ("ctrl", gradient.joint_effort)):
        for joint in range(2):
            slope = (objective(add(name, joint, h)) - objective(add(name, joint, -h))) / (2.0 * h)
            np.testing.assert_allclose(found[:, joint], slope, rtol=2e-3, atol=5e-4, err_msg=f"{name}[{joint}]")


def test_a_gradient_leaves_the_simulation_as_it_is() -> None:
    sim, reference = held_links(), held_links()
    first = sim.gradient(10, np.ones((2, 2)))
    second = sim.gradient(10, np.ones((2, 2)))
    for one, other in zip(first, second, strict=True):
        assert one.tobytes() == other.tobytes()
    for each in (sim, reference):
        each.step(10)
    assert sim.qpos.tobytes() == reference.qpos.tobytes()


def test_featherstones_explicit_step_converges_to_mujocos() -> None:
    """Both are of first order; halving dt halves how far apart they are after 0.2 s."""
    apart = list[float]()
    for dt in (0.002, 0.001):
        ours = held_links(dt=dt)
        reference = MujocoSim(ours.robot, 2, dt=dt, effort_limits=[4.0, 4.0])
        command = np.zeros((2, 5, 2))
        command[:, POSITION], command[:, KP], command[:, KD] = 0.4, 3.0, 0.05
        reference.qpos[:], reference.qvel[:] = ours.qpos, ours.qvel
        reference.set_command(command)
        for sim in (ours, reference):
            sim.step(round(0.2 / dt))
        apart.append(float(np.abs(ours.qpos - reference.qpos).max()))
    assert apart[0] < 0.02
    assert 0.4 * apart[0] < apart[1] < 0.6 * apart[0]


@SOLVERS
def test_efforts_stop_at_their_limit(solver: Solver) -> None:
    links = get_robot("double_pendulum")
    sim = NewtonSim(links, 2, effort_limits=[1.5, 0.5], device="cpu", solver=solver)
    command = np.zeros((2, 5, 2))
    command[0, EFFORT], command[1, EFFORT] = [9.0, -9.0], [0.3, 0.2]
    sim.set_command(command)
    sim.step(3)
    np.testing.assert_allclose(sim.joint_effort, [[1.5, -0.5], [0.3, 0.2]], atol=1e-6)


@SOLVERS
def test_a_snapshot_continues_exactly_here_and_elsewhere(tmp_path: Path, solver: Solver) -> None:
    scene = FLAT if solver == "mujoco" else EMPTY

    def make() -> NewtonSim:
        return NewtonSim(walker(tmp_path), 3, scene=scene, device="cpu", solver=solver)

    sim = make()
    command = np.zeros((3, 5, 2))
    command[:, KP], command[:, KD] = 15.0, 0.05
    sim.set_command(command)
    sim.qpos[:, 2] = 0.29
    sim.randomize("payload", np.array([3.0, 4.0, 5.0]))
    sim.step(20)
    snapshot = sim.snapshot()
    sim.step(20)
    expected = sim.qpos.tobytes() + sim.qvel.tobytes()
    sim.randomize("payload", np.full(3, 8.0))
    sim.set_command(np.zeros((3, 5, 2)))
    sim.step(3)
    for again in (sim, make()):
        again.restore(snapshot)
        again.step(20)
        assert again.qpos.tobytes() + again.qvel.tobytes() == expected


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("payload", [2.0, 4.0, 6.0]),
        ("foot_friction", [0.8, 0.5, 0.05]),
        ("body_ipos/trunk[0]", [-0.03, 0.0, 0.03]),
        ("dof_frictionloss/left", [0.0, 0.2, 0.5]),
        ("dof_damping/right", [0.0, 0.2, 1.0]),
        ("dof_armature/right", [0.0, 0.01, 0.05]),
    ],
)
def test_a_parameter_acts_as_in_mujoco(tmp_path: Path, param: str, values: list[float]) -> None:
    ours, reference = (
        NewtonSim(walker(tmp_path), 3, scene=FLAT, device="cpu"),
        MujocoSim(walker(tmp_path), 3, scene=FLAT),
    )
    command = np.zeros((3, 5, 2))
    command[:, KP], command[:, KD] = 15.0, 0.8
    for sim in (ours, reference):
        sim.qpos[:, 2] = 0.29
        sim.qvel[:, 0] = 0.3
        sim.set_command(command)
        sim.randomize(param, np.array(values[1:]), np.array([1, 2]))
        sim.step(40)
    np.testing.assert_allclose(ours.qpos, reference.qpos, atol=1e-4)
    assert np.abs(ours.qpos[2] - ours.qpos[0]).max() > 2e-4


def test_an_environment_that_diverges_stays_alone_and_visible(tmp_path: Path) -> None:
    sim, reference = (NewtonSim(walker(tmp_path), 3, scene=FLAT, device="cpu") for _ in range(2))
    for each in (sim, reference):
        each.qpos[:, 2] = 0.29
    sim.qpos[1, 7] = np.nan
    for each in (sim, reference):
        each.step(30)
    assert np.isfinite(sim.qpos).all(axis=1).tolist() == [True, False, True]
    assert sim.qpos[[0, 2]].tobytes() == reference.qpos[[0, 2]].tobytes()
    sim.reset(np.array([1]))
    sim.step(5)
    assert np.isfinite(sim.qpos).all()


def test_more_contacts_than_there_is_room_for_are_told(tmp_path: Path) -> None:
    boxes = "".join(
        f'<geom type="sphere" size="0.02" pos="{x} {y} -0.05"/>' for x in (-0.1, 0, 0.1) for y in (-0.05, 0.05)
    )
    crowded = WALKER.replace('<site name="imu"', boxes + '<site name="imu"')
    sim = NewtonSim(robot(tmp_path, crowded, "left", "right", base="floating"), 1, scene=FLAT, device="cpu", nconmax=4)
    sim.qpos[:, 2] = 0.06
    with pytest.raises(InputError, match=r"nconmax: \d+ contacts in 1 environments, \d+ more than there is room for"):
        sim.step(50)


def test_what_it_lacks_is_told(tmp_path: Path) -> None:
    sim = NewtonSim(walker(tmp_path), 1, scene=FLAT, device="cpu")
    with pytest.raises(InputError, match="geom_size: newton cannot change it; allowed: body_mass, "):
        sim.randomize("geom_size/left_foot[0]", np.ones(1))
    with pytest.raises(InputError, match="sensor 'left_pos': the engine newton has no sensors of the MJCF"):
        sim.sensor("left_pos")
    with pytest.raises(InputError, match="gradient: the solver 'mujoco' has none"):
        sim.gradient(1, np.ones((1, 2)))
    with pytest.raises(InputError, match="no site named 'tip'"):
        sim.site_pos("tip")
    in_air = NewtonSim(walker(tmp_path), 1, device="cpu", solver="featherstone")
    with pytest.raises(InputError, match="'featherstone' has no contacts"):
        _ = in_air.feet_force


@pytest.mark.parametrize(
    ("xml", "options", "message"),
    [
        (WALKER, {"scene": FLAT, "solver": "featherstone"}, "the solver 'featherstone' has no ground; use 'mujoco'"),
        (
            WALKER.replace('damping="0.1"', 'frictionloss="0.1"'),
            {"solver": "featherstone"},
            "the solver 'featherstone' has no joint friction",
        ),
        (WALKER, {"solver": "kamino"}, "solver 'kamino': unknown; allowed: mujoco, featherstone"),
        (WALKER.replace('damping="0.1"', 'ref="0.3"'), {}, r"a joint's reference \(ref\) is not 0"),
        (
            WALKER.replace('<joint name="left"', '<joint name="roll" axis="1 0 0"/><joint name="left"'),
            {},
            "body 'left_leg': expected a name and one hinge, slide or free joint",
        ),
    ],
)
def test_a_robot_that_does_not_fit_is_refused(tmp_path: Path, xml: str, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NewtonSim(robot(tmp_path, xml, "left", "right", base="floating"), 1, device="cpu", **options)
