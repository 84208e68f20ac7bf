"""Environments of other libraries: whole episodes, nothing between them, and what a policy and a critic see of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.vector import AutoresetMode

from sim2real.errors import InputError, MissingExtraError
from sim2real.tasks.gym_tasks import GymTaskEnv, is_foreign

Floats = npt.NDArray[np.float64]

envpool = pytest.importorskip("envpool")


class Counting(gymnasium.vector.VectorEnv[Any, Any, npt.NDArray[Any]]):
    """Observation: (environment, episode, step). Environment i ends after 3 + i steps, and waits to be reset."""

    def __init__(self, num_envs: int = 1, mode: AutoresetMode = AutoresetMode.DISABLED) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.single_action_space = Box(-np.inf, np.inf, (1,), np.float64)
        self._counts = np.zeros((num_envs, 3))
        self._counts[:, 0] = np.arange(num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._counts[mask, 1] += 1
        self._counts[mask, 2] = 0
        return self._counts, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._counts[:, 2] += 1
        ends = self._counts[:, 2] >= 3 + self._counts[:, 0]
        assert np.all(self._counts[:, 2] <= 3 + self._counts[:, 0]), "stepped beyond its end"
        # Both at once, as a time limit does at a step that fails: it is an end.
        return self._counts, self._counts[:, 2].copy(), ends, ends, {"reward_age": self._counts[:, 2].copy()}


class Nested(gymnasium.Env[Any, Any]):
    """Privileged entries that do not begin with the state; bounded, unbounded and two-dimensional parts."""

    def __init__(self) -> None:
        self.observation_space = Dict(
            {"privileged_state": Box(-1.0, 1.0, (2, 2), np.float64), "state": Box(-1.0, 1.0, (3,), np.float64)}
        )
        self.action_space = Box(np.array([0.0, -np.inf]), np.array([4.0, np.inf]), dtype=np.float64)
        self.actions: list[Floats] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(0.1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        return self._observe(0.2), float(action[0]), False, len(self.actions) % 2 == 0, {}

    def _observe(self, value: float) -> dict[str, Floats]:
        return {"privileged_state": np.full((2, 2), -value), "state": np.full(3, value)}


class Faulty(gymnasium.Env[Any, Any]):
    """Does one thing wrong, in its third step if it is one of a step."""

    def __init__(self, fault: str = "", **spaces: Any) -> None:
        if fault == "make":
            raise RuntimeError("no licence\nfor this host")
        self.observation_space = spaces.get("observation", Box(-1.0, 1.0, (2,)))
        self.action_space = spaces.get("action", Box(-1.0, 1.0, (1,)))
        self._fault, self._count = fault, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._fault == "reset":
            raise KeyError("pose")
        first = np.array([np.nan if self._fault == "first" else 0.0, 0.0], np.float32)
        return first if self._fault == "reset alone" else (first, {})

    def step(self, action: Any) -> Any:
        self._count += 1
        observation, fault = np.zeros(2, np.float32), self._fault if self._count == 3 else ""
        if fault == "step":
            raise ZeroDivisionError("division by zero")
        if fault == "observation":
            observation[1] = np.inf
        if fault == "width":
            observation = np.zeros(3, np.float32)
        reward = np.nan if fault == "reward" else 1.0
        if fault == "reward of two":
            reward = np.ones(2)
        if fault == "values":
            return observation, reward, False, {}
        return observation, reward, False, False, {}


class Narrow(Counting):
    """A vector environment whose arrays have fewer rows or columns than they should."""

    def __init__(self, num_envs: int = 1, part: int = 0) -> None:
        super().__init__(num_envs)
        self._part = part

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        parts: list[Any] = list(super().step(actions))
        parts[self._part] = parts[self._part][..., :1]
        return cast("Any", tuple(parts))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    counting, nested = cast("Any", Counting), cast("Any", Nested)
    gymnasium.register("test/Counting-v0", vector_entry_point=counting)
    gymnasium.register("test/Lagging-v0", vector_entry_point=counting, kwargs={"mode": AutoresetMode.NEXT_STEP})
    gymnasium.register("test/Nested-v0", entry_point=nested)
    gymnasium.register("test/Faulty-v0", entry_point=cast("Any", Faulty))
    gymnasium.register("test/Narrow-v0", vector_entry_point=cast("Any", Narrow))
    yield
    for env_id in ("test/Counting-v0", "test/Lagging-v0", "test/Nested-v0", "test/Faulty-v0", "test/Narrow-v0"):
        del gymnasium.registry[env_id]


def actions(env: GymTaskEnv, steps: int) -> npt.NDArray[np.float32]:
    """One action per environment, held for ever: then a reset in between does not shift the others' actions."""
    action = np.random.default_rng(3).uniform(-1.0, 1.0, (env.num_envs, env.action_size)).astype(np.float32)
    return np.broadcast_to(action, (steps, *action.shape))


