"""The environment of every task: the same bytes again, what a step says of itself, and case 26. About 15 s."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from sim2real.errors import InputError
from sim2real.observation import ObservationBuilder
from sim2real.tasks import Task, TaskEnv
from sim2real.tasks.base import Array, Curriculum, Flags, Motion
from sim2real.tasks.dump import read_dump
from sim2real.tasks.replay import replay
from tests.core.task_rig import FETCHED_TASKS, TASKS, Step, actions, copy_of, make_env, ranges_of, run, shaken, task_of


@pytest.fixture(scope="module", params=[*TASKS, *FETCHED_TASKS])
def task(request: pytest.FixtureRequest) -> Task:
    return task_of(request.param)


def bits(steps: list[Step]) -> list[tuple[bytes, ...]]:
    return [step.bits() for step in steps]


def all_ended(steps: list[Step]) -> bool:
    """Whether an episode of every environment ended at some time."""
    return bool(np.any([step.terminated | step.truncated for step in steps], axis=0).all())


def test_same_seed_same_bytes_at_any_number_of_threads(task: Task) -> None:
    """Case 27: over episode ends, pushes, new wishes, levels, delays, noise and randomized physics."""
    envs = [make_env(task, seed=1), make_env(task, seed=1), make_env(task, seed=1, num_threads=2)]
    sequence = actions(envs[0], 90)
    first, again, threads = (run(env, sequence) for env in envs)
    assert all_ended(first)
    assert bits(first) == bits(again)
    assert bits(first) == bits(threads)


def test_another_seed_is_another_run(task: Task) -> None:
    one, other = make_env(task, seed=1), make_env(task, seed=2)
    sequence = actions(one, 3)
    for first, second in zip(run(one, sequence), run(other, sequence), strict=True):
        assert not np.array_equal(first.observation, second.observation)


def test_a_loaded_state_continues_exactly(task: Task) -> None:
    """Case 23: and it does so in environments that have been elsewhere meanwhile."""
    env, other = make_env(task, seed=1), make_env(task, seed=99)
    sequence = actions(env, 120)
    run(env, sequence[:37])
    run(other, sequence[:11])
    arrays, generator = copy.deepcopy(env.state())
    expected = run(env, sequence[37:])
    means = env.term_means()
    assert all_ended(expected)
    assert task.curriculum is None or len({tuple(step.levels.tolist()) for step in expected}) > 3
    other.load_state(arrays, generator)
    assert bits(run(other, sequence[37:])) == bits(expected)
    assert other.term_means() == means


def test_a_state_is_a_copy(task: Task) -> None:
    env = make_env(task)
    sequence = actions(env, 60)
    arrays, generator = env.state()
    before = copy.deepcopy(arrays)
    first = run(env, sequence)
    assert [name for name, values in arrays.items() if not np.array_equal(values, before[name])] == []
    env.load_state(arrays, generator)
    assert bits(run(env, sequence)) == bits(first)


def test_a_seed_given_to_reset_begins_as_a_new_object_does(task: Task) -> None:
    def fresh(seed: int) -> TaskEnv:
        return TaskEnv(shaken(task), 4, seed=seed, randomization=ranges_of(task), episode_length=0.8)

    used, new = fresh(1), fresh(7)
    sequence = actions(new, 60)
    run(used, sequence[:33])
    first = used.reset(seed=7).copy()
    assert np.array_equal(first, new.observation)
    assert np.array_equal(used.critic_observation, new.critic_observation)
    assert used.seed == 7
    assert bits(run(used, sequence)) == bits(run(new, sequence))


def test_without_a_seed_reset_goes_on_with_the_generator(task: Task) -> None:
    env = make_env(task)
    first = env.reset().copy()
    second = env.reset()
    assert second is env.observation
    assert not np.array_equal(first, second)
    assert not env.episode_step.any()


def test_observations_are_the_contract_builder_s(task: Task) -> None:
    """A builder of its own, fed with what the plant senses, gives the same, history and all."""
    env = make_env(task)
    sensed: list[tuple[np.ndarray, np.ndarray | None]] = []
    original = env.plant.sense

    def sense(out: np.ndarray, rng: np.random.Generator | None = None, env_ids: np.ndarray | None = None) -> None:
        original(out, rng, env_ids)
        sensed.append((out.copy(), env_ids))

    env.plant.sense = sense
    builder = ObservationBuilder(env.contract, env.num_envs)
    env.reset()
    ((signals, rows),) = sensed
    assert rows is not None
    builder.signals[:], builder.commands[:] = signals, env.observer.commands
    assert np.array_equal(builder.reset(), env.observation)
    for action in actions(env, 60):
        sensed.clear()
        result = env.step(action)
        builder.signals[:], builder.last_action[:] = sensed[0][0], action
        # New wishes of episodes that ended in this step are not those that the last observation was made with.
        keep = np.setdiff1d(np.arange(env.num_envs), result.done_ids)
        builder.commands[keep] = env.observer.commands[keep]
        before = builder.update()
        assert np.array_equal(before[keep], result.observation[keep])
        if len(result.done_ids):
            command = builder.split(result.final_observation)
            for name, values in builder.split(before[result.done_ids]).items():
                source = next(term.source for term in env.contract.observation.terms if term.name == name)
                assert source == "command" or np.array_equal(values, command[name])
            builder.signals[:], builder.commands[:] = sensed[1][0], env.observer.commands
            builder.last_action[result.done_ids] = 0.0
            assert np.array_equal(builder.reset(result.done_ids)[result.done_ids], result.observation[result.done_ids])


def test_the_critic_sees_the_observation_and_then_the_truth(task: Task) -> None:
    env = make_env(task)
    size = env.observation_size
    assert env.critic_observation is env.observation or env.critic_observation.shape[1] > size
    for action in actions(env, 60):
        before = {name: np.asarray(term(env.motion)) for name, term in env.task.critic.items()}
        assert np.array_equal(env.critic_observation[:, :size], env.observation)
        if before:
            truth = np.concatenate(list(before.values()), axis=1).astype(np.float32)
            np.testing.assert_array_equal(env.critic_observation[:, size:], truth)
        result = env.step(action)
        assert np.array_equal(result.final_critic_observation[:, :size], result.final_observation)
        assert result.critic_observation is env.critic_observation


def test_finals_are_those_of_the_episode_that_ended(task: Task) -> None:
    """What an environment that has no time limit sees in the same step is what one with a limit saw last."""
    limited, free = (TaskEnv(task, 3, seed=1, episode_length=length) for length in (0.3, 100.0))
    *before, last = 0.1 * actions(limited, limited.episode_steps)
    for action in before:
        assert not limited.step(action).terminated.any()
        free.step(action)
    result, other = limited.step(last), free.step(last)
    assert result.truncated.all()
    assert not other.truncated.any()
    assert np.array_equal(result.final_observation, other.observation)
    assert np.array_equal(result.final_critic_observation, other.critic_observation)
    assert not np.array_equal(result.final_observation, result.observation)


def test_the_reward_is_the_sum_of_its_terms_and_their_means_are_logged(task: Task) -> None:
    env = make_env(task)
    steps = run(env, actions(env, 40))
    for step in steps:
        np.testing.assert_allclose(step.reward, step.reward_terms.sum(axis=0), rtol=1e-12)
    mean = np.mean([step.reward_terms for step in steps], axis=(0, 2))
    figures = env.term_means()
    logged = [figures[f"reward/{name}"] for name in task.rewards]
    np.testing.assert_allclose(logged, mean, rtol=1e-9, atol=1e-15)
    assert set(figures) - {"curriculum/level"} == {f"reward/{name}" for name in task.rewards} | {"diverged"}
    # The next figures are those of what comes from now on.
    result = env.step(actions(env, 1)[0])
    assert env.term_means()[f"reward/{env.reward_names[0]}"] == pytest.approx(result.reward_terms[0].mean())


def test_weights_times_terms_of_the_true_motion(task: Task) -> None:
    """Of a step without pushes, new wishes and ends, so that the motion is still the one that was rewarded."""
    calm = msgspec.structs.replace(task, events=(), commands=None, terminations={})
    env = TaskEnv(calm, 4, seed=3)
    result = env.step(actions(env, 1)[0])
    for row, reward in zip(result.reward_terms, task.rewards.values(), strict=True):
        np.testing.assert_allclose(row, reward.weight * reward.term(env.motion), rtol=1e-12)
    assert np.abs(result.reward).max() > 0.0


def test_ends_and_time_limits_are_told_apart(task: Task) -> None:
    """Where both come in the same step it is an end: no value follows."""

    def second(motion: Motion) -> Flags:
        return np.arange(len(motion.time)) == 1

    env = TaskEnv(msgspec.structs.replace(task, terminations={"second": second}), 4, seed=0)
    env.episode_step[1:3] = env.episode_steps - 1
    result = env.step(np.zeros((4, env.action_size), np.float32))
    assert result.terminated.tolist() == [False, True, False, False]
    assert result.truncated.tolist() == [False, False, True, False]
    assert result.done_ids.tolist() == [1, 2]
    assert env.episode_step.tolist() == [1, 0, 0, 1]
    assert env.motion.time[[1, 2]].tolist() == [0.0, 0.0]


def test_an_episode_lasts_as_long_as_it_says(task: Task) -> None:
    calm = msgspec.structs.replace(task, terminations={})
    env = TaskEnv(calm, 1, seed=0, episode_length=0.2)
    steps = round(0.2 / env.control_period)
    lasts = [bool(env.step(np.zeros((1, env.action_size), np.float32)).truncated[0]) for _ in range(3 * steps)]
    assert np.flatnonzero(lasts).tolist() == [steps - 1, 2 * steps - 1, 3 * steps - 1]


BREAKS = {20: ("qpos", np.nan), 35: ("qvel", np.inf), 50: ("qvel", 1e6)}
"""At which step somebody writes what into the state."""


def test_a_world_that_leaves_the_numbers_does_not_disturb_the_others(task: Task, tmp_path: Path) -> None:
    """Case 26. The other run's world ends in the same steps by its time limit: as much is drawn for a new episode."""
    bad, good = (
        TaskEnv(shaken(task), 4, seed=1, randomization=ranges_of(task), dump_folder=tmp_path) for _ in range(2)
    )
    others = np.array([0, 1, 3])
    for step, action in enumerate(0.1 * actions(bad, 60)):
        if step in BREAKS:
            field, value = BREAKS[step]
            getattr(bad.plant.sim, field)[2, -1] = value
            good.episode_step[2] = good.episode_steps - 1
        first, second = copy_of(bad, bad.step(action)), copy_of(good, good.step(action))
        assert all(np.isfinite(values).all() for values in first)
        if step in BREAKS:
            row = first.done_ids.tolist().index(2)
            assert first.terminated[2]
            assert not first.truncated[2]
            assert second.terminated[2] or second.truncated[2]
            assert first.reward[2] == 0.0
            assert not first.reward_terms[:, 2].any()
            assert not first.final_observation[row].any()
            assert not first.final_critic_observation[row].any()
        for name in ("observation", "critic_observation", "reward", "terminated", "truncated", "qpos", "qvel"):
            one, two = getattr(first, name)[others], getattr(second, name)[others]
            assert np.array_equal(one, two), (step, name)
    assert (bad.diverged, good.diverged) == (3, 0)
    assert bad.term_means()["diverged"] == 3.0
    dumps = [read_dump(path) for path in sorted(tmp_path.iterdir())]
    assert [dump.facts.step for dump in dumps] == [20, 14, 14]
    for dump in dumps:
        assert (dump.facts.task, dump.facts.env, dump.facts.seed) == (task.name, 2, 1)
        assert dump.facts.parameters.keys() == {each.name for each in ranges_of(task).parameters}
        assert replay(dump, shaken(task)).steps == dump.facts.step + 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -3e38])
