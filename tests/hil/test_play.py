"""Who drives what is watched, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from sim2real.bundle import Bundle
from sim2real.contract import PolicyContract
from sim2real.errors import ContractError
from sim2real.sim.engines import make_sim
from sim2real.sim.plant import Plant
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.goal import success
from sim2real.tasks.motion import Flags, Motion
from sim2real_edge.engine import load_engine
from sim2real_hil.driving import EdgeDriver, check_fits
from sim2real_hil.inprocess import make_controller, run_in_process
from sim2real_hil.play import PlayArgs, _Counts, run_play  # pyright: ignore[reportPrivateUsage]
from tests.edge import policies

TASK = get_task("pendulum-swingup")
Array = npt.NDArray[np.float64]


# --- who drives --------------------------------------------------------------------------------------------------


def test_a_bundle_drives_as_in_the_lockstep_reference(bundle: Bundle) -> None:
    """The environment's plant under the edge's controller, bit for bit as the bench's."""
    env = TaskEnv(TASK, 1, seed=5, noise=False)
    driver = EdgeDriver(bundle, env, "onnxruntime-cpu")
    plant = Plant(env.contract, make_sim(env.contract, 1))
    plant.sim.qpos[:], plant.sim.qvel[:] = env.plant.sim.qpos, env.plant.sim.qvel
    plant.sim.refresh()
    signals: list[Array] = []
    for _ in range(200):
        signals.append(env.observer.signals[0].copy())
        env.step(driver.act())
    reference = run_in_process(
        plant, make_controller(bundle, "onnxruntime-cpu"), bundle, ticks=200, progress=lambda: None
    )
    np.testing.assert_array_equal(np.array(signals), reference.signals)
    assert driver.findings() == {}
    assert driver.policy == bundle.contract.identity.checkpoint_sha256


def test_the_policy_sees_what_the_environment_says_it_sees(bundle: Bundle) -> None:
    env = TaskEnv(TASK, 3, seed=5)
    driver = EdgeDriver(bundle, env, "onnxruntime-cpu")
    network = load_engine("onnxruntime-cpu", bundle)
    for _ in range(30):
        action = driver.act().copy()
        for index in range(3):
            network.observation[0] = env.observation[index]
            network.run()
            np.testing.assert_array_equal(action[index], network.action[0])
        env.step(action)


def test_the_supervisor_stands_in_between_until_the_episode_ends(bundle: Bundle) -> None:
    env = TaskEnv(TASK, 2, seed=5, noise=False)
    driver = EdgeDriver(bundle, env, "onnxruntime-cpu")
    env.plant.sim.qvel[1] = 40.0
    env.plant.sense(env.observer.signals)
    driver.act()
    assert driver.findings() == {"velocity_limit": 1}
    result = env.step(driver.act())
    assert result.terminated.tolist() == [False, True]
    driver.begin(result.done_ids)
    driver.act()
    assert driver.findings() == {"velocity_limit": 2}


def with_history(_: PolicyContract) -> PolicyContract:
    return policies.recurrent_contract()


def of_a_quadruped(_: PolicyContract) -> PolicyContract:
    return policies.quadruped_contract()


def renamed(contract: PolicyContract) -> PolicyContract:
    terms = contract.observation.terms
    changed = (msgspec.structs.replace(terms[0], name="angle"), *terms[1:])
    return msgspec.structs.replace(contract, observation=msgspec.structs.replace(contract.observation, terms=changed))


def rescaled(contract: PolicyContract) -> PolicyContract:
    terms = contract.observation.terms
    changed = (*terms[:2], msgspec.structs.replace(terms[2], scale=(0.2,)), *terms[3:])
    return msgspec.structs.replace(contract, observation=msgspec.structs.replace(contract.observation, terms=changed))


