"""Commands: every mode by its formula, limits that hold, inverses where there are any."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.action import ActionMapper
from sim2real.contract import PolicyContract
from sim2real.errors import ContractError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from tests.core.strategies import contracts, pendulum_contract

seeds = st.integers(0, 2**32 - 1)
ROWS = {"position": POSITION, "velocity": VELOCITY, "effort": EFFORT, "passive": EFFORT}


def limits_of(contract: PolicyContract, index: int) -> tuple[float, float]:
    joint = contract.joints[index]
    if joint.command_mode == "position":
        return joint.position_limits or (-np.inf, np.inf)
    bound = joint.velocity_limit if joint.command_mode == "velocity" else joint.effort_limit
    return -bound, bound


def naive_targets(contract: PolicyContract, previous: list[float], action: list[float]) -> list[float]:
    """Policy-side targets from the words of `sim2real.contract.Action`, one joint at a time; zero for a passive one."""
    spec, period = contract.action, contract.timing.control_period_ns * 1e-9
    targets: list[float] = []
    for index, joint in enumerate(contract.joints):
        if joint.command_mode == "passive":
            targets.append(0.0)
            continue
        element = spec.joints.index(joint.name)
        a = float(np.float32(action[element]))
        if spec.clip is not None:
            a = min(max(a, spec.clip[0]), spec.clip[1])
        base = previous[index] if spec.mode == "incremental" else spec.offset[element]
        target = a * spec.scale[element] + base
        if spec.rate_limit is not None:
            step = spec.rate_limit[element] * period
            target = min(max(target, previous[index] - step), previous[index] + step)
        low, high = sorted(joint.axis_sign * bound for bound in limits_of(contract, index))
        targets.append(min(max(target, low), high))
    return targets


@given(contracts(), seeds)
def test_commands_follow_the_words_of_the_contract(contract: PolicyContract, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mapper = ActionMapper(contract, 1)
    start = rng.normal(size=(1, len(contract.joints)))
    mapper.reset(start)
    previous = [
        joint.axis_sign * start[0, i] if joint.command_mode == "position" else 0.0
        for i, joint in enumerate(contract.joints)
    ]
    for _ in range(4):
        action = (2.0 * rng.normal(size=(1, contract.model.action_size))).astype(np.float32)
        command = mapper.apply(action)[0]
        previous = naive_targets(contract, previous, action[0].tolist())
        for i, joint in enumerate(contract.joints):
            row = ROWS[joint.command_mode]
            assert command[row, i] == pytest.approx(joint.axis_sign * previous[i], rel=1e-12, abs=1e-12)
            assert (command[KP, i], command[KD, i]) == (joint.kp, joint.kd)
            others = [r for r in (POSITION, VELOCITY, EFFORT) if r != row]
            assert not command[others, i].any()


@given(contracts(), seeds)
def test_targets_stay_inside_the_limits_whatever_the_action(contract: PolicyContract, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mapper = ActionMapper(contract, 2)
    # Measured positions inside the limits: the rate limit starts from there.
    position = np.array([[joint.default_position for joint in contract.joints]] * 2)
    mapper.reset(position)
    for _ in range(3):
        action = (10.0 ** rng.uniform(-3, 30) * rng.normal(size=(2, contract.model.action_size))).astype(np.float32)
        command = mapper.apply(action)
        for i, joint in enumerate(contract.joints):
            low, high = limits_of(contract, i)
            target = command[:, ROWS[joint.command_mode], i]
            assert np.all((low <= target) & (target <= high))


@given(contracts(), seeds, st.integers(2, 7))
def test_each_row_of_a_batch_equals_a_mapper_of_one(contract: PolicyContract, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    batch = ActionMapper(contract, rows)
    singles = [ActionMapper(contract, 1) for _ in range(rows)]
    for step in range(5):
        position = rng.normal(size=(rows, len(contract.joints)))
        starts = np.flatnonzero(rng.random(rows) < 0.3) if step else np.arange(rows)
        batch.reset(position, starts)
        for row in starts:
            singles[row].reset(position[row : row + 1])
        action = rng.normal(size=(rows, contract.model.action_size)).astype(np.float32)
        command = batch.apply(action)
        for row, single in enumerate(singles):
            assert np.array_equal(command[row], single.apply(action[row : row + 1])[0])


@given(contracts(), seeds)
def test_actions_invert_where_nothing_was_limited(contract: PolicyContract, seed: int) -> None:
    joints = tuple(
        msgspec.structs.replace(
            joint,
            position_limits=None if joint.command_mode == "position" else joint.position_limits,
            velocity_limit=1e9 if joint.command_mode == "velocity" else joint.velocity_limit,
            effort_limit=1e9 if joint.command_mode == "effort" else joint.effort_limit,
        )
        for joint in contract.joints
    )
    free = msgspec.structs.replace(contract.action, clip=None, rate_limit=None)
    contract = msgspec.structs.replace(contract, joints=joints, action=free)
    mapper = ActionMapper(contract, 3)
    mapper.reset(np.zeros((3, len(joints))))
    action = np.random.default_rng(seed).normal(size=(3, contract.model.action_size)).astype(np.float32)
    command = mapper.apply(action)
    if free.mode == "incremental":
        with pytest.raises(ContractError, match="expected absolute"):
            mapper.invert(command)
        return
    scale, offset = np.array(free.scale), np.array(free.offset)
    tolerance = 1e-12 * (1.0 + np.abs(offset / scale) + np.abs(action))
    assert np.all(np.abs(mapper.invert(command) - action) <= tolerance)


def test_a_nan_action_stays_visible() -> None:
    mapper = ActionMapper(pendulum_contract(), 1)
    mapper.reset(np.zeros((1, 1)))
    assert np.isnan(mapper.apply(np.full((1, 1), np.nan, np.float32))[0, EFFORT, 0])


def test_an_episode_starts_without_a_step_in_the_target() -> None:
    """The rate limit of a position joint counts from where the joint is, not from the default pose."""
    contract = pendulum_contract()
    joint = msgspec.structs.replace(contract.joints[0], command_mode="position", kp=10.0, kd=1.0, axis_sign=-1)
    action = msgspec.structs.replace(contract.action, rate_limit=(1.0,), scale=(1.0,))
    contract = msgspec.structs.replace(contract, joints=(joint,), action=action)
    mapper = ActionMapper(contract, 1)
    mapper.reset(np.array([[0.8]]))
    assert mapper.command[0, POSITION, 0] == 0.8
    command = mapper.apply(np.array([[1.0]], np.float32))
    # Policy side: from -0.8 towards 1.0 by 1 rad/s × 10 ms; robot side: 0.79.
    assert command[0, POSITION, 0] == pytest.approx(0.79, abs=1e-12)


@given(contracts(), seeds)
def test_a_passive_joint_is_never_commanded(contract: PolicyContract, seed: int) -> None:
    """Whatever the policy asks of the others, before and after it begins; and no action is recovered for it."""
    first = msgspec.structs.replace(contract.joints[0], name="limp", command_mode="passive", kp=0.0, kd=0.0)
    contract = msgspec.structs.replace(contract, joints=(first, *contract.joints))
    rng = np.random.default_rng(seed)
    mapper = ActionMapper(contract, 3)
    assert not mapper.command[:, :, 0].any()
    mapper.reset(rng.normal(size=(3, len(contract.joints))))
    assert not mapper.command[:, :, 0].any()
    for _ in range(3):
        action = rng.normal(size=(3, contract.model.action_size)).astype(np.float32)
        assert not mapper.apply(action)[:, :, 0].any()
    if contract.action.mode == "absolute":
        assert mapper.invert(mapper.command).shape == (3, contract.model.action_size)
