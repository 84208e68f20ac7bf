"""The `mujoco` engine repeats itself bit for bit: threads, processes, snapshots, own models, diverged worlds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION
from sim2real.robots import get_robot
from sim2real.sim.model import load_model
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import FLAT, HeightField, Scene
from tests.core.sim_robots import walker

Array = npt.NDArray[np.float64]

PLACES = (
    *("payload", "foot_friction", "body_ipos/trunk[0]", "body_gravcomp/left_leg", "dof_armature/left"),
    *("geom_size/left_foot[0]", "geom_solref/right_foot[0]", "jnt_stiffness/right", "opt.wind[0]", "opt.density"),
)


def commands(rng: np.random.Generator, num: int, joints: int = 2) -> Array:
    command = np.zeros((num, 5, joints))
    command[:, POSITION] = rng.normal(0.0, 0.5, (num, joints))
    command[:, EFFORT] = rng.normal(0.0, 2.0, (num, joints))
    command[:, KP] = rng.choice([0.0, 20.0, 40.0])
    command[:, KD] = rng.uniform(0.0, 1.0, (num, 1))
    return command


def everything(sim: MujocoSim) -> list[bytes]:
    """State and outputs."""
    return [
        values.tobytes()
        for values in (sim.qpos, sim.qvel, sim.joint_effort, sim.feet_force, sim.feet_pos, sim.site_pos("imu"))
    ]


def act(sim: MujocoSim, rng: np.random.Generator) -> None:
    """Do one of the things that a training does, to some environments or all."""
    rows = np.flatnonzero(rng.random(sim.num_envs) < 0.5)
    match int(rng.integers(6)):
        case 0:
            sim.randomize(str(rng.choice(PLACES)), rng.uniform(0.02, 0.5, len(rows)), rows)
        case 1:
            sim.set_command(commands(rng, len(rows)), rows)
        case 2:
            sim.set_command(commands(rng, sim.num_envs))
        case 3:
            sim.reset(rows)
            sim.qpos[rows, 2] = rng.uniform(0.25, 0.4, len(rows))
        case 4:
            sim.batch.bind("xfrc_applied")[rows, 1] = rng.normal(0.0, 5.0, (len(rows), 6))
        case _:
            sim.step(int(rng.integers(1, 12)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 25))
def test_a_snapshot_continues_exactly_whatever_came_before(
    tmp_path_factory: pytest.TempPathFactory, seed: int, before: int
) -> None:
    """In another simulation with another past, every later state and output is the same: randomized fields included."""
    made = walker(tmp_path_factory.mktemp("walker"))
    rng = np.random.default_rng(seed)
    sim, other = MujocoSim(made, 4, scene=FLAT), MujocoSim(made, 4, scene=FLAT)
    for _ in range(before):
        act(sim, rng)
    for _ in range(10):
        act(other, rng)
    other.restore(sim.snapshot())
    for sub in rng.integers(2**32, size=8):
        for each in (sim, other):
            act(each, np.random.default_rng(sub))
            each.step()
        assert everything(sim) == everything(other)


def test_a_snapshot_is_a_copy(tmp_path: Path) -> None:
    sim = MujocoSim(walker(tmp_path), 2, scene=FLAT)
    sim.randomize("payload", np.array([4.5, 5.5]))
    snapshot = sim.snapshot()
    kept = {name: values.copy() for name, values in snapshot.items()}
    sim.randomize("payload", np.ones(2))
    sim.step(10)
    assert all(np.array_equal(snapshot[name], values) for name, values in kept.items())


def fall_of_go2(threads: int) -> str:
    """Return the hash of what 37 differently randomized robots do under random commands."""
    sim = MujocoSim(get_robot("go2"), 37, scene=FLAT, num_threads=threads)
    rng = np.random.default_rng(3)
    sim.randomize("body_mass/base", rng.uniform(5.0, 9.0, 37))
    sim.randomize("geom_friction/FL_foot[0]", rng.uniform(0.3, 1.2, 37))
    sim.qpos[:, 2] = 0.3
    digest = hashlib.sha256()
    for number in range(25):
        sim.set_command(commands(rng, 37, 12))
        sim.step(4)
        if number % 7 == 6:
            sim.reset(np.arange(number % 5, 37, 5))
        for values in (sim.qpos, sim.qvel, sim.joint_effort, sim.feet_force, sim.feet_pos, sim.site_pos("imu")):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def test_neither_threads_nor_processes_change_a_bit() -> None:
    expected = fall_of_go2(1)
    assert fall_of_go2(2) == expected
    assert fall_of_go2(3) == expected
    code = "from tests.core.test_sim_exact import fall_of_go2; print(fall_of_go2(2))"
    root = Path(__file__).parents[2]
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == expected, done.stderr


def poison_position(sim: MujocoSim) -> None:
    sim.qpos[1, 0] = np.nan


def poison_turn(sim: MujocoSim) -> None:
    sim.qpos[1, 3:7] = np.inf


def poison_velocity(sim: MujocoSim) -> None:
    sim.qvel[1, 7] = 1e300


def poison_gains(sim: MujocoSim) -> None:
    command = np.zeros((1, 5, 2))
    command[:, KP] = np.nan
    sim.set_command(command, np.array([1]))


@pytest.mark.parametrize("poison", [poison_position, poison_turn, poison_velocity, poison_gains])
@pytest.mark.parametrize("terrain", [False, True])
def test_a_world_that_diverges_stays_so_and_disturbs_nobody(
    tmp_path: Path, poison: Callable[[MujocoSim], None], *, terrain: bool
) -> None:
    heights = np.random.default_rng(0).uniform(0.0, 0.05, (20, 20)).astype(np.float32)
    field = HeightField(heights=heights, size=(4.0, 4.0))
    scene = Scene(ground=True, terrain=field, friction=1.0) if terrain else FLAT
    sims = [MujocoSim(walker(tmp_path), 4, scene=scene, num_threads=2) for _ in range(2)]
    command = commands(np.random.default_rng(1), 4)
    for sim in sims:
        sim.qpos[:, 2] = [0.3, 0.31, 0.32, 0.33]
        sim.set_command(command)
        sim.step(20)
    sick, well = sims
    poison(sick)
    others = [0, 2, 3]
    for _ in range(20):
        for sim in sims:
            sim.step(4)
        assert sick.qpos[others].tobytes() == well.qpos[others].tobytes()
        assert sick.feet_force[others].tobytes() == well.feet_force[others].tobytes()
        assert not np.isfinite(sick.qpos[1]).all()
    for sim in sims:
        sim.reset(np.array([1]))
        sim.qpos[1, 2] = 0.3
        sim.set_command(command[[1]], np.array([1]))
        sim.step(40)
    assert sick.qpos.tobytes() == well.qpos.tobytes()
    assert np.isfinite(sick.qpos).all()


def variants(sim: MujocoSim) -> list[mujoco.MjModel]:
    """Return three models of the walker: heavier, with longer feet, and on a slope of its own."""
    specs = [sim.spec.copy() for _ in range(3)]
    specs[0].body("trunk").mass = 6.0
    specs[1].geom("left_foot").size[0] = 0.05
    specs[2].geom("ground").quat = [np.cos(0.1), np.sin(0.1), 0.0, 0.0]
    return [spec.compile() for spec in specs]


def test_several_models_in_one_batch(tmp_path: Path) -> None:
    """Each environment moves as one that has its model to itself; snapshots stay exact."""
    sim, other = (MujocoSim(walker(tmp_path), 3, scene=FLAT) for _ in range(2))
    models = variants(sim)
    sim.set_models(models)
    other.set_models(variants(other))
    rng = np.random.default_rng(5)
    datas = [mujoco.MjData(model) for model in models]
    for number, command in enumerate(commands(rng, 3) for _ in range(20)):
        sim.set_command(command)
        if number == 10:
            other.restore(sim.snapshot())
        sim.step(4)
        if number >= 10:
            other.set_command(command)
            other.step(4)
        for row, (model, data) in enumerate(zip(models, datas, strict=True)):
            data.ctrl[:] = sim.ctrl[row]
            mujoco.mj_step(model, data, 4)
            assert sim.qpos[row].tolist() == data.qpos.tolist()
    assert everything(sim) == everything(other)
    assert len({row.tobytes() for row in sim.qpos}) == 3


def test_models_of_ones_own_are_not_randomized(tmp_path: Path) -> None:
    sim = MujocoSim(walker(tmp_path), 3, scene=FLAT)
    sim.set_models(variants(sim))
    with pytest.raises(InputError, match=r"'payload': environments have models of their own \(set_models\)"):
        sim.randomize("payload", np.ones(3))
    fresh = MujocoSim(walker(tmp_path), 3, scene=FLAT)
    fresh.randomize("payload", np.ones(3))
    with pytest.raises(InputError, match="parameters or gains were set before"):
        fresh.set_models(variants(fresh))


def test_models_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sim = MujocoSim(walker(tmp_path), 3, scene=FLAT)
    models = variants(sim)
    with pytest.raises(InputError, match="expected 3 models, one per environment, got 2"):
        sim.set_models(models[:2])
    with pytest.raises(InputError, match=r"models\[0\]: expected a step of 0\.005 s, got 0\.001"):
        sim.set_models([load_model(sim.robot, FLAT, dt=0.001)[1]] * 3)
    with pytest.raises(InputError, match=r"set_models: .*; compile the models from variants of `spec`"):
        sim.set_models([load_model(get_robot("go2"), FLAT, dt=0.005)[1]] * 3)
    sim.set_models([models[0], models[0], models[1]])
    command = np.zeros((3, 5, 2))
    command[:, KP, 0] = [10.0, 20.0, 10.0]
    with pytest.raises(InputError, match="environments that share a model need the same kp and kd"):
        sim.set_command(command)


def test_outputs_after_a_reset_do_not_depend_on_threads(tmp_path: Path) -> None:
    """What a reset leaves in the outputs means nothing, but it is never another environment's."""
    sims = [MujocoSim(walker(tmp_path), 5, scene=FLAT, num_threads=threads) for threads in (1, 2)]
    for sim in sims:
        sim.set_command(commands(np.random.default_rng(2), 5))
        sim.step(60)
        sim.reset(np.array([1, 3]))
        sim.refresh(np.array([3]))
    alone, together = sims
    for name in ("joint_effort", "feet_force", "feet_pos"):
        assert np.array_equal(getattr(alone, name), getattr(together, name))
    assert alone.joint_effort[[0, 2, 4]].all()


