"""What environments cost beside the bare physics, and where the time goes. About 10 s."""

from __future__ import annotations

import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.bench_sim import BenchSimArgs, BenchSimResult, run_bench_sim
from sim2real.tasks.profile import Profile, profiled_task


class Clock:
    """Time that passes where it is said to."""

    def __init__(self) -> None:
        self.now = 0

    def spend(self, time: int) -> None:
        self.now += time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("sim2real.tasks.profile.perf_counter_ns", lambda: clock.now)
    return clock


def test_time_counts_for_the_inner_part_alone(clock: Clock) -> None:
    profile = Profile()
    inner = profile.timed("inner", clock.spend)
    profile.timed("outer", lambda: (clock.spend(4), inner(6), inner(7)))()
    clock.spend(2)
    assert profile.parts(clock.now) == {"inner": 13, "outer": 4, "rest": 2}
    assert list(profile.parts(clock.now)) == ["inner", "outer", "rest"]


def test_time_within_a_whole_part_is_its_own(clock: Clock) -> None:
    profile = Profile()
    inner = profile.timed("inner", clock.spend)
    profile.timed("restarts", lambda: (inner(3), clock.spend(2)), whole=True)()
    inner(1)
    assert profile.parts(clock.now) == {"restarts": 5, "inner": 1, "rest": 0}


def test_a_part_that_fails_is_left_behind(clock: Clock) -> None:
    def fail() -> None:
        clock.spend(3)
        raise ValueError("on purpose")

    profile = Profile()
    with pytest.raises(ValueError, match="on purpose"):
        profile.timed("outer", profile.timed("inner", fail, whole=True))()
    profile.timed("after", clock.spend)(1)
    assert profile.parts(clock.now) == {"inner": 3, "after": 1, "outer": 0, "rest": 0}


def test_a_profiled_task_gives_the_same_rewards_and_ends() -> None:
    task, profile = get_task("go2-velocity-flat"), Profile()
    plain = TaskEnv(task, 4, seed=1)
    timed = TaskEnv(profiled_task(task, profile), 4, seed=1)
    profile.attach(timed)
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = rng.uniform(-1.0, 1.0, (4, plain.action_size)).astype(np.float32)
        expected, result = plain.step(action), timed.step(action)
        np.testing.assert_array_equal(result.reward_terms, expected.reward_terms)
        np.testing.assert_array_equal(result.terminated, expected.terminated)
        np.testing.assert_array_equal(result.observation, expected.observation)
    parts = profile.parts(0)
    expected_parts = {"physics", "measurement", "observation", "action", "motion", "critic's observation", "restarts"}
    assert expected_parts | {f"reward/{name}" for name in task.rewards} <= parts.keys()
    assert {f"termination/{name}" for name in task.terminations} <= parts.keys()


def test_the_whole_bench() -> None:
    outcome = run_bench_sim(
        BenchSimArgs(task="pendulum-swingup", num_envs=(4, 512), threads=1, seconds=0.2, profile=True)
    )
    result = outcome.result
    assert isinstance(result, BenchSimResult)
    assert outcome.passed
    small, large = result.sizes
    assert (small.num_envs, large.num_envs) == (4, 512)
    for size in result.sizes:
        assert 0.0 < size.share_of_bare < 3.0
        assert size.steps_per_second == pytest.approx(size.bare_steps_per_second * size.share_of_bare)
        assert sum(part.share for part in size.parts) == pytest.approx(1.0)
        assert {"physics", "reward/energy", "rest"} <= {part.name for part in size.parts}
    # A pendulum's arrays: some hundred numbers, and no more than a page more.
    assert 500.0 < large.memory_per_env < 50_000.0
    assert "where the time of a control step of 512 environments goes:" in outcome.summary


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (BenchSimArgs(task="nothing"), "unknown task|no task|'nothing'"),
        (BenchSimArgs(task="pendulum-swingup", num_envs=()), r"--num-envs: expected integers .*, got \[\]"),
        (BenchSimArgs(task="pendulum-swingup", num_envs=(4, 0)), "--num-envs"),
        (BenchSimArgs(task="pendulum-swingup", seconds=float("nan")), "--seconds"),
        (BenchSimArgs(task="pendulum-swingup", threads=-1), "--threads"),
        (BenchSimArgs(task="pendulum-swingup", seed=-1), "--seed"),
    ],
)
def test_what_cannot_be_measured_is_refused(args: BenchSimArgs, told: str) -> None:
    with pytest.raises(InputError, match=told):
        run_bench_sim(args)