def test_an_action_that_is_no_number_ends_its_own_episode_alone(task: Task, value: float, tmp_path: Path) -> None:
    """One element of one row is enough. The other run's episode ends in the same steps by its time limit."""
    bad, good = (
        TaskEnv(shaken(task), 4, seed=1, randomization=ranges_of(task), dump_folder=tmp_path) for _ in range(2)
    )
    others = np.array([0, 2, 3])
    for step, action in enumerate(0.1 * actions(bad, 12)):
        wrong = action.copy()
        if step in (3, 7):
            wrong[1, -1] = value
            good.episode_step[1] = good.episode_steps - 1
        first, second = copy_of(bad, bad.step(wrong)), copy_of(good, good.step(action))
        assert all(np.isfinite(values).all() for values in first)
        if step in (3, 7):
            row = first.done_ids.tolist().index(1)
            assert first.terminated[1]
            assert not first.truncated[1]
            assert not first.reward_terms[:, 1].any()
            assert not first.final_observation[row].any()
            assert not first.final_critic_observation[row].any()
        for name in ("observation", "critic_observation", "reward", "terminated", "truncated", "qpos", "qvel"):
            one, two = getattr(first, name)[others], getattr(second, name)[others]
            assert np.array_equal(one, two), (step, name)
    assert (bad.diverged, good.diverged) == (2, 0)
    assert np.isfinite(list(bad.term_means().values())).all()
    dumps = [read_dump(path) for path in sorted(tmp_path.iterdir())]
    assert [(dump.facts.env, dump.facts.step) for dump in dumps] == [(1, 3), (1, 3)]
    if np.isnan(value):
        assert all(np.isnan(dump.command[-1]).any() and np.isfinite(dump.command[:-1]).all() for dump in dumps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs: expected a whole number of at least 1, got 0"),
        ({"num_envs": 2.0}, "num_envs: expected a whole number of at least 1, got 2.0"),
        ({"num_envs": True}, "num_envs: expected a whole number of at least 1, got True"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"seed": None}, "seed: expected a whole number of at least 0, got None"),
        ({"num_threads": -1}, "num_threads: expected a whole number of at least 0, got -1"),
        *(
            ({"episode_length": length}, f"episode_length: expected a time of at least one control period.*{length!r}")
            for length in (0, 0.0, 1e-4, -1.0, float("nan"), float("inf"), "long")
        ),
    ],
)
def test_arguments_out_of_their_range(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"num_envs": 1, "seed": 0, **arguments}
    with pytest.raises(InputError, match=f"^{message}"):
        TaskEnv(task_of("pendulum-swingup"), **given)


