"""The mujoco engine and the plant: closed forms, exact snapshots, delays, joints by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ellipk

from sim2real.contract import PolicyContract
from sim2real.errors import ContractError, InputError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from sim2real.robots import Robot, RobotJoint, RobotParameter, get_robot
from sim2real.sim.engines import make_sim
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.plant import Plant
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished

GRAVITY, LENGTH, MASS = 9.81, 0.5, 0.6755
INERTIA = MASS * LENGTH**2 + 1e-6


def pendulum(num_envs: int = 1, *, dt: float = 0.0025, damping: float = 0.0, threads: int = 1) -> MujocoSim:
    sim = MujocoSim(get_robot("pendulum"), num_envs, dt=dt, num_threads=threads)
    sim.randomize("damping", np.full(num_envs, damping))
    return sim


def contract() -> PolicyContract:
    task = get_task("pendulum-swingup")
    return task.contract(unpublished(task))


def block(num_envs: int, row: int, value: float, *, kp: float = 0.0, kd: float = 0.0) -> npt.NDArray[np.float64]:
    command = np.zeros((num_envs, 5, 1))
    command[:, row] = value
    command[:, KP], command[:, KD] = kp, kd
    return command


@pytest.mark.parametrize("amplitude", [0.1, 1.0, 2.0, 3.0])
def test_period_of_the_free_pendulum(amplitude: float) -> None:
    """T = 4 √(I / m g l) K(sin²(θ₀/2)); implicitfast without damping is semi-implicit Euler, first order in dt."""
    quarter = float(ellipk(np.sin(amplitude / 2.0) ** 2))  # pyright: ignore[reportUnknownArgumentType] scipy.special has no types
    expected = 4.0 * float(np.sqrt(INERTIA / (MASS * GRAVITY * LENGTH))) * quarter
    errors: list[float] = []
    for dt in (0.002, 0.001):
        sim = pendulum(dt=dt)
        sim.qpos[:] = amplitude
        previous, crossings = amplitude, list[float]()
        for step in range(1, round(3.0 * expected / dt)):
            sim.step()
            now = float(sim.qpos[0, 0])
            if previous > 0.0 >= now or previous < 0.0 <= now:
                crossings.append((step - now / (now - previous)) * dt)
            previous = now
        errors.append(abs(2.0 * (crossings[2] - crossings[1]) - expected) / expected)
    assert errors[0] < 5e-3
    assert errors[1] <= 0.75 * errors[0] or errors[1] < 1e-4


def test_stiffness_holds_against_gravity() -> None:
    """At rest kp (target − q) = m g l sin q."""
    sim = pendulum(damping=0.5)
    sim.set_command(block(1, POSITION, 0.5, kp=20.0, kd=0.5))
    sim.step(8000)
    q = float(sim.qpos[0, 0])
    assert abs(20.0 * (0.5 - q) - (MASS * GRAVITY * LENGTH) * np.sin(q)) < 1e-6


def test_velocity_command_damps_towards_its_target() -> None:
    weightless = MujocoSim(get_robot("pendulum"), 1)
    weightless.batch.expand("opt.gravity")[:] = 0.0
    weightless.randomize("damping", np.zeros(1))
    weightless.set_command(block(1, VELOCITY, 3.0, kd=0.5))
    weightless.step(4000)
    assert float(weightless.qvel[0, 0]) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("row", [POSITION, VELOCITY, EFFORT])
def test_no_command_exceeds_the_effort_limit(row: int) -> None:
    sim = pendulum()
    sim.set_command(block(1, row, 1e6, kp=1e3, kd=1e3))
    sim.step()
    assert float(sim.joint_effort[0, 0]) == 2.5


def test_coulomb_friction_holds_without_creeping() -> None:
    """A load below the friction must not slide: 10 s, at most 0.01 mrad/s (default friction creeps 5 mrad/s)."""
    sim = pendulum()
    sim.randomize("frictionloss", np.array([0.5]))
    start = np.arcsin(0.4 / (MASS * GRAVITY * LENGTH))
    sim.qpos[:] = start
    sim.step(4000)
    assert abs(float(sim.qpos[0, 0]) - start) < 1e-4


def test_randomized_parameters_equal_a_model_made_with_them() -> None:
    robot = get_robot("pendulum")
    values = {"mass": 0.8, "armature": 0.02, "damping": 0.07, "frictionloss": 0.3}
    sim = MujocoSim(robot, 2)
    for name, value in values.items():
        sim.randomize(name, np.array([value]), np.array([1]))
    spec = mujoco.MjSpec.from_file(str(robot.mjcf))
    spec.body("pole").mass = values["mass"]
    joint = spec.joint("hinge")
    joint.armature, joint.frictionloss = values["armature"], values["frictionloss"]
    joint.damping[0] = values["damping"]
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[:] = sim.qpos[:] = 1.2
    data.ctrl[:] = 1.0
    sim.set_command(block(2, EFFORT, 1.0))
    sim.step(500)
    mujoco.mj_step(model, data, 500)
    assert float(sim.qpos[1, 0]) == float(data.qpos[0])
    assert float(sim.qpos[0, 0]) != float(data.qpos[0])


def test_unknown_parameter_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="'friction' of robot pendulum: unknown; allowed: mass, armature, damping"):
        pendulum().randomize("friction", np.zeros(1))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    results: list[npt.NDArray[np.float64]] = []
    for count in (1, threads):
        sim = pendulum(33, threads=count)
        sim.randomize("frictionloss", np.linspace(0.0, 0.5, 33))
        sim.qpos[:, 0] = np.linspace(-3.0, 3.0, 33)
        sim.step(400)
        results.append(sim.qpos.copy())
    assert np.array_equal(results[0], results[1])


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(0, 12))
def test_snapshot_continues_exactly(seed: int, steps: int, delay: int) -> None:
    rng = np.random.default_rng(seed)
    plants = [Plant(contract(), make_sim(contract(), 4)) for _ in range(2)]
    plant, other = plants
    plant.sim.randomize("mass", rng.uniform(0.5, 0.9, 4))
    plant.sim.randomize("frictionloss", rng.uniform(0.0, 0.5, 4))
    plant.sim.qpos[:] = rng.normal(size=(4, 1))
    plant.reset(np.zeros((4, 5, 1)))
    plant.set_delay(np.array([0.0, 0.0025, 0.005, 0.0025 * delay]))
    commands = rng.normal(size=(2 * steps, 4, 5, 1)) * [[[1.0], [1.0], [1.0], [0.0], [0.0]]]
    for command in commands[:steps]:
        plant.step(command)
    other.restore(plant.snapshot())
    for command in commands[steps:]:
        plant.step(command)
        other.step(command)
    assert np.array_equal(plant.sim.qpos, other.sim.qpos)
    assert np.array_equal(plant.sim.qvel, other.sim.qvel)


@given(st.integers(0, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_a_delayed_command_acts_exactly_that_much_later(delay: int, seed: int) -> None:
    """Against a simulation that is given, physics step by physics step, the command of `delay` steps ago."""
    rng = np.random.default_rng(seed)
    efforts = rng.uniform(-2.0, 2.0, 12)
    plant = Plant(contract(), make_sim(contract(), 2))
    plant.reset(np.zeros((2, 5, 1)))
    plant.set_delay(np.array([0.0, delay * 0.0025]))
    for effort in efforts:
        plant.step(block(2, EFFORT, effort))
    reference = make_sim(contract(), 1)
    for step in range(4 * len(efforts)):
        sent = step - delay
        reference.set_command(block(1, EFFORT, efforts[sent // 4] if sent >= 0 else 0.0))
        reference.step()
    assert float(plant.sim.qpos[1, 0]) == float(reference.qpos[0, 0])


@pytest.mark.parametrize("delay", [-0.001, float("nan"), 0.2])
def test_an_impossible_delay_is_refused(delay: float) -> None:
    plant = Plant(contract(), make_sim(contract(), 1))
    with pytest.raises(InputError, match=r"command delay: expected 0 to 0\.1 s"):
        plant.set_delay(np.array([delay]))


TWO_JOINTS = """
<mujoco><worldbody>
  <body><joint name="{0}" axis="0 1 0"/><geom size="0.1" mass="1"/></body>
  <body pos="1 0 0"><joint name="{1}" axis="0 1 0"/><geom size="0.1" mass="1"/></body>
