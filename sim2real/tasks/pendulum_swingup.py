"""Swing the torque-limited pendulum up and hold it, from any state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from sim2real import __version__
from sim2real.contract import (
    SCHEMA_VERSION,
    Action,
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
from sim2real.robots.pendulum import ROBOT
from sim2real.tasks.base import Array, Motion

__all__ = ["TASK", "PendulumSwingup"]

_MS: Final = 1_000_000
UPRIGHT_TOLERANCE: Final = 0.2
"""Largest distance [rad] from upright that counts as upright."""
SWING_UP_TIME: Final = 6.0
"""Time [s] by which the pendulum must be upright, to stay there until the episode ends."""
RUNAWAY_VELOCITY: Final = 15.0
"""Velocity [rad/s] at which an episode ends as a failure."""

_NATURAL_FREQUENCY_SQUARED: Final = 9.81 / 0.5
"""g / l [1/s²]."""


def upright_error(joint_pos: Array) -> Array:
    """Return the distance [rad] from upright, in [-π, π): q − π, wrapped."""
    return np.remainder(joint_pos, 2.0 * np.pi) - np.pi


def height(joint_pos: Array) -> Array:
    """(1 − cos q) / 2: 0 hanging, 1 upright."""
    return 0.5 - 0.5 * np.cos(joint_pos)


def energy(joint_pos: Array, joint_vel: Array) -> Array:
    """E / E_upright up to the energy of resting upright, (E_upright / E)² above it.

    E = ½ q̇² l / g + 1 − cos q, of the frictionless point mass: 1 where the rod would coast to upright and stop there.
    """
    ratio = 0.25 * np.square(joint_vel) / _NATURAL_FREQUENCY_SQUARED + height(joint_pos)
    return np.minimum(ratio, 1.0 / np.square(np.maximum(ratio, 1.0)))


def stillness(joint_pos: Array, joint_vel: Array) -> Array:
    """1 / (1 + (error / 0.15 rad)² + (velocity / 1 rad/s)²): 1 at rest upright; its tails lead there from afar."""
    return 1.0 / (1.0 + np.square(upright_error(joint_pos) / 0.15) + np.square(joint_vel))


def action_rate(motion: Motion) -> Array:
    """Σ (clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change.astype(np.float64)).sum(axis=1)


