"""What rewards look at, against MuJoCo's own sensors and against words; and that none of it is ever out of date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.transform import Rotation

from sim2real.contract import PolicyContract
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import FLAT, HeightField, Scene
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.motion import Array, Motion, MotionState
from tests.core.plant_rig import walker_contract
from tests.core.sim_robots import WALKER, robot
from tests.core.task_rig import actions, make_env

PERIOD = 0.02
"""Control period of `walker_contract` [s]."""
ORIGIN = '<site name="imu" pos="0.1 0 0.05"/>'
SENSORS = """
  <sensor>
    <framelinvel name="world_velocity" objtype="site" objname="origin"/>
    <frameangvel name="world_spin" objtype="site" objname="origin"/>
    <velocimeter name="own_velocity" site="origin"/>
    <gyro name="own_spin" site="origin"/>
    <framepos name="place" objtype="site" objname="origin"/>
    <framequat name="attitude" objtype="site" objname="origin"/>
    <framezaxis name="up" objtype="site" objname="origin"/>
  </sensor>
"""
"""Of the base's frame: its origin, which is not its centre of mass."""

PROPERTIES = sorted(
    name for name, value in vars(Motion).items() if hasattr(value, "__get__") and not callable(value) and name[0] != "_"
)
"""Every quantity, the control period among them."""
PER_ENV = [name for name in PROPERTIES if name != "control_period"]


def make_sim(
    folder: Path, num_envs: int, *, scene: Scene = FLAT, names: tuple[str, ...] = ("left", "right")
) -> MujocoSim:
    """Return the walker, with MuJoCo's own sensors on its base."""
    xml = WALKER.replace(ORIGIN, f'{ORIGIN}<site name="origin"/>').replace("</mujoco>", f"{SENSORS}</mujoco>")
    feet = ("left_foot", "right_foot")
    return MujocoSim(robot(folder, xml, *names, base="floating", feet=feet), num_envs, scene=scene)


def state_of(sim: MujocoSim, contract: PolicyContract | None = None) -> MotionState:
    return MotionState(contract or walker_contract(), sim, np.zeros((sim.num_envs, 0)))


def scatter(sim: MujocoSim, seed: int) -> None:
    """Put the robots anywhere, moving anyhow, and let the outputs agree."""
    rng = np.random.default_rng(seed)
    sim.qpos[:] = rng.normal(size=sim.qpos.shape)
    sim.qpos[:, 2] += 3.0
    sim.qpos[:, 3:7] /= np.linalg.norm(sim.qpos[:, 3:7], axis=1, keepdims=True)
    sim.qvel[:] = rng.normal(size=sim.qvel.shape)
    sim.refresh()


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def test_the_base_s_frame_is_mujoco_s(tmp_path: Path) -> None:
    sim = make_sim(tmp_path, 50)
    scatter(sim, 1)
    motion = Motion(state_of(sim))
    world = Rotation.from_quat(sim.sensor("attitude"), scalar_first=True)
    close(motion.base_pos, sim.sensor("place"))
    close(motion.base_quat, sim.sensor("attitude"))
    close(motion.base_lin_vel, sim.sensor("own_velocity"))
    close(motion.base_lin_vel, world.apply(sim.sensor("world_velocity").copy(), inverse=True))
    close(motion.base_ang_vel, sim.sensor("own_spin"))
    close(motion.base_ang_vel, world.apply(sim.sensor("world_spin").copy(), inverse=True))


def test_gravity_seen_from_the_base(tmp_path: Path) -> None:
    sim = make_sim(tmp_path, 50)
    scatter(sim, 2)
    motion = Motion(state_of(sim))
    world = Rotation.from_quat(sim.qpos[:, 3:7], scalar_first=True)
    close(motion.projected_gravity, world.apply(np.array([0.0, 0.0, -1.0]), inverse=True))
    close(-motion.projected_gravity[:, 2], sim.sensor("up")[:, 2])
    sim.qpos[:, 3:7] = [1.0, 0.0, 0.0, 0.0]
    motion.renew()
    assert motion.projected_gravity.tolist() == [[0.0, 0.0, -1.0]] * 50


def test_a_base_s_height_is_above_the_ground_below_it(tmp_path: Path) -> None:
    heights = np.linspace(-1.0, 1.0, 21, dtype=np.float32)[None, :] * np.ones((11, 1), np.float32)
    slope = Scene(ground=True, terrain=HeightField(heights=heights, size=(20.0, 10.0)), friction=1.0)
    for scene, rise in ((FLAT, 0.0), (slope, 0.1)):
        sim = make_sim(tmp_path, 50, scene=scene)
        scatter(sim, 3)
        expected = sim.qpos[:, 2] - rise * sim.qpos[:, 0]
        np.testing.assert_allclose(Motion(state_of(sim)).base_height, expected, atol=1e-6)


