"""Swing a double pendulum up with one motor: the elbow's (acrobot) or the shoulder's (pendubot).

As in the RealAIGym benchmark of underactuated double pendulums: 10 s, physics at 500 Hz, torques up to 6 N·m, upright
judged by the height of the tip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec
import numpy as np

from sim2real.contract import Identity, PolicyContract
from sim2real.errors import InputError
from sim2real.randomization import ParameterRange
from sim2real.robots import Robot, RobotJoint
from sim2real.robots.double_pendulum import ROBOT
from sim2real.sim.scene import EMPTY
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Flags, Goal, Motion, Reward, Task
from sim2real.tasks.double_pendulum_model import NOMINAL, DoublePendulum, measured
from sim2real.tasks.starts import typical_ranges

__all__ = ["ACROBOT", "PENDUBOT"]

Driven = Literal["shoulder", "elbow"]

TORQUE: Final = 6.0
"""Largest torque of the driven joint [N·m]; of another arm, its motor's."""
GOAL_HEIGHT: Final = 0.9
"""Height of the tip above the shoulder from which the arm counts as upright, over the highest."""
SWING_UP_TIME: Final = 5.0
"""Time [s] by which it must be upright, to stay there until the episode ends."""
MASS_SPREAD: Final = 0.05
"""Half of the range of each link's mass, over its nominal value: the authors' identifications 1.0 and 2.0 of the same
arm differ by 1.4 % and 4.7 % in the moments of its weights. From 7 % on, the regulator of the nominal acrobot does not
hold up one with a light upper and a heavy lower link."""
BALANCE_COST: Final = {"shoulder": 1.0, "elbow": 4.0}
"""`cost_to_stand` at which `balance` is a half, by the driven joint."""


def tip_height(arm: DoublePendulum) -> Callable[[Motion], Array]:
    """Return −l₁ cos q₁ − l₂ cos(q₁ + q₂) [m], above the shoulder."""
    upper, lower = arm.lengths

    def term(motion: Motion) -> Array:
        q = motion.joint_pos
        return -upper * np.cos(q[:, 0]) - lower * np.cos(q[:, 0] + q[:, 1])

    return term


def height(arm: DoublePendulum) -> Callable[[Motion], Array]:
    """Return the height of the tip, squared: 0 hanging, 1 upright."""
    reach, above_shoulder = sum(arm.lengths), tip_height(arm)
    return lambda motion: np.square(0.5 + 0.5 * above_shoulder(motion) / reach)


def right_energy(arm: DoublePendulum) -> Callable[[Motion], Array]:
    """Return E / E_upright up to the energy of resting upright, (E_upright / E)² above it: the swing that ends so."""

    def term(motion: Motion) -> Array:
        ratio = arm.energy(motion.joint_pos, motion.joint_vel)
        return np.minimum(ratio, 1.0 / np.square(np.maximum(ratio, 1.0)))

    return term


def balance(arm: DoublePendulum, driven: Driven) -> Callable[[Motion], Array]:
    """Return 1 / (1 + xᵀ P x / c), x = (q₁ − π, q₂, q̇₁, q̇₂), xᵀ P x = `cost_to_stand`: 1 at rest upright.

    With one motor, what is near upright in angle and velocity may be beyond catching, and what leans the right way is
    not: distance in each says little, and the least cost of catching it says all.
    """
    cost = arm.cost_to_stand(("shoulder", "elbow").index(driven)) / BALANCE_COST[driven]

    def term(motion: Motion) -> Array:
        angle = np.remainder(motion.joint_pos + np.array([0.0, np.pi]), 2.0 * np.pi) - np.pi
        x = np.concatenate((angle, motion.joint_vel), axis=1)
        return 1.0 / (1.0 + np.einsum("ni,ij,nj->n", x, cost, x))

    return term


def spin(motion: Motion) -> Array:
    """(q̇ / 10 rad/s)², summed over the joints."""
    return np.square(0.1 * motion.joint_vel).sum(axis=1)


def effort(motion: Motion) -> Array:
    """(clipped action)²."""
    return np.square(np.clip(motion.action[:, 0], -1.0, 1.0)).astype(np.float64)


