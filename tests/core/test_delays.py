"""Delays as data, and the two links on which messages are late, lost and repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.histogram import Histogram
from sim2real.latency import Conditions, make_report, write_latency
from sim2real.sim.delays import (
    COMMAND_STAGES,
    MAX_DELAY,
    OBSERVATION_STAGES,
    Delay,
    DelaySpec,
    Fixed,
    GroupDelay,
    Measured,
    MeasuredStage,
    Uniform,
    delay_from_latency,
    sampler,
)
from sim2real.sim.links import CommandLink, SignalLink
from sim2real.wire_messages import Mode
from tests.core.plant_rig import DECIMATION, DT

JOINTS = ("hip", "knee")
EVERYONE = slice(None)


def histogram(*values_ms: float) -> Histogram:
    result = Histogram()
    for value in values_ms:
        result.record(round(value * 1e6))
    return result


def latency_file(folder: Path, mode: Mode = "realtime", **stages: Histogram) -> Path:
    conditions = Conditions(mode=mode, endpoint="ipc", engine="onnx", duration_ns=10**9, load="idle")
    path = folder / "latency.json"
    write_latency(path, make_report(stages, conditions=conditions, ticks=9, misses=0, max_action_age_ns=1))
    return path


def command_link(group: GroupDelay, num_envs: int) -> CommandLink:
    link = CommandLink((group,), JOINTS, num_envs, DT, DECIMATION)
    link.reset(np.full((num_envs, 5, 2), -1.0), EVERYONE, np.random.default_rng(1))
    return link


def acting(link: CommandLink, messages: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Send messages that hold their number; return which acts at each physics step, shape (steps, N)."""
    seen: list[npt.NDArray[np.int64]] = []
    for number in range(messages):
        start = number * DECIMATION
        link.send(np.full_like(link.in_force, float(number)), start, rng)
        for step in range(start, start + DECIMATION):
            link.deliver(step)
            assert (link.in_force == link.in_force[:, :1, :1]).all()  # a block is never torn
            seen.append(link.in_force[:, 0, 0].astype(np.int64))
    return np.array(seen)


def sensed(
    group: GroupDelay, num_envs: int, ticks: int, rng: np.random.Generator, error: Callable[[], float] = float
) -> npt.NDArray[np.float64]:
    """Measure the number of the physics step; return what policies have at each tick, shape (ticks, N)."""
    link = SignalLink((group,), {"step": slice(0, 1)}, num_envs, DT, DECIMATION)
    link.reset(np.zeros((num_envs, 1)), 0, EVERYONE, rng)
    seen: list[npt.NDArray[np.float64]] = []
    for tick in range(ticks):
        now = tick * DECIMATION
        signals = np.full((num_envs, 1), float(now))
        link.fetch(signals, now, None, rng)
        signals += error()
        link.hold(signals, None)
        seen.append(signals[:, 0].copy())
        for step in link.record_at(now, DECIMATION):
            link.record(np.full((num_envs, 1), float(step)), step)
    return np.array(seen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(low=0.02, high=0.01), "0 <= low <= high, got 0.02 to 0.01 s"),
        (lambda: GroupDelay(delay=Fixed(value=-0.01)), r"expected 0 to 0\.1 s with jitter, got up to -0\.01 s"),
        (lambda: GroupDelay(delay=Fixed(value=0.09), jitter=0.02), r"got up to 0\.09 s and jitter of 0\.02 s"),
        (lambda: GroupDelay(delay=Fixed(value=float("nan"))), "got up to nan s"),
        (lambda: GroupDelay(delay=Fixed(value=0.0), jitter=float("nan")), "jitter of nan s"),
        (lambda: GroupDelay(delay=Fixed(value=0.0), loss=1.1), r"delay\.loss: expected a probability"),
        (lambda: GroupDelay(delay=Fixed(value=0.0), repeat=-0.1), r"delay\.repeat: expected a probability"),
        (lambda: Measured(stages=()), "at least one measured stage"),
        (lambda: Measured(stages=(MeasuredStage(stage="tick", buckets=(), left_out=3),)), "each with values"),
    ],
)
def test_a_delay_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_spec_says_what_is_delayed(tmp_path: Path) -> None:
    path = latency_file(tmp_path, end_to_end=histogram(4.0, 6.0, 300.0))
    spec = DelaySpec(
        commands=(
            GroupDelay(of=("hip",), delay=Uniform(low=0.005, high=0.02), jitter=0.002, loss=0.01),
            delay_from_latency(path, longest=0.05).commands[0],
        ),
        observations=(GroupDelay(of=("joint_pos",), delay=Fixed(value=0.004), repeat=0.02),),
    )
    assert spec.describe() == (
        "command of hip: 5 ms to 20 ms, drawn per episode, each message up to 2 ms later, 0.01 loss",
        "command of all other joints: as measured in end_to_end, 3 values without the 1 longest, at most 6.001 ms, "
        "drawn per episode",
        "observation of joint_pos: 4 ms, 0.02 repeat",
    )