def reordered(contract: PolicyContract) -> PolicyContract:
    terms = contract.observation.terms
    return msgspec.structs.replace(
        contract, observation=msgspec.structs.replace(contract.observation, terms=(terms[1], terms[0], *terms[2:]))
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (rescaled, r"contract\.observation\.terms\[velocity\]\.scale: the policy has \(0\.2,\), the task \(0\.1,\)"),
        (renamed, r"contract\.observation\.terms\[sin_angle\]\.name: the policy has none"),
        (reordered, r"contract\.observation\.terms\[cos_angle\]\S+: the policy has it where the task has"),
        (with_history, r"history_length: the policy has 3, the task 1"),
        (of_a_quadruped, r"contract\.identity\.robot: the policy drives '"),
    ],
)
def test_a_policy_for_something_else_is_refused_with_the_place(
    change: Callable[[PolicyContract], PolicyContract], told: str
) -> None:
    contract = policies.pendulum_contract()
    with pytest.raises(ContractError, match=told):
        check_fits(change(contract), contract)


def test_another_identity_budget_envelope_or_memory_is_no_difference() -> None:
    contract = policies.pendulum_contract()
    other = msgspec.structs.replace(
        contract,
        identity=msgspec.structs.replace(contract.identity, checkpoint_sha256="1" * 64, toolkit_version="9"),
        safety=msgspec.structs.replace(contract.safety, recover_after=99),
        model=msgspec.structs.replace(contract.model, recurrent=policies.recurrent_contract().model.recurrent),
    )
    check_fits(other, contract)


# --- what is told ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gl")
def test_a_wish_of_the_operator_is_held_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Array] = []

    def look(env: TaskEnv, action: npt.NDArray[np.float32]) -> object:
        seen.append(env.observer.commands.copy())
        return step(env, action)

    step = TaskEnv.step
    monkeypatch.setattr(TaskEnv, "step", look)
    args = PlayArgs(
        task="go2-velocity-flat", video=tmp_path / "out.mp4", seconds=0.2, num_envs=8, command=("forward=0.25",)
    )
    run_play(args)
    commands = np.array(seen)
    assert len(commands) == 10
    assert (commands[:, :, 0] == 0.25).all()
    assert np.ptp(commands[:, :, 2]) > 0.0


def is_slow(motion: Motion) -> Flags:
    return np.abs(motion.joint_vel[:, 0]) < 4.0


def always(motion: Motion) -> Flags:
    return np.ones(len(motion.joint_vel), np.bool_)


def test_episodes_are_judged_as_the_trainer_judges_them() -> None:
    """`sim2real.tasks.goal.success` over whole episodes that were recorded."""
    num_envs, steps = 64, 150
    goal = msgspec.structs.replace(TASK.goal, holds=is_slow, after=0.8, share=0.6)
    task = msgspec.structs.replace(TASK, goal=goal)
    counts = _Counts(task, num_envs)
    env = TaskEnv(counts.watched, num_envs, seed=2, episode_length=1.5)
    reference = TaskEnv(task, num_envs, seed=2, episode_length=1e3)
    held: list[npt.NDArray[np.bool_]] = []
    alive = np.ones(num_envs, np.bool_)
    action = np.zeros((num_envs, 1), np.float32)
    for _ in range(steps):
        counts.add(env.step(action), env.control_period)
        result = reference.step(action)
        held.append(goal.holds(reference.motion))
        alive &= ~result.terminated
        if not alive.all():
            pytest.fail("an episode ended early: choose another seed")
    assert counts.episodes == num_envs
    assert counts.falls == 0
    expected = success(goal, np.array(held), env.control_period)
    assert 0 < expected.sum() < num_envs
    assert counts.successes == expected.sum()


def test_an_episode_that_ends_early_is_a_fall_and_no_success() -> None:
    goal = msgspec.structs.replace(TASK.goal, holds=always, after=0.0)
    counts = _Counts(msgspec.structs.replace(TASK, goal=goal), 2)
    env = TaskEnv(counts.watched, 2, seed=0, episode_length=0.1)
    env.plant.sim.qvel[0] = 30.0
    for _ in range(10):
        counts.add(env.step(np.zeros((2, 1), np.float32)), env.control_period)
    assert (counts.episodes, counts.falls, counts.successes) == (2, 1, 1)
