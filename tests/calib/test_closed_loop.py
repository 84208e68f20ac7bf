"""Two policies in the same worlds: figures beside closed forms, the verdict at its boundary. About 10 s."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from sim2real.randomization import RandomizationFile
from sim2real.tasks import Task, get_task
from sim2real.tasks.episodes import Episodes, run_episodes, wilson_interval
from sim2real.tasks.ranges import with_own_ranges
from sim2real_calib.batch_policy import OnnxBatch
from sim2real_calib.closed_loop import RULE_OF_THREE, Comparison, Driven, compare, drive, verdict
from sim2real_calib.quantize import quantized
from tests.calib.policies import Exported, exported


def driven(
    success: npt.ArrayLike, *, falls: npt.ArrayLike = False, returns: npt.ArrayLike = 10.0, jerk: npt.ArrayLike = 1.0
) -> Driven:
    """Episodes made by hand, as many as `success` has; what is one number holds for all."""
    count = len(np.atleast_1d(success))

    def column(values: npt.ArrayLike) -> list[float]:
        return np.broadcast_to(np.asarray(values, np.float64), count).tolist()

    return Driven(
        episodes=Episodes(
            success=[bool(each) for each in column(success)],
            time_to_goal=column(np.inf),
            returns=column(returns),
            ended_early=[bool(each) for each in column(falls)],
            terms={"energy": column(0.5)},
        ),
        jerk=column(jerk),
    )


def first(count: int, of: int) -> npt.NDArray[np.bool_]:
    return np.arange(of) < count


def test_a_change_is_that_of_each_episode_and_not_of_the_means() -> None:
    rng = np.random.default_rng(0)
    # Episodes differ by hundreds from one another, and each loses about 1.
    before = rng.normal(0.0, 300.0, 400)
    after = before - rng.normal(1.0, 0.2, 400)
    found = compare(driven(np.ones(400), returns=before), driven(np.ones(400), returns=after)).returns
    change = after - before
    spread = 1.959964 * change.std(ddof=1) / 20.0
    assert found.change.mean == pytest.approx(change.mean())
    assert (found.change.low, found.change.high) == pytest.approx((change.mean() - spread, change.mean() + spread))
    assert found.change.high < -0.9
    assert found.float32.mean == pytest.approx(before.mean())
    assert found.quantized.high - found.quantized.low == pytest.approx(2 * 1.959964 * after.std(ddof=1) / 20.0)


def test_shares_have_wilsons_interval_and_their_change_no_less_than_the_rule_of_three() -> None:
    before, after = first(90, 200), first(88, 200)
    found = compare(driven(before, falls=~before), driven(after, falls=~after))
    assert (found.success.float32.mean, found.success.quantized.mean) == (0.45, 0.44)
    assert (found.success.float32.low, found.success.float32.high) == pytest.approx(wilson_interval(90, 200))
    # Two of 200: the normal distribution says ±0.0138, the rule of three 0.015.
    assert found.success.change.mean == pytest.approx(-0.01)
    assert found.success.change.low == pytest.approx(-0.025)
    assert found.falls.change.high == pytest.approx(0.025)
    # Fifty: the normal distribution.
    many = compare(driven(first(90, 200)), driven(first(40, 200))).success.change
    spread = 1.959964 * math.sqrt(0.25 * 0.75 * 200 / 199 / 200)
    assert (many.mean, many.low) == pytest.approx((-0.25, -0.25 - spread))


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(-100, 100), st.floats(-100, 100)), min_size=2))
def test_the_change_back_is_the_change_turned_round(rows: list[tuple[bool, bool, float, float]]) -> None:
    one = driven([row[0] for row in rows], falls=[not row[0] for row in rows], returns=[row[2] for row in rows])
    other = driven([row[1] for row in rows], falls=[not row[1] for row in rows], returns=[row[3] for row in rows])
    there, back = compare(one, other), compare(other, one)
    for name in ("success", "falls", "returns", "jerk"):
        change, turned = getattr(there, name).change, getattr(back, name).change
        assert change.low <= change.mean <= change.high
        assert (change.mean, change.low) == pytest.approx((-turned.mean, -turned.high), abs=1e-9)
    same = compare(one, one)
    assert (same.returns.change.mean, same.returns.change.high, same.success.change.mean) == (0.0, 0.0, 0.0)
    assert same.success.change.high == pytest.approx(RULE_OF_THREE / len(rows))


def test_the_interval_holds_what_is_true_19_times_in_20() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        change = compare(driven(np.ones(150)), driven(np.ones(150), returns=10.0 + rng.normal(0.3, 2.0, 150)))
        held += change.returns.change.low <= 0.3 <= change.returns.change.high
    assert 925 <= held <= 972


def unchanged(episodes: int) -> Comparison:
    return compare(driven(np.ones(episodes)), driven(np.ones(episodes)))


def test_what_did_not_change_passes_if_there_are_episodes_enough_to_say_so() -> None:
    assert verdict(unchanged(150), 0.02)[0]
    passed, told = verdict(unchanged(149), 0.02)
    assert not passed
    assert told == "with 95 % confidence it loses at most 2.01% of success, 2.00% is allowed"


@given(st.floats(0.001, 1.0))
def test_as_many_episodes_as_are_asked_for_are_enough(max_loss: float) -> None:
    episodes = max(2, math.ceil(RULE_OF_THREE / max_loss))
    assert episodes * max_loss >= RULE_OF_THREE or episodes == 2
    if episodes > 3:
        assert verdict(unchanged(episodes), max_loss)[0]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (driven(first(995, 1000)), "success"),
        (driven(np.ones(1000), falls=first(5, 1000)), "falls"),
        (driven(np.ones(1000), returns=9.88), "return"),
    ],
)
def test_what_loses_too_much_is_refused_by_the_name_of_what_it_loses(changed: Driven, name: str) -> None:
    found = compare(driven(np.ones(1000)), changed)
    passed, told = verdict(found, 0.009)
    assert not passed
    assert f"of {name}," in told
    assert verdict(found, 0.013)[0]


def test_losses_are_those_of_the_worse_direction_alone() -> None:
    """More success, fewer falls, a higher return: nothing is lost."""
    worse = driven(first(500, 1000), falls=~first(500, 1000), returns=-20.0)
    better = driven(np.ones(1000), returns=-10.0)
    assert verdict(compare(worse, better), 0.001)[0]
    assert not verdict(compare(better, worse), 0.4)[0]


def test_a_return_that_is_no_number_does_not_pass() -> None:
    returns = np.full(1000, 10.0)
    returns[3] = np.nan
    assert not verdict(compare(driven(np.ones(1000)), driven(np.ones(1000), returns=returns)), 0.5)[0]


def run(policy: Exported, content: bytes, task: Task, starts: int, plants: RandomizationFile | None = None) -> Driven:
    return drive(content, policy.names, task, starts=starts, seed=5, randomization=plants, progress=lambda: None)


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_a_policy_against_itself_changes_nothing(kind: str) -> None:
    policy = exported(kind)
    task = get_task("pendulum-swingup")
    plants = with_own_ranges(None, task)
    one, other = (run(policy, policy.onnx, task, 30, plants) for _ in range(2))
    assert one == other
    found = compare(one, other)
    for paired in (found.returns, found.jerk, *found.terms.values()):
        assert (paired.change.low, paired.change.mean, paired.change.high) == (0.0, 0.0, 0.0)
        assert paired.float32 == paired.quantized
    assert found.jerk.float32.mean > 0.0
    assert set(found.terms) == set(one.episodes.terms)


class Recorder:
    """A policy whose actions are kept."""

    def __init__(self, policy: Exported) -> None:
        self._policy = OnnxBatch(policy.onnx, policy.names)
        self.actions: list[npt.NDArray[np.float32]] = []

    def reset(self, num_envs: int) -> None:
        self._policy.reset(num_envs)

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self.actions.append(self._policy.act(observation))
        return self.actions[-1]


def test_jerk_is_the_mean_square_second_difference_of_the_actions() -> None:
    policy, task = exported("gru"), get_task("pendulum-swingup")
    recorder = Recorder(policy)
    episodes = run_episodes(recorder, task, starts=4, seed=5, randomization=None)
    found = run(policy, policy.onnx, task, 4)
    assert found.episodes == episodes
    actions = np.array(recorder.actions, np.float64)
    np.testing.assert_allclose(found.jerk, np.square(np.diff(actions, 2, axis=0)).sum(axis=2).mean(axis=0), rtol=1e-5)
    still = exported("mlp", gain=0.0)
    assert run(still, still.onnx, task, 4).jerk == [0.0] * 4


def test_a_policy_that_gives_no_numbers_falls_and_its_figures_can_be_written_down() -> None:
    policy, task = exported("mlp", task_name="so101-reach"), get_task("so101-reach")
    model = onnx.load_model_from_string(policy.onnx)
    bias = next(each for each in model.graph.initializer if each.name == policy.products[-1].bias)
    bias.CopyFrom(numpy_helper.from_array(np.full(policy.names.action_size, np.nan, np.float32), bias.name))
    found = run(policy, model.SerializeToString(), task, 5)
    assert found.episodes.ended_early == [True] * 5
    compared = compare(run(policy, policy.onnx, task, 5), found)
    assert not verdict(compared, 1.0)[0]
    assert b"null" not in msgspec.json.encode(compared)


def test_a_quadruped_that_stands_is_told_from_one_whose_weights_are_destroyed() -> None:
    """A policy that gives next to nothing stands on its default pose."""
    task = msgspec.structs.replace(get_task("go2-velocity-flat"), episode_length=2.0)
    standing = exported("mlp", task_name=task.name, gain=0.1)
    float32 = run(standing, standing.onnx, task, 100)
    assert sum(float32.episodes.ended_early) == 0

    rounded = quantized(standing.onnx, "int8", {each.name: 10.0 for each in standing.products})
    same = compare(float32, run(standing, rounded, task, 100))
    assert verdict(same, 0.03)[0], verdict(same, 0.03)[1]

    destroyed = exported("mlp", task_name=task.name, gain=5000.0)
    found = compare(float32, run(standing, destroyed.onnx, task, 100))
    passed, told = verdict(found, 0.03)
    assert not passed
    assert found.falls.quantized.mean > 0.5
    assert "of falls" in told or "of return" in told
    assert found.jerk.change.low > 0.0
