"""Observations: batch equals rows, layouts as the contract says, inverses where there are any."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.contract import ObservationTerm, PolicyContract
from sim2real.errors import ContractError
from sim2real.layout import SignalLayout
from sim2real.observation import ObservationBuilder
from sim2real.signals import SIGNALS
from tests.core.strategies import contracts, pendulum_contract, random_measurements

FUNCTIONS: dict[str, Callable[[float], float]] = {"identity": float, "sin": math.sin, "cos": math.cos}
seeds = st.integers(0, 2**32 - 1)


def feed(builder: ObservationBuilder, contract: PolicyContract, rng: np.random.Generator) -> None:
    """Put random inputs into all rows."""
    rows = len(builder.signals)
    builder.signals[:] = random_measurements(rng, contract, rows)
    builder.commands[:] = rng.normal(size=builder.commands.shape)
    builder.last_action[:] = rng.normal(size=builder.last_action.shape)


def naive_frame(contract: PolicyContract, inputs: dict[str, npt.NDArray[np.float64]]) -> dict[str, list[float]]:
    """One frame from the words of `ObservationTerm`, one number at a time."""
    frame: dict[str, list[float]] = {}
    for term in contract.observation.terms:
        values: list[float] = []
        for i, raw in enumerate(naive_source(contract, term, inputs)):
            x = raw - term.offset[i]
            x = FUNCTIONS[term.function](x) * term.scale[i]
            values.append(min(max(x, term.clip[0]), term.clip[1]) if term.clip else x)
        frame[term.name] = values
    return frame


def naive_source(
    contract: PolicyContract, term: ObservationTerm, inputs: dict[str, npt.NDArray[np.float64]]
) -> list[float]:
    signs = {joint.name: joint.axis_sign for joint in contract.joints}
    values = [float(v) for v in inputs[term.source]]
    if term.source == "last_action":
        return [values[contract.action.joints.index(name)] for name in term.joints]
    if term.source in SIGNALS and SIGNALS[term.source].per_joint:
        return [signs[name] * values[contract.joint_names.index(name)] for name in term.joints]
    if term.quaternion == "xyzw":
        w, x, y, z = values
        return [x, y, z, w]
    return values


def naive_observation(contract: PolicyContract, frames: list[dict[str, list[float]]]) -> list[float]:
    """Lay out the frames of one episode (oldest first in `frames`) as the contract says."""
    observation = contract.observation

    def block(term: ObservationTerm, position: int) -> list[float]:
        newest_first = observation.history_order == "newest_first"
        age = (position if newest_first else term.history_length - 1 - position) * term.history_stride
        index = len(frames) - 1 - age
        if index >= 0:
            return frames[index][term.name]
        return frames[0][term.name] if observation.startup_fill == "first" else [0.0] * len(term.scale)

    if observation.layout == "term_major":
        return [v for term in observation.terms for p in range(term.history_length) for v in block(term, p)]
    length = observation.terms[0].history_length
    return [v for p in range(length) for term in observation.terms for v in block(term, p)]


@given(contracts(), seeds)
def test_observation_follows_the_words_of_the_contract(contract: PolicyContract, seed: int) -> None:
    rng = np.random.default_rng(seed)
    builder = ObservationBuilder(contract, 1)
    frames: list[dict[str, list[float]]] = []
    for step in range(6):
        feed(builder, contract, rng)
        inputs = {name: builder.signals[0, columns] for name, columns in builder.layout.slices.items()}
        inputs |= {"command": builder.commands[0], "last_action": builder.last_action[0]}
        frames.append(naive_frame(contract, inputs))
        got = builder.reset() if step == 0 else builder.update()
        np.testing.assert_allclose(got[0], naive_observation(contract, frames), rtol=2e-7, atol=1e-7)


@given(contracts(), seeds, st.integers(2, 9))
def test_each_row_of_a_batch_equals_a_builder_of_one(contract: PolicyContract, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    batch = ObservationBuilder(contract, rows)
    singles = [ObservationBuilder(contract, 1) for _ in range(rows)]
    for step in range(7):
        feed(batch, contract, rng)
        for row, single in enumerate(singles):
            single.signals[0], single.commands[0] = batch.signals[row], batch.commands[row]
            single.last_action[0] = batch.last_action[row]
        starts = np.flatnonzero(rng.random(rows) < 0.3) if step else np.arange(rows)
        if step:
            batch.update()
        batch.reset(starts)
        for row, single in enumerate(singles):
            if row in starts:
                single.reset()
            else:
                single.update()
            assert np.array_equal(batch.observation[row], single.observation[0]), (step, row)


@given(contracts(), seeds)
def test_identity_terms_invert(contract: PolicyContract, seed: int) -> None:
    contract = msgspec.structs.replace(
        contract,
        observation=msgspec.structs.replace(
            contract.observation,
            terms=tuple(msgspec.structs.replace(term, clip=None) for term in contract.observation.terms),
        ),
    )
    builder = ObservationBuilder(contract, 3)
    feed(builder, contract, np.random.default_rng(seed))
    recovered = builder.invert(builder.reset())
    for term in contract.observation.terms:
        if term.function != "identity":
            assert term.name not in recovered
            continue
        newest = 0 if contract.observation.history_order == "newest_first" else -1
        for row in range(3):
            inputs = {name: builder.signals[row, columns] for name, columns in builder.layout.slices.items()}
            inputs |= {"command": builder.commands[row], "last_action": builder.last_action[row]}
            expected = naive_source(contract, term, inputs)
            tolerance = 1e-6 * (1.0 + np.abs(term.offset) + np.abs(expected))
            assert np.all(np.abs(recovered[term.name][row, newest] - expected) <= tolerance)


def with_history(layout: str, order: str, fill: str, length: int, stride: int) -> PolicyContract:
    contract = pendulum_contract()
    changes: dict[str, Any] = {"history_length": length, "history_stride": stride}
    terms = tuple(
        msgspec.structs.replace(term, function="identity", scale=(1.0,), **changes)
        for term in contract.observation.terms[1:]
    )
    return msgspec.structs.replace(
        contract,
        observation=msgspec.structs.replace(
            contract.observation, terms=terms, layout=layout, history_order=order, startup_fill=fill
        ),
        model=msgspec.structs.replace(contract.model, observation_size=2 * length),
    )


@pytest.mark.parametrize(
    ("layout", "order", "expected"),
    [
        ("term_major", "oldest_first", [1, 2, 3, 10, 20, 30]),
        ("term_major", "newest_first", [3, 2, 1, 30, 20, 10]),
        ("frame_major", "oldest_first", [1, 10, 2, 20, 3, 30]),
        ("frame_major", "newest_first", [3, 30, 2, 20, 1, 10]),
    ],
)
def test_every_layout_by_hand(layout: str, order: str, expected: list[float]) -> None:
    """Case 3: term-major in one stack, frame-major in the other."""
    builder = ObservationBuilder(with_history(layout, order, "first", 3, 1), 1)
    for step in (1.0, 2.0, 3.0):
        builder.signals[0, builder.layout.slices["joint_pos"]] = step
        builder.signals[0, builder.layout.slices["joint_vel"]] = 10.0 * step
        observation = builder.reset() if step == 1.0 else builder.update()
    assert observation[0].tolist() == expected


@pytest.mark.parametrize(("fill", "before"), [("first", 7.0), ("zero", 0.0)])
def test_startup_fill_and_the_first_observation(fill: str, before: float) -> None:
    """Case 22: the very first observation is whole, and what stands before it is specified."""
    builder = ObservationBuilder(with_history("term_major", "oldest_first", fill, 3, 2), 1)
    builder.signals[0, builder.layout.slices["joint_pos"]] = 7.0
    assert builder.reset()[0, :3].tolist() == [before, before, 7.0]
    builder.signals[0, builder.layout.slices["joint_pos"]] = 8.0
    assert builder.update()[0, :3].tolist() == [before, before, 8.0]
    builder.signals[0, builder.layout.slices["joint_pos"]] = 9.0
    assert builder.update()[0, :3].tolist() == [before, 7.0, 9.0]


def test_a_reset_row_forgets_its_past_and_others_do_not_move() -> None:
    builder = ObservationBuilder(with_history("term_major", "oldest_first", "first", 2, 1), 2)
    position = builder.layout.slices["joint_pos"]
    builder.signals[:, position] = 1.0
    builder.reset()
    builder.signals[:, position] = 2.0
    builder.update()
    builder.signals[:, position] = 5.0
    builder.reset(np.array([1]))
    assert builder.observation[:, :2].tolist() == [[1.0, 2.0], [5.0, 5.0]]


def test_state_continues_exactly() -> None:
    contract = with_history("frame_major", "oldest_first", "first", 4, 2)
    rng = np.random.default_rng(0)
    builder, other = ObservationBuilder(contract, 5), ObservationBuilder(contract, 5)
    for step in range(5):
        feed(builder, contract, rng)
        _ = builder.update() if step else builder.reset()
    other.load_state(builder.state())
    for _ in range(9):
        feed(builder, contract, rng)
        other.signals[:], other.commands[:], other.last_action[:] = (
            builder.signals,
            builder.commands,
            builder.last_action,
        )
        assert np.array_equal(builder.update(), other.update())


def test_an_observation_of_another_width_is_refused() -> None:
    builder = ObservationBuilder(pendulum_contract(), 1)
    with pytest.raises(ContractError, match=r"expected shape \(N, 3\), got \(1, 4\)"):
        builder.split(np.zeros((1, 4), np.float32))


def test_measurement_vector_holds_what_the_supervisor_needs() -> None:
    layout = SignalLayout(pendulum_contract())
    assert layout.names == ("joint_pos", "joint_vel", "joint_effort")
    assert layout.size == 3
