"""Parts that the contracts of most tasks are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from sim2real.contract import (
    SCHEMA_VERSION,
    Action,
    Command,
    CommandMode,
    DeadlineLadder,
    Fallback,
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
from sim2real.errors import InputError
from sim2real.robots import Robot, RobotJoint
from sim2real.signals import SIGNALS

__all__ = ["action", "budget", "contract", "joints", "safety", "term"]

MS: Final = 1_000_000
"""One millisecond [ns]."""


def contract(
    identity: Identity,
    *,
    control_period_ns: int,
    decimation: int,
    joints: tuple[Joint, ...],
    terms: tuple[ObservationTerm, ...],
    action: Action,
    safety: Safety,
    commands: tuple[Command, ...] = (),
) -> PolicyContract:
    """Return a contract: histories term-major, oldest first, filled with the first frame; budget of `budget`."""
    size = sum(len(each.scale) * each.history_length for each in terms)
    return PolicyContract(
        schema_version=SCHEMA_VERSION,
        identity=identity,
        timing=Timing(
            control_period_ns=control_period_ns,
            physics_step_ns=control_period_ns // decimation,
            decimation=decimation,
        ),
        joints=joints,
        observation=Observation(terms=terms, layout="term_major", history_order="oldest_first", startup_fill="first"),
        action=action,
        commands=commands,
        model=Model(
            observation_name="obs",
            observation_size=size,
            action_name="action",
            action_size=len(action.joints),
            recurrent=(),
        ),
        safety=safety,
        latency=budget(control_period_ns),
    )


def joints(robot: Robot, mode: CommandMode, *, passive: Sequence[str] = ()) -> tuple[Joint, ...]:
    """Return the robot's joints with their ratings, driven in `mode` but for the `passive` ones; gains are its own.

    Raises:
        InputError: A joint is to be driven by position or velocity, and the robot has no gain for it.
    """
    return tuple(_joint(robot, joint, "passive" if joint.name in passive else mode) for joint in robot.joints)


def _joint(robot: Robot, joint: RobotJoint, mode: CommandMode) -> Joint:
    kp = joint.kp if mode == "position" else 0.0
    kd = joint.kd if mode in ("position", "velocity") else 0.0
    if (mode == "position" and kp <= 0.0) or (mode == "velocity" and kd <= 0.0):
        raise InputError(
            f"robot {robot.name}, joint {joint.name}: expected gains kp [N·m/rad] and kd [N·m·s/rad] for {mode} "
            f"commands, got kp {joint.kp}, kd {joint.kd}; give the robot's own"
        )
    return Joint(
        name=joint.name,
        axis_sign=1,
        position_limits=joint.position_limits,
        velocity_limit=joint.velocity_limit,
        effort_limit=joint.effort_limit,
        default_position=joint.default_position,
        command_mode=mode,
        kp=kp,
        kd=kd,
    )


def term(
    name: str,
    source: str,
    *,
    joints: Sequence[str] = (),
    width: int = 0,
    function: Literal["identity", "sin", "cos"] = "identity",
    offset: Sequence[float] | None = None,
    scale: float = 1.0,
    clip: tuple[float, float] | None = None,
    history: int = 1,
) -> ObservationTerm:
    """Return an observation term: clip(scale × f(signal − offset)).

    Args:
        name: Its name.
        source: A signal, ``command`` or ``last_action``.
        joints: Of a per-joint source.
        width: Number of commands, for ``command``.
        function: f.
        offset: One per element; None: zeros.
        scale: The same for all elements.
        clip: Bounds after scaling.
        history: Frames, the newest included, one control step apart.
    """
    signal = SIGNALS.get(source)
    size = len(joints) or width or (signal.width if signal else 0)
    return ObservationTerm(
        name=name,
        source=source,
        joints=tuple(joints),
        function=function,
        offset=tuple(offset) if offset is not None else (0.0,) * size,
        scale=(scale,) * size,
        clip=clip,
        history_length=history,
        history_stride=1,
        quaternion=None,
        frame=signal.frame if signal else "policy",
    )


def action(joints: Sequence[Joint], scale: Sequence[float], *, offset: Sequence[float] | None = None) -> Action:
    """Return an action of one element per joint: target = offset + scale × action, clipped to ±1; offset None: 0."""
    return Action(
        mode="absolute",
        joints=tuple(joint.name for joint in joints),
        scale=tuple(scale),
        offset=tuple(offset) if offset is not None else (0.0,) * len(joints),
        clip=(-1.0, 1.0),
        rate_limit=None,
    )


def safety(
    *,
    hold_kp: Sequence[float],
    hold_kd: Sequence[float],
    damp_kd: Sequence[float],
    position_margin: float,
    effort_margin: float,
    max_tilt: float | None = None,
    on_position_limit: Literal["hold", "damp", "stop"] = "hold",
) -> Safety:
    """Return an envelope for a robot that may always be damped: 100 ms of silence, 5, 20 and 100 missed deadlines."""
    return Safety(
        stale_timeout_ns=100 * MS,
        on_stale="damp",
        on_non_finite="stop",
        on_position_limit=on_position_limit,
        position_margin=position_margin,
        on_velocity_limit="damp",
        on_effort_limit="damp",
        effort_margin=effort_margin,
        max_tilt=max_tilt,
        on_tilt="stop" if max_tilt is None else "damp",
        deadline_ladder=DeadlineLadder(hold_after=5, damp_after=20, stop_after=100),
        recover_after=10,
        fallback=Fallback(hold_kp=tuple(hold_kp), hold_kd=tuple(hold_kd), damp_kd=tuple(damp_kd)),
    )


def budget(control_period_ns: int) -> LatencyBudget:
    """End to end: half a control period usually, one at p99, two at p99.9, five at most, after which nothing applies.

    What the edge itself does has to fit into a third of a period at p99.
    """
    period = control_period_ns
    return LatencyBudget(
        stages=(
            StageBudget(stage="wake", p50_ns=1 * MS, p99_ns=5 * MS, p999_ns=10 * MS, max_ns=30 * MS),
            StageBudget(stage="infer", p50_ns=1 * MS, p99_ns=3 * MS, p999_ns=8 * MS, max_ns=30 * MS),
            StageBudget(stage="tick", p50_ns=2 * MS, p99_ns=5 * MS, p999_ns=10 * MS, max_ns=40 * MS),
        ),
        end_to_end=StageBudget(
            stage="end_to_end", p50_ns=period // 2, p99_ns=period, p999_ns=2 * period, max_ns=5 * period
        ),
        max_deadline_miss_rate=0.01,
        max_action_age_ns=5 * period,
    )