</worldbody><actuator>
  <general name="{0}" joint="{0}" gainprm="1" biastype="affine" biasprm="0 0 0"/>
  <general name="{1}" joint="{1}" gainprm="1" biastype="affine" biasprm="0 0 0"/>
</actuator></mujoco>"""


def test_joints_are_matched_by_name_not_by_order(tmp_path: Path) -> None:
    mjcf = tmp_path / "two.xml"
    mjcf.write_text(TWO_JOINTS.format("left", "right"))
    joints = tuple(
        RobotJoint(name=name, position_limits=None, velocity_limit=10.0, effort_limit=5.0, default_position=0.0)
        for name in ("left", "right")
    )
    parameter = RobotParameter(
        name="left_damping",
        unit="",
        nominal=0.0,
        field="dof_damping/left",
        meaning="",
        plausible=(0.0, 1.0),
        typical=(0.0, 1.0),
        session_factor=1.0,
    )
    sim = MujocoSim(Robot(name="two", mjcf=mjcf, joints=joints, parameters=(parameter,)), 1)
    base = contract()
    named = [msgspec.structs.replace(base.joints[0], name=name) for name in ("right", "left")]
    plant = Plant(msgspec.structs.replace(base, joints=tuple(named)), sim)
    command = np.zeros((1, 5, 2))
    command[0, EFFORT] = [0.3, 0.0]  # contract order: right, left
    plant.reset(np.zeros((1, 5, 2)))
    plant.step(command)
    measured = np.zeros((1, plant.layout.size))
    plant.read(measured)
    position = measured[0, plant.layout.slices["joint_pos"]]
    assert position[0] > 0.0 == position[1]
    assert sim.qpos[0, 0] == 0.0 < sim.qpos[0, 1]
    assert measured[0, plant.layout.slices["joint_effort"]].tolist() == [0.3, 0.0]


def test_a_contract_with_other_joints_is_refused() -> None:
    base = contract()
    other = msgspec.structs.replace(base, joints=(msgspec.structs.replace(base.joints[0], name="elbow"),))
    with pytest.raises(ContractError, match=r"has the joints \['hinge'\], the contract names \['elbow'\]"):
        make_sim(other, 1)


UNSTABLE = """
import numpy as np
from sim2real.robots import get_robot
from sim2real.sim.mujoco import MujocoSim
sim = MujocoSim(get_robot("pendulum"), 4, num_threads=2)
for _ in range(100):
    sim.ctrl[:] = np.nan
    sim.qvel[:] = 1e20
    sim.step()
"""


def test_an_unstable_simulation_writes_nothing_where_the_user_works(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", UNSTABLE], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
