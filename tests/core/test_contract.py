"""The contract is exact, complete, and says where it is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.contract import Command, PolicyContract, RecurrentState, contract_hash, decode_contract, encode_contract
from sim2real.errors import ContractError
from sim2real.validation import observation_size, validate
from tests.core.strategies import contracts, pendulum_contract, random_contract, with_field

FEW = settings(max_examples=60, deadline=None)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a contract that has no parts, with its path."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _leaves(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, tuple) and value:
        for index, item in enumerate(cast("tuple[Any, ...]", value)):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def _objects(value: Any, path: str = "contract") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every JSON object of a contract's plain form, with its path."""
    if isinstance(value, dict):
        part = cast("dict[str, Any]", value)
        yield path, part
        for name, item in part.items():
            yield from _objects(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _objects(item, f"{path}[{index}]")


def _complaint(contract: PolicyContract) -> str:
    with pytest.raises(ContractError) as caught:
        validate(contract)
    message = str(caught.value)
    assert "\n" not in message
    return message


@FEW
@given(contracts(extreme=True))
def test_json_round_trip_is_exact(contract: PolicyContract) -> None:
    text = encode_contract(contract)
    again = decode_contract(text)
    # repr tells -0.0 from 0.0 and any two neighbouring floats apart; == does not.
    assert repr(again) == repr(contract)
    assert encode_contract(again) == text
    assert contract_hash(again) == contract_hash(contract)


@FEW
@given(contracts(), st.data())
def test_hash_changes_with_the_last_bit_of_any_number(contract: PolicyContract, data: st.DataObject) -> None:
    numbers = [(path, value) for path, value in _leaves(contract) if isinstance(value, float) and "offset" in path]
    if contract.action.mode == "incremental":
        numbers = [(path, value) for path, value in numbers if not path.startswith("action")]
    path, value = data.draw(st.sampled_from(numbers))
    changed = with_field(contract, path, math.nextafter(value, math.inf))
    assert contract_hash(changed) != contract_hash(contract)


@FEW
@given(contracts(), st.data(), st.sampled_from((math.nan, math.inf, -math.inf)))
def test_number_that_is_not_finite_is_named(contract: PolicyContract, data: st.DataObject, bad: float) -> None:
    path = data.draw(st.sampled_from([path for path, value in _leaves(contract) if isinstance(value, float)]))
    assert _complaint(with_field(contract, path, bad)) == f"contract.{path}: expected a finite number, got {bad!r}"


@FEW
@given(contracts(), st.data())
def test_value_of_another_type_is_named(contract: PolicyContract, data: st.DataObject) -> None:
    path, value = data.draw(st.sampled_from([leaf for leaf in _leaves(contract) if leaf[1] is not None]))
    # Each of these equals, or passes for, the right value in Python, yet is written as something else or not at all.
    impostors: dict[type, object] = {float: np.float64(1.5), int: True, str: b"name", tuple: []}
    bad = impostors[type(value)]
    assert _complaint(with_field(contract, path, bad)).startswith(f"contract.{path}: expected {type(value).__name__}, ")


@FEW
@given(contracts(), st.data())
def test_integer_in_place_of_a_number_is_named(contract: PolicyContract, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([path for path, value in _leaves(contract) if isinstance(value, float)]))
    assert _complaint(with_field(contract, path, 1)) == f"contract.{path}: expected float, got 1 of type int"


@FEW
@given(contracts(), st.data())
def test_missing_and_unknown_fields_are_named(contract: PolicyContract, data: st.DataObject) -> None:
    plain = msgspec.json.decode(encode_contract(contract))
    path, part = data.draw(st.sampled_from(list(_objects(plain))))
    name = data.draw(st.sampled_from(sorted(part)))
    value = part.pop(name)
    with pytest.raises(ContractError) as missing:
        decode_contract(msgspec.json.encode(plain))
    assert str(missing.value) == f"{path}: object missing required field `{name}`"
    part.update({name: value, "stiffness": 1.0})
    with pytest.raises(ContractError) as unknown:
        decode_contract(msgspec.json.encode(plain))
    assert str(unknown.value) == f"{path}: object contains unknown field `stiffness`"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"schema_version": 1}', b"null"])
