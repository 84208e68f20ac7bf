"""`--robot path/to.xml`: tasks take what their motion depends on from the file, and refuse what is no such robot."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.robots import get_robot
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.base import unpublished
from sim2real.tasks.double_pendulum_model import NOMINAL, measured
from sim2real.tasks.pendulum_swingup import STIFFNESS, stiffness_of
from sim2real.tasks.so101_reach import CLEARANCE
from tests.core.task_rig import actions

ROD = """<mujoco>
  <option integrator="RK4"/>
  <compiler angle="radian" inertiagrouprange="0 0"/>
  <worldbody>
    <body pos="0 0 3">
      <joint name="pin" axis="{axis}" {joint}/>
      <geom type="capsule" fromto="0 0 0 {end}" size="0.001" mass="{mass}" contype="0" conaffinity="0"/>{more}
    </body>
  </worldbody>
  <actuator>{motors}<motor joint="pin" forcerange="-{torque} {torque}"/></actuator>
</mujoco>"""


def rod(folder: Path, length: float = 1.0, mass: float = 1.0, **given: str) -> str:
    words = {"axis": "0 1 0", "joint": "", "end": f"0 0 -{length}", "more": "", "motors": "", "torque": "2"}
    folder.mkdir(exist_ok=True)
    path = folder / "rod.xml"
    path.write_text(ROD.format(**(words | {"mass": str(mass)} | given)))
    return str(path)


LIMB = """
      <body pos="0 0 -{upper}">
        <joint name="bend" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -{lower}" size="0.001" mass="0.5" contype="0" conaffinity="0"/>
        <site name="{site}" pos="{place}"/>
      </body>"""


def chain(folder: Path, *, site: str = "tip", place: str = "0 0 -0.4", **given: str) -> str:
    """A rod of 0.6 m and 1 kg, and one of 0.4 m and 0.5 kg below it."""
    limb = LIMB.format(upper="0.6", lower="0.4", site=site, place=place)
    return rod(folder, 0.6, 1.0, more=limb, **given)


ARM = """<mujoco>
  <option integrator="implicitfast"/>
  <compiler angle="radian"/>
  <worldbody>
    <body name="foot" pos="0 0 0.5">
      <geom type="box" size="0.1 0.1 0.1" contype="0" conaffinity="0"/>
      <body pos="0 0 0.1">
        <joint name="turn" axis="0 0 1"/>
        <joint name="lift" axis="0 1 0" range="-1.5 1.5" limited="true"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02" mass="0.5" contype="0" conaffinity="0"/>
        <body pos="0 0 0.5">
          <joint name="bend" axis="0 1 0" range="-2 2" limited="true"/>
          <geom type="capsule" fromto="0 0 0 0 0 0.4" size="0.02" mass="0.3" contype="0" conaffinity="0"/>
          {more}
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="turn" kp="2000" kv="60" forcerange="-300 300"/>
    <position joint="lift" kp="2000" kv="60" forcerange="-300 300"/>
    <position joint="bend" kp="2000" kv="60" forcerange="-300 300"/>
  </actuator>