def test_joints_are_in_contract_order_whatever_the_simulation_s(tmp_path: Path) -> None:
    sim = make_sim(tmp_path, 4)
    state = state_of(sim, walker_contract(joints=("right", "left")))
    motion = Motion(state)
    state.before_step(np.zeros((4, 1), np.float32))
    scatter(sim, 4)
    sim.set_command(np.tile(np.array([0.0, 0.0, 1.5, 0.0, 0.0])[None, :, None], (4, 1, 2)) * [1.0, 2.0])
    sim.refresh()
    motion.renew()
    left, right = (mujoco.mj_name2id(sim.model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in ("left", "right"))
    places, speeds = sim.model.jnt_qposadr[[right, left]], sim.model.jnt_dofadr[[right, left]]
    assert np.array_equal(motion.joint_pos, sim.qpos[:, places])
    assert np.array_equal(motion.joint_vel, sim.qvel[:, speeds])
    close(motion.joint_acc, sim.qvel[:, speeds] / PERIOD)
    close(motion.joint_travel, sim.qpos[:, places] - sim.model.qpos0[places])
    assert motion.joint_effort.tolist() == [[3.0, 1.5]] * 4


def test_accelerations_are_means_over_the_control_step(tmp_path: Path) -> None:
    """A joint that is pushed with a steady torque: Δq̇ / Δt, over all physics steps of the control step."""
    sim = make_sim(tmp_path, 1)
    sim.qpos[0, 2] = 5.0
    state = state_of(sim)
    motion = Motion(state)
    state.start(np.arange(1))
    for _ in range(3):
        before = sim.joint_vel.copy()
        state.before_step(np.zeros((1, 1), np.float32))
        sim.ctrl[:] = 0.3
        sim.step(4)
        state.after_step(Motion(state).feet_contact)
        motion.renew()
        close(motion.joint_acc, (sim.joint_vel - before) / PERIOD)
    assert np.abs(motion.joint_acc).min() > 1.0


def test_feet_are_where_mujoco_has_them(tmp_path: Path) -> None:
    sim = make_sim(tmp_path, 3)
    scatter(sim, 5)
    data = mujoco.MjData(sim.model)
    for env, feet in enumerate(Motion(state_of(sim)).feet_pos):
        data.qpos[:] = sim.qpos[env]
        mujoco.mj_forward(sim.model, data)
        close(feet, np.array([data.geom(name).xpos for name in ("left_foot", "right_foot")]))


def test_feet_that_stand_carry_the_robot(tmp_path: Path) -> None:
    """Two legs under a trunk that cannot fall over: at rest the forces on the feet are its weight."""
    sim = make_sim(tmp_path, 1)
    weight = float(sim.model.body_mass.sum()) * 9.81
    sim.set_command(np.tile(np.array([0.0, 0.0, 0.0, 500.0, 20.0])[None, :, None], (1, 1, 2)))
    for _ in range(300):
        sim.qpos[:, 3:7], sim.qvel[:, 3:6] = [1.0, 0.0, 0.0, 0.0], 0.0
        sim.step()
    motion = Motion(state_of(sim))
    assert motion.feet_contact.all()
    assert motion.feet_force.sum() == pytest.approx(weight, rel=0.02)
    sim.qpos[0, 2] = 3.0
    sim.refresh()
    motion.renew()
    assert not motion.feet_contact.any()
    assert not motion.feet_force.any()


class Scripted(MujocoSim):
    """The forces on its feet are those that a script says."""

    script = np.zeros((1, 2))

    @property
    def feet_force(self) -> Array:
        return self.script


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    folder = tmp_path_factory.mktemp("scripted")
    feet = ("left_foot", "right_foot")
    return Scripted(robot(folder, WALKER, "left", "right", base="floating", feet=feet), 3, scene=FLAT)


forces = st.integers(1, 30).flatmap(
    lambda steps: hnp.arrays(np.float64, (steps, 3, 2), elements=st.sampled_from([0.0, 0.9, 1.1, 80.0, np.nan]))
)


@given(force=forces, starts=st.dictionaries(st.integers(0, 29), st.integers(0, 2), max_size=3))
def test_time_in_the_air_is_counted_from_the_last_contact(
    scripted: Scripted, force: npt.NDArray[np.float64], starts: dict[int, int]
) -> None:
    """For each foot by itself: control steps since it stood, and on landing how many they had been."""
    state = state_of(scripted)
    motion = Motion(state)
    in_the_air = np.zeros((3, 2), np.int64)
    age = np.zeros(3, np.int64)
    for step, now in enumerate(force):
        if step in starts:
            state.start(np.array([starts[step]]))
            in_the_air[starts[step]] = age[starts[step]] = 0
        scripted.script = now
        state.before_step(np.zeros((3, 1), np.float32))
        state.after_step(Motion(state).feet_contact)
        motion.renew()
        age += 1
        for env, foot in np.ndindex(3, 2):
            landed = 0
            if now[env, foot] > 1.0:
                landed, in_the_air[env, foot] = in_the_air[env, foot], 0
            else:
                in_the_air[env, foot] += 1
            assert motion.landed_after[env, foot] == pytest.approx(landed * PERIOD, abs=1e-12)
            assert motion.air_time[env, foot] == pytest.approx(in_the_air[env, foot] * PERIOD, abs=1e-12)
            assert motion.feet_contact[env, foot] == (now[env, foot] > 1.0)
        close(motion.time, PERIOD * age.astype(np.float64))


def test_actions_are_remembered_for_one_step(scripted: Scripted) -> None:
    state = state_of(scripted)
    motion = Motion(state)
    first, second = (np.full((3, 1), value, np.float32) for value in (0.25, -0.5))
    state.before_step(first)
    state.before_step(second)
    assert (motion.action[:, 0].tolist(), motion.previous_action[:, 0].tolist()) == ([-0.5] * 3, [0.25] * 3)
    state.start(np.array([1]))
    assert motion.action[:, 0].tolist() == [-0.5, 0.0, -0.5]
    assert motion.previous_action[:, 0].tolist() == [0.25, 0.0, 0.25]


def values(motion: Motion) -> dict[str, npt.NDArray[Any]]:
    return {name: getattr(motion, name) for name in PER_ENV}


def test_every_quantity_is_computed_once_and_never_out_of_date() -> None:
    """Over steps, pushes, ends and loaded states: what the environment's motion says is what a new one says."""
    env = make_env(get_task("go2-velocity-flat"), 4)
    assert {"joint_pos", "base_lin_vel", "feet_contact", "air_time", "command"} < set(PER_ENV)
    arrays, generator = env.state()
    for action in actions(env, 40):
        values(env.motion)
        env.step(action)
        fresh = values(Motion(env.motion_state))
        for name, value in values(env.motion).items():
            assert np.array_equal(value, fresh[name]), name
            assert getattr(env.motion, name) is value, name
    values(env.motion)
    env.load_state(arrays, generator)
    fresh = values(Motion(env.motion_state))
    assert all(np.array_equal(value, fresh[name]) for name, value in values(env.motion).items())


def test_some_rows_are_the_rows_of_all() -> None:
    env = make_env(get_task("go2-velocity-rough"), 6)
    rows = np.array([4, 0, 5])
    x = np.array([1.0, 2.0])
    for action in actions(env, 25):
        env.step(action)
        part = Motion(env.motion_state, rows)
        for name, value in values(env.motion).items():
            assert np.array_equal(getattr(part, name), value[rows]), name
        assert np.array_equal(part.site_pos("imu"), env.motion.site_pos("imu")[rows])
        assert np.array_equal(part.ground_height(x, x), env.task.scene.ground_height(x, x))
    part = Motion(env.motion_state, rows)
    assert part.control_period == env.motion.control_period == env.control_period


def test_pushes_are_seen_at_once() -> None:
    """A critic looks after the push; what was computed for the reward before it would be out of date."""
    task = get_task("go2-velocity-flat")

    def kick(rng: np.random.Generator, qpos: Array, qvel: Array) -> None:
        qvel[:, 0] += 10.0

    (push,) = task.events
    pushed = msgspec.structs.replace(task, events=(msgspec.structs.replace(push, apply=kick, period=(0.02, 0.02)),))
    env = TaskEnv(pushed, 2, seed=0, noise=False)
    env.step(np.zeros((2, env.action_size), np.float32))
    world = Rotation.from_quat(env.motion.base_quat, scalar_first=True)
    close(world.apply(env.motion.base_lin_vel), env.plant.sim.qvel[:, :3])
    assert (np.abs(env.motion.base_lin_vel[:, :2]).max(axis=1) > 5.0).all()
    size = env.observation_size
    np.testing.assert_allclose(env.critic_observation[:, size : size + 3], env.motion.base_lin_vel, rtol=1e-6)
