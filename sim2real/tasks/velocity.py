"""Walk as the operator says: velocity commands for a legged robot. Which robot, and on what ground, is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import Command, Identity, PolicyContract
from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.sim.scene import FLAT, Scene
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Commands, Curriculum, Event, Flags, Goal, Motion, Reward, Task
from sim2real.tasks.mirror import Image, Mirror
from sim2real.tasks.starts import standing, typical_ranges

__all__ = ["Gait", "velocity_task"]


class Gait(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between robots that walk."""

    command_limits: tuple[float, float, float]
    """Largest forward [m/s], sideways [m/s] and turning [rad/s] velocity that the operator asks for."""
    action_scale: tuple[float, ...]
    """How far [rad] an action of ±1 moves each joint's target from the default pose."""
    air_time: float
    """How long [s] a foot should be in the air."""
    foot_load: float
    """Force [N] on a foot that carries its share of the weight."""
    posture: tuple[float, ...]
    """Weight [1/rad²] of each joint's deviation from the default pose."""
    push: tuple[float, float]
    """Largest sudden change of velocity [m/s] and of angular velocity [rad/s] that a push gives the base."""
    training_push: tuple[float, float]
    """The same in training, more often: what makes a robot fall is a state that it has never come back from."""
    ranges: tuple[str, ...]
    """Parameters of the robot that training draws from their typical ranges."""
    images: Mapping[str, tuple[str, Literal[-1, 1]]]
    """What each joint and foot becomes in a mirror, and the sign of its position there; empty: it has no two equal
    sides."""


LINEAR_WIDTH: Final = 0.25
"""Error² [(m/s)²] of the linear velocity at which its tracking term has fallen to 1/e."""
ANGULAR_WIDTH: Final = 0.25
"""Error² [(rad/s)²] of the turning velocity at which its tracking term has fallen to 1/e."""
MOVING: Final = 0.1
"""Length of the command [m/s, rad/s] from which the robot is to step."""
STANDING_SHARE: Final = 0.1
"""Share of the commands that ask to stand still."""
LINEAR_TOLERANCE: Final = 0.3
"""Error [m/s] of the velocity that counts as following the command."""
ANGULAR_TOLERANCE: Final = 0.4
"""Error [rad/s] of the turning velocity that counts as following it."""


def _sum_of_squares(values: Array) -> Array:
    """Of each row, shape (N, k) to (N,); np.sum along rows as short as these costs several times as much."""
    return np.einsum("ij,ij->i", values, values)


def linear_error(motion: Motion) -> Array:
    """|v_xy − v_xy*|² [(m/s)²], in the base's axes."""
    return _sum_of_squares(motion.base_lin_vel[:, :2] - motion.command[:, :2])


def angular_error(motion: Motion) -> Array:
    """(ω_z − ω_z*)² [(rad/s)²]."""
    return np.square(motion.base_ang_vel[:, 2] - motion.command[:, 2])


def track_linear(motion: Motion) -> Array:
    """exp(−|v_xy − v_xy*|² / 0.25)."""
    return np.exp(-linear_error(motion) / LINEAR_WIDTH)


def track_angular(motion: Motion) -> Array:
    """exp(−(ω_z − ω_z*)² / 0.25)."""
    return np.exp(-angular_error(motion) / ANGULAR_WIDTH)


def bounce(motion: Motion) -> Array:
    """v_z² [(m/s)²]."""
    return np.square(motion.base_lin_vel[:, 2])


def wobble(motion: Motion) -> Array:
    """ω_x² + ω_y² [(rad/s)²]."""
    return _sum_of_squares(motion.base_ang_vel[:, :2])


def tilt(motion: Motion) -> Array:
    """g_x² + g_y²: sin² of the angle between the base and upright."""
    return _sum_of_squares(motion.projected_gravity[:, :2])


def effort(motion: Motion) -> Array:
    """Σ τ² [(N·m)²]."""
    return _sum_of_squares(motion.joint_effort)


def acceleration(motion: Motion) -> Array:
    """Σ q̈² [(rad/s²)²]."""
    return _sum_of_squares(motion.joint_acc)


def action_rate(motion: Motion) -> Array:
    """Σ (clipped action − clipped previous action)²."""
    change = _within_one(motion.action) - _within_one(motion.previous_action)
    return _sum_of_squares(change.astype(np.float64))


