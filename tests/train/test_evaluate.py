from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.tasks import get_task
from sim2real.tasks.base import Flags, Motion
from sim2real_train.config import training_ranges
from sim2real_train.evaluate import Episodes, evaluate, judge, wilson_interval
from sim2real_train.trainer import Schedule, train
from tests.train.builders import TASK, small_config


def test_wilson_interval_of_published_values() -> None:
    """Newcombe (1998), table I: 81 of 263 and 0 of 20."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


@given(trials=st.integers(1, 1000), data=st.data())
def test_wilson_interval_holds_the_rate_and_mirrors(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials)
    assert 0.0 <= low <= successes / trials + 1e-12
    assert successes / trials - 1e-12 <= high <= 1.0
    mirrored = wilson_interval(trials - successes, trials)
    assert (1.0 - mirrored[1], 1.0 - mirrored[0]) == pytest.approx((low, high))


def test_judge_pools_episodes() -> None:
    first = Episodes(
        success=[True, True],
        time_to_goal=[1.0, 2.0],
        returns=[10.0, 20.0],
        ended_early=[False, False],
        terms={"track": [1.0, 0.5]},
    )
    second = Episodes(
        success=[True, False],
        time_to_goal=[3.0, math.inf],
        returns=[30.0, 0.0],
        ended_early=[False, True],
        terms={"track": [0.5, 0.0]},
    )
    verdict = judge([first, second], "stands")
    assert (verdict.starts, verdict.successes, verdict.success_rate) == (4, 3, 0.75)
    assert (verdict.mean_return, verdict.criterion) == (15.0, "stands")
    assert verdict.median_time == 2.0
    assert verdict.p95_time is None
    assert (verdict.ended_early, verdict.terms) == (0.25, {"track": 0.5})


class EnergyPump:
    """Swings up by pumping energy, then holds by a linear law: the textbook's controller, no network."""

    def reset(self, num_envs: int) -> None:
        """It has no memory."""

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        sine, cosine, velocity = observation[:, 0], observation[:, 1], 10.0 * observation[:, 2]
        energy = 0.5 * velocity**2 * 0.169 - 3.31 * cosine
        # q − π, from sine and cosine: both flip their sign.
        error = np.arctan2(-sine, -cosine)
        pump = np.sign(velocity + 1e-3) * np.clip(4.0 * (3.31 - energy), -2.5, 2.5)
        hold = -12.0 * error - 2.0 * velocity
        torque = np.where((np.abs(error) < 0.35) & (np.abs(velocity) < 4.0), hold, pump)
        return np.clip(torque / 2.5, -1.0, 1.0)[:, None].astype(np.float32)


class Idle(EnergyPump):
    """Asks for nothing."""

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.zeros((len(observation), 1), np.float32)


class Standing(EnergyPump):
    """A quadruped in its default pose."""

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.zeros((len(observation), 12), np.float32)


def test_policies_that_are_known_to_succeed_and_to_fail() -> None:
    task = get_task(TASK)
    good, bad = evaluate(EnergyPump(), task, starts=24), evaluate(Idle(), task, starts=24)
    assert good.success_rate > 0.9
    assert good.p95_time is None or good.p95_time < 10.0
    assert good.median_time is not None
    assert good.median_time < 6.0
    assert bad.success_rate < 0.1
    assert bad.median_time is None
    assert good.mean_return > bad.mean_return


def test_same_seed_same_verdict() -> None:
    task = get_task(TASK)
    assert evaluate(EnergyPump(), task, starts=4, seed=2) == evaluate(EnergyPump(), task, starts=4, seed=2)
    assert evaluate(EnergyPump(), task, starts=4, seed=2) != evaluate(EnergyPump(), task, starts=4, seed=3)


def test_every_level_of_a_curriculum_is_judged_alike() -> None:
    """Training begins at the lowest; a success rate of that one alone would say nothing of stairs."""
    task = get_task("go2-velocity-rough")
    assert task.curriculum is not None

    def on_the_last(motion: Motion) -> Flags:
        return motion.origin[:, 0] > 19.0  # it begins 20 m along x

    goal = msgspec.structs.replace(task.goal, holds=on_the_last, after=0.0, share=1.0)
    judged = msgspec.structs.replace(task, goal=goal, episode_length=0.1)
    assert evaluate(Standing(), judged, starts=18).successes == 18 // task.curriculum.levels


def test_another_robots_ranges_are_refused() -> None:
    ranges = msgspec.structs.replace(training_ranges(small_config(), get_task(TASK)), robot="acrobot")
    with pytest.raises(InputError, match="is of robot 'acrobot', but the task needs 'pendulum'"):
        evaluate(Idle(), get_task(TASK), starts=1, randomization=ranges)
    config = small_config(randomization=ranges)
    with pytest.raises(InputError, match="is of robot 'acrobot', but the task needs 'pendulum'"):
        train(config, Schedule(iterations=1), Path("never-made"))
    assert not Path("never-made").exists()