</mujoco>"""


def arm(folder: Path, more: str = '<site name="tcp" pos="0 0 0.4"/>', *, old: str = "", new: str = "") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "arm.xml"
    path.write_text(ARM.format(more=more).replace(old, new))
    return str(path)


def test_what_is_measured_of_our_own_robots_is_what_is_known_of_them() -> None:
    assert stiffness_of(get_robot("pendulum")) == pytest.approx(STIFFNESS, rel=1e-5)
    for ours, found in zip(NOMINAL, measured(get_robot("double_pendulum")), strict=True):
        np.testing.assert_allclose(found, ours, rtol=1e-9)


@given(length=st.floats(0.1, 10.0), mass=st.floats(0.01, 100.0))
def test_a_rod_swings_as_a_rod(tmp_path_factory: pytest.TempPathFactory, length: float, mass: float) -> None:
    """m g (l / 2) / (m l² / 3)."""
    robot = get_robot(rod(tmp_path_factory.getbasetemp(), length, mass))
    assert stiffness_of(robot) == pytest.approx(1.5 * 9.81 / length, rel=0.01)


def test_another_pendulum_starts_as_fast_as_it_swings(tmp_path: Path) -> None:
    """A rod of four times the length of one that swings as ours does swings half as fast."""
    task = get_task("pendulum-swingup", rod(tmp_path, 4.0 * 0.75))
    contract = task.contract(unpublished(task))
    assert contract.action.scale == (2.0,)
    qvel = task.start(np.random.default_rng(0), 4000)[1]
    assert np.abs(qvel).max() == pytest.approx(4.0, rel=0.01)
    env = TaskEnv(task, 4, seed=0, noise=False)
    env.plant.sim.qpos[:], env.plant.sim.qvel[:] = np.pi, [[0.0], [7.0], [8.0], [15.0]]
    assert env.step(np.zeros((4, 1), np.float32)).terminated.tolist() == [False, False, True, True]


def test_energy_is_kept_where_nothing_drives_it(tmp_path: Path) -> None:
    """The reward's energy of another arm, along its own motion."""
    for task in (
        get_task("pendulum-swingup", rod(tmp_path / "one")),
        get_task("acrobot-swingup", chain(tmp_path / "two", motors='<motor joint="bend" forcerange="-3 3"/>')),
    ):
        env = TaskEnv(task, 1, seed=0, noise=False)
        env.plant.sim.qpos[:], env.plant.sim.qvel[:] = 2.0, 0.0
        env.plant.sim.refresh()
        energies: list[float] = []
        for _ in range(50):
            env.step(np.zeros((1, 1), np.float32))
            energies.append(float(task.rewards["energy"].term(env.motion)[0]))
        assert np.ptp(energies) < 0.01 * np.mean(energies)
        assert (np.abs(env.motion.joint_pos - 2.0) > 0.1).all()


@pytest.mark.parametrize(("name", "driven"), [("acrobot-swingup", 1), ("pendubot-swingup", 0)])
def test_a_double_pendulum_with_one_motor(tmp_path: Path, name: str, driven: int) -> None:
    motor = "bend" if driven else "pin"
    path = chain(tmp_path)
    text = Path(path).read_text().replace('<motor joint="pin"', f'<motor joint="{motor}"')
    Path(path).write_text(text)
    task = get_task(name, path)
    contract = task.contract(unpublished(task))
    assert contract.joint_names == ("pin", "bend")
    assert [joint.command_mode for joint in contract.joints][driven] == "effort"
    assert [joint.command_mode for joint in contract.joints][1 - driven] == "passive"
    assert (contract.action.joints, contract.action.scale) == ((motor,), (2.0,))
    assert task.goal.text.startswith("the tip is above 0.9 m")
    env = TaskEnv(task, 4, seed=0)
    for action in actions(env, 20):
        env.step(action)
    assert not env.plant.sim.joint_effort[:, 1 - driven].any()
    env.plant.sim.qpos[:] = [np.pi, 0.0]
    env.plant.sim.refresh()
    env.motion.renew()
    assert task.goal.holds(env.motion).all()
    np.testing.assert_allclose(task.rewards["height"].term(env.motion), 1.0)


def test_an_arm_is_given_targets_that_it_can_reach(tmp_path: Path) -> None:
    """Its own motors bring it to some of them, from the pose that the target was taken from."""
    task = get_task("so101-reach", arm(tmp_path))
    contract = task.contract(unpublished(task))
    assert task.commands is not None
    targets = task.commands.draw(np.random.default_rng(0), 2000)
    low, high = (np.array([getattr(command, side) for command in contract.commands]) for side in ("low", "high"))
    assert (targets >= low).all()
    assert (targets <= high).all()
    assert low[2] > 0.5 + CLEARANCE
    # The upper link's end, at most 0.9 m from the shoulder.
    assert np.linalg.norm(targets - [0.0, 0.0, 0.6], axis=1).max() < 0.9 + 1e-9
    env = TaskEnv(task, 200, seed=1, noise=False)
    scale, offset = np.array(contract.action.scale), np.array(contract.action.offset)
    np.testing.assert_allclose(offset + scale, [np.pi, 1.5, 2.0])
    shoulder = np.array([0.0, 0.0, 0.6])
    relative = env.observer.commands - shoulder
    # Closed form of the two links' inverse kinematics.
    distance, heading = np.linalg.norm(relative, axis=1), np.arctan2(relative[:, 1], relative[:, 0])
    bend = np.arccos(np.clip((distance**2 - 0.5**2 - 0.4**2) / (2.0 * 0.5 * 0.4), -1.0, 1.0))
    polar = np.arctan2(np.hypot(relative[:, 0], relative[:, 1]), relative[:, 2])
    lift = polar - np.arctan2(0.4 * np.sin(bend), 0.5 + 0.4 * np.cos(bend))
    asked = ((np.stack((heading, lift, bend), axis=1) - offset) / scale).astype(np.float32)
    within = (np.abs(asked) <= 1.0).all(axis=1)
    assert within.sum() > 100
    for _ in range(150):
        env.step(asked)
    missed = np.linalg.norm(env.motion.site_pos("tcp") - env.observer.commands, axis=1)
    assert np.median(missed[within]) < 0.02