def test_an_episode_may_be_one_step() -> None:
    task = task_of("pendulum-swingup")
    seed: Any = np.int64(3)
    period = TaskEnv(task, 1, seed=seed, num_threads=0).control_period
    env = TaskEnv(task, 1, seed=0, episode_length=period)
    assert all(env.step(np.zeros((1, 1), np.float32)).truncated[0] for _ in range(3))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((1, 1), np.float32), r"expected shape \(2, 1\), one row per environment, got \(1, 1\)"),
        (np.zeros(2, np.float32), r"expected shape \(2, 1\), .* got \(2,\)"),
        (np.zeros((2, 2), np.float32), r"expected shape \(2, 1\), .* got \(2, 2\)"),
        (None, r"expected shape \(2, 1\), .* got \(\)"),
        ([[None], [0.0]], "expected real floating point numbers, e.g. float32, got object"),
        ([[1.0], [0.0, 1.0]], "got rows of different lengths"),
        (np.zeros((2, 1), np.complex64), "got complex64"),
        (np.zeros((2, 1), np.int64), "got int64"),
        (np.zeros((2, 1), np.bool_), "got bool"),
    ],
)
def test_actions_of_another_shape_or_kind(action: Any, message: str) -> None:
    """And nothing of such a step has happened."""
    env, other = (TaskEnv(task_of("pendulum-swingup"), 2, seed=0) for _ in range(2))
    with pytest.raises(InputError, match=f"^action: .*{message}"):
        env.step(action)
    calm = np.zeros((2, 1), np.float32)
    doubles: Any = calm.astype(np.float64)
    assert copy_of(env, env.step(doubles)).bits() == copy_of(other, other.step(calm)).bits()


