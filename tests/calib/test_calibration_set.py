"""Calibration sets: recorded from the policy at work, checked before use, and told what they have not seen."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest

from sim2real.errors import BundleError, InputError
from sim2real.npz import write_npz
from sim2real.observation import ObservationBuilder
from sim2real.tasks import Task, get_task
from sim2real.tasks.base import unpublished
from sim2real.tasks.ranges import with_own_ranges
from sim2real_calib.calibration_set import (
    CalibrationSet,
    check_set,
    coverage_of,
    decode_set,
    encode_set,
    record_set,
)
from sim2real_calib.products import normalizer_of
from sim2real_calib.sensitivity import replayed
from tests.calib.policies import Exported, exported

STEPS = 120


def short_task() -> Task:
    """The pendulum's, whose episodes end often."""
    return msgspec.structs.replace(get_task("pendulum-swingup"), episode_length=0.5)


@functools.cache
def recorded(kind: str, seed: int = 0) -> CalibrationSet:
    policy, task = exported(kind), short_task()
    plants = with_own_ranges(None, task)
    return record_set(
        policy.onnx,
        policy.contract,
        task,
        num_envs=8,
        steps=STEPS,
        seed=seed,
        randomization=plants,
        progress=lambda: None,
    )


def spoiled(content: CalibrationSet, step: int, env: int, element: int, value: float) -> CalibrationSet:
    observations = content.observations.copy()
    observations[step, env, element] = value
    return CalibrationSet(observations, content.episode_start)


def test_what_is_recorded_is_whole_and_begins_where_episodes_begin() -> None:
    policy, content = exported("mlp"), recorded("mlp")
    check_set(content, policy.contract)
    assert content.observations.shape == (STEPS, 8, policy.names.observation_size)
    assert content.samples == STEPS * 8
    episode = round(0.5 / (policy.contract.timing.control_period_ns * 1e-9))
    starts = content.episode_start
    assert starts[0].all()
    # Each runs out after its time, the first ones at random ages.
    assert len({int(np.flatnonzero(column)[1]) for column in starts.T}) > 1
    for column in starts.T:
        times = np.flatnonzero(column)
        assert (np.diff(times)[1:] == episode).all()
        assert np.diff(times)[0] <= episode
    # Where an episode begins, the pendulum is somewhere else than the step before; within one it swings smoothly.
    jumps = np.abs(np.diff(content.observations, axis=0)).max(axis=2)
    begun = starts[1:]
    assert np.median(jumps[begun]) > 3.0 * np.median(jumps[~begun])


def test_the_same_seed_records_the_same_and_another_seed_something_else() -> None:
    first = recorded("mlp")
    again = recorded.__wrapped__("mlp")
    other = recorded("mlp", seed=1)
    assert encode_set(first) == encode_set(again)
    assert encode_set(first) != encode_set(other)


def test_a_quarter_of_the_environments_is_disturbed() -> None:
    """Environments that are driven by the policy alone see what its own actions lead to; the last action tells."""
    policy = exported("mlp")
    content = recorded("mlp")
    actions = replayed(policy.onnx, policy.names, content)
    (index,) = (i for i, term in enumerate(policy.contract.observation.terms) if term.source == "last_action")
    width = [len(term.scale) * term.history_length for term in policy.contract.observation.terms]
    column = sum(width[:index])
    going_on = ~content.episode_start[1:]
    assert policy.contract.action.clip is not None
    low, high = policy.contract.action.clip
    clipped = np.clip(actions[:-1, :, 0], low, high)
    off = np.where(going_on, np.abs(content.observations[1:, :, column] - clipped), 0.0).max(axis=0)
    assert (off[:2] > 0.1).all()
    np.testing.assert_allclose(off[2:], 0.0, atol=1e-5)


