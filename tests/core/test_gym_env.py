"""Our tasks under Gymnasium: its checker, its wrappers, its rules for episodes that end, and its seeds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from sim2real.errors import InputError
from sim2real.tasks import TaskEnv, get_task, task_names
from sim2real.tasks.base import unpublished
from sim2real.tasks.gym_env import Sim2RealEnv, Sim2RealVectorEnv, gym_id, observation_space, register
from sim2real.tasks.gym_tasks import GymTaskEnv

PENDULUM = "sim2real/PendulumSwingup-v0"


def actions(steps: int, num_envs: int, size: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(4).uniform(-1.0, 1.0, (steps, num_envs, size)).astype(np.float32)


@pytest.fixture
def vector() -> Iterator[Sim2RealVectorEnv]:
    env = gymnasium.make_vec(PENDULUM, num_envs=3, episode_length=0.2)
    assert isinstance(env, Sim2RealVectorEnv)
    yield env
    env.close()


def test_every_task_has_an_id() -> None:
    register()
    assert {gym_id(name) for name in task_names()} <= set(gymnasium.registry)
    assert gym_id("go2-velocity-flat") == "sim2real/Go2VelocityFlat-v0"
    assert gym_id("so101-reach") == "sim2real/So101Reach-v0"


def test_an_id_can_name_the_module_that_knows_it() -> None:
    """In a program that has not heard of us; Gymnasium itself has no plugins since 1.0."""
    program = f"""
import gymnasium
env = gymnasium.make_vec("sim2real.tasks.gym_env:{PENDULUM}", num_envs=2)
print(env.reset(seed=1)[0].shape, env.spec.id)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["(2,", "4)", PENDULUM], done.stderr


# Joint velocities have no bounds, and none are made up.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m.* value is -?infinity")
def test_gymnasiums_checker_passes() -> None:
    check_env(cast("Any", gymnasium.make(PENDULUM)).unwrapped)


def test_an_episode_is_what_gymnasiums_own_vector_makes_of_single_environments() -> None:
    """Same spaces, values, types, infos and masks, up to its end; the next one's start is drawn once more there."""
    options: dict[str, Any] = {"episode_length": 0.2}
    in_rows = {"autoreset_mode": AutoresetMode.SAME_STEP}
    mine = gymnasium.make_vec(PENDULUM, num_envs=1, **options)
    rows = gymnasium.make_vec(PENDULUM, 1, "sync", vector_kwargs=in_rows, **options)
    assert mine.observation_space == rows.observation_space
    assert mine.action_space == rows.action_space
    assert mine.metadata["autoreset_mode"] is rows.metadata["autoreset_mode"]
    assert_same(mine.reset(seed=7), rows.reset(seed=7))
    for step, action in enumerate(actions(20, 1), start=1):
        own, others = mine.step(action), rows.step(action)
        assert_same(own[1:], others[1:])
        assert ("final_obs" in own[4]) == (step == 20)
        assert_same(own[4].get("final_obs", own[0]), others[4].get("final_obs", others[0]))


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key, value in cast("dict[str, Any]", mine).items():
            assert_same(value, theirs[key])
    elif isinstance(mine, tuple) or (isinstance(mine, np.ndarray) and mine.dtype == object):
        for part, other in zip(cast("tuple[Any, ...]", mine), theirs, strict=True):
            assert_same(part, other)
    else:
        np.testing.assert_array_equal(cast("Any", mine), theirs, strict=True)


def test_ends_of_some_episodes_are_told_apart_from_the_rest(vector: Sim2RealVectorEnv) -> None:
    """The middle one spins too fast in step 5; in step 20 the others' time is up, in step 25 its own."""
    vector.reset(seed=1)
    names = [f"reward_{name}" for name in vector.env.reward_names]
    for step, action in enumerate(actions(25, 3), start=1):
        if step == 5:
            vector.env.plant.sim.qvel[1] = 20.0
        observation, reward, terminated, truncated, info = vector.step(action)
        ends = {5: [False, True, False], 20: [True, False, True], 25: [False, True, False]}.get(step, [False] * 3)
        assert (terminated | truncated).tolist() == ends
        assert terminated.any() == (step == 5)
        total = sum(info[name] for name in names)
        if any(ends):
            assert info["_final_obs"].tolist() == info["_final_info"].tolist() == ends
            assert [value is not None for value in info["final_obs"]] == ends
            assert info["final_obs"][1 if step != 20 else 0].shape == observation[0].shape
            assert [info["final_info"][f"_{name}"].tolist() for name in names] == [ends] * len(names)
            total += sum(info["final_info"][name] for name in names)
        assert info[f"_{names[0]}"].tolist() == [not end for end in ends]
        np.testing.assert_allclose(total, reward, atol=1e-12)


