"""The supervisor: whatever comes in, what goes out is finite, within limits, at a level that the rules allow. 8 s."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sim2real.action import ActionMapper
from sim2real.bundle import Bundle
from sim2real.contract import FallbackLevel, PolicyContract, Safety
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY, SignalLayout
from sim2real.wire import Status
from sim2real_edge.supervisor import Supervisor
from tests.core.strategies import random_contract
from tests.edge import policies
from tests.edge.plants import at_rest
from tests.edge.policies import MS, Array

GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e39, 1e5, -40.0, 7.0, 0.0, 5e-324)


def assert_safe(contract: PolicyContract, level: Status, command: Array) -> None:
    """Hold a command against the contract, joint by joint, in plain words."""
    assert np.isfinite(command).all()
    fallback = contract.safety.fallback
    for index, joint in enumerate(contract.joints):
        position, velocity, effort, kp, kd = command[:, index].tolist()
        low, high = joint.position_limits or (-np.inf, np.inf)
        if level is Status.RUN:
            assert (kp, kd) == (joint.kp, joint.kd)
            assert abs(velocity) <= (joint.velocity_limit if joint.command_mode == "velocity" else 0.0)
            assert abs(effort) <= (joint.effort_limit if joint.command_mode == "effort" else 0.0)
            assert low <= position <= high if joint.command_mode == "position" else position == 0.0
        else:
            assert (velocity, effort) == (0.0, 0.0)
            expected = {
                Status.HOLD: (fallback.hold_kp[index], fallback.hold_kd[index]),
                Status.DAMP: (0.0, fallback.damp_kd[index]),
                Status.STOP: (0.0, 0.0),
            }
            assert (kp, kd) == expected[level]
            assert low <= position <= high if level is Status.HOLD else position == 0.0


class AnythingMayHappen(RuleBasedStateMachine):
    """Sequences of good and bad ticks under contracts of every shape."""

    @initialize(seed=st.integers(0, 10**6), known=st.sampled_from(("random", "pendulum", "quadruped")))
    def begin(self, seed: int, known: str) -> None:
        rng = random.Random(seed)
        contract = {
            "random": lambda: random_contract(rng),
            "pendulum": policies.pendulum_contract,
            "quadruped": policies.quadruped_contract,
        }[known]()
        levels: tuple[FallbackLevel, ...] = ("hold", "damp", "stop")
        safety = msgspec.structs.replace(
            contract.safety,
            recover_after=rng.randint(1, 4),
            **{
                name: rng.choice(levels)
                for name in ("on_stale", "on_non_finite", "on_position_limit", "on_velocity_limit", "on_effort_limit")
            },
        )
        self.contract = msgspec.structs.replace(contract, safety=safety)
        self.supervisor = Supervisor(self.contract)
        self.operator = np.array([command.initial for command in self.contract.commands])
        self.calm = calm_measurement(self.contract)
        self.observation = np.zeros((1, self.contract.model.observation_size), np.float32)
        self.maybe_healthy = 0
        self.command = self.supervisor.command
        self.before = self.after = Status.RUN
        self.supervisor.begin(self.calm)

    def supervise(self, measurement: Array, action: npt.NDArray[np.float32], age_ns: int, missed: int) -> None:
        if self.supervisor.level is not Status.RUN:
            self.supervisor.begin(measurement)
        self.before = self.supervisor.level
        self.command = self.supervisor.supervise(measurement, self.operator, self.observation, action, age_ns, missed)
        self.after = self.supervisor.level

    def count(self, surely_bad: bool) -> None:
        """Count ticks in a row that may have been healthy."""
        self.maybe_healthy = 0 if surely_bad else self.maybe_healthy + 1

    @rule(data=st.data())
    def calm_tick(self, data: st.DataObject) -> None:
        size = self.contract.model.action_size
        action = data.draw(st.lists(st.floats(-3, 3, width=32), min_size=size, max_size=size))
        self.count(False)
        self.supervise(self.calm, np.array([action], np.float32), data.draw(st.integers(0, 10)), 0)

    @rule(
        spots=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(GARBAGE)), min_size=1, max_size=4),
        into_action=st.booleans(),
    )
    def bad_values(self, spots: list[tuple[int, float]], into_action: bool) -> None:
        measurement = self.calm.copy()
        action = np.zeros((1, self.contract.model.action_size), np.float32)
        with np.errstate(over="ignore"):
            for spot, value in spots:
                target = action[0] if into_action else measurement
                target[spot % len(target)] = value
        bad = not (np.isfinite(measurement).all() and np.isfinite(action).all())
        self.count(bad)
        self.supervise(measurement, action, 0, 0)
        if bad:
            assert self.after is not Status.RUN

    @rule(joint=st.integers(0, 11), position=st.sampled_from((-40.0, 7.0, 1e5)))
    def far_joint(self, joint: int, position: float) -> None:
        measurement = self.calm.copy()
        joints = self.contract.joints
        measurement[SignalLayout(self.contract).slices["joint_pos"].start + joint % len(joints)] = position
        self.count(False)
        self.supervise(measurement, np.zeros((1, self.contract.model.action_size), np.float32), 0, 0)

    @rule(age_ns=st.sampled_from((0, 10**9, -(10**9), 2**62 + 1, 2**80)), missed=st.integers(0, 30))
    def bad_time(self, age_ns: int, missed: int) -> None:
        stale = abs(age_ns) > self.contract.safety.stale_timeout_ns
        self.count(stale)
        action = np.zeros((1, self.contract.model.action_size), np.float32)
        self.supervise(self.calm, action, age_ns, missed)
        if stale:
            assert self.after is not Status.RUN

    @invariant()
    def the_command_is_safe(self) -> None:
        if self.supervisor.level is Status.RUN and self.before is Status.RUN and not self.command.any():
            return  # nothing was commanded yet
        assert_safe(self.contract, self.after, self.command)

    @invariant()
    def the_level_falls_only_by_recovery(self) -> None:
        if self.after < self.before:
            assert (self.before, self.after) == (Status.HOLD, Status.RUN)
            assert self.maybe_healthy >= self.contract.safety.recover_after
        assert bool(self.supervisor.reason) == (self.after is not Status.RUN)


def calm_measurement(contract: PolicyContract) -> Array:
    """A measurement within every limit."""
    layout = SignalLayout(contract)
    values = np.zeros(layout.size)
    values[layout.slices["joint_pos"]] = [joint.default_position for joint in contract.joints]
    if "base_quat" in layout.slices:
        values[layout.slices["base_quat"]] = [1.0, 0.0, 0.0, 0.0]
    return values


TestAnythingMayHappen = AnythingMayHappen.TestCase
TestAnythingMayHappen.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


class Bench:
    """One supervisor with calm inputs at hand."""

    def __init__(self, bundle: Bundle, **safety: Any) -> None:
        changed: Safety = msgspec.structs.replace(bundle.contract.safety, **safety)
        self.contract = msgspec.structs.replace(bundle.contract, safety=changed)
        self.supervisor = Supervisor(self.contract)
        self.slices = SignalLayout(self.contract).slices
        self.calm = at_rest(bundle)
        self.action = np.zeros((1, self.contract.model.action_size), np.float32)
        self.operator = np.zeros(len(self.contract.commands))
        self.observation = np.zeros((1, self.contract.model.observation_size), np.float32)
        self.supervisor.begin(self.calm)

    def tick(
        self,
        measurement: Array | None = None,
        action: npt.NDArray[np.float32] | None = None,
        *,
        age_ns: int = 0,
        missed: int = 0,
    ) -> Status:
        self.supervisor.supervise(
            self.calm if measurement is None else measurement,
            self.operator,
            self.observation,
            self.action if action is None else action,
            age_ns,
            missed,
        )
        return self.supervisor.level

    def with_signal(self, signal: str, index: int, value: float) -> Array:
        measurement = self.calm.copy()
        measurement[self.slices[signal].start + index] = value
        return measurement


def test_a_policy_within_the_limits_is_passed_on_bit_for_bit(quadruped: Bundle) -> None:
    bench, mapper = Bench(quadruped), ActionMapper(quadruped.contract, 1)
    mapper.reset(bench.calm[None, bench.slices["joint_pos"]])
    for step in range(50):
        action = np.full((1, 12), 0.02 * step, np.float32)
        assert bench.tick(action=action) is Status.RUN
        np.testing.assert_array_equal(bench.supervisor.command, mapper.apply(action)[0])


@pytest.mark.parametrize("level", ["hold", "damp", "stop"])
@pytest.mark.parametrize(
    ("rule_name", "signal", "value", "told"),
    [
        ("on_position_limit", "joint_pos", 1.2, "joint_pos of 'fl_hip' is 1.2 rad, allowed -0.9 to 1.1"),
        ("on_velocity_limit", "joint_vel", -31.0, "joint_vel of 'fl_hip' is -31 rad/s, allowed -30 to 30"),
        ("on_effort_limit", "joint_effort", 30.5, "joint_effort of 'fl_hip' is 30.5 N·m, allowed -30 to 30"),
        ("on_non_finite", "base_ang_vel", float("inf"), "base_ang_vel is not finite: [inf  0.  0.]"),
    ],
)
def test_each_limit_leads_to_the_level_that_the_contract_names(
    quadruped: Bundle, level: FallbackLevel, rule_name: str, signal: str, value: float, told: str
) -> None:
    bench = Bench(quadruped, **{rule_name: level})
    assert bench.tick() is Status.RUN
    assert bench.tick(bench.with_signal(signal, 0, value)) is Status[level.upper()]
    assert bench.supervisor.reason == told


def test_a_limit_includes_its_margin(quadruped: Bundle) -> None:
    bench = Bench(quadruped)
    assert bench.tick(bench.with_signal("joint_pos", 0, 1.0 + 0.1)) is Status.RUN
    assert bench.tick(bench.with_signal("joint_pos", 0, np.nextafter(1.1, 2.0) + 1e-12)) is Status.HOLD


def test_hold_stays_where_the_joints_were_and_inside_their_limits(quadruped: Bundle) -> None:
    bench = Bench(quadruped)
    moved = bench.with_signal("joint_pos", 3, 0.25)
    moved[bench.slices["joint_pos"].start] = 1.3
    assert bench.tick(moved) is Status.HOLD
    bench.tick(bench.calm)
    command = bench.supervisor.command
    assert command[POSITION, 3] == 0.25
    assert command[POSITION, 0] == 1.0, "the joint is beyond its limit and is asked back to it"
    assert (command[KP] == 20.0).all()
    assert (command[KD] == 1.0).all()
    assert not command[[VELOCITY, EFFORT]].any()


def test_hold_is_left_after_enough_healthy_ticks_in_a_row(quadruped: Bundle) -> None:
    bench = Bench(quadruped, recover_after=3)
    wrong = bench.with_signal("joint_pos", 0, 1.3)
    seen = [bench.tick(wrong), bench.tick(), bench.tick(), bench.tick(wrong), bench.tick(), bench.tick(), bench.tick()]
    assert seen == [Status.HOLD] * 6 + [Status.RUN]
    assert bench.supervisor.reason == ""


@pytest.mark.parametrize("level", [Status.DAMP, Status.STOP])
def test_damp_and_stop_stay(quadruped: Bundle, level: Status) -> None:
    bench = Bench(quadruped, recover_after=1)
    bench.supervisor.halt(level, "asked to")
    assert [bench.tick() for _ in range(20)] == [level] * 20
    assert bench.supervisor.reason == "asked to"
    assert bench.tick(bench.with_signal("joint_pos", 0, 1.3)) is level


def test_a_hold_without_a_known_position_becomes_damp(quadruped: Bundle) -> None:
    bench = Bench(quadruped, on_non_finite="hold")
    assert bench.tick(bench.with_signal("joint_pos", 5, float("nan"))) is Status.DAMP
    assert "positions are unknown" in bench.supervisor.reason
    bench = Bench(quadruped, on_non_finite="hold")
    assert bench.tick(bench.with_signal("joint_vel", 5, float("nan"))) is Status.HOLD


def test_the_most_severe_finding_counts(quadruped: Bundle) -> None:
    bench = Bench(quadruped, on_velocity_limit="stop", on_position_limit="hold")
    both = bench.with_signal("joint_vel", 1, 99.0)
    both[bench.slices["joint_pos"].start] = 1.3
    assert bench.tick(both) is Status.STOP
    assert bench.supervisor.reason.startswith("joint_vel of 'fl_thigh'")


@pytest.mark.parametrize("age_ns", [61 * MS, -61 * MS, 2**70])
def test_a_measurement_too_old_or_from_the_future_is_stale(quadruped: Bundle, age_ns: int) -> None:
    # Case 18: the age of what drives is bounded.
    bench = Bench(quadruped)
    assert bench.tick(age_ns=60 * MS) is Status.RUN
    assert bench.tick(age_ns=-60 * MS) is Status.RUN
    assert bench.tick(age_ns=age_ns) is Status.DAMP
    assert "ms old, allowed 60 ms" in bench.supervisor.reason


def test_missed_deadlines_lead_down_the_ladder(quadruped: Bundle) -> None:
    # Case 16. The ladder: hold after 3, damp after 6, stop after 20.
    bench = Bench(quadruped)
    assert [bench.tick(missed=1) for _ in range(20)] == (
        [Status.RUN] * 2 + [Status.HOLD] * 3 + [Status.DAMP] * 14 + [Status.STOP]
    )
    assert bench.supervisor.reason == "20 deadlines missed in a row, allowed 19"


def test_a_tick_in_time_ends_a_row_of_misses(quadruped: Bundle) -> None:
    bench = Bench(quadruped)
    assert {bench.tick(missed=missed) for missed in (2, 0, 2, 0, 1, 1, 0)} == {Status.RUN}
    assert bench.tick(missed=3) is Status.HOLD


@pytest.mark.parametrize(
    ("angle", "axis", "expected"),
    [(0.79, 0, Status.RUN), (0.81, 0, Status.DAMP), (-0.81, 1, Status.DAMP), (3.0, 2, Status.RUN)],
)
def test_the_tilt_is_the_angle_of_the_base_to_up(quadruped: Bundle, angle: float, axis: int, expected: Status) -> None:
    # Turning about the world's z axis is no tilt.
    bench = Bench(quadruped)
    measurement = bench.calm.copy()
    quat = np.zeros(4)
    quat[0], quat[1 + axis] = np.cos(angle / 2), np.sin(angle / 2)
    measurement[bench.slices["base_quat"]] = quat
    assert bench.tick(measurement) is expected


def test_a_quaternion_that_is_none_counts_as_fallen(quadruped: Bundle) -> None:
    bench = Bench(quadruped)
    measurement = bench.calm.copy()
    measurement[bench.slices["base_quat"]] = 0.0
    assert bench.tick(measurement) is Status.DAMP


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_action_that_is_no_number_is_never_commanded(quadruped: Bundle, value: float) -> None:
    # An infinite action would be clipped to a limit: a full stroke that nobody asked for.
    bench = Bench(quadruped)
    action = bench.action.copy()
    action[0, 7] = value
    before = bench.supervisor.command.copy() if bench.tick() is Status.RUN else None
    assert before is not None
    assert bench.tick(action=action) is Status.DAMP
    assert "the action is not finite" in bench.supervisor.reason


def test_an_observation_that_overflows_is_found_whatever_the_action_says(quadruped: Bundle) -> None:
    bench = Bench(quadruped)
    bench.observation[0, 3] = np.inf
    assert bench.tick() is Status.DAMP
    assert bench.supervisor.reason == "the observation is not finite in float32"


def test_an_operator_input_that_is_no_number_is_found(quadruped: Bundle) -> None:
    bench = Bench(quadruped)
    bench.operator[1] = float("nan")
    assert bench.tick() is Status.DAMP
    assert bench.supervisor.reason.startswith("an operator input is no number")
