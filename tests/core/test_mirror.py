from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.tasks import Task, TaskEnv
from sim2real.tasks.base import unpublished
from sim2real.tasks.mirror import Image, Mirror, MirrorMaps, mirror_maps, named_images
from tests.core.task_rig import task_of

WALKERS = ("go2-velocity-flat", "go2-velocity-rough", "g1-velocity-flat")


def maps_of(task: Task) -> MirrorMaps:
    assert task.mirror is not None
    return mirror_maps(task.mirror, task.contract(unpublished(task)), tuple(task.critic))


def joint_image(robot: Robot, mirror: Mirror) -> Image:
    """Of joint positions in the robot's order."""
    names = [joint.name for joint in robot.joints]
    images = [mirror.joints[name] for name in names]
    return Image(columns=tuple(names.index(name) for name, _ in images), signs=tuple(sign for _, sign in images))


def mirrored_state(task: Task, qpos: Any, qvel: Any) -> tuple[Any, Any]:
    """A floating base and joints in the mirror y → −y of the world; here joints are in the robot's order."""
    assert task.mirror is not None
    joints = joint_image(task.robot, task.mirror)
    pose = qpos[:, :7] * [1, -1, 1, 1, -1, 1, -1]
    twist = qvel[:, :6] * [1, -1, 1, -1, 1, -1]
    return np.hstack((pose, joints.of(qpos[:, 7:]))), np.hstack((twist, joints.of(qvel[:, 6:])))


def pair_of(task: Task, seed: int) -> TaskEnv:
    """Two environments without noise and pushes, the second in the mirror image of the first one's state."""
    calm = msgspec.structs.replace(task, events=(), curriculum=None)
    env = TaskEnv(calm, 2, seed=seed, noise=False, randomization=None)
    sim = env.plant.sim
    qpos, qvel = mirrored_state(task, sim.qpos[:1], sim.qvel[:1])
    sim.qpos[1:], sim.qvel[1:] = qpos, qvel
    assert task.mirror is not None
    env.observer.commands[1] = env.observer.commands[0] * task.mirror.commands
    rows = np.array([1])
    env.motion_state.start(rows)
    env.motion.renew()
    env.mapper.reset(env.motion.joint_pos, rows)
    env.plant.reset(env.mapper.command, rows, np.random.default_rng(0))
    sim.refresh(rows)
    return env


@pytest.mark.parametrize("name", WALKERS)
def test_the_image_of_the_image_is_the_thing_itself(name: str) -> None:
    task = task_of(name)
    maps = maps_of(task)
    env = TaskEnv(task, 4, seed=0, randomization=None)
    assert len(maps.critic_observation.columns) == env.critic_observation_size
    assert len(maps.observation.columns) == env.observation_size
    assert len(maps.action.columns) == env.action_size
    rng = np.random.default_rng(0)
    for image in maps:
        values = rng.normal(size=(5, len(image.columns)))
        assert not np.array_equal(image.of(values), values)
        np.testing.assert_array_equal(image.of(image.of(values)), values)


@pytest.fixture(scope="module")
def symmetric(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The task with a trunk whose left weighs what its right does; the Go2's own inertia is a little askew."""
    task = task_of("go2-velocity-flat")
    text = task.robot.mjcf.read_text()
    products = "0.00012166 0.0014849 -3.12e-5"
    assert products in text
    path = tmp_path_factory.mktemp("robot") / "go2.xml"
    path.write_text(text.replace(products, "0 0.0014849 0"))
    return msgspec.structs.replace(task, robot=msgspec.structs.replace(task.robot, mjcf=path))


@settings(max_examples=5)
@given(seed=st.integers(0, 2**16))
def test_a_mirrored_go2_moves_as_the_mirror_image(symmetric: Task, seed: int) -> None:
    maps = maps_of(symmetric)
    env = pair_of(symmetric, seed)
    rng = np.random.default_rng(seed)
    sim = env.plant.sim
    for _ in range(20):
        action = rng.uniform(-1.0, 1.0, (1, env.action_size)).astype(np.float32)
        result = env.step(np.concatenate((action, maps.action.of(action))))
        assert not result.done_ids.size
        qpos, qvel = mirrored_state(symmetric, sim.qpos[:1], sim.qvel[:1])
        np.testing.assert_allclose(sim.qpos[1:], qpos, rtol=0.0, atol=1e-9)
        np.testing.assert_allclose(sim.qvel[1:], qvel, rtol=0.0, atol=1e-9)
        for image, seen in zip(maps, (result.observation, result.critic_observation), strict=False):
            np.testing.assert_allclose(seen[1], image.of(seen[0]), rtol=0.0, atol=1e-6)
        np.testing.assert_allclose(result.reward_terms[:, 1], result.reward_terms[:, 0], rtol=0.0, atol=1e-9)


def test_the_go2_itself_is_askew_by_less_than_a_thousandth_of_a_radian() -> None:
    task = task_of("go2-velocity-flat")
    env, maps, rng = pair_of(task, 0), maps_of(task), np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1.0, 1.0, (1, env.action_size)).astype(np.float32)
        env.step(np.concatenate((action, maps.action.of(action))))
    sim = env.plant.sim
    difference = np.abs(sim.qpos[1:] - mirrored_state(task, sim.qpos[:1], sim.qvel[:1])[0]).max()
    assert 1e-6 < difference < 1e-3


