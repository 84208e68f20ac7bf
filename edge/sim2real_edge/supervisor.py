"""The safety supervisor: it stands between policy and robot, and only it hands out commands.

Levels, in rising order (`sim2real.wire.Status`):

====  =========================================================================================================
run   the policy's command, within the joints' limits
hold  stay where the joints were when it began: position target with `hold_kp` and `hold_kd`
damp  no target: `damp_kd` alone
stop  all zero
====  =========================================================================================================

What is found wrong asks for the level that the contract names for it. The level rises at once. It falls only from hold,
to run, at the `recover_after`-th tick in a row at which nothing was found wrong; damp and stop stay. A hold needs to
know where the joints are: as long as a measured position is not finite, hold becomes damp.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.contract import FallbackLevel, Joint, PolicyContract
from sim2real.layout import COMMAND_ROWS, EFFORT, KD, KP, POSITION, VELOCITY, SignalLayout, command_shape
from sim2real.wire import Status

__all__ = ["Cause", "Supervisor"]

_LARGEST: Final = float(np.finfo(np.float32).max)
"""Beyond this a number is as good as infinite: the network, in float32, would be given one."""
_UNIT_NORM: Final = (0.5, 2.0)
"""A quaternion whose squared norm lies outside is not an orientation."""
_MODE_ROWS: Final = {"position": POSITION, "velocity": VELOCITY, "effort": EFFORT}

_Array = npt.NDArray[np.float64]


class Cause(enum.Enum):
    """Why the supervisor left level run."""

    NONE = "none"
    NON_FINITE_MEASUREMENT = "non_finite_measurement"
    NON_FINITE_OBSERVATION = "non_finite_observation"
    NON_FINITE_ACTION = "non_finite_action"
    OPERATOR_INPUT = "operator_input"
    STALE = "stale"
    POSITION_LIMIT = "position_limit"
    VELOCITY_LIMIT = "velocity_limit"
    EFFORT_LIMIT = "effort_limit"
    TILT = "tilt"
    DEADLINE_MISSES = "deadline_misses"
    HALT = "halt"


_Finding = tuple[Status, Cause, str]
_Float32 = npt.NDArray[np.float32]


class Supervisor:
    """Turns actions into commands, or into a fallback; allocates nothing while all is well.

    Attributes:
        command: The only command block, shape (5, num_joints), rows as in `sim2real.layout`; live.
        level: Level of that command.
        cause: What raised the level to where it is.
        reason: The same for people, with the value and its limit; empty at level run.
    """

    def __init__(self, contract: PolicyContract) -> None:
        safety, joints = contract.safety, contract.joints
        self._contract = contract
        self._mapper = ActionMapper(contract, 1)
        self._proposed = self._mapper.command[0]
        self.command: _Array = np.zeros(command_shape(contract))
        self.level = Status.RUN
        self.cause = Cause.NONE
        self.reason = ""
        self._misses = 0
        self._healthy = 0

        layout = SignalLayout(contract)
        self._slices = layout.slices
        self._joint_pos = layout.slices["joint_pos"]
        self._low, self._high = _measurement_bounds(contract, layout)
        self._operator_low = np.array([command.low for command in contract.commands])
        self._operator_high = np.array([command.high for command in contract.commands])
        self._command_low, self._command_high = _command_bounds(contract)
        self._hold_low, self._hold_high = np.array([_position_bounds(joint) for joint in joints]).T.copy()
        self._fallbacks = _fallback_blocks(contract)
        self._make_flags(layout.size, len(contract.commands), contract)

        self._stale_ns = safety.stale_timeout_ns
        self._ladder = safety.deadline_ladder
        self._hold_after = safety.deadline_ladder.hold_after
        self._recover_after = safety.recover_after
        self._tilt = None if safety.max_tilt is None else layout.slices["base_quat"]
        self._cos_tilt = math.cos(safety.max_tilt or 0.0)

    def _make_flags(self, signals: int, operator: int, contract: PolicyContract) -> None:
        """One byte per comparison, all in one buffer: a 0 anywhere means that something is wrong."""
        observed, acted, commanded = contract.model.observation_size, contract.model.action_size, self.command.size
        sizes = (signals, signals, observed, acted, commanded, commanded, operator, operator)
        self._flags = bytearray(b"\x01" * sum(sizes))
        parts = np.split(np.frombuffer(self._flags, np.bool_), np.cumsum(sizes)[:-1])
        self._above, self._below = parts[:2]
        self._observation_finite = parts[2].reshape(1, observed)
        self._action_finite = parts[3].reshape(1, acted)
        self._command_above = parts[4].reshape(self.command.shape)
        self._command_below = parts[5].reshape(self.command.shape)
        self._operator_above, self._operator_below = parts[6:]

    def begin(self, measurement: _Array) -> None:
        """Begin an episode of the policy at `measurement`, shape (S,): rate limits and increments start from there.

        The level does not change.
        """
        with np.errstate(all="ignore"):
            self._mapper.reset(measurement[None, self._joint_pos])

    def supervise(
        self,
        measurement: _Array,
        operator: _Array,
        observation: _Float32,
        action: _Float32,
        age_ns: int,
        missed: int,
    ) -> _Array:
        """Judge one tick and return `command`; whatever comes in, it is finite and within the joints' limits.

        Args:
            measurement: Newest measurement in `SignalLayout` order, shape (S,).
            operator: Operator inputs, shape (C,).
            observation: What the network was given, shape (1, O). A network may turn a NaN into an ordinary number
                (onnxruntime's GRU does), so its action does not tell.
            action: What it made of it, shape (1, A).
            age_ns: Age of the measurement [ns]; one from the future is as wrong as a stale one.
            missed: Ticks lost just before this one. They add up until a tick comes without.
        """
        with np.errstate(all="ignore"):
            self._misses = self._misses + missed if missed else 0
            self._compare(measurement, operator, observation, action)
            if (
                0 in self._flags
                or not -self._stale_ns <= age_ns <= self._stale_ns
                or self._misses >= self._hold_after
                or (self._tilt is not None and not self._is_upright(measurement))
            ):
                self._step_down(measurement, operator, action, age_ns)
            elif self.level is not Status.RUN:
                self._recover()
            if self.level is Status.RUN:
                self.command[...] = self._proposed
        return self.command

    def halt(self, level: Status, reason: str) -> _Array:
        """Raise the level to damp or stop, for good, and return `command`: the last one before an end."""
        self._raise_to(level, Cause.HALT, reason, None)
        return self.command

    def _compare(self, measurement: _Array, operator: _Array, observation: _Float32, action: _Float32) -> None:
        """Fill the flags; a NaN compares as wrong."""
        np.greater_equal(measurement, self._low, out=self._above)
        np.less_equal(measurement, self._high, out=self._below)
        np.isfinite(observation, out=self._observation_finite)
        np.isfinite(action, out=self._action_finite)
        self._mapper.apply(action)
        np.greater_equal(self._proposed, self._command_low, out=self._command_above)
        np.less_equal(self._proposed, self._command_high, out=self._command_below)
        if self._operator_low.size:
            np.greater_equal(operator, self._operator_low, out=self._operator_above)
            np.less_equal(operator, self._operator_high, out=self._operator_below)

    def _is_upright(self, measurement: _Array) -> bool:
        # The base's z axis seen from the world has the height 1 − 2 (x² + y²) for a unit quaternion (w, x, y, z).
        w, x, y, z = measurement[self._tilt].tolist()
        level, tilted = w * w + z * z, x * x + y * y
        norm = level + tilted
        return _UNIT_NORM[0] <= norm <= _UNIT_NORM[1] and level - tilted >= self._cos_tilt * norm

    def _recover(self) -> None:
        self._healthy += 1
        if self.level is Status.HOLD and self._healthy >= self._recover_after:
            self.level, self.cause, self.reason = Status.RUN, Cause.NONE, ""

    def _step_down(self, measurement: _Array, operator: _Array, action: _Float32, age_ns: int) -> None:
        self._healthy = 0
        findings = self._find(measurement, operator, action, age_ns)
        # Of several findings the most severe counts; of equals the first.
        level, cause, reason = max(findings, key=lambda finding: finding[0])
        self._raise_to(level, cause, reason, measurement[self._joint_pos])

    def _raise_to(self, level: Status, cause: Cause, reason: str, joint_pos: _Array | None) -> None:
        """Make `level` the level if it is higher than the present one, with the command that belongs to it."""
        unknown = joint_pos is None or not np.isfinite(joint_pos).all()
        if unknown and level is Status.HOLD:
            level, reason = Status.DAMP, f"{reason}; the joints' positions are unknown, so they cannot be held"
        if level <= self.level:
            return
        self.level, self.cause, self.reason = level, cause, reason
        self.command[...] = self._fallbacks[level]
        if level is Status.HOLD and joint_pos is not None:
            np.clip(joint_pos, self._hold_low, self._hold_high, out=self.command[POSITION])

    def _find(self, measurement: _Array, operator: _Array, action: _Float32, age_ns: int) -> Iterator[_Finding]:
        """Yield everything that is wrong at this tick: level asked for, cause, and the sentence for people."""
        safety = self._contract.safety
        yield from self._find_non_finite(measurement, operator, action)
        if not -self._stale_ns <= age_ns <= self._stale_ns:
            told = f"the measurement is {age_ns / 1e6:.1f} ms old, allowed {self._stale_ns / 1e6:g} ms"
            yield _status(safety.on_stale), Cause.STALE, told
        yield from self._find_beyond_limits(measurement)
        if self._tilt is not None and not self._is_upright(measurement):
            told = f"the base is tilted by more than {safety.max_tilt:g} rad: base_quat {measurement[self._tilt]}"
            yield _status(safety.on_tilt), Cause.TILT, told
        for level, after in (
            (Status.STOP, self._ladder.stop_after),
            (Status.DAMP, self._ladder.damp_after),
            (Status.HOLD, self._ladder.hold_after),
        ):
            if self._misses >= after:
                yield level, Cause.DEADLINE_MISSES, f"{self._misses} deadlines missed in a row, allowed {after - 1}"

    def _find_non_finite(self, measurement: _Array, operator: _Array, action: _Float32) -> Iterator[_Finding]:
        level = _status(self._contract.safety.on_non_finite)
        for name, part in self._slices.items():
            if not (np.abs(measurement[part]) <= _LARGEST).all():
                yield level, Cause.NON_FINITE_MEASUREMENT, f"{name} is not finite: {measurement[part]}"
        if 0 in self._operator_above or 0 in self._operator_below:
            yield level, Cause.OPERATOR_INPUT, f"an operator input is no number within its range: {operator}"
        if not self._observation_finite.all():
            yield level, Cause.NON_FINITE_OBSERVATION, "the observation is not finite in float32"
        if not self._action_finite.all():
            yield level, Cause.NON_FINITE_ACTION, f"the action is not finite: {action[0]}"
        elif not (self._command_above.all() and self._command_below.all()):
            yield level, Cause.NON_FINITE_ACTION, f"the action gives no command within the limits: {action[0]}"

    def _find_beyond_limits(self, measurement: _Array) -> Iterator[_Finding]:
        safety = self._contract.safety
        checks: tuple[tuple[str, FallbackLevel, Cause, str], ...] = (
            ("joint_pos", safety.on_position_limit, Cause.POSITION_LIMIT, "rad"),
            ("joint_vel", safety.on_velocity_limit, Cause.VELOCITY_LIMIT, "rad/s"),
            ("joint_effort", safety.on_effort_limit, Cause.EFFORT_LIMIT, "N·m"),
        )
        for signal, wanted, cause, unit in checks:
            part = self._slices[signal]
            beyond = (measurement[part] < self._low[part]) | (measurement[part] > self._high[part])
            for index in [i for i, bad in enumerate(beyond) if bad][:1]:
                low, high = self._low[part][index], self._high[part][index]
                name, value = self._contract.joints[index].name, measurement[part][index]
                told = f"{signal} of {name!r} is {value:.4g} {unit}, allowed {low:.4g} to {high:.4g}"
                yield _status(wanted), cause, told


def _status(level: FallbackLevel) -> Status:
    return Status[level.upper()]


def _position_bounds(joint: Joint) -> tuple[float, float]:
    return joint.position_limits or (-_LARGEST, _LARGEST)


def _measurement_bounds(contract: PolicyContract, layout: SignalLayout) -> tuple[_Array, _Array]:
    """Bounds of every measured value, shape (S,) each; where the contract has none, those of the finite numbers."""
    safety, joints = contract.safety, contract.joints
    low, high = np.full(layout.size, -np.inf), np.full(layout.size, np.inf)
    bounds = np.array([_position_bounds(joint) for joint in joints])
    with np.errstate(over="ignore"):
        low[layout.slices["joint_pos"]] = bounds[:, 0] - safety.position_margin
        high[layout.slices["joint_pos"]] = bounds[:, 1] + safety.position_margin
        high[layout.slices["joint_vel"]] = [joint.velocity_limit for joint in joints]
        high[layout.slices["joint_effort"]] = [joint.effort_limit + safety.effort_margin for joint in joints]
    for signal in ("joint_vel", "joint_effort"):
        low[layout.slices[signal]] = -high[layout.slices[signal]]
    return np.maximum(low, -_LARGEST), np.minimum(high, _LARGEST)


def _command_bounds(contract: PolicyContract) -> tuple[_Array, _Array]:
    """Bounds of a policy's command block, shape (5, J) each; gains and unused rows have one allowed value."""
    low = np.zeros(command_shape(contract))
    low[KP] = [joint.kp for joint in contract.joints]
    low[KD] = [joint.kd for joint in contract.joints]
    high = low.copy()
    for index, joint in enumerate(contract.joints):
        if joint.command_mode == "passive":
            continue
        bounds = {
            "position": _position_bounds(joint),
            "velocity": (-joint.velocity_limit, joint.velocity_limit),
            "effort": (-joint.effort_limit, joint.effort_limit),
        }[joint.command_mode]
        row = _MODE_ROWS[joint.command_mode]
        low[row, index], high[row, index] = bounds
    return low, high


def _fallback_blocks(contract: PolicyContract) -> dict[Status, _Array]:
    """The supervisor's own commands; hold's position targets are filled in when it begins."""
    fallback = contract.safety.fallback
    blocks = {level: np.zeros((COMMAND_ROWS, len(contract.joints))) for level in Status if level is not Status.RUN}
    blocks[Status.HOLD][KP] = fallback.hold_kp
    blocks[Status.HOLD][KD] = fallback.hold_kd
    blocks[Status.DAMP][KD] = fallback.damp_kd
    return blocks
