"""Does a contract hold together? One function to ask, one error that names the field."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from sim2real.contract import (
    END_TO_END,
    STAGES,
    Action,
    Command,
    Identity,
    Joint,
    LatencyBudget,
    Model,
    Observation,
    ObservationTerm,
    PolicyContract,
    Safety,
    StageBudget,
    Timing,
)
from sim2real.errors import ContractError
from sim2real.signals import SIGNALS
from sim2real.typecheck import check_types

__all__ = ["observation_size", "term_width", "validate"]

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FLOAT32_MAX: Final = (2 - 2**-23) * 2.0**127
_COMMAND: Final = "command"
_LAST_ACTION: Final = "last_action"
_POLICY_FRAME: Final = "policy"
"""Frame of the two sources that are not measured: operator inputs and the policy's own last action."""


def validate(contract: PolicyContract) -> None:
    """Check every field of `contract` and every relation between fields.

    Raises:
        ContractError: One line, e.g. ``contract.joints[3].kp: expected a finite number > 0, got -2.0``.
    """
    check_types(contract, PolicyContract, "contract")
    _check_identity(contract.identity)
    _check_timing(contract.timing)
    _check_joints(contract.joints)
    _check_commands(contract.commands)
    _check_observation(contract.observation, contract)
    _check_action(contract.action, contract)
    _check_model(contract.model, contract)
    _check_safety(contract.safety, contract)
    _check_latency(contract.latency)


def term_width(term: ObservationTerm, contract: PolicyContract) -> int:
    """Return how many values one frame of `term` has; its source must be a known one."""
    if _is_per_joint(term.source):
        return len(term.joints)
    return len(contract.commands) if term.source == _COMMAND else SIGNALS[term.source].width


def observation_size(contract: PolicyContract) -> int:
    """Return the length of the observation vector, histories included."""
    return sum(term_width(term, contract) * term.history_length for term in contract.observation.terms)


def _check_identity(identity: Identity) -> None:
    for name in ("task", "robot", "toolkit_version"):
        _named(f"identity.{name}", getattr(identity, name))
    for name in ("checkpoint_sha256", "config_sha256"):
        digest: str = getattr(identity, name)
        _expect(_SHA256.fullmatch(digest) is not None, f"identity.{name}", "64 lower-case hex digits", digest)


def _check_timing(timing: Timing) -> None:
    _at_least("timing.control_period_ns", timing.control_period_ns, 1)
    _at_least("timing.physics_step_ns", timing.physics_step_ns, 1)
    _at_least("timing.decimation", timing.decimation, 1)
    product = timing.physics_step_ns * timing.decimation
    expected = f"physics_step_ns * decimation = {product}"
    _expect(timing.control_period_ns == product, "timing.control_period_ns", expected, timing.control_period_ns)


def _check_joints(joints: Sequence[Joint]) -> None:
    _expect(bool(joints), "joints", "at least one joint", joints)
    _unique("joints", "name", [joint.name for joint in joints])
    for index, joint in enumerate(joints):
        path = f"joints[{index}]"
        low, high = joint.position_limits or (-math.inf, math.inf)
        if joint.position_limits is not None:
            _ordered(f"{path}.position_limits", joint.position_limits)
        _positive(f"{path}.velocity_limit", joint.velocity_limit)
        _positive(f"{path}.effort_limit", joint.effort_limit)
        inside = low <= joint.default_position <= high
        _expect(inside, f"{path}.default_position", f"a position within [{low}, {high}]", joint.default_position)
        _check_gains(joint, path)


def _check_gains(joint: Joint, path: str) -> None:
    if joint.command_mode == "position":
        _positive(f"{path}.kp", joint.kp)
        _not_negative(f"{path}.kd", joint.kd)
        return
    _expect(joint.kp == 0.0, f"{path}.kp", f"0.0 in {joint.command_mode} mode", joint.kp)
    if joint.command_mode == "velocity":
        _positive(f"{path}.kd", joint.kd)
    else:
        _expect(joint.kd == 0.0, f"{path}.kd", f"0.0 in {joint.command_mode} mode", joint.kd)


def _check_commands(commands: Sequence[Command]) -> None:
    _unique("commands", "name", [command.name for command in commands])
    for index, command in enumerate(commands):
        path = f"commands[{index}]"
        _named(f"{path}.unit", command.unit)
        _expect(command.low < command.high, f"{path}.low", f"a number < high = {command.high}", command.low)
        inside = command.low <= command.initial <= command.high
        _expect(inside, f"{path}.initial", f"a number within [{command.low}, {command.high}]", command.initial)


