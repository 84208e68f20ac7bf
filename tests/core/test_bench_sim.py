"""What environments cost beside the bare physics, and where the time goes. About 10 s."""

from __future__ import annotations

import time

import pytest

from sim2real.errors import InputError
from sim2real.tasks import get_task
from sim2real.tasks.bench_sim import BenchSimArgs, BenchSimResult, run_bench_sim
from sim2real.tasks.profile import Profile, profiled_task

MS = 1_000_000


def spin(milliseconds: float) -> None:
    end = time.perf_counter_ns() + milliseconds * MS
    while time.perf_counter_ns() < end:
        pass


def test_time_counts_for_the_inner_part_alone() -> None:
    profile = Profile()
    inner = profile.timed("inner", spin)
    twice = profile.timed("outer", lambda: (spin(4), inner(6), inner(6)))
    began = time.perf_counter_ns()
    twice()
    spin(2)
    total = time.perf_counter_ns() - began
    parts = profile.parts(total)
    assert list(parts) == ["inner", "outer", "rest"]
    assert sum(parts.values()) == total
    # Spinning takes at least as long as it says, and a busy machine makes any of it longer.
    assert parts["inner"] >= 12 * MS
    assert parts["outer"] >= 4 * MS
    assert parts["rest"] >= 2 * MS


def test_time_within_a_whole_part_is_its_own() -> None:
    profile = Profile()
    inner = profile.timed("inner", spin)
    profile.timed("restarts", lambda: (inner(3), spin(2)), whole=True)()
    inner(1)
    parts = profile.parts(0)
    assert parts["restarts"] >= 5 * MS
    assert 1 * MS <= parts["inner"] < parts["restarts"]


def test_a_part_that_fails_is_left_behind() -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    profile = Profile()
    with pytest.raises(ValueError, match="on purpose"):
        profile.timed("outer", profile.timed("inner", fail, whole=True))()
    profile.timed("after", spin)(1)
    assert profile.parts(0)["after"] >= 1 * MS


def test_a_profiled_task_gives_the_same_rewards_and_ends() -> None:
    import numpy as np

    from sim2real.tasks import TaskEnv

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
    # Physics in C++ threads cost per environment, Python costs per step: many are cheaper than few.
    assert large.steps_per_second > 2.0 * small.steps_per_second
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
