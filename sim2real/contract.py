"""The policy contract: the whole of a policy's inputs and outputs on one page.

Written once by the trainer, carried inside the artifact, enforced by every later stage. No field has a default: a
missing field is an error, because a default is a constant that somebody typed twice. Floats survive JSON exactly
(shortest round-trip form). `None` is allowed only where a field says what it means.

Two conventions meet here and `Joint.axis_sign` converts between them: measurements and commands (the wire, the limits,
the gains, the safety envelope) use the *robot's* joint axes; observation terms and actions use the *policy's*.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec

from sim2real.errors import ContractError

__all__ = [
    "END_TO_END",
    "SCHEMA_VERSION",
    "STAGES",
    "Action",
    "Command",
    "DeadlineLadder",
    "Fallback",
    "Identity",
    "Joint",
    "LatencyBudget",
    "Model",
    "Observation",
    "ObservationTerm",
    "PolicyContract",
    "RecurrentState",
    "Safety",
    "StageBudget",
    "Timing",
    "contract_hash",
    "decode_contract",
    "encode_contract",
]

SCHEMA_VERSION: Final = 1

STAGES: Final = ("wake", "state_age", "observe", "infer", "supervise", "send", "tick", "command_transport")
"""Stages whose latency is measured and may have a budget, in the order in which a control step passes them."""
END_TO_END: Final = "end_to_end"
"""The stage of `LatencyBudget.end_to_end`."""

CommandMode = Literal["position", "velocity", "effort", "passive"]
FallbackLevel = Literal["hold", "damp", "stop"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, named, complete: the rules that all parts of a contract share."""


class Identity(_Part, frozen=True):
    """What this policy is and what it was made from."""

    task: str
    robot: str
    toolkit_version: str
    checkpoint_sha256: str
    """Lower-case hex digest of the checkpoint's weights; 64 characters."""
    config_sha256: str
    """Lower-case hex digest of the training configuration; 64 characters."""


class Timing(_Part, frozen=True):
    """When the policy runs. `control_period_ns == physics_step_ns * decimation`, in integers."""

    control_period_ns: int
    physics_step_ns: int
    decimation: int
    """Physics steps per control step."""


class Joint(_Part, frozen=True):
    """One actuated joint, in the robot's own axis convention."""

    name: str
    axis_sign: Literal[-1, 1]
    """Policy-side value = axis_sign × robot-side value, for position, velocity and effort."""
    position_limits: tuple[float, float] | None
    """Allowed positions [rad]; None: the joint turns without end."""
    velocity_limit: float
    """Largest absolute velocity [rad/s]."""
    effort_limit: float
    """Largest absolute effort [N·m] that a command may ask for."""
    default_position: float
    """Position [rad] of the default pose."""
    command_mode: CommandMode
    """What an action of this joint sets: a position, velocity or effort target. ``passive``: no action drives it, and
    its command is zero effort."""
    kp: float
    """Stiffness [N·m/rad] of position mode; must be 0 in the other modes."""
    kd: float
    """Damping [N·m·s/rad] of position and velocity mode; must be 0 in the other modes."""


class ObservationTerm(_Part, frozen=True):
    """One block of the observation: clip(scale × f(signal − offset), clip), over its history.

    `source` is a signal of `sim2real.signals.SIGNALS`, or ``command`` (operator inputs) or ``last_action`` (the
    policy's previous output, as it left the network).
    """

    name: str
    source: str
    joints: tuple[str, ...]
    """Joints of a per-joint signal or of ``last_action``, in observation order; empty for any other source."""
    function: Literal["identity", "sin", "cos"]
    offset: tuple[float, ...]
    """Subtracted first, one per element, in the source's unit."""
    scale: tuple[float, ...]
    """Multiplied after `function`, one per element."""
    clip: tuple[float, float] | None
    """Bounds on the scaled value; None: not clipped."""
    history_length: int
    """Frames in the observation, the newest included; 1: no history."""
    history_stride: int
    """Control steps between the frames."""
    quaternion: Literal["wxyz", "xyzw"] | None
    """Order in which a quaternion source enters the observation; None for any other source."""
    frame: str
    """Frame of the source, repeated from the vocabulary so that a changed vocabulary is noticed."""


class Observation(_Part, frozen=True):
    """The observation vector, float32: terms in order, and how their histories are laid out."""

    terms: tuple[ObservationTerm, ...]
    layout: Literal["term_major", "frame_major"]
    """term_major: all frames of term 0, then of term 1; frame_major: all terms of frame 0, then of frame 1."""
    history_order: Literal["oldest_first", "newest_first"]
    startup_fill: Literal["first", "zero"]
    """What stands in for frames before the episode began: the first frame, or zeros."""