def record(env: GymTaskEnv, steps: int) -> list[list[tuple[str, bytes, float]]]:
    """What each environment went through: kind, observation and reward of each step, first observations included."""
    histories = [[("first", env.observation[i].tobytes(), 0.0)] for i in range(env.num_envs)]
    for action in actions(env, steps):
        result = env.step(action)
        done = dict(zip(result.done_ids.tolist(), result.final_observation, strict=True))
        for i, history in enumerate(histories):
            kind = "terminated" if result.terminated[i] else "truncated" if result.truncated[i] else "step"
            assert (kind != "step") == (i in done)
            last = done.get(i, result.observation[i])
            history.append((kind, last.tobytes(), float(np.float32(result.reward[i]))))
            if i in done:
                history.append(("first", result.observation[i].tobytes(), 0.0))
    return histories


def as_bytes(observation: npt.NDArray[Any]) -> bytes:
    return observation.astype(np.float32).tobytes()


def spy_seeds(monkeypatch: pytest.MonkeyPatch, owner: Any, function: str) -> list[int]:
    """Collect the seeds that a library is given."""
    seeds: list[int] = []
    real = getattr(owner, function)

    def spy(*args: Any, **kwargs: Any) -> Any:
        seeds.append(kwargs["seed"])
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, function, spy)
    return seeds


def bare_envpool(name: str, env: GymTaskEnv, seed: int, steps: int) -> list[list[tuple[str, bytes, float]]]:
    """The same of EnvPool itself, which gives first observations in the step after the last, with a reward of 0."""
    bare = envpool.make(name, env_type="gymnasium", num_envs=env.num_envs, num_threads=1, seed=seed)
    observation, _ = bare.reset()
    histories = [[("first", as_bytes(observation[i]), 0.0)] for i in range(env.num_envs)]
    done = np.zeros(env.num_envs, np.bool_)
    for action in actions(env, steps):
        observation, reward, terminated, truncated, _ = bare.step(action.astype(np.float64))
        for i, history in enumerate(histories):
            kind = "first" if done[i] else "terminated" if terminated[i] else "truncated" if truncated[i] else "step"
            history.append((kind, as_bytes(observation[i]), float(reward[i])))
        done = terminated | truncated
    return histories


