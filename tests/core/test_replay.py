"""A dump of a diverged simulation runs again exactly as it was, and says so where it does not. About 8 s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile
from sim2real.robots.drives import Drive, Friction
from sim2real.robots.go2 import ROBOT
from sim2real.sim.delays import DelaySpec, GroupDelay, Uniform
from sim2real.tasks import Task, TaskEnv, get_task
from sim2real.tasks.base import Event
from sim2real.tasks.dump import Dump, read_dump
from sim2real.tasks.replay import Replay, replay

PENDULUM = get_task("pendulum-swingup")


def ranges(robot: str, **bounds: tuple[float, float]) -> RandomizationFile:
    parameters = tuple(
        ParameterRange(
            name=name,
            unit="",
            nominal=low,
            low=low,
            high=high,
            operation="set",
            distribution="uniform",
            identified=True,
            how="for a test",
            delays="command" if name == COMMAND_DELAY else None,
        )
        for name, (low, high) in bounds.items()
    )
    return RandomizationFile(
        schema_version=2,
        robot=robot,
        toolkit_version="0",
        parameters=parameters,
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )


def break_velocity(env: TaskEnv) -> None:
    """Something from outside: the state before the last step is in the file, and so is that it was written."""
    env.plant.sim.qvel[1] = np.nan


def diverge(
    folder: Path,
    task: Task,
    steps: int,
    *,
    randomization: RandomizationFile | None = None,
    break_it: Callable[[TaskEnv], None] = break_velocity,
    nan_action: int | None = None,
) -> Dump:
    """Let environment 1 of 3 diverge in control step `steps`, counted from 0, of a run with random actions."""
    # Episodes that end on the way would make it uncertain how long the last one is.
    task = msgspec.structs.replace(task, terminations={})
    env = TaskEnv(task, 3, seed=4, randomization=randomization, episode_length=1e3, dump_folder=folder)
    rng = np.random.default_rng(2)
    for step in range(steps + 1):
        action = rng.uniform(-1.0, 1.0, (3, env.action_size)).astype(np.float32)
        if step == nan_action:
            action[1] = np.nan
        if step == steps:
            break_it(env)
            assert env._ring is not None  # pyright: ignore[reportPrivateUsage]
            env._ring.written(np.array([1]))  # pyright: ignore[reportPrivateUsage]
        env.step(action)
    assert env.diverged == 1
    (path,) = folder.iterdir()
    return read_dump(path)


def check_exact(done: Replay, steps: int, resumed: tuple[int, ...]) -> None:
    assert done.steps == steps
    assert done.exact
    assert done.exact_steps == steps
    assert done.diverged_in == steps - 1
    assert done.resumed == resumed
    assert np.isfinite(done.largest_velocity[:-1]).all()
    assert not np.isfinite(done.largest_velocity[-1])


@pytest.mark.parametrize("name", ["pendulum-swingup", "acrobot-swingup", "so101-reach", "go2-velocity-flat"])
@pytest.mark.parametrize("steps", [0, 30, 130])
def test_every_state_comes_out_bit_for_bit(tmp_path: Path, name: str, steps: int) -> None:
    task = get_task(name)
    dump = diverge(tmp_path, task, steps)
    assert dump.facts.from_start == (steps < 100)
    kept = min(steps + 1, 100)
    check_exact(replay(dump, task), kept, (kept - 1,) if steps else ())


@pytest.mark.parametrize("steps", [3, 40, 150])
def test_so_it_does_with_the_randomization_that_it_had(tmp_path: Path, steps: int) -> None:
    content = ranges(
        "pendulum", mass=(0.6, 0.8), frictionloss=(0.0, 0.4), damping=(0.05, 0.15), command_delay=(0.0, 0.02)
    )
    dump = diverge(tmp_path, PENDULUM, steps, randomization=content)
    assert dump.facts.parameters.keys() == {"mass", "frictionloss", "damping", COMMAND_DELAY}
    assert 0.6 < dump.facts.parameters["mass"] < 0.8
    done = replay(dump, PENDULUM)
    assert done.exact
    # What was on its way when the file begins is not in it, so the first states are taken from there.
    late = round(0.1 / 0.01)
    assert all(step <= late or step == done.steps - 1 for step in done.resumed)
    if dump.facts.from_start:
        assert done.resumed == (done.steps - 1,)


def test_and_with_delays_that_episodes_draw(tmp_path: Path) -> None:
    delays = DelaySpec(commands=(GroupDelay(delay=Uniform(low=0.003, high=0.03)),))
    task = msgspec.structs.replace(PENDULUM, delays=delays)
    check_exact(replay(diverge(tmp_path, task, 20), task), 21, (20,))


def test_and_with_drives_that_are_not_ideal(tmp_path: Path) -> None:
    friction = Friction(coulomb=0.1, viscous=0.02, static=0.15, stribeck_velocity=0.1, load=0.0)
    drive = Drive(friction=friction, rotor_inertia=0.003)
    joint = msgspec.structs.replace(PENDULUM.robot.joints[0], drive=drive)
    task = msgspec.structs.replace(PENDULUM, robot=msgspec.structs.replace(PENDULUM.robot, joints=(joint,)))
    check_exact(replay(diverge(tmp_path, task, 25), task), 26, (25,))


def test_pushes_are_taken_from_the_file(tmp_path: Path) -> None:
    def kick(rng: np.random.Generator, qpos: object, qvel: np.ndarray) -> None:
        qvel += rng.uniform(-3.0, 3.0, qvel.shape)

    task = msgspec.structs.replace(PENDULUM, events=(Event(name="kick", apply=kick, period=(0.1, 0.1)),))
    check_exact(replay(diverge(tmp_path, task, 35), task), 36, (10, 20, 30, 35))


def test_a_command_that_is_no_number_is_named(tmp_path: Path) -> None:
    """MuJoCo would take it for 0 and go on; that the episode ended by it must be told all the same."""
    done = replay(diverge(tmp_path, PENDULUM, 8, nan_action=8), PENDULUM)
    assert done.not_finite_command == 8
    check_exact(done, 9, (8,))


def test_a_velocity_that_no_robot_reaches_counts_as_diverged(tmp_path: Path) -> None:
    def throw(env: TaskEnv) -> None:
        env.plant.sim.qvel[1] = 3e4

    done = replay(diverge(tmp_path, PENDULUM, 12, break_it=throw), PENDULUM)
    assert done.exact
    assert done.diverged_in == 12
    assert done.largest_velocity[-1] > 1e4


def test_other_physics_are_noticed(tmp_path: Path) -> None:
    """What would not see another mass would not see that a replay is none."""
    dump = diverge(tmp_path, PENDULUM, 30, randomization=ranges("pendulum", mass=(0.6, 0.8)))
    mass = dump.plant["model.body_mass"].copy()
    mass[0, -1] *= 1.0 + 1e-9
    done = replay(msgspec.structs.replace(dump, plant={**dump.plant, "model.body_mass": mass}), PENDULUM)
    assert done.exact_steps < 5
    assert not done.exact


def test_the_first_state_needs_what_the_solver_starts_from(tmp_path: Path) -> None:
    # The Go2's own solver starts from nothing.
    robot = tmp_path / "go2.xml"
    robot.write_text(ROBOT.mjcf.read_text().replace("pyramidal", "elliptic").replace('warmstart="disable"', ""))
    task = get_task("go2-velocity-flat", str(robot))
    dump = diverge(tmp_path / "dumps", task, 130)
    without = {name: values for name, values in dump.state.items() if name != "qacc_warmstart"}
    assert not replay(msgspec.structs.replace(dump, state=without), task).exact


def test_the_wrong_task_is_refused(tmp_path: Path) -> None:
    dump = diverge(tmp_path, PENDULUM, 3)
    with pytest.raises(InputError, match="is of task pendulum-swingup and robot pendulum, got acrobot-swingup"):
        replay(dump, get_task("acrobot-swingup"))


def test_an_engine_that_is_unknown_here_is_refused(tmp_path: Path) -> None:
    dump = diverge(tmp_path, PENDULUM, 3)
    facts = msgspec.structs.replace(dump.facts, engine="another")
    with pytest.raises(InputError, match="engine 'another': unknown here; expected one of mujoco"):
        replay(msgspec.structs.replace(dump, facts=facts), PENDULUM)


def test_physics_of_another_shape_are_refused(tmp_path: Path) -> None:
    dump = diverge(tmp_path, PENDULUM, 3, randomization=ranges("pendulum", mass=(0.6, 0.8)))
    plant = {**dump.plant, "model.body_mass": np.ones((1, 17))}
    with pytest.raises(InputError, match="its physics do not fit task pendulum-swingup"):
        replay(msgspec.structs.replace(dump, plant=plant), PENDULUM)


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("model.body_mass", np.full((1, 2), np.nan), "'plant/model.body_mass' is not finite"),
        ("model.body_mass", np.ones((1, 1)), "its physics do not fit .*'plant/model.body_mass' has shape"),
        ("plant.sensors.bias", np.zeros((1, 1)), "its physics do not fit .*'plant/plant.sensors.bias' has shape"),
        ("plant.commands.delay", np.full((1, 1), np.nan), "'plant/plant.commands.delay' is not finite"),
        ("plant.commands.delay", np.full((1, 1), -0.01), "expected 0 to 0.1 s"),
        ("plant.commands.delay", np.full((1, 1), 5.0), "expected 0 to 0.1 s"),
        ("plant.commands.wings", np.ones((1, 1)), "'plant/plant.commands.wings' is unknown"),
    ],
)
def test_a_plant_that_no_run_had_is_refused(tmp_path: Path, name: str, values: np.ndarray, told: str) -> None:
    dump = diverge(tmp_path, PENDULUM, 3)
    with pytest.raises(InputError, match=told) as refused:
        replay(msgspec.structs.replace(dump, plant={**dump.plant, name: values}), PENDULUM)
    assert "diverged-0.npz" in str(refused.value)


def test_a_solver_state_of_another_robot_is_refused(tmp_path: Path) -> None:
    dump = diverge(tmp_path, PENDULUM, 3)
    state = {**dump.state, "qacc_warmstart": np.zeros((4, 7))}
    with pytest.raises(InputError, match="'state/qacc_warmstart' has 7 values, expected 1"):
        replay(msgspec.structs.replace(dump, state=state), PENDULUM)


def test_a_contract_that_is_not_the_tasks_is_refused_and_what_differs_named(tmp_path: Path) -> None:
    dump = diverge(tmp_path, PENDULUM, 3)
    contract = dump.facts.contract
    period = msgspec.structs.replace(contract.timing, control_period_ns=contract.timing.control_period_ns * 2)
    stiff = (msgspec.structs.replace(contract.joints[0], kp=99.0), *contract.joints[1:])
    for changed, told in (
        (msgspec.structs.replace(contract, timing=period), r"contract\.timing\.control_period_ns: the task's is"),
        (msgspec.structs.replace(contract, joints=stiff), r"contract\.joints\[0\]\.kp: .* the file's 99\.0"),
        (msgspec.structs.replace(contract, joints=contract.joints * 2), r"contract\.joints: .* 1 items, the file's 2"),
    ):
        facts = msgspec.structs.replace(dump.facts, contract=changed)
        with pytest.raises(InputError, match=rf"diverged-0\.npz: {told}"):
            replay(msgspec.structs.replace(dump, facts=facts), PENDULUM)