class Action(_Part, frozen=True):
    """From the network's output to one target per joint.

    target = offset + scale × clip(action)                    when `mode` is ``absolute``
    target = previous target + scale × clip(action)           when `mode` is ``incremental``

    The target is in the unit of the joint's `command_mode` and on policy-side axes; it is then rate-limited, clamped to
    the joint's limits and turned to the robot's axes. The first previous target of an episode is the measured position
    (position mode) or 0 (velocity and effort mode), also for the rate limit.
    """

    mode: Literal["absolute", "incremental"]
    joints: tuple[str, ...]
    """Joint that each action element drives, in the order of the network's output: every joint but passive ones."""
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    """One per element; must be all 0 in ``incremental`` mode."""
    clip: tuple[float, float] | None
    """Bounds on the raw action; None: not clipped."""
    rate_limit: tuple[float, ...] | None
    """Largest change of the target per second, one per element; None: not limited."""


class Command(_Part, frozen=True):
    """One operator input, e.g. a joystick axis."""

    name: str
    unit: str
    low: float
    high: float
    initial: float
    """Value before the operator's first message."""


class RecurrentState(_Part, frozen=True):
    """One state tensor that the runtime carries from tick to tick and resets when an episode starts."""

    input_name: str
    output_name: str
    shape: tuple[int, ...]
    initial_value: float


class Model(_Part, frozen=True):
    """Names and sizes of the network's tensors, all float32."""

    observation_name: str
    observation_size: int
    action_name: str
    action_size: int
    recurrent: tuple[RecurrentState, ...]


class Fallback(_Part, frozen=True):
    """Gains of the supervisor's own commands, one per joint of the contract, in its order.

    hold: stay where the joint was, with `hold_kp` and `hold_kd`; damp: no target, `damp_kd` alone; stop: zero effort.
    """

    hold_kp: tuple[float, ...]
    hold_kd: tuple[float, ...]
    damp_kd: tuple[float, ...]


class DeadlineLadder(_Part, frozen=True):
    """Consecutive missed deadlines after which the supervisor steps down."""

    hold_after: int
    damp_after: int
    stop_after: int


class Safety(_Part, frozen=True):
    """The envelope that the supervisor enforces, and what it does outside it.

    Hold is left again after `recover_after` healthy ticks in a row; damp and stop stay until the runtime is restarted.
    """

    stale_timeout_ns: int
    """Oldest measurement that may still drive the robot."""
    on_stale: FallbackLevel
    on_non_finite: FallbackLevel
    on_position_limit: FallbackLevel
    position_margin: float
    """How far [rad] beyond `Joint.position_limits` a measurement may lie."""
    on_velocity_limit: FallbackLevel
    on_effort_limit: FallbackLevel
    effort_margin: float
    """How far [N·m] beyond `Joint.effort_limit` a measured effort may lie."""
    max_tilt: float | None
    """Largest angle [rad] between the base's z axis and up; None: the base is fixed."""
    on_tilt: FallbackLevel
    deadline_ladder: DeadlineLadder
    recover_after: int
    fallback: Fallback


class StageBudget(_Part, frozen=True):
    """Largest allowed percentiles of one stage's latency [ns]."""

    stage: str
    """One of `STAGES`, or `END_TO_END`."""
    p50_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int


class LatencyBudget(_Part, frozen=True):
    """What the whole way from sensing to acting may cost, judged in realtime runs only."""

    stages: tuple[StageBudget, ...]
    end_to_end: StageBudget
    """From sensing a measurement to the plant applying the command computed from it."""
    max_deadline_miss_rate: float
    """Missed ticks over all ticks, 0 to 1."""
    max_action_age_ns: int
    """Oldest command that the plant may still apply, counted from sensing."""


class PolicyContract(_Part, frozen=True):
    """Everything that goes into a policy and comes out of it."""

    schema_version: Literal[1]
    identity: Identity
    timing: Timing
    joints: tuple[Joint, ...]
    observation: Observation
    action: Action
    commands: tuple[Command, ...]
    model: Model
    safety: Safety
    latency: LatencyBudget

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the joints, in contract order."""
        return tuple(joint.name for joint in self.joints)


def encode_contract(contract: PolicyContract) -> bytes:
    """Return the contract's canonical JSON: fields in declaration order, floats in shortest round-trip form.

    Raises:
        ContractError: The contract does not hold together (see `sim2real.validation.validate`).
    """
    from sim2real.validation import validate

    validate(contract)
    return msgspec.json.encode(contract)


def decode_contract(data: bytes) -> PolicyContract:
    """Read and validate a contract from JSON.

    Raises:
        ContractError: Not JSON, a field missing, unknown, of the wrong type or value; the message names its path.
    """
    from sim2real.validation import validate

    try:
        contract = msgspec.json.decode(data, type=PolicyContract)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ContractError(_as_path(str(error))) from error
    validate(contract)
    return contract


def contract_hash(contract: PolicyContract) -> bytes:
    """Return the SHA-256 digest (32 bytes) of the canonical JSON; plant and edge compare it before any command."""
    return hashlib.sha256(encode_contract(contract)).digest()


def _as_path(message: str) -> str:
    """Turn msgspec's ``Expected ... - at `$.joints[3].kp` `` into ``contract.joints[3].kp: expected ...``."""
    reason, separator, path = message.partition(" - at `$")
    if not separator:
        return f"contract: {message[:1].lower()}{message[1:]}"
    return f"contract{path.rstrip('`')}: {reason[:1].lower()}{reason[1:]}"