@pytest.mark.parametrize(("name", "steps"), [("Hopper-v5", 300), ("HalfCheetah-v5", 1010)])
def test_envpool_loses_no_step_and_joins_no_episodes(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Falls and time limits: every environment goes through what EnvPool's own does, without the step between."""
    seeds = spy_seeds(monkeypatch, envpool, "make")
    env = GymTaskEnv(f"envpool:{name}", 3, seed=11)
    mine = record(env, steps)
    theirs = bare_envpool(name, env, seeds[0], steps + steps // 2)
    for history, expected in zip(mine, theirs, strict=True):
        assert history == expected[: len(history)]
        assert sum(kind == "first" for kind, _, _ in history) > 1
        assert sum(kind != "first" for kind, _, _ in history) == steps
    if name == "HalfCheetah-v5":
        assert [kind for kind, _, _ in mine[0]].index("truncated") == 1000
        assert not any(kind == "terminated" for history in mine for kind, _, _ in history)


@pytest.mark.parametrize(("name", "steps"), [("Hopper-v5", 120), ("Pendulum-v1", 410)])
def test_gymnasium_equals_its_single_environments(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = spy_seeds(monkeypatch, gymnasium.vector.SyncVectorEnv, "reset")
    env = GymTaskEnv(f"gym:{name}", 2, seed=5)
    mine = record(env, steps)
    for i, history in enumerate(mine):
        single = cast("Any", gymnasium.make(name))
        observation, _ = single.reset(seed=seeds[0] + i)
        expected = [("first", as_bytes(observation), 0.0)]
        for action in actions(env, steps):
            taken = action[i] * single.action_space.high
            observation, reward, terminated, truncated, _ = single.step(taken)
            kind = "terminated" if terminated else "truncated" if truncated else "step"
            expected.append((kind, as_bytes(observation), float(np.float32(reward))))
            if kind != "step":
                observation, _ = single.reset()
                expected.append(("first", as_bytes(observation), 0.0))
        assert history == expected
        assert sum(kind == "first" for kind, _, _ in history) > 1


def test_environments_that_wait_to_be_reset() -> None:
    """Data that tell where they are from: ends after 3 + i steps, each episode's first observation right after."""
    env = GymTaskEnv("gym:test/Counting-v0", 3, seed=0)
    np.testing.assert_array_equal(env.observation, [[0, 1, 0], [1, 1, 0], [2, 1, 0]])
    for _ in range(2):
        assert len(env.step(np.zeros((3, 1), np.float32)).done_ids) == 0
    result = env.step(np.zeros((3, 1), np.float32))
    assert result.done_ids.tolist() == [0]
    np.testing.assert_array_equal(result.final_observation, [[0, 1, 3]])
    np.testing.assert_array_equal(result.observation, [[0, 2, 0], [1, 1, 3], [2, 1, 3]])
    assert result.terminated.tolist() == [True, False, False]
    assert not result.truncated.any()
    assert env.term_means() == {"reward/reward": 2.0, "reward/age": 2.0}
    assert env.term_means() == {}


def test_an_own_step_between_episodes_is_refused() -> None:
    with pytest.raises(InputError, match=r"autoreset mode SAME_STEP or DISABLED, got .*NEXT_STEP"):
        GymTaskEnv("gym:test/Lagging-v0", 2, seed=0)


def test_a_critic_sees_the_policys_observation_first() -> None:
    env = GymTaskEnv("gym:test/Nested-v0", 2, seed=0)
    assert (env.spec.observation_size, env.spec.critic_observation_size, env.spec.action_size) == (3, 7, 2)
    np.testing.assert_allclose(env.observation, np.full((2, 3), 0.1))
    env.step(np.zeros((2, 2), np.float32))
    np.testing.assert_allclose(env.critic_observation, [[0.2] * 3 + [-0.2] * 4] * 2)
    result = env.step(np.zeros((2, 2), np.float32))
    np.testing.assert_allclose(result.final_critic_observation, [[0.2] * 3 + [-0.2] * 4] * 2)
    np.testing.assert_allclose(result.critic_observation, [[0.1] * 3 + [-0.1] * 4] * 2)


def test_a_privileged_state_that_begins_with_the_state_is_seen_once() -> None:
    env = GymTaskEnv("envpool:Go1JoystickFlatTerrain-v1", 4, seed=1)
    assert (env.observation_size, env.critic_observation_size, env.action_size) == (48, 123, 12)
    assert env.control_period == pytest.approx(0.02)
    result = env.step(np.zeros((4, 12), np.float32))
    np.testing.assert_array_equal(result.critic_observation[:, :48], result.observation)
    assert {"reward/reward", "reward/tracking_lin_vel"} <= set(env.term_means())


def test_actions_are_spread_over_the_bounds() -> None:
    env = GymTaskEnv("gym:test/Nested-v0", 1, seed=0)
    rewards = [float(env.step(np.array([[a, 7.0]], np.float32)).reward[0]) for a in (-5.0, -1.0, 0.0, 0.5, 1.0, 5.0)]
    assert rewards == [0.0, 0.0, 2.0, 3.0, 4.0, 4.0]
    taken = cast("Any", env)._envs._envs.envs[0].unwrapped.actions
    assert [action[1] for action in taken] == [7.0] * 6


@pytest.mark.parametrize("name", ["gym:Hopper-v5", "envpool:Hopper-v5"])
def test_a_seed_decides_everything_and_a_loaded_state_begins_new_episodes(name: str) -> None:
    """Case 27, and what cannot be had of it: these engines do not tell their state."""
    first, second, other = (GymTaskEnv(name, 2, seed=seed) for seed in (1, 1, 2))
    expected = record(first, 60)
    assert record(second, 60) == expected
    assert record(other, 60) != expected
    arrays, generator = first.state()
    resumed = [GymTaskEnv(name, 2, seed=1) for _ in range(2)]
    for env in resumed:
        begun = env.observation.copy()
        env.load_state(arrays, generator)
        assert not np.array_equal(env.observation, begun)
    later = [record(env, 60) for env in resumed]
    assert later[0] == later[1]
    assert later[0] != expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:HalfCheeta-v5", "unknown to Gymnasium; did you mean HalfCheetah-v5"),
        ("gym:HalfCheetah-v99", "unknown to Gymnasium; did you mean HalfCheetah-v5"),
        ("gym:a b", "Gymnasium cannot make it"),
        ("gym:no_such_module:Foo-v0", "Gymnasium cannot make it .No module named 'no_such_module'"),
        ("gym:HalfCheetah-v3", "Gymnasium cannot make it"),
        ("gym:CartPole-v1", "expected a Box as its action space, got Discrete"),
        ("envpool:Go1JoystikFlatTerrain-v1", "unknown to EnvPool; did you mean Go1JoystickFlatTerrain-v1"),
        ("envpool:", "expected gym:ID or envpool:ID"),
    ],
)
def test_names_that_cannot_be_had(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GymTaskEnv.check(name)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("make", "its make failed .RuntimeError: no licence for this host"),
        ("reset", "its reset failed .KeyError: 'pose'"),
        ("reset alone", "its reset failed .AttributeError"),
        ("first", "its observation is not finite in step 0"),
        ("step", "its step failed .ZeroDivisionError: division by zero"),
        ("values", "its step failed .ValueError: not enough values"),
        ("width", "its step failed .ValueError"),
        ("reward of two", "its step failed .ValueError"),
        ("observation", "its observation is not finite in step 3"),
        ("reward", "its reward is not finite in step 3"),
    ],
)
def test_a_fault_of_an_environment_is_told_with_its_name(fault: str, message: str) -> None:
    gymnasium.registry["test/Faulty-v0"].kwargs = {"fault": fault}
    with pytest.raises(InputError, match=f"^environment 'gym:test/Faulty-v0': {message}") as raised:
        record(GymTaskEnv("gym:test/Faulty-v0", 2, seed=0), 3)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_a_vector_environment_gives_the_shapes_that_it_promised(part: int) -> None:
    gymnasium.registry["test/Narrow-v0"].kwargs = {"part": part}
    env = GymTaskEnv("gym:test/Narrow-v0", 2, seed=0)
    with pytest.raises(InputError, match=r"^environment 'gym:test/Narrow-v0': its step failed .ValueError: .*expected"):
        env.step(np.zeros((2, 1), np.float32))