def test_what_is_no_contract_is_refused(text: bytes) -> None:
    with pytest.raises(ContractError, match=r"^contract: "):
        decode_contract(text)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", '"2.5"', "true", "null"])
def test_number_that_json_cannot_hold_is_refused(number: str) -> None:
    text = encode_contract(pendulum_contract()).replace(b'"effort_limit":2.5', f'"effort_limit":{number}'.encode())
    with pytest.raises(ContractError, match=r"^contract"):
        decode_contract(text)


def test_contract_itself_of_another_type_is_named() -> None:
    assert _complaint(pendulum_contract().safety).startswith("contract: expected PolicyContract, got ")  # pyright: ignore[reportArgumentType]


@FEW
@given(contracts())
def test_observation_size_counts_every_frame(contract: PolicyContract) -> None:
    # The scale has one value per element of a frame, whatever the source.
    assert observation_size(contract) == sum(len(t.scale) * t.history_length for t in contract.observation.terms)


PENDULUM = pendulum_contract()
GYRO = msgspec.structs.replace(
    PENDULUM.observation.terms[2],
    source="base_ang_vel",
    joints=(),
    offset=(0.0,) * 3,
    scale=(1.0,) * 3,
    frame="body",
)
QUAT = msgspec.structs.replace(
    GYRO, source="base_quat", offset=(0.0,) * 4, scale=(1.0,) * 4, frame="world", quaternion="wxyz"
)
LAST_ACTION = msgspec.structs.replace(PENDULUM.observation.terms[2], source="last_action", frame="policy")
OPERATOR = msgspec.structs.replace(LAST_ACTION, source="command", joints=())
STICK = Command(name="stick", unit="m/s", low=-1.0, high=1.0, initial=0.0)
MEMORY = RecurrentState(input_name="h_in", output_name="h_out", shape=(1, 8), initial_value=0.0)
SPEED_TERM = "observation.terms[2]"


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("identity.task", "", "identity.task: expected a name that is not empty, got ''"),
        ("identity.task", " a", "identity.task: expected printable text without blanks at its ends, got ' a'"),
        ("identity.task", "a\nb", "identity.task: expected printable text without blanks at its ends, got 'a\\nb'"),
        ("identity.robot", "\ud800", "identity.robot: expected printable text"),
        ("identity.checkpoint_sha256", "A" * 64, "identity.checkpoint_sha256: expected 64 lower-case hex digits"),
        ("identity.config_sha256", "0" * 63, "identity.config_sha256: expected 64 lower-case hex digits"),
        ("timing.control_period_ns", 0, "timing.control_period_ns: expected an integer >= 1, got 0"),
        ("timing.decimation", 4, "timing.control_period_ns: expected physics_step_ns * decimation = 8000000, got 10"),
        ("timing.decimation", -5, "timing.decimation: expected an integer >= 1, got -5"),
        ("timing.physics_step_ns", 2**63, "timing.physics_step_ns: expected an integer of 64 bits, got 9223372036"),
        ("joints", (), "joints: expected at least one joint, got ()"),
        ("joints", PENDULUM.joints * 2, "joints[1].name: expected a name not used before, got 'pivot'"),
        ("joints[0].name", "", "joints[0].name: expected a name that is not empty, got ''"),
        ("joints[0].axis_sign", 0, "joints[0].axis_sign: expected one of -1, 1, got 0"),
        (
            "joints[0].command_mode",
            "torque",
            "joints[0].command_mode: expected one of 'effort', 'passive', 'position', 'velocity'",
        ),
        ("joints[0].position_limits", (1.0, 1.0), "joints[0].position_limits: expected (low, high) with low < high"),
        ("joints[0].position_limits", (1.0,), "joints[0].position_limits: expected 2 values, got 1"),
        ("joints[0].position_limits", (0.5, 1.0), "joints[0].default_position: expected a position within [0.5, 1.0]"),
        ("joints[0].velocity_limit", 0.0, "joints[0].velocity_limit: expected a finite number > 0, got 0.0"),
        ("joints[0].effort_limit", -2.0, "joints[0].effort_limit: expected a finite number > 0, got -2.0"),
        ("joints[0].kp", 1.0, "joints[0].kp: expected 0.0 in effort mode, got 1.0"),
        ("joints[0].kd", 1.0, "joints[0].kd: expected 0.0 in effort mode, got 1.0"),
        ("joints[0].command_mode", "position", "joints[0].kp: expected a finite number > 0, got 0.0"),
        ("joints[0].command_mode", "velocity", "joints[0].kd: expected a finite number > 0, got 0.0"),
        ("commands", (STICK, STICK), "commands[1].name: expected a name not used before, got 'stick'"),
        ("commands", (with_field(STICK, "low", 1.0),), "commands[0].low: expected a number < high = 1.0, got 1.0"),
        ("commands", (with_field(STICK, "initial", 2.0),), "commands[0].initial: expected a number within [-1.0, 1.0]"),
        ("commands", (with_field(STICK, "unit", ""),), "commands[0].unit: expected a name that is not empty, got ''"),
        ("observation.terms", (), "observation.terms: expected at least one term, got ()"),
        ("observation.terms[1].name", "sin", "observation.terms[1].name: expected a name not used before, got 'sin'"),
        (f"{SPEED_TERM}.source", "joint_speed", f"{SPEED_TERM}.source: expected one of joint_pos, joint_vel, "),
        (f"{SPEED_TERM}.joints", (), f"{SPEED_TERM}.joints: expected at least one joint, got ()"),
        (f"{SPEED_TERM}.joints", ("hip",), f"{SPEED_TERM}.joints[0]: expected one of pivot, got 'hip'"),
        (f"{SPEED_TERM}.joints", ("pivot",) * 2, f"{SPEED_TERM}.joints[1]: expected a joint not named before"),
        (SPEED_TERM, with_field(GYRO, "joints", ("pivot",)), f"{SPEED_TERM}.joints: expected () for source 'base_ang"),
        (SPEED_TERM, with_field(GYRO, "frame", "world"), f"{SPEED_TERM}.frame: expected 'body', the frame of source"),
        (SPEED_TERM, with_field(QUAT, "quaternion", None), f"{SPEED_TERM}.quaternion: expected 'wxyz' or 'xyzw' for"),
        (SPEED_TERM, with_field(GYRO, "quaternion", "wxyz"), f"{SPEED_TERM}.quaternion: expected None for source"),
        (SPEED_TERM, with_field(LAST_ACTION, "frame", "joint"), f"{SPEED_TERM}.frame: expected 'policy', the frame of"),
        (SPEED_TERM, OPERATOR, f"{SPEED_TERM}.source: expected another source, as contract.commands is empty"),
        (f"{SPEED_TERM}.function", "sin", f"{SPEED_TERM}.function: expected 'identity', as the source is not in rad"),
        (f"{SPEED_TERM}.scale", (1.0, 1.0), f"{SPEED_TERM}.scale: expected 1 values, one per value of the source"),
        (f"{SPEED_TERM}.scale", (0.0,), f"{SPEED_TERM}.scale[0]: expected a finite number other than 0, got 0.0"),
        (f"{SPEED_TERM}.offset", (), f"{SPEED_TERM}.offset: expected 1 values, one per value of the source, got ()"),
        (f"{SPEED_TERM}.clip", (1.0, -1.0), f"{SPEED_TERM}.clip: expected (low, high) with low < high, got (1.0, -1"),
        (f"{SPEED_TERM}.history_length", 0, f"{SPEED_TERM}.history_length: expected an integer >= 1, got 0"),
        (f"{SPEED_TERM}.history_stride", 0, f"{SPEED_TERM}.history_stride: expected an integer >= 1, got 0"),
        (SPEED_TERM, GYRO, "model.observation_size: expected 5, the terms' sum, got 3"),
        ("action.joints", ("hip",), "action.joints[0]: expected one of pivot, got 'hip'"),
        ("action.scale", (), "action.scale: expected 1 values, one per joint of action.joints, got ()"),
        ("action.scale", (-0.0,), "action.scale[0]: expected a finite number other than 0, got -0.0"),
        ("action.offset", (1.0, 2.0), "action.offset: expected 1 values, one per joint of action.joints"),
        ("action.clip", (1.0, 1.0), "action.clip: expected (low, high) with low < high, got (1.0, 1.0)"),
        ("action.rate_limit", (), "action.rate_limit: expected 1 values, one per joint of action.joints, got ()"),
        ("action.rate_limit", (0.0,), "action.rate_limit[0]: expected a finite number > 0, got 0.0"),
        ("model.observation_size", 4, "model.observation_size: expected 3, the terms' sum, got 4"),
        ("model.action_size", 2, "model.action_size: expected 1, one per action.joints, got 2"),
        ("model.action_name", "obs", "model.action_name: expected a tensor name not used before, got 'obs'"),
        ("model.recurrent", (MEMORY, MEMORY), "model.recurrent[1].input_name: expected a tensor name not used before"),
        ("model.recurrent", (with_field(MEMORY, "shape", ()),), "model.recurrent[0].shape: expected at least one dim"),
        ("model.recurrent", (with_field(MEMORY, "shape", (1, 0)),), "model.recurrent[0].shape[1]: expected an integer"),
        (
            "model.recurrent",
            (with_field(MEMORY, "initial_value", 1e39),),
            "model.recurrent[0].initial_value: expected a number that float32 can hold, got 1e+39",
        ),
        ("safety.stale_timeout_ns", 0, "safety.stale_timeout_ns: expected an integer >= 1, got 0"),
        ("safety.on_stale", "ignore", "safety.on_stale: expected one of 'damp', 'hold', 'stop', got 'ignore'"),
        ("safety.position_margin", -0.1, "safety.position_margin: expected a finite number >= 0, got -0.1"),
        ("safety.effort_margin", -0.1, "safety.effort_margin: expected a finite number >= 0, got -0.1"),
        ("safety.max_tilt", 0.0, "safety.max_tilt: expected an angle in (0, pi], got 0.0"),
        ("safety.max_tilt", 3.2, "safety.max_tilt: expected an angle in (0, pi], got 3.2"),
        ("safety.recover_after", 0, "safety.recover_after: expected an integer >= 1, got 0"),
        ("safety.deadline_ladder.hold_after", 0, "safety.deadline_ladder.hold_after: expected an integer >= 1, got 0"),
        ("safety.deadline_ladder.damp_after", 2, "safety.deadline_ladder.damp_after: expected an integer >= 3, got 2"),
        ("safety.deadline_ladder.stop_after", 5, "safety.deadline_ladder.stop_after: expected an integer >= 6, got 5"),
        ("safety.fallback.hold_kp", (-1.0,), "safety.fallback.hold_kp[0]: expected a finite number >= 0, got -1.0"),
        ("safety.fallback.hold_kd", (), "safety.fallback.hold_kd: expected 1 values, one per joint of the contract"),
        ("safety.fallback.damp_kd", (0.0,), "safety.fallback.damp_kd[0]: expected a finite number > 0, got 0.0"),
        ("latency.stages[0].stage", "gpu", "latency.stages[0].stage: expected one of wake, state_age, observe, infer"),
        ("latency.stages", PENDULUM.latency.stages * 2, "latency.stages[1].stage: expected a name not used before"),
        ("latency.stages[0].p50_ns", 0, "latency.stages[0].p50_ns: expected an integer >= 1, got 0"),
        ("latency.stages[0].p99_ns", 1, "latency.stages[0].p99_ns: expected an integer >= 200000, got 1"),
        ("latency.end_to_end.max_ns", 1, "latency.end_to_end.max_ns: expected an integer >= 10000000, got 1"),
        ("latency.end_to_end.stage", "infer", "latency.end_to_end.stage: expected 'end_to_end', got 'infer'"),
        ("latency.max_deadline_miss_rate", 1.01, "latency.max_deadline_miss_rate: expected a number within [0, 1]"),
        ("latency.max_action_age_ns", 0, "latency.max_action_age_ns: expected an integer >= 1, got 0"),
        ("schema_version", 2, "schema_version: expected one of 1, got 2"),
    ],
)
def test_rule_names_the_field(path: str, value: object, complaint: str) -> None:
    assert _complaint(with_field(PENDULUM, path, value)).startswith(f"contract.{complaint}")