def test_a_recurrent_policy_is_replayed_with_a_state_that_restarts() -> None:
    policy, content = exported("gru"), recorded("gru")
    whole = replayed(policy.onnx, policy.names, content)
    start = int(np.flatnonzero(content.episode_start[:, 3])[1])
    alone = CalibrationSet(content.observations[start:, [3]], content.episode_start[start:, [3]])
    np.testing.assert_allclose(whole[start:, 3], replayed(policy.onnx, policy.names, alone)[:, 0], atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_with_its_place(value: float) -> None:
    # Case 11.
    policy = exported("mlp")
    bad = spoiled(recorded("mlp"), 17, 3, 2, value)
    with pytest.raises(
        InputError, match=rf"calibration: velocity\[0\] is {value} in step 17 of sequence 3, and not finite in 1 places"
    ):
        check_set(decode_set(encode_set(bad)), policy.contract)


@pytest.mark.parametrize(
    ("shape", "starts"),
    [((4, 2, 5), (4, 2)), ((4, 4), (4,)), ((0, 2, 4), (0, 2)), ((4, 0, 4), (4, 0)), ((4, 2, 4), (3, 2))],
)
def test_another_policys_set_and_an_empty_one_are_refused(shape: tuple[int, ...], starts: tuple[int, ...]) -> None:
    content = CalibrationSet(np.zeros(shape, np.float32), np.ones(starts, np.bool_))
    with pytest.raises(InputError, match=r"calibration: expected observations of shape \(T, N, 4\)"):
        check_set(decode_set(encode_set(content)), exported("mlp").contract)


def test_a_set_that_begins_in_the_middle_of_an_episode_is_refused() -> None:
    starts = recorded("mlp").episode_start.copy()
    starts[0, 1] = False
    with pytest.raises(InputError, match="expected episode_start to be True at step 0 of each sequence"):
        check_set(CalibrationSet(recorded("mlp").observations, starts), exported("mlp").contract)


def test_a_set_is_read_as_it_was_written() -> None:
    content = recorded("mlp")
    again = decode_set(encode_set(content))
    np.testing.assert_array_equal(again.observations, content.observations)
    np.testing.assert_array_equal(again.episode_start, content.episode_start)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"observations": np.zeros((2, 1, 4), np.float32)}, "got no 'episode_start'"),
        (
            {"observations": np.zeros((2, 1, 4)), "episode_start": np.ones((2, 1), np.bool_)},
            "expected float32 observations and bool episode_start, got float64 and bool",
        ),
        (
            {"observations": np.zeros((2, 1, 4), np.float32), "episode_start": np.ones((2, 1), np.int64)},
            "got float32 and int64",
        ),
    ],
)
def test_a_file_that_holds_something_else_is_refused(arrays: dict[str, npt.NDArray[np.generic]], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        decode_set(write_npz(arrays))


@pytest.mark.parametrize("content", [b"", b"step,time\n1,2\n", encode_set(recorded("mlp"))[:-40]])
def test_a_file_that_is_no_npz_is_refused(content: bytes) -> None:
    with pytest.raises(BundleError):
        decode_set(content)


def coverage_names(policy: Exported, content: CalibrationSet) -> tuple[list[str], dict[str, float]]:
    """Inputs that never move, and those that are clipped with the share of it."""
    coverage = coverage_of(content, policy.contract, *normalizer_of(onnx.load_model_from_string(policy.onnx)))
    return [each.name for each in coverage if each.constant], {
        each.name: each.clipped for each in coverage if each.clipped
    }


def test_coverage_names_inputs_that_never_move_and_those_that_are_clipped() -> None:
    policy, content = exported("mlp"), recorded("mlp")
    mean, inverse_std, limit = normalizer_of(onnx.load_model_from_string(policy.onnx))
    assert 1.0 < limit < 100.0
    assert coverage_names(policy, content) == ([], {})
    observations = content.observations.copy()
    observations[..., 1] = 0.25
    observations[:30, :, 2] = mean[2] + 1.001 * limit / inverse_std[2]
    # Not yet clipped.
    observations[30:60, :, 0] = mean[0] - 0.999 * limit / inverse_std[0]
    changed = CalibrationSet(observations, content.episode_start)
    assert coverage_names(policy, changed) == (["cos_angle[0]"], {"velocity[0]": 30 / STEPS})
    coverage = coverage_of(changed, policy.contract, mean, inverse_std, limit)
    assert (coverage[1].low, coverage[1].high) == (0.25, 0.25)
    assert coverage[2].high == pytest.approx(mean[2] + 1.001 * limit / inverse_std[2])


def test_a_policy_without_a_normaliser_clips_nothing() -> None:
    policy = exported("mlp")
    model = onnx.load_model_from_string(policy.onnx)
    del model.graph.node[2]
    content = recorded("mlp")
    coverage = coverage_of(content, policy.contract, *normalizer_of(model))
    assert [each.clipped for each in coverage] == [0.0] * 4
    assert coverage[0].low == content.observations[..., 0].min()


@pytest.mark.parametrize("layout", ["frame_major", "term_major"])
def test_an_element_of_a_history_is_called_by_its_term_and_frame(layout: str) -> None:
    """As the observation builder takes it apart."""
    task = get_task("so101-reach")
    contract = task.contract(unpublished(task))
    contract = msgspec.convert(
        msgspec.to_builtins(contract) | {"observation": msgspec.to_builtins(contract.observation) | {"layout": layout}},
        type(contract),
    )
    size = contract.model.observation_size
    terms = ObservationBuilder(contract, 1).split(np.arange(size, dtype=np.float32)[None])
    for term in contract.observation.terms:
        columns = terms[term.name][0].astype(int).reshape(term.history_length, -1)
        for (frame, index), column in np.ndenumerate(columns):
            bad = np.zeros((1, 1, size), np.float32)
            bad[0, 0, column] = np.nan
            frames = f" of frame {frame}" if term.history_length > 1 else ""
            name = f"{term.name}[{index}]{frames} is nan".replace("[", r"\[").replace("]", r"\]")
            with pytest.raises(InputError, match=f"calibration: {name}"):
                check_set(CalibrationSet(bad, np.ones((1, 1), np.bool_)), contract)