NOTHING = Box(-1.0, 1.0, (0,))


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"observation": Tuple((Box(-1.0, 1.0, (2,)),))}, "observation space, got Tuple"),
        ({"observation": Dict({})}, "observation space, got Dict"),
        ({"observation": Dict({"a": Tuple((NOTHING,))})}, "observation 'a' space, got Tuple"),
        ({"observation": NOTHING}, "observation space, got Box"),
        ({"observation": Dict({"state": NOTHING})}, "observation 'state' space, got Box"),
        ({"action": NOTHING}, "action space, got Box"),
        ({"action": Tuple((Box(-1.0, 1.0, (2,)),))}, "action space, got Tuple"),
    ],
)
def test_spaces_that_hold_no_numbers_are_refused(spaces: dict[str, Any], message: str) -> None:
    gymnasium.registry["test/Faulty-v0"].kwargs = spaces
    with pytest.raises(InputError, match=f"^environment 'gym:test/Faulty-v0': expected a Box as its {message}"):
        GymTaskEnv.check("gym:test/Faulty-v0")


@pytest.mark.parametrize(("name", "package"), [("gym:HalfCheetah-v5", "gymnasium"), ("envpool:Ant-v5", "envpool")])
def test_a_missing_library_is_told_with_its_extra(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = name.partition(":")[0]
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed.*sim2real\[{extra}\]"):
        GymTaskEnv.check(name)


def test_closing_frees_the_environments() -> None:
    """Also those that were open when EnvPool was first imported, which keeps the frames of its importers."""
    program = """
import gc
from sim2real.tasks.gym_tasks import GymTaskEnv
env = GymTaskEnv("envpool:Hopper-v5", 2, seed=0)
env.close()
gc.collect()
print([type(thing).__name__ for thing in gc.get_objects() if type(thing).__name__.endswith("HopperGymnasiumEnvPool")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_foreign() -> None:
    assert is_foreign("gym:Ant-v5")
    assert is_foreign("envpool:Ant-v5")
    assert not any(is_foreign(name) for name in ("pendulum-swingup", "gym", "my:Ant-v5", "menagerie:unitree_g1"))


def test_a_warning_of_mujoco_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Old models are compiled once per environment; the file that MuJoCo logs to is not written either."""
    GymTaskEnv("gym:HalfCheetah-v5", 3, seed=0)
    assert capfd.readouterr().err.count("settotalmass") == 1