def test_every_joint_is_driven_exactly_once() -> None:
    second = msgspec.structs.replace(PENDULUM.joints[0], name="elbow")
    two = with_field(PENDULUM, "joints", (*PENDULUM.joints, second))
    assert "every joint of the contract that is not passive (pivot, elbow)" in _complaint(two)
    passive = msgspec.structs.replace(second, command_mode="passive")
    driven = with_field(with_field(PENDULUM, "joints", (*PENDULUM.joints, passive)), "action.joints", ("elbow",))
    assert "every joint of the contract that is not passive (pivot)" in _complaint(driven)
    twice = with_field(two, "action.joints", ("pivot", "elbow", "pivot"))
    assert _complaint(twice) == "contract.action.joints[2]: expected a joint not named before, got 'pivot'"


def test_of_a_passive_joint_there_is_no_last_action() -> None:
    """It has no action; the observation builder could not find one."""
    elbow = msgspec.structs.replace(PENDULUM.joints[0], name="elbow", command_mode="passive")
    term = msgspec.structs.replace(
        PENDULUM.observation.terms[0], source="last_action", joints=("elbow",), function="identity", frame="policy"
    )
    contract = with_field(with_field(PENDULUM, "joints", (*PENDULUM.joints, elbow)), "observation.terms[0]", term)
    expected = "contract.observation.terms[0].joints[0]: expected a joint that actions drive (pivot), got 'elbow'"
    assert _complaint(contract) == expected
    damped = with_field(contract, "joints[1].kd", 0.1)
    assert _complaint(damped) == "contract.joints[1].kd: expected 0.0 in passive mode, got 0.1"