def test_a_state_of_something_else_changes_nothing() -> None:
    env = TaskEnv(task_of("go2-velocity-flat"), 2, seed=0)
    arrays, generator = copy.deepcopy(env.state())
    other = {name: values for name, values in arrays.items() if name != "mapper/previous"}
    wrong: list[tuple[tuple[Any, Any], str]] = [
        (TaskEnv(task_of("pendulum-swingup"), 2, seed=0).state(), "another task, engine or number"),
        (TaskEnv(task_of("go2-velocity-flat"), 3, seed=0).state(), r"expected shape \(2.*got \(3"),
        ((other, generator), "lacks 'mapper/previous'"),
        (({**arrays, "new": np.zeros(2)}, generator), "has an unknown 'new'"),
        (({**arrays, "env/levels": np.zeros(2)}, generator), "env/levels: expected int64, got float64"),
        ((arrays, np.random.MT19937(0).state), "expected that of a PCG64 generator"),
        ((arrays, {}), "expected that of a PCG64 generator"),
    ]
    for (given, drawn), message in wrong:
        with pytest.raises(InputError, match=f"^state: .*{message}"):
            env.load_state(given, drawn)
        after, drawn_after = env.state()
        assert drawn_after == generator
        assert all(np.array_equal(after[name], values) for name, values in arrays.items())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("plant/model.body_mass", np.zeros(3)),
        ("plant/model.dof_damping", np.zeros((4, 2))),
        ("plant/model.foo", np.zeros(2)),
        ("plant/model.body_mass", np.array(["a", "b"])),
        ("plant/plant.now", np.array([np.nan, np.nan])),
        ("plant/qpos", [[0.0], [0.0]]),
    ],
)
def test_a_damaged_state_changes_nothing(name: str, values: Any) -> None:
    env = TaskEnv(task_of("pendulum-swingup"), 2, seed=0)
    arrays, generator = copy.deepcopy(env.state())
    with pytest.raises(InputError, match=r"^state: .*(damaged|expected)"):
        env.load_state(arrays | {name: values}, generator)
    after, drawn = env.state()
    assert drawn == generator
    for each, before in arrays.items():
        assert np.array_equal(after[each], before), each