def test_the_ground_seen_in_the_mirror_is_on_the_other_side() -> None:
    """Of a robot that stands across a slope, the image stands across its image."""
    task = task_of("go2-velocity-rough")
    scan = task.mirror.critic["height_scan"] if task.mirror else None
    assert scan is not None
    line = np.linspace(-0.4, 0.4, 5)
    x, y = np.meshgrid(line, line, indexing="ij")
    np.testing.assert_allclose(scan.of((3.0 * x + y).ravel()), (3.0 * x - y).ravel())


def refused(changes: dict[str, Any], match: str) -> None:
    task = task_of("go2-velocity-flat")
    assert task.mirror is not None
    mirror = msgspec.structs.replace(task.mirror, **changes)
    with pytest.raises(InputError, match=match):
        mirror_maps(mirror, task.contract(unpublished(task)), tuple(task.critic))


def test_what_has_no_image_is_named() -> None:
    task = task_of("go2-velocity-flat")
    assert task.mirror is not None
    joints: dict[str, Any] = dict(task.mirror.joints)
    critic = task.mirror.critic
    refused({"critic": {name: critic[name] for name in critic if name != "base_height"}}, "critic's 'base_height'")
    refused({"joints": {name: joints[name] for name in list(joints)[1:]}}, "no image of joint 'FL_hip_joint'")
    refused({"joints": joints | {"FL_hip_joint": ("FR_hip_joint", 1)}}, "is not itself")
    refused({"joints": joints | {"FL_hip_joint": ("FL_thigh_joint", -1)}}, "offsets")
    refused({"joints": joints | {"FL_thigh_joint": ("FR_thigh_joint", -1)}}, "offsets")
    refused({"commands": (1, -1)}, "3 elements of 'command', got 2")
    with pytest.raises(InputError, match="'FL' has no image 'FR' among FL, RR"):
        named_images(("FL", "RR"), (("FL", "FR"),), sideways=())


def test_histories_functions_and_axes_are_mirrored_element_by_element() -> None:
    """A contract with a history, a cosine and joints whose axes the policy has turned round."""
    task = task_of("go2-velocity-flat")
    contract = task.contract(unpublished(task))
    joints = list(contract.joints)
    joints[0] = msgspec.structs.replace(joints[0], axis_sign=-1)
    terms = [
        msgspec.structs.replace(term, history_length=3, function="cos" if term.name == "position" else term.function)
        for term in contract.observation.terms
    ]
    contract = msgspec.structs.replace(
        contract,
        joints=tuple(joints),
        observation=msgspec.structs.replace(contract.observation, terms=tuple(terms)),
        model=msgspec.structs.replace(contract.model, observation_size=3 * contract.model.observation_size),
    )
    assert task.mirror is not None
    image = mirror_maps(task.mirror, contract, ()).observation
    ends = np.cumsum([0, *(3 * len(term.scale) for term in terms)]).tolist()
    where = {term.name: slice(*span) for term, span in zip(terms, itertools.pairwise(ends), strict=True)}
    signs, columns = np.array(image.signs), np.array(image.columns)
    # Term by term, frame by frame: gyroscope, then cosines of the joints, which know no sign, then their velocities.
    np.testing.assert_array_equal(signs[where["gyro"]], [-1, 1, -1] * 3)
    np.testing.assert_array_equal(columns[where["gyro"]], np.arange(9))
    assert (signs[where["position"]] == 1).all()
    start = where["velocity"].start
    for frame in range(3):
        first = start + 12 * frame
        # Hips of the front: one axis is turned, so that both move alike; those at the back are as they were.
        assert image.columns[first] == first + 3
        assert (image.signs[first], image.signs[first + 3], image.signs[first + 6]) == (1, 1, -1)