def action_rate(motion: Motion) -> Array:
    """(clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change[:, 0]).astype(np.float64)


def spun(velocity: float) -> Callable[[Motion], Flags]:
    """Return: a joint turns faster than its actuator is rated for [rad/s], so that the arm is being spun instead."""
    return lambda motion: np.abs(motion.joint_vel).max(axis=1) > velocity


def upright(arm: DoublePendulum) -> Callable[[Motion], Flags]:
    """Return: the tip is above `GOAL_HEIGHT`."""
    lowest, above_shoulder = GOAL_HEIGHT * sum(arm.lengths), tip_height(arm)
    return lambda motion: above_shoulder(motion) >= lowest


def start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
    """Hang almost still."""
    return rng.normal(0.0, 0.1, (num, 2)), rng.normal(0.0, 0.1, (num, 2))


def training_start(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
    """Three of ten hang almost still, three are anywhere at any velocity, and four stand upright, more or less.

    From hanging alone, upright at rest would not be found in the time that training has.
    """
    kind = rng.random((num, 1))
    hangs, stands = kind < 0.3, kind >= 0.6
    closeness = rng.random((num, 1))
    side = rng.choice([-np.pi, np.pi], num)
    angle = rng.normal(0.0, 0.1, (num, 2)) * np.where(stands, closeness, 1.0)
    upright = np.stack((side, np.zeros(num)), axis=1)
    qpos = np.where(hangs, angle, np.where(stands, upright + angle, rng.uniform(-np.pi, np.pi, (num, 2))))
    return qpos, rng.normal(0.0, 1.0, (num, 2)) * np.where(hangs, 0.1, np.where(stands, 0.3 * closeness, 4.0))


def contract_of(robot: Robot, driven: RobotJoint, torque: float) -> Callable[[Identity], PolicyContract]:
    """Return the contract: 100 Hz, sines and cosines of both angles, velocities, last action; one torque out.

    Sines and velocities come twice. What is far from upright is seen on the scale of a swing; a regulator needs
    100 N·m per radian, for which 0.01 rad must be more to a network than a hundredth of its input's range.
    """
    passive = [joint.name for joint in robot.joints if joint.name != driven.name]
    joints = tuple(
        msgspec.structs.replace(joint, effort_limit=torque) if joint.name == driven.name else joint
        for joint in contracts.joints(robot, "effort", passive=passive)
    )
    names = [joint.name for joint in joints]
    actuated = [joint for joint in joints if joint.name == driven.name]

    def contract(identity: Identity) -> PolicyContract:
        return contracts.contract(
            identity,
            control_period_ns=10_000_000,
            decimation=5,
            joints=joints,
            terms=(
                contracts.term("sin_angle", "joint_pos", joints=names, function="sin"),
                contracts.term("cos_angle", "joint_pos", joints=names, function="cos"),
                contracts.term("velocity", "joint_vel", joints=names, scale=0.1),
                contracts.term("fine_angle", "joint_pos", joints=names, function="sin", scale=5.0, clip=(-1.0, 1.0)),
                contracts.term("fine_velocity", "joint_vel", joints=names, scale=0.5, clip=(-1.0, 1.0)),
                contracts.term("last_action", "last_action", joints=[driven.name], clip=(-1.0, 1.0)),
            ),
            action=contracts.action(actuated, scale=[torque]),
            safety=contracts.safety(
                hold_kp=[torque / 0.6] * 2,
                hold_kd=[torque / 12.0] * 2,
                damp_kd=[torque / 20.0] * 2,
                position_margin=0.0,
                effort_margin=2.5 * torque,
            ),
        )

    return contract


def _mass_range(name: str) -> ParameterRange:
    (typical,) = typical_ranges(ROBOT, (name,))
    nominal = typical.nominal
    return msgspec.structs.replace(
        typical,
        low=(1.0 - MASS_SPREAD) * nominal,
        high=(1.0 + MASS_SPREAD) * nominal,
        how="No log was fitted: how much two identifications of one such robot differ.",
    )


RANGES: Final = (
    *(_mass_range(f"{link}_mass") for link in ("upper", "lower")),
    *typical_ranges(ROBOT, ("shoulder_damping", "elbow_damping", "shoulder_armature", "elbow_armature")),
)


def as_arm(robot: Robot, driven: Driven) -> Robot:
    """Return another double pendulum with shoulder and elbow as its joints, one of which nothing may drive.

    Raises:
        InputError: Its base is not fixed, it has not two joints, or its motor is at the other one.
    """
    # Loads MuJoCo, without which the arm that ships with the toolkit can be named and described.
    from sim2real.sim.model import load_model

    model = load_model(robot, EMPTY)[1]
    names = [model.joint(index).name for index in range(model.njnt)]
    if robot.base != "fixed" or len(names) != 2:
        raise InputError(
            f"robot {robot.name}: expected a double pendulum: two hinges and a fixed base, got {len(names)}"
        )
    rated = {joint.name: joint for joint in robot.joints}
    motor = names[("shoulder", "elbow").index(driven)]
    if motor not in rated:
        raise InputError(
            f"robot {robot.name}: expected an actuator of the joint {motor!r}, the {driven}, to swing it up"
        )
    if any(rated[name].position_limits is not None for name in rated):
        raise InputError(
            f"robot {robot.name}: expected a double pendulum whose joints turn without end; leave out range"
        )
    joints = tuple(
        rated.get(name) or msgspec.structs.replace(rated[motor], name=name, kp=0.0, kd=0.0) for name in names
    )
    return msgspec.structs.replace(robot, joints=joints)


def swingup(
    robot: Robot, arm: DoublePendulum, driven: Driven, *, torque: float, ranges: tuple[ParameterRange, ...]
) -> Task:
    """Return the task for a double pendulum whose joints are shoulder and elbow."""
    motor = robot.joints[("shoulder", "elbow").index(driven)]

    def rebuild(robot: Robot) -> Task:
        other = as_arm(robot, driven)
        torque = other.joints[("shoulder", "elbow").index(driven)].effort_limit
        return swingup(other, measured(other), driven, torque=torque, ranges=())

    return Task(
        name="acrobot-swingup" if driven == "elbow" else "pendubot-swingup",
        robot=robot,
        summary=f"Swing the double pendulum up with the {driven}'s motor alone ({torque:g} N·m, 100 Hz) and hold it.",
        contract=contract_of(robot, motor, torque),
        rewards={
            "height": Reward(weight=0.5, term=height(arm)),
            "energy": Reward(weight=0.5, term=right_energy(arm)),
            "balance": Reward(weight=3.0, term=balance(arm, driven)),
            "spin": Reward(weight=-0.05, term=spin),
            # Not small: what a regulator of high gain makes of noisy velocities costs it the balance.
            "effort": Reward(weight=-0.3, term=effort),
            "action_rate": Reward(weight=-0.3, term=action_rate),
        },
        terminations={"spun": spun(max(joint.velocity_limit for joint in robot.joints))},
        start=start,
        training_start=training_start,
        goal=Goal(
            text=(
                f"the tip is above {GOAL_HEIGHT * sum(arm.lengths):g} m from {SWING_UP_TIME:g} s at the latest to the "
                "end of 10 s"
            ),
            holds=upright(arm),
            after=SWING_UP_TIME,
            share=1.0,
        ),
        episode_length=10.0,
        # Short: what comes later is for the value to say, and most is to be learned close to upright.
        training_episode_length=2.0,
        critic={"exact_velocity": lambda motion: 0.1 * motion.joint_vel},
        sensors=SensorSpec(signals={"joint_pos": SignalErrors(noise=0.0005), "joint_vel": SignalErrors(noise=0.05)}),
        ranges=ranges,
        rebuild=rebuild,
    )


ACROBOT: Final = swingup(ROBOT, NOMINAL, "elbow", torque=TORQUE, ranges=RANGES)
PENDUBOT: Final = swingup(ROBOT, NOMINAL, "shoulder", torque=TORQUE, ranges=RANGES)