FOOT = '<body name="foot" pos="0 0 0.5">'


def refusals(folder: Path) -> list[tuple[str, str, str]]:
    level = rod(folder / "level", end="1 0 0")
    return [
        ("pendulum-swingup", level, r"expected a pendulum that hangs at rest at 0 rad; .* turn its joint's frame"),
        ("pendulum-swingup", rod(folder / "flat", axis="0 0 1"), "expected a pendulum that hangs at rest"),
        ("pendulum-swingup", rod(folder / "up", end="0 0 1"), "expected a pendulum that hangs at rest"),
        (
            "pendulum-swingup",
            rod(folder / "range", joint='range="-1 1" limited="true"'),
            "one driven hinge without lim",
        ),
        ("pendulum-swingup", rod(folder / "slide", joint='type="slide"'), "one driven hinge without limits"),
        ("pendulum-swingup", chain(folder / "two"), "no joint beside it"),
        ("pendulum-swingup", "go2", "expected a pendulum"),
        ("acrobot-swingup", rod(folder / "one"), "expected a double pendulum: two hinges and a fixed base, got 1"),
        ("acrobot-swingup", chain(folder / "motor"), "expected an actuator of the joint 'bend', the elbow"),
        ("pendubot-swingup", chain(folder / "site", site="end"), "expected a site named 'tip'"),
        ("pendubot-swingup", chain(folder / "aside", place="0.2 0 -0.2"), "straight down at 0 rad"),
        ("pendubot-swingup", chain(folder / "bent", end="0.5 0 0"), "straight down at 0 rad"),
        ("pendubot-swingup", "go2", "expected a double pendulum: two hinges and a fixed base"),
        (
            "so101-reach",
            arm(folder / "none", ""),
            "a site at its tool, named gripper or .*, got a fixed base and the sit",
        ),
        (
            "so101-reach",
            arm(folder / "rests", "", old=FOOT, new=f'{FOOT}<site name="ee"/>'),
            "moves about above its base, got 0 of 4096",
        ),
        ("so101-reach", "go2", "expected an arm with a fixed base"),
        (
            "so101-reach",
            arm(folder / "gains", old='position joint="bend" kp="2000" kv="60"', new='motor joint="bend"'),
            "joint bend: expected gains .* for position commands, got kp 0.0",
        ),
    ]


def test_what_is_no_such_robot_is_refused(tmp_path: Path) -> None:
    for task, robot, told in refusals(tmp_path):
        with pytest.raises(InputError, match=told):
            get_task(task, robot)


def test_a_rod_swings_with_its_period(tmp_path: Path) -> None:
    """2 π √(I / m g l), seen in the simulation that a policy would be trained in."""
    task = get_task("pendulum-swingup", rod(tmp_path, 0.8))
    env = TaskEnv(task, 1, seed=0, noise=False)
    env.plant.sim.qpos[:], env.plant.sim.qvel[:] = 0.05, 0.0
    env.plant.sim.refresh()
    angles: list[float] = []
    for _ in range(390):
        env.step(np.zeros((1, 1), np.float32))
        angles.append(float(env.motion.joint_pos[0, 0]))
    falls = np.flatnonzero((np.array(angles[:-1]) > 0.0) & (np.array(angles[1:]) <= 0.0))
    period = 2.0 * math.pi / math.sqrt(stiffness_of(task.robot))
    assert np.diff(falls).mean() * 0.01 == pytest.approx(period, rel=0.01)