def _check_observation(observation: Observation, contract: PolicyContract) -> None:
    terms = observation.terms
    _expect(bool(terms), "observation.terms", "at least one term", terms)
    _unique("observation.terms", "name", [term.name for term in terms])
    for index, term in enumerate(terms):
        path = f"observation.terms[{index}]"
        _check_source(term, contract, path)
        _check_shaping(term, contract, path)
        _at_least(f"{path}.history_length", term.history_length, 1)
        _at_least(f"{path}.history_stride", term.history_stride, 1)
    if observation.layout == "frame_major":
        _check_equal_histories(terms)


def _check_source(term: ObservationTerm, contract: PolicyContract, path: str) -> None:
    allowed = (*SIGNALS, _COMMAND, _LAST_ACTION)
    _expect(term.source in allowed, f"{path}.source", f"one of {', '.join(allowed)}", term.source)
    if term.source == _COMMAND:
        _expect(bool(contract.commands), f"{path}.source", "another source, as contract.commands is empty", term.source)
    if _is_per_joint(term.source):
        _joint_names(f"{path}.joints", term.joints, contract)
        _check_driven(term, contract, path)
    else:
        _expect(term.joints == (), f"{path}.joints", f"() for source {term.source!r}", term.joints)
    frame = SIGNALS[term.source].frame if term.source in SIGNALS else _POLICY_FRAME
    _expect(term.frame == frame, f"{path}.frame", f"{frame!r}, the frame of source {term.source!r}", term.frame)
    if term.source == "base_quat":
        _expect(term.quaternion is not None, f"{path}.quaternion", "'wxyz' or 'xyzw' for base_quat", term.quaternion)
    else:
        _expect(term.quaternion is None, f"{path}.quaternion", f"None for source {term.source!r}", term.quaternion)


def _check_driven(term: ObservationTerm, contract: PolicyContract, path: str) -> None:
    """A joint that no action drives has no last action."""
    driven = contract.action.joints
    for index, name in enumerate(term.joints if term.source == _LAST_ACTION else ()):
        _expect(name in driven, f"{path}.joints[{index}]", f"a joint that actions drive ({', '.join(driven)})", name)


def _check_shaping(term: ObservationTerm, contract: PolicyContract, path: str) -> None:
    if term.function != "identity":
        units = {_unit_of(term.source)} if term.source != _COMMAND else {command.unit for command in contract.commands}
        _expect(units == {"rad"}, f"{path}.function", "'identity', as the source is not in rad", term.function)
    width = term_width(term, contract)
    _length(f"{path}.offset", term.offset, width, "value of the source")
    _length(f"{path}.scale", term.scale, width, "value of the source")
    _nonzero(f"{path}.scale", term.scale)
    if term.clip is not None:
        _ordered(f"{path}.clip", term.clip)


def _check_equal_histories(terms: Sequence[ObservationTerm]) -> None:
    for index, term in enumerate(terms):
        for name in ("history_length", "history_stride"):
            first, value = getattr(terms[0], name), getattr(term, name)
            expected = f"{first} as in terms[0], since layout is 'frame_major'"
            _expect(value == first, f"observation.terms[{index}].{name}", expected, value)


def _check_action(action: Action, contract: PolicyContract) -> None:
    _joint_names("action.joints", action.joints, contract)
    driven = [joint.name for joint in contract.joints if joint.command_mode != "passive"]
    # A joint without an action would need a command that nobody chose; one that is passive needs none.
    expected = f"every joint of the contract that is not passive ({', '.join(driven)})"
    _expect(sorted(action.joints) == sorted(driven), "action.joints", expected, action.joints)
    width = len(action.joints)
    _length("action.scale", action.scale, width, "joint of action.joints")
    _length("action.offset", action.offset, width, "joint of action.joints")
    _nonzero("action.scale", action.scale)
    if action.mode == "incremental":
        for index, offset in enumerate(action.offset):
            _expect(offset == 0.0, f"action.offset[{index}]", "0.0 in incremental mode", offset)
    if action.clip is not None:
        _ordered("action.clip", action.clip)
    if action.rate_limit is not None:
        _length("action.rate_limit", action.rate_limit, width, "joint of action.joints")
        for index, limit in enumerate(action.rate_limit):
            _positive(f"action.rate_limit[{index}]", limit)


def _check_model(model: Model, contract: PolicyContract) -> None:
    paths = ["model.observation_name", "model.action_name"]
    names = [model.observation_name, model.action_name]
    for index, state in enumerate(model.recurrent):
        path = f"model.recurrent[{index}]"
        paths += [f"{path}.input_name", f"{path}.output_name"]
        names += [state.input_name, state.output_name]
        _expect(bool(state.shape), f"{path}.shape", "at least one dimension", state.shape)
        for axis, size in enumerate(state.shape):
            _at_least(f"{path}.shape[{axis}]", size, 1)
        fits = abs(state.initial_value) <= _FLOAT32_MAX
        _expect(fits, f"{path}.initial_value", "a number that float32 can hold", state.initial_value)
    _tensor_names(paths, names)
    size = observation_size(contract)
    _expect(model.observation_size == size, "model.observation_size", f"{size}, the terms' sum", model.observation_size)
    width = len(contract.action.joints)
    _expect(model.action_size == width, "model.action_size", f"{width}, one per action.joints", model.action_size)