@settings(max_examples=10)
@given(st.lists(st.floats(0.0, 90.0), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
def test_drawn_delays_are_distributed_like_the_histogram(values: list[float], seed: int) -> None:
    measured = histogram(*values)
    draws, buckets = 20_000, measured.distribution()
    delay = Measured(stages=(MeasuredStage(stage="end_to_end", buckets=buckets, left_out=0),))
    drawn = sampler(delay)(np.random.default_rng(seed), (draws,)) * 1e9
    for low, high, count in buckets:
        found = int(((drawn > low - 0.5) & (drawn < high + 0.5)).sum())
        share = count / measured.count
        # Six standard errors of a binomial: 2e-9 for one bucket to fail by chance.
        assert abs(found - draws * share) <= 6.0 * np.sqrt(draws * share * (1.0 - share))
    assert drawn.max() <= delay.longest * 1e9 + 0.5


def test_stages_add_up_as_independent_draws() -> None:
    stages = {"tick": histogram(1.0, 3.0), "command_transport": histogram(10.0, 20.0)}
    delay = Measured(
        stages=tuple(MeasuredStage(stage=k, buckets=v.distribution(), left_out=0) for k, v in stages.items())
    )
    drawn = np.round(sampler(delay)(np.random.default_rng(0), (40_000,)) * 1e3)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [11.0, 13.0, 21.0, 23.0]
    assert np.abs(counts - 10_000).max() < 6.0 * np.sqrt(40_000 * 0.25 * 0.75)


def test_the_whole_latency_delays_the_command_and_split_stages_delay_both_ways(tmp_path: Path) -> None:
    stages = {"state_age": histogram(2.0), "tick": histogram(3.0), "command_transport": histogram(1.0)}
    path = latency_file(
        tmp_path, "realtime", **stages, wake=histogram(9.0), infer=histogram(2.5), end_to_end=histogram(8.0)
    )
    whole, split = delay_from_latency(path), delay_from_latency(path, split=True, redraw=True)
    assert (len(whole.commands), whole.observations) == (1, ())
    assert whole.commands[0].delay.longest == pytest.approx(8e-3, rel=1e-3)
    assert not whole.commands[0].redraw
    command, observation = split.commands[0], split.observations[0]
    assert command.redraw
    assert observation.redraw
    assert _stages(command.delay) == COMMAND_STAGES
    assert _stages(observation.delay) == OBSERVATION_STAGES
    assert command.delay.longest == pytest.approx(4e-3, rel=1e-3)  # infer is part of the tick
    assert observation.delay.longest == pytest.approx(2e-3, rel=1e-3)


def _stages(delay: Delay) -> tuple[str, ...]:
    assert isinstance(delay, Measured)
    return tuple(stage.stage for stage in delay.stages)


def test_a_latency_file_that_says_too_little_or_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stage end_to_end: expected values up to 0\.1 s, got none; measure with"):
        delay_from_latency(latency_file(tmp_path, tick=histogram(1.0)))
    with pytest.raises(InputError, match=r"expected 'realtime', got 'lockstep'"):
        delay_from_latency(latency_file(tmp_path, "lockstep", end_to_end=histogram(1.0)))
    path = latency_file(tmp_path, end_to_end=histogram(1.0, 150.0))
    with pytest.raises(InputError, match=r"at most 0\.1 s, got longer ones in end_to_end; say from where on"):
        delay_from_latency(path)
    delay = delay_from_latency(path, longest=MAX_DELAY).commands[0].delay
    assert isinstance(delay, Measured)
    assert [stage.left_out for stage in delay.stages] == [1]
    with pytest.raises(InputError, match="got longer ones"):
        delay_from_latency(path, longest=0.0005)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((GroupDelay(of=("hipp",), delay=Fixed(value=0.0)),), r"'hipp': unknown; allowed: hip, knee; did you mean hip"),
        ((GroupDelay(of=("hip", "hip"), delay=Fixed(value=0.0)),), "each name in one group"),
        ((GroupDelay(delay=Fixed(value=0.0)), GroupDelay(delay=Fixed(value=0.0))), "each name in one group"),
        ((GroupDelay(of=JOINTS, delay=Fixed(value=0.0)), GroupDelay(delay=Fixed(value=0.0))), "each name in one group"),
    ],
)
def test_groups_that_do_not_fit_the_joints_are_refused(groups: tuple[GroupDelay, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CommandLink(groups, JOINTS, 1, DT, DECIMATION)


def test_joints_without_a_group_are_prompt() -> None:
    link = CommandLink((GroupDelay(of=("knee",), delay=Fixed(value=3 * DT)),), JOINTS, 1, DT, DECIMATION)
    link.reset(np.zeros((1, 5, 2)), EVERYONE, None)
    link.send(np.ones((1, 5, 2)), 0, None)
    assert link.due(DECIMATION) == [0, 3]
    link.deliver(0)
    assert link.in_force[0, 0].tolist() == [1.0, 0.0]
    link.deliver(3)
    assert link.in_force[0, 0].tolist() == [1.0, 1.0]


@settings(max_examples=20)
@given(st.integers(0, 20))
def test_a_fixed_delay_is_that_many_steps(delay: int) -> None:
    link = command_link(GroupDelay(delay=Fixed(value=delay * DT)), 2)
    seen = acting(link, 12, np.random.default_rng(0))
    expected = (np.arange(len(seen)) - delay) // DECIMATION
    assert (seen == np.maximum(expected, -1)[:, None]).all()
    ticks = sensed(GroupDelay(delay=Fixed(value=delay * DT)), 2, 12, np.random.default_rng(0))
    assert (ticks == np.maximum(np.arange(12) * DECIMATION - delay, 0)[:, None]).all()


@settings(max_examples=20)
@given(st.floats(0.0, 0.05), st.floats(0.0, 0.05), st.floats(0.0, 0.5), st.integers(0, 2**32 - 1))
def test_commands_keep_their_order_and_jitter_its_bounds(low: float, jitter: float, loss: float, seed: int) -> None:
    group = GroupDelay(delay=Uniform(low=0.0, high=low), redraw=True, jitter=jitter, loss=loss)
    seen = acting(command_link(group, 8), 40, np.random.default_rng(seed))
    changes = np.diff(seen, axis=0, prepend=-1)
    assert (changes >= 0).all(), "an older command acted after a newer one"
    steps, envs = np.nonzero(changes)
    late = steps - seen[steps, envs] * DECIMATION
    assert late.min(initial=0) >= 0
    assert late.max(initial=0) <= np.rint((low + jitter) / DT)


@settings(max_examples=20)
@given(st.floats(0.0, 0.05), st.floats(0.0, 0.05), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.integers(0, 2**32 - 1))
def test_no_measurement_is_followed_by_an_older_one(
    low: float, jitter: float, loss: float, repeat: float, seed: int
) -> None:
    group = GroupDelay(delay=Uniform(low=0.0, high=low), redraw=True, jitter=jitter, loss=loss, repeat=repeat)
    seen = sensed(group, 8, 40, np.random.default_rng(seed))
    assert (np.diff(seen, axis=0) >= 0).all()
    age = np.arange(40)[:, None] * DECIMATION - seen
    assert age.min() >= 0
    if not loss and not repeat:
        assert age.max() <= np.rint((low + jitter) / DT)


def test_a_late_command_is_dropped_when_a_newer_one_has_come() -> None:
    """The first takes 3 control periods and the second none: the first must never act."""
    link = command_link(GroupDelay(delay=Fixed(value=0.0)), 1)
    link.set_delay(np.array([3 * DECIMATION * DT]), EVERYONE)
    link.send(np.full((1, 5, 2), 1.0), 0, None)
    link.set_delay(np.array([0.0]), EVERYONE)
    assert not link.is_idle(DECIMATION)
    link.send(np.full((1, 5, 2), 2.0), DECIMATION, None)
    assert link.due(10 * DECIMATION) == [DECIMATION]
    link.deliver(DECIMATION)
    assert (link.in_force == 2.0).all()


def test_of_two_commands_that_arrive_together_the_newer_one_acts() -> None:
    link = command_link(GroupDelay(delay=Fixed(value=0.0)), 1)
    for number in range(0, 40, 2):
        link.set_delay(np.array([DECIMATION * DT]), EVERYONE)
        link.send(np.full((1, 5, 2), float(number)), number * DECIMATION, None)
        link.set_delay(np.array([0.0]), EVERYONE)
        now = (number + 1) * DECIMATION
        link.send(np.full((1, 5, 2), float(number + 1)), now, None)
        link.deliver(now)
        assert (link.in_force == number + 1).all()


def test_an_episode_begins_with_nothing_on_its_way() -> None:
    link = command_link(GroupDelay(delay=Fixed(value=2 * DECIMATION * DT)), 3)
    link.send(np.full((3, 5, 2), 1.0), 0, None)
    link.send(np.full((3, 5, 2), 2.0), DECIMATION, None)
    link.reset(np.full((1, 5, 2), 9.0), np.array([1]), None)
    for period in (2, 3):
        link.deliver(period * DECIMATION)
        assert link.in_force[:, 0, 0].tolist() == [period - 1.0, 9.0, period - 1.0]


def test_what_an_episode_begins_with_is_what_its_first_message_can_repeat() -> None:
    link = command_link(GroupDelay(delay=Fixed(value=0.0), repeat=1.0), 2)
    assert (acting(link, 5, np.random.default_rng(0)) == -1).all()
    link.reset(np.full((1, 5, 2), 9.0), np.array([1]), None)
    assert (acting(link, 10, np.random.default_rng(0)) == [-1, 9]).all()


def _within(count: int, trials: int, probability: float) -> bool:
    return abs(count - trials * probability) < 6.0 * np.sqrt(trials * probability * (1.0 - probability))


def test_lost_and_repeated_commands_are_as_many_as_asked_for() -> None:
    messages, envs, delay = 60, 200, Fixed(value=2 * DT)
    lost = acting(command_link(GroupDelay(delay=delay, loss=0.2), envs), messages, np.random.default_rng(2))
    arrived = sum(len(np.setdiff1d(lost[:, env], [-1])) for env in range(envs))
    assert _within(messages * envs - arrived, messages * envs, 0.2)
    # A repeated message takes the place of a new one and holds what the one before held: as if the new one were lost.
    again = acting(command_link(GroupDelay(delay=delay, repeat=0.2), envs), messages, np.random.default_rng(3))
    arrived = sum(len(np.setdiff1d(again[:, env], [-1])) for env in range(envs))
    assert _within(messages * envs - arrived, messages * envs, 0.2)


def test_a_repeat_brings_what_was_lost_before() -> None:
    """Loss 1/2, repeat 1/2: the content of a lost message still arrives with probability 1/4 one message later."""
    messages, envs = 200, 50
    group = GroupDelay(delay=Fixed(value=0.0), loss=0.5, repeat=0.5)
    seen = acting(command_link(group, envs), messages, np.random.default_rng(4))
    steps, rows = np.nonzero(np.diff(seen, axis=0, prepend=-1))
    late = steps // DECIMATION - seen[steps, rows]
    sent_new = messages * envs * 0.5
    # Content k arrives n messages late if its first n messages are lost, the next n are repeats and the last arrives.
    for periods in range(3):
        expected = sent_new * 0.5 * 0.25**periods
        assert abs(int((late == periods).sum()) - expected) < 6.0 * np.sqrt(expected)


def test_lost_and_repeated_measurements_are_as_many_as_asked_for() -> None:
    ticks, envs = 60, 200
    for group in (GroupDelay(delay=Fixed(value=0.0), loss=0.2), GroupDelay(delay=Fixed(value=0.0), repeat=0.2)):
        seen = sensed(group, envs, ticks, np.random.default_rng(5))
        held = int((np.diff(seen, axis=0) == 0).sum())
        assert _within(held, (ticks - 1) * envs, 0.2)
        assert (seen[0] == 0).all()


def test_a_measurement_that_is_kept_keeps_its_error() -> None:
    """Until the first one comes through, the policy has one sample, not the same one with fresh noise."""
    noise = np.random.default_rng(6)
    seen = sensed(GroupDelay(delay=Fixed(value=5 * DECIMATION * DT)), 3, 8, noise, noise.random)
    assert (seen[:6] == seen[0]).all()
    assert (seen[6:].astype(int) == np.array([[1], [2]]) * DECIMATION).all()
    assert len(np.unique(seen[:, 0] % 1.0)) == 3


def test_delays_are_drawn_for_those_that_begin_alone() -> None:
    link = command_link(GroupDelay(delay=Uniform(low=0.0, high=0.05)), 5)
    before = link.delay.copy()
    rows = np.array([1, 3])
    link.reset(np.zeros((2, 5, 2)), rows, np.random.default_rng(7))
    changed = (link.delay != before)[:, 0]
    assert changed.tolist() == [False, True, False, True, False]
    link.set_delay(np.full(2, 0.03), rows)
    link.reset(np.zeros((5, 5, 2)), EVERYONE, np.random.default_rng(8))
    assert (link.delay[rows] == 0.03).all(), "what was set from outside replaces what is drawn"


def test_what_is_drawn_needs_a_generator() -> None:
    link = CommandLink((GroupDelay(delay=Uniform(low=0.0, high=0.05)),), JOINTS, 1, DT, DECIMATION)
    with pytest.raises(ValueError, match="expected a generator, because command delays are drawn at random"):
        link.reset(np.zeros((1, 5, 2)), EVERYONE, None)
    link.reset(np.zeros((1, 5, 2)), EVERYONE, np.random.default_rng(0))
    link.send(np.zeros((1, 5, 2)), 0, None)  # drawn per episode: nothing is drawn here