@given(rows=st.sets(st.integers(0, 8), min_size=1), threads=st.sampled_from([1, 3]))
@settings(max_examples=20, deadline=None)
def test_few_and_many_simulations_are_refreshed_alike(
    tmp_path_factory: pytest.TempPathFactory, rows: set[int], threads: int
) -> None:
    """The caller's thread computes a few by itself; those that are not asked for keep their outputs."""
    robot = walker(tmp_path_factory.mktemp("few"))
    some, every = (MujocoSim(robot, 9, scene=FLAT, num_threads=threads) for _ in range(2))
    for sim in (some, every):
        sim.set_command(commands(np.random.default_rng(2), 9))
        sim.step(20)
        sim.qpos[:, 2] -= 0.01
    before = [values.copy() for values in (some.joint_effort, some.feet_force, some.feet_pos)]
    chosen = np.array(sorted(rows))
    others = np.setdiff1d(np.arange(9), chosen)
    some.refresh(chosen)
    every.refresh()
    for values, old, all_new in zip(
        (some.joint_effort, some.feet_force, some.feet_pos),
        before,
        (every.joint_effort, every.feet_force, every.feet_pos),
        strict=True,
    ):
        assert np.array_equal(values[chosen], all_new[chosen])
        assert np.array_equal(values[others], old[others])


@pytest.mark.parametrize(
    "place", [None, "qpos0/left", "body_mass/trunk", "geom_friction/left_foot[0]", "opt.gravity[2]"]
)
def test_a_reset_simulation_is_a_new_one(tmp_path: Path, place: str | None) -> None:
    """Whatever was randomized, before or just now, and whatever became of it."""
    sims = [MujocoSim(walker(tmp_path), 3, scene=FLAT) for _ in range(2)]
    used, new = sims
    if place is not None:
        used.randomize(place, np.full(3, 0.7))
    used.set_command(commands(np.random.default_rng(2), 3))
    used.step(60)
    used.qpos[1] = np.nan
    used.step()
    if place is not None:
        for sim in sims:
            sim.randomize(place, np.array([0.1, 0.2, 0.3]))
    for sim in sims:
        sim.reset()
        sim.set_command(commands(np.random.default_rng(3), 3))
        sim.step(5)
    for name, values in used.snapshot().items():
        assert values.tobytes() == new.snapshot()[name].tobytes(), name