class PendulumSwingup:
    """The task; see `sim2real.tasks.base.Task` for the meaning of each member."""

    name = "pendulum-swingup"
    robot = ROBOT.name
    summary = "Swing the torque-limited pendulum (2.5 N·m, 100 Hz) up and hold it, from any state."
    episode_length = 10.0
    training_episode_length = 4.0
    success_criterion = (
        f"within {UPRIGHT_TOLERANCE} rad of upright from {SWING_UP_TIME:g} s at the latest to the end of 10 s"
    )
    measurement_noise: ClassVar[Mapping[str, float]] = {"joint_pos": 0.0015, "joint_vel": 0.06}

    def identity(self, *, checkpoint_sha256: str, config_sha256: str) -> Identity:
        """Return the identity of a policy trained to these weights under this configuration."""
        return Identity(
            task=self.name,
            robot=self.robot,
            toolkit_version=__version__,
            checkpoint_sha256=checkpoint_sha256,
            config_sha256=config_sha256,
        )

    def contract(self, identity: Identity) -> PolicyContract:
        """Return the contract: 100 Hz, sine and cosine of the angle, velocity, last action; torque out."""
        rated = ROBOT.joints[0]
        joint = Joint(
            name=rated.name,
            axis_sign=1,
            position_limits=rated.position_limits,
            velocity_limit=rated.velocity_limit,
            effort_limit=rated.effort_limit,
            default_position=rated.default_position,
            command_mode="effort",
            kp=0.0,
            kd=0.0,
        )
        return PolicyContract(
            schema_version=SCHEMA_VERSION,
            identity=identity,
            timing=Timing(control_period_ns=10 * _MS, physics_step_ns=2_500_000, decimation=4),
            joints=(joint,),
            observation=Observation(
                terms=(
                    _term("sin_angle", "joint_pos", function="sin"),
                    _term("cos_angle", "joint_pos", function="cos"),
                    _term("velocity", "joint_vel", scale=0.1),
                    _term("last_action", "last_action", clip=(-1.0, 1.0)),
                ),
                layout="term_major",
                history_order="oldest_first",
                startup_fill="first",
            ),
            action=Action(
                mode="absolute",
                joints=(joint.name,),
                scale=(joint.effort_limit,),
                offset=(0.0,),
                clip=(-1.0, 1.0),
                rate_limit=None,
            ),
            commands=(),
            model=Model(observation_name="obs", observation_size=4, action_name="action", action_size=1, recurrent=()),
            safety=_safety(),
            latency=_budget(),
        )

    def start(self, rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        """Draw angles from the whole circle and velocities up to ±8 rad/s.

        A quarter hang almost still, and a quarter rest at any angle, where friction may hold the rod up.
        """
        qpos = rng.uniform(-np.pi, np.pi, (num, 1))
        qvel = rng.uniform(-8.0, 8.0, (num, 1))
        kind = rng.random((num, 1))
        return np.where(kind < 0.25, 0.05 * qpos, qpos), np.where(kind < 0.5, 0.05 * qvel, qvel)

    def reward(self, motion: Motion, out: Array) -> None:
        """The right energy, a bonus for standing still upright, costs on torque and on its changes.

        Energy, and not height, because it does not fall on the way from a rod that torque and friction hold at half
        height to the swing that leads on; the cost of torque makes that rest worse than the swing.
        """
        joint_pos, joint_vel = motion.joint_pos[:, 0], motion.joint_vel[:, 0]
        effort = np.square(np.clip(motion.action[:, 0], -1.0, 1.0))
        goal = energy(joint_pos, joint_vel) + stillness(joint_pos, joint_vel)
        out[:] = goal - 0.1 * effort - 0.01 * action_rate(motion)

    def terminated(self, motion: Motion, out: npt.NDArray[np.bool_]) -> None:
        """Faster than swinging up ever needs (9 rad/s): the rod is being spun instead."""
        np.greater(np.abs(motion.joint_vel[:, 0]), RUNAWAY_VELOCITY, out=out)

    def success(self, joint_pos: Array, control_period: float) -> npt.NDArray[np.bool_]:
        """Upright at `SWING_UP_TIME` and at every control step after it."""
        after = round(SWING_UP_TIME / control_period)
        return np.all(np.abs(upright_error(joint_pos[after:, :, 0])) <= UPRIGHT_TOLERANCE, axis=0)

    def time_to_goal(self, joint_pos: Array, control_period: float) -> Array:
        """Return the time [s] after the last control step that was not upright; infinite if that is the last one."""
        away = np.abs(upright_error(joint_pos[:, :, 0])) > UPRIGHT_TOLERANCE
        steps_at_goal = np.argmax(away[::-1], axis=0)
        first = np.where(away.any(axis=0), len(away) - steps_at_goal, 0)
        return np.where(first < len(away), first * control_period, np.inf)


def _term(
    name: str,
    source: str,
    *,
    function: Literal["identity", "sin", "cos"] = "identity",
    scale: float = 1.0,
    clip: tuple[float, float] | None = None,
) -> ObservationTerm:
    return ObservationTerm(
        name=name,
        source=source,
        joints=(ROBOT.joints[0].name,),
        function=function,
        offset=(0.0,),
        scale=(scale,),
        clip=clip,
        history_length=1,
        history_stride=1,
        quaternion=None,
        frame="policy" if source == "last_action" else "joint",
    )


def _safety() -> Safety:
    return Safety(
        stale_timeout_ns=100 * _MS,
        on_stale="damp",
        on_non_finite="stop",
        on_position_limit="hold",
        position_margin=0.0,
        on_velocity_limit="damp",
        on_effort_limit="damp",
        effort_margin=15.0,
        max_tilt=None,
        on_tilt="stop",
        deadline_ladder=DeadlineLadder(hold_after=5, damp_after=20, stop_after=100),
        recover_after=10,
        fallback=Fallback(hold_kp=(10.0,), hold_kd=(0.5,), damp_kd=(0.5,)),
    )


def _budget() -> LatencyBudget:
    """End to end: half a control period usually, one at p99, two at p99.9, the longest delay in training.

    A command older than five periods is not applied.
    """
    return LatencyBudget(
        stages=(
            StageBudget(stage="wake", p50_ns=1 * _MS, p99_ns=5 * _MS, p999_ns=10 * _MS, max_ns=30 * _MS),
            StageBudget(stage="infer", p50_ns=1 * _MS, p99_ns=3 * _MS, p999_ns=8 * _MS, max_ns=30 * _MS),
            StageBudget(stage="tick", p50_ns=2 * _MS, p99_ns=5 * _MS, p999_ns=10 * _MS, max_ns=40 * _MS),
        ),
        end_to_end=StageBudget(stage="end_to_end", p50_ns=5 * _MS, p99_ns=10 * _MS, p999_ns=20 * _MS, max_ns=50 * _MS),
        max_deadline_miss_rate=0.01,
        max_action_age_ns=50 * _MS,
    )


TASK: Final = PendulumSwingup()