def test_what_was_returned_does_not_change(vector: Sim2RealVectorEnv) -> None:
    vector.reset(seed=1)
    kept = [vector.step(action) for action in actions(2, 3)]
    copies = [[np.array(part) for part in parts[:4]] for parts in kept]
    for action in actions(30, 3):
        vector.step(action)
    for parts, copied in zip(kept, copies, strict=True):
        assert all(map(np.array_equal, parts[:4], copied))


def test_gymnasiums_wrappers_work(vector: Sim2RealVectorEnv) -> None:
    counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector)
    env = gymnasium.wrappers.vector.NormalizeReward(gymnasium.wrappers.vector.ClipAction(counted))
    env.reset(seed=1)
    for action in actions(45, 3):
        env.step(2.0 * action)
    assert list(counted.length_queue) == [20] * 6


def test_seeds_decide_everything() -> None:
    """Case 27: over episode ends, also a second time in the same environment, whatever was drawn before."""

    def run(env: Sim2RealVectorEnv, seed: int) -> list[bytes]:
        seen = [env.reset(seed=seed)[0].tobytes()]
        for action in actions(50, 3):
            observation, reward, *_ = env.step(action)
            seen += [observation.tobytes(), reward.tobytes()]
        return seen

    first, second = (Sim2RealVectorEnv("pendulum-swingup", 3, episode_length=0.2) for _ in range(2))
    assert not np.array_equal(first.reset()[0], second.reset()[0])
    expected = run(first, 5)
    assert run(second, 5) == expected
    assert run(second, 6) != expected
    assert run(first, 5) == expected


@pytest.mark.parametrize("name", [name for name in task_names() if not name.startswith("g1-")])
def test_observations_stay_within_their_bounds(name: str) -> None:
    """Of every task whose robot needs no download."""
    env = Sim2RealVectorEnv(name, 2)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    for action in actions(10, 2, env.env.action_size):
        observation, *_ = env.step(action)
        assert observation in env.observation_space
    assert env.single_observation_space.shape == (env.env.observation_size,)
    assert env.single_action_space.shape == (env.env.action_size,)


@pytest.mark.parametrize("layout", ["term_major", "frame_major"])
@pytest.mark.parametrize("fill", ["first", "zero"])
def test_bounds_follow_the_layout(layout: Any, fill: Any) -> None:
    task = get_task("pendulum-swingup")
    contract = task.contract(unpublished(task))
    terms = contract.observation.terms
    sine = msgspec.structs.replace(terms[0], scale=(0.5,), history_length=2, clip=None)
    velocity = msgspec.structs.replace(terms[2], clip=(1.0, 2.0), history_length=2)
    observation = msgspec.structs.replace(
        contract.observation, terms=(sine, velocity), layout=layout, startup_fill=fill
    )
    box = observation_space(msgspec.structs.replace(contract, observation=observation))
    order = [0, 0, 1, 1] if layout == "term_major" else [0, 1, 0, 1]
    low, high = ([-0.5, 0.0 if fill == "zero" else 1.0], [0.5, 2.0])
    assert box.low.tolist() == [low[i] for i in order]
    assert box.high.tolist() == [high[i] for i in order]


def test_our_trainer_sees_the_same_through_gymnasium() -> None:
    """The two adapters back to back: `gym:` of our own id is our own environment."""
    through = GymTaskEnv(f"gym:{PENDULUM}", 4, seed=0)
    direct = TaskEnv(get_task("pendulum-swingup"), 4, seed=0)
    assert through.control_period == pytest.approx(direct.control_period)
    direct.load_state(*cast("Any", through)._envs._envs.env.state())
    for action in actions(1050, 4):
        mine, theirs = through.step(action), direct.step(action)
        assert mine.done_ids.tolist() == theirs.done_ids.tolist()
        for field in ("observation", "reward", "terminated", "truncated", "final_observation"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(theirs, field))


def test_options_that_are_not_there() -> None:
    with pytest.raises(InputError, match="reset: expected no options, got pose"):
        Sim2RealEnv("pendulum-swingup").reset(options={"pose": 1})
    with pytest.raises(InputError, match=r"unknown; allowed: .*did you mean 'pendulum-swingup'"):
        Sim2RealEnv("pendulum-swingupp")
    with pytest.raises(TypeError, match="num_thread"):
        Sim2RealEnv("pendulum-swingup", num_thread=2)


# Gymnasium warns of a mode that is not among those of the environment, and goes on.
@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec, Sim2RealEnv, Sim2RealVectorEnv])
@pytest.mark.parametrize("mode", ["rgb_array", "human", "ansi", "rgb_array_list"])
def test_rendering_is_refused_when_it_is_asked_for(make: Any, mode: str) -> None:
    with pytest.raises(InputError, match=rf"^render_mode: expected None, got '{mode}'; .*`sim2real play` shows a task"):
        make(PENDULUM if make in (gymnasium.make, gymnasium.make_vec) else "pendulum-swingup", render_mode=mode)
    Sim2RealEnv("pendulum-swingup", render_mode=None)