def test_incremental_action_has_no_offset() -> None:
    incremental = with_field(with_field(PENDULUM, "action.mode", "incremental"), "action.offset", (0.5,))
    assert _complaint(incremental) == "contract.action.offset[0]: expected 0.0 in incremental mode, got 0.5"


@pytest.mark.parametrize("name", ["history_length", "history_stride"])
def test_frames_can_only_be_interleaved_when_histories_are_equal(name: str) -> None:
    frames = with_field(PENDULUM, "observation.layout", "frame_major")
    message = _complaint(with_field(frames, f"observation.terms[1].{name}", 2))
    assert (
        message
        == f"contract.observation.terms[1].{name}: expected 1 as in terms[0], since layout is 'frame_major', got 2"
    )


def test_sin_of_an_operator_input_needs_all_inputs_in_rad() -> None:
    heading = with_field(with_field(STICK, "name", "heading"), "unit", "rad")
    term = with_field(OPERATOR, "function", "sin")
    contract = with_field(with_field(PENDULUM, "commands", (heading,)), SPEED_TERM, term)
    validate(contract)
    assert "the source is not in rad" in _complaint(with_field(contract, "commands[0].unit", "m/s"))


def test_strategy_reaches_every_shape_of_contract() -> None:
    drawn = [random_contract(random.Random(seed)) for seed in range(300)]
    terms = [term for contract in drawn for term in contract.observation.terms]
    assert {contract.observation.layout for contract in drawn} == {"term_major", "frame_major"}
    assert {contract.action.mode for contract in drawn} == {"absolute", "incremental"}
    modes = {joint.command_mode for contract in drawn for joint in contract.joints}
    assert modes == {"position", "velocity", "effort", "passive"}
    assert {"command", "last_action", "base_quat", "joint_pos"} < {term.source for term in terms}
    assert {term.function for term in terms} == {"identity", "sin", "cos"}
    assert {len(contract.model.recurrent) for contract in drawn} == {0, 1, 2}
    assert max(term.history_length for term in terms) > 1