def _check_safety(safety: Safety, contract: PolicyContract) -> None:
    _at_least("safety.stale_timeout_ns", safety.stale_timeout_ns, 1)
    _not_negative("safety.position_margin", safety.position_margin)
    _not_negative("safety.effort_margin", safety.effort_margin)
    if safety.max_tilt is not None:
        _expect(0 < safety.max_tilt <= math.pi, "safety.max_tilt", "an angle in (0, pi]", safety.max_tilt)
    ladder = safety.deadline_ladder
    _at_least("safety.deadline_ladder.hold_after", ladder.hold_after, 1)
    _at_least("safety.deadline_ladder.damp_after", ladder.damp_after, ladder.hold_after + 1)
    _at_least("safety.deadline_ladder.stop_after", ladder.stop_after, ladder.damp_after + 1)
    _at_least("safety.recover_after", safety.recover_after, 1)
    for name in ("hold_kp", "hold_kd", "damp_kd"):
        path, gains = f"safety.fallback.{name}", getattr(safety.fallback, name)
        _length(path, gains, len(contract.joints), "joint of the contract")
        check = _positive if name == "damp_kd" else _not_negative
        for index, gain in enumerate(gains):
            check(f"{path}[{index}]", gain)


def _check_latency(latency: LatencyBudget) -> None:
    _unique("latency.stages", "stage", [budget.stage for budget in latency.stages])
    for index, budget in enumerate(latency.stages):
        path = f"latency.stages[{index}]"
        _expect(budget.stage in STAGES, f"{path}.stage", f"one of {', '.join(STAGES)}", budget.stage)
        _check_percentiles(budget, path)
    end_to_end = latency.end_to_end
    _expect(end_to_end.stage == END_TO_END, "latency.end_to_end.stage", repr(END_TO_END), end_to_end.stage)
    _check_percentiles(end_to_end, "latency.end_to_end")
    rate = latency.max_deadline_miss_rate
    _expect(0 <= rate <= 1, "latency.max_deadline_miss_rate", "a number within [0, 1]", rate)
    _at_least("latency.max_action_age_ns", latency.max_action_age_ns, 1)


def _check_percentiles(budget: StageBudget, path: str) -> None:
    smallest = 1
    for name in ("p50_ns", "p99_ns", "p999_ns", "max_ns"):
        value: int = getattr(budget, name)
        _at_least(f"{path}.{name}", value, smallest)
        smallest = value


def _is_per_joint(source: str) -> bool:
    return source == _LAST_ACTION or (source in SIGNALS and SIGNALS[source].per_joint)


def _unit_of(source: str) -> str | None:
    return SIGNALS[source].unit if source in SIGNALS else None


def _expect(holds: bool, path: str, expected: str, got: object) -> None:
    if not holds:
        raise ContractError(f"contract.{path}: expected {expected}, got {got!r}")


def _positive(path: str, value: float) -> None:
    _expect(value > 0, path, "a finite number > 0", value)


def _not_negative(path: str, value: float) -> None:
    _expect(value >= 0, path, "a finite number >= 0", value)


def _at_least(path: str, value: int, smallest: int) -> None:
    _expect(value >= smallest, path, f"an integer >= {smallest}", value)


def _nonzero(path: str, values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        _expect(value != 0.0, f"{path}[{index}]", "a finite number other than 0", value)


def _ordered(path: str, bounds: tuple[float, float]) -> None:
    _expect(bounds[0] < bounds[1], path, "(low, high) with low < high", bounds)


def _length(path: str, values: Sequence[float], length: int, per: str) -> None:
    _expect(len(values) == length, path, f"{length} values, one per {per}", values)


def _named(path: str, name: str) -> None:
    _expect(bool(name), path, "a name that is not empty", name)


def _unique(path: str, field: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        _named(f"{path}[{index}].{field}", name)
        _expect(name not in names[:index], f"{path}[{index}].{field}", "a name not used before", name)


def _tensor_names(paths: Sequence[str], names: Sequence[str]) -> None:
    # Inputs and outputs of one graph share one name space.
    for index, (path, name) in enumerate(zip(paths, names, strict=True)):
        _named(path, name)
        _expect(name not in names[:index], path, "a tensor name not used before", name)


def _joint_names(path: str, names: Sequence[str], contract: PolicyContract) -> None:
    _expect(bool(names), path, "at least one joint", names)
    known = contract.joint_names
    for index, name in enumerate(names):
        _expect(name in known, f"{path}[{index}]", f"one of {', '.join(known)}", name)
        _expect(name not in names[:index], f"{path}[{index}]", "a joint not named before", name)