def test_a_state_of_another_task_of_equal_shapes_is_told_apart() -> None:
    """Acrobot and pendubot differ by which joint is driven alone."""
    acrobot, pendubot = (TaskEnv(task_of(name), 2, seed=0) for name in ("acrobot-swingup", "pendubot-swingup"))
    shapes = [{name: values.shape for name, values in env.state()[0].items()} for env in (acrobot, pendubot)]
    assert shapes[0] == shapes[1]
    with pytest.raises(InputError, match="state: it is of another task, robot or engine"):
        acrobot.load_state(*pendubot.state())
    acrobot.load_state(*TaskEnv(task_of("acrobot-swingup"), 2, seed=5).state())


def test_levels_rise_and_fall_and_whoever_passes_the_last_begins_at_any() -> None:
    change = np.array([1, -1, 0, 1])

    def origin(rng: np.random.Generator, levels: npt.NDArray[np.int64]) -> Array:
        return np.stack((10.0 * levels, rng.uniform(0.0, 1.0, len(levels))), axis=1).astype(np.float64)

    def at_once(motion: Motion) -> Flags:
        return motion.time > 0.0

    curriculum = Curriculum(levels=3, change=lambda motion: change[: len(motion.time)], origin=origin)
    task = msgspec.structs.replace(
        task_of("go2-velocity-flat"), terminations={"at once": at_once}, curriculum=curriculum
    )
    env = TaskEnv(task, 4, seed=0)
    levels = [env.levels.copy()]
    for _ in range(40):
        env.step(np.zeros((4, env.action_size), np.float32))
        levels.append(env.levels.copy())
        assert np.array_equal(env.motion.origin[:, 0], 10.0 * env.levels)
        assert np.array_equal(env.motion.base_pos[:, :2], env.motion.origin)
    history = np.array(levels)
    assert history[:3, 0].tolist() == [0, 1, 2]
    assert not history[:, 1:3].any()
    after_the_last = history[1:, 0][history[:-1, 0] == 2]
    assert set(after_the_last.tolist()) == {0, 1, 2}
    assert (np.diff(history[:, 0])[history[:-1, 0] < 2] == 1).all()
    assert env.term_means()["curriculum/level"] == history[-1].mean()