def _within_one(action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Clip to ±1, in a third of the time that np.clip takes for a few hundred rows."""
    return np.minimum(np.maximum(action, np.float32(-1.0)), np.float32(1.0))


def asked_to_move(motion: Motion) -> Flags:
    """Whether the command is more than standing still."""
    return _sum_of_squares(motion.command) > MOVING**2


def steps(air_time: float) -> Callable[[Motion], Array]:
    """Return Σ over landing feet of min(time in the air, `air_time`) − `air_time` / 2, where it is asked to move."""

    def term(motion: Motion) -> Array:
        landed = motion.landed_after
        worth = (np.minimum(landed, air_time) - 0.5 * air_time) * (landed > 0.0)
        return np.einsum("ij->i", worth) * asked_to_move(motion)

    return term


def posture(robot: Robot, weights: tuple[float, ...]) -> Callable[[Motion], Array]:
    """Return Σ wᵢ (qᵢ − default)², three times as much where it is asked to stand still."""
    default = np.array([joint.default_position for joint in robot.joints])
    weight = np.array(weights)

    def term(motion: Motion) -> Array:
        return (np.square(motion.joint_pos - default) @ weight) * np.where(asked_to_move(motion), 1.0, 3.0)

    return term


def fallen(robot: Robot) -> Callable[[Motion], Flags]:
    """Return: tilted by more than 1 rad, or lower than half of the default height."""
    lowest, upright = 0.5 * robot.base_height, -np.cos(1.0)

    def term(motion: Motion) -> Flags:
        return (motion.projected_gravity[:, 2] > upright) | (motion.base_height < lowest)

    return term


def follows(motion: Motion) -> Flags:
    """Within 0.3 m/s and 0.4 rad/s of the command."""
    return (linear_error(motion) < LINEAR_TOLERANCE**2) & (angular_error(motion) < ANGULAR_TOLERANCE**2)


def draw_commands(limits: tuple[float, float, float]) -> Callable[[np.random.Generator, int], Array]:
    """Return what draws velocities within ±`limits`; `STANDING_SHARE` of them are zero."""
    scale = np.array(limits)

    def draw(rng: np.random.Generator, num: int) -> Array:
        moving = rng.random((num, 1)) >= STANDING_SHARE
        return rng.uniform(-1.0, 1.0, (num, 3)) * scale * moving

    return draw


def push(linear: float, angular: float) -> Callable[[np.random.Generator, Array, Array], None]:
    """Return what changes the base's horizontal velocity by up to `linear` [m/s] and spins it by `angular` [rad/s]."""

    def apply(rng: np.random.Generator, qpos: Array, qvel: Array) -> None:
        qvel[:, :2] += rng.uniform(-linear, linear, (len(qvel), 2))
        qvel[:, 3:6] += rng.uniform(-angular, angular, (len(qvel), 3))

    return apply


def velocity_contract(robot: Robot, gait: Gait) -> Callable[[Identity], PolicyContract]:
    """Return the contract: 50 Hz, gyroscope, gravity, command, joints and last action in; joint positions out."""
    joints = contracts.joints(robot, "position")
    names = [joint.name for joint in joints]
    default = [joint.default_position for joint in joints]
    units = zip(("forward", "left", "turn"), ("m/s", "m/s", "rad/s"), gait.command_limits, strict=True)
    commands = tuple(Command(name=name, unit=unit, low=-limit, high=limit, initial=0.0) for name, unit, limit in units)

    def contract(identity: Identity) -> PolicyContract:
        return contracts.contract(
            identity,
            control_period_ns=20_000_000,
            decimation=4,
            joints=joints,
            terms=(
                contracts.term("gyro", "base_ang_vel", scale=0.25),
                contracts.term("gravity", "projected_gravity"),
                contracts.term("command", "command", width=3),
                contracts.term("position", "joint_pos", joints=names, offset=default),
                contracts.term("velocity", "joint_vel", joints=names, scale=0.05),
                contracts.term("last_action", "last_action", joints=names, clip=(-1.0, 1.0)),
            ),
            action=contracts.action(joints, gait.action_scale, offset=default),
            safety=contracts.safety(
                hold_kp=[joint.kp for joint in joints],
                hold_kd=[joint.kd for joint in joints],
                damp_kd=[max(joint.kd, 0.1) for joint in joints],
                position_margin=0.2,
                effort_margin=10.0,
                max_tilt=1.0,
            ),
            commands=commands,
        )

    return contract


def critic(robot: Robot, gait: Gait) -> Mapping[str, Callable[[Motion], Array]]:
    """Return what only a simulation knows: the base's velocity and height, and how each foot stands."""
    return {
        "base_lin_vel": lambda motion: motion.base_lin_vel,
        "base_height": lambda motion: 5.0 * (motion.base_height[:, None] - robot.base_height),
        "feet_force": lambda motion: np.minimum(motion.feet_force / gait.foot_load, 3.0),
        "feet_air_time": lambda motion: 2.0 * np.minimum(motion.air_time, 1.0),
    }


def mirror(robot: Robot, gait: Gait, more_critic: Mapping[str, Image]) -> Mirror | None:
    """Return what is on the left and what on the right of the robot; None: its sides differ."""
    if not gait.images:
        return None
    feet = Image(
        columns=tuple(robot.feet.index(gait.images[foot][0]) for foot in robot.feet), signs=(1,) * len(robot.feet)
    )
    return Mirror(
        joints={joint.name: gait.images[joint.name] for joint in robot.joints},
        commands=(1, -1, -1),
        critic={
            "base_lin_vel": Image(columns=(0, 1, 2), signs=(1, -1, 1)),
            "base_height": Image(columns=(0,), signs=(1,)),
            "feet_force": feet,
            "feet_air_time": feet,
            **more_critic,
        },
    )


def velocity_task(
    robot: Robot,
    gait: Gait,
    *,
    name: str,
    summary: str,
    scene: Scene = FLAT,
    curriculum: Curriculum | None = None,
    more_critic: Mapping[str, Callable[[Motion], Array]] | None = None,
    more_mirror: Mapping[str, Image] | None = None,
    rebuild: Callable[[Robot], Task] | None = None,
) -> Task:
    """Return the task of walking as commanded.

    Args:
        robot: A robot with a floating base, feet, and joints driven by position.
        gait: What is particular to it.
        name: Name of the task.
        summary: One sentence.
        scene: The ground.
        curriculum: Levels of difficulty; None: there is one.
        more_critic: What the critic sees beyond `critic`.
        more_mirror: Its images in a mirror.
        rebuild: As in `Task`.

    Raises:
        InputError: The robot's base is fixed, it has no feet, or no gains.
    """
    if robot.base != "floating" or not robot.feet:
        raise InputError(f"robot {robot.name}: expected a floating base and feet for task {name}")
    return Task(
        name=name,
        robot=robot,
        summary=summary,
        contract=velocity_contract(robot, gait),
        rewards={
            "track_linear": Reward(weight=1.0, term=track_linear),
            "track_angular": Reward(weight=0.5, term=track_angular),
            "bounce": Reward(weight=-1.0, term=bounce),
            "wobble": Reward(weight=-0.03, term=wobble),
            "tilt": Reward(weight=-1.0, term=tilt),
            "effort": Reward(weight=-1e-4, term=effort),
            "acceleration": Reward(weight=-1e-7, term=acceleration),
            "action_rate": Reward(weight=-0.01, term=action_rate),
            "steps": Reward(weight=2.0, term=steps(gait.air_time)),
            "posture": Reward(weight=-0.1, term=posture(robot, gait.posture)),
        },
        terminations={"fallen": fallen(robot)},
        start=standing(robot, joint_spread=0.15, velocity_spread=0.3),
        goal=Goal(
            text=(
                f"does not fall in 20 s, and from 1 s on follows the command within {LINEAR_TOLERANCE} m/s and "
                f"{ANGULAR_TOLERANCE} rad/s for 80 % of the time"
            ),
            holds=follows,
            after=1.0,
            share=0.8,
        ),
        episode_length=20.0,
        training_episode_length=20.0,
        scene=scene,
        commands=Commands(draw=draw_commands(gait.command_limits), period=(4.0, 8.0)),
        events=(Event(name="push", apply=push(*gait.push), period=(3.0, 6.0)),),
        training_events=(Event(name="push", apply=push(*gait.training_push), period=(2.0, 4.0)),),
        curriculum=curriculum,
        critic={**critic(robot, gait), **(more_critic or {})},
        sensors=SensorSpec(
            signals={
                "joint_pos": SignalErrors(noise=0.01),
                "joint_vel": SignalErrors(noise=0.5),
                "base_ang_vel": SignalErrors(noise=0.1, bias=0.02),
                "projected_gravity": SignalErrors(noise=0.02),
            },
            imu_tilt=0.02,
            encoder_offset=0.02,
        ),
        ranges=typical_ranges(robot, gait.ranges),
        mirror=mirror(robot, gait, more_mirror or {}),
        rebuild=rebuild,
    )
