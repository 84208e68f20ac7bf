"""Swing the torque-limited pendulum, or another one, up and hold it, from any state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from sim2real.contract import Identity, PolicyContract
from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.robots.pendulum import ROBOT
from sim2real.sim.scene import EMPTY
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Flags, Goal, Motion, Reward, Task

__all__ = ["TASK"]

UPRIGHT_TOLERANCE: Final = 0.2
"""Largest distance [rad] from upright that counts as upright."""
SWING_UP_TIME: Final = 6.0
"""Time [s] by which the pendulum must be upright, to stay there until the episode ends."""
RUNAWAY_VELOCITY: Final = 15.0
"""Velocity [rad/s] at which an episode ends as a failure; of a pendulum that swings twice as fast, twice as much."""
STIFFNESS: Final = 9.81 / 0.5
"""m g l / I [1/s²], the square of the frequency of small swings; g / l of a point mass."""


def upright_error(joint_pos: Array) -> Array:
    """Return the distance [rad] from upright, in [-π, π): q − π, wrapped."""
    return np.remainder(joint_pos, 2.0 * np.pi) - np.pi


def height(joint_pos: Array) -> Array:
    """(1 − cos q) / 2: 0 hanging, 1 upright."""
    return 0.5 - 0.5 * np.cos(joint_pos)


def energy(joint_pos: Array, joint_vel: Array, stiffness: float = STIFFNESS) -> Array:
    """E / E_upright up to the energy of resting upright, (E_upright / E)² above it.

    E = ½ q̇² I / (m g l) + 1 − cos q, without friction: 1 where the rod would coast to upright and stop there.
    """
    ratio = 0.25 * np.square(joint_vel) / stiffness + height(joint_pos)
    return np.minimum(ratio, 1.0 / np.square(np.maximum(ratio, 1.0)))


def stillness(joint_pos: Array, joint_vel: Array) -> Array:
    """1 / (1 + (error / 0.15 rad)² + (velocity / 1 rad/s)²): 1 at rest upright; its tails lead there from afar."""
    return 1.0 / (1.0 + np.square(upright_error(joint_pos) / 0.15) + np.square(joint_vel))


def action_rate(motion: Motion) -> Array:
    """Σ (clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change.astype(np.float64)).sum(axis=1)


def contract_of(robot: Robot) -> Callable[[Identity], PolicyContract]:
    """Return the contract: 100 Hz, sine and cosine of the angle, velocity, last action; torque out."""
    joints = contracts.joints(robot, "effort")
    names = [joint.name for joint in joints]
    (torque,) = (joint.effort_limit for joint in joints)

    def contract(identity: Identity) -> PolicyContract:
        return contracts.contract(
            identity,
            control_period_ns=10_000_000,
            decimation=4,
            joints=joints,
            terms=(
                contracts.term("sin_angle", "joint_pos", joints=names, function="sin"),
                contracts.term("cos_angle", "joint_pos", joints=names, function="cos"),
                contracts.term("velocity", "joint_vel", joints=names, scale=0.1),
                contracts.term("last_action", "last_action", joints=names, clip=(-1.0, 1.0)),
            ),
            action=contracts.action(joints, scale=[torque]),
            safety=contracts.safety(
                hold_kp=[4.0 * torque],
                hold_kd=[0.2 * torque],
                damp_kd=[0.2 * torque],
                position_margin=0.0,
                effort_margin=6.0 * torque,
            ),
        )

    return contract


def start(pace: float) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    """Return what draws angles from the whole circle and velocities up to `pace` times ±8 rad/s.

    A quarter hang almost still, and a quarter rest at any angle, where friction may hold the rod up.
    """

    def draw(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        qpos = rng.uniform(-np.pi, np.pi, (num, 1))
        qvel = rng.uniform(-8.0 * pace, 8.0 * pace, (num, 1))
        kind = rng.random((num, 1))
        return np.where(kind < 0.25, 0.05 * qpos, qpos), np.where(kind < 0.5, 0.05 * qvel, qvel)

    return draw


def right_energy(stiffness: float) -> Callable[[Motion], Array]:
    """Return `energy`, and not height: on the way to the swing that leads up it does not fall below a held rod's."""
    return lambda motion: energy(motion.joint_pos[:, 0], motion.joint_vel[:, 0], stiffness)


def still_upright(motion: Motion) -> Array:
    """`stillness`."""
    return stillness(motion.joint_pos[:, 0], motion.joint_vel[:, 0])


def effort(motion: Motion) -> Array:
    """(clipped action)²: it makes a rest that torque holds worse than the swing."""
    return np.square(np.clip(motion.action[:, 0], -1.0, 1.0)).astype(np.float64)


def spun(pace: float) -> Callable[[Motion], Flags]:
    """Return: faster than swinging up ever needs (9 rad/s × `pace`), so that the rod is being spun instead."""
    return lambda motion: np.abs(motion.joint_vel[:, 0]) > RUNAWAY_VELOCITY * pace


def upright(motion: Motion) -> Flags:
    """Within `UPRIGHT_TOLERANCE` of upright."""
    return np.abs(upright_error(motion.joint_pos[:, 0])) <= UPRIGHT_TOLERANCE


def stiffness_of(robot: Robot) -> float:
    """Return m g l / I [1/s²] of another pendulum, from its moments about the joint when it is held out level.

    Raises:
        InputError: It is no pendulum: one driven hinge that turns without end, and hangs at rest at 0.
    """
    # Loads MuJoCo, without which the pendulum that ships with the toolkit can be named and described.
    import mujoco

    from sim2real.sim.model import load_model

    model = load_model(robot, EMPTY)[1]
    alone = model.nv == 1 == len(robot.joints) and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_HINGE
    if not alone or robot.joints[0].position_limits is not None:
        raise InputError(
            f"robot {robot.name}: expected a pendulum: one driven hinge without limits and no joint beside it"
        )
    data, inertia = mujoco.MjData(model), np.zeros(1)

    def moment(angle: float) -> float:
        """What gravity turns it back by [N·m]."""
        data.qpos[0] = angle
        mujoco.mj_forward(model, data)
        return float(data.qfrc_bias[0])

    hanging, level = moment(0.0), moment(0.5 * math.pi)
    mujoco.mj_mulM(model, data, inertia, np.ones(1))
    if not level > 0.0 or abs(hanging) > 0.01 * level:
        raise InputError(
            f"robot {robot.name}: expected a pendulum that hangs at rest at 0 rad; gravity turns it by {-hanging:.3g} "
            f"N·m there and by {-level:.3g} N·m at π/2: turn its joint's frame in the MJCF"
        )
    return level / float(inertia[0])


def swingup(robot: Robot, stiffness: float) -> Task:
    """Return the task for a pendulum of this `stiffness` [1/s²]."""
    pace = math.sqrt(stiffness / STIFFNESS)
    return Task(
        name="pendulum-swingup",
        robot=robot,
        summary="Swing the torque-limited pendulum (2.5 N·m, 100 Hz) up and hold it, from any state.",
        contract=contract_of(robot),
        rewards={
            "energy": Reward(weight=1.0, term=right_energy(stiffness)),
            "stillness": Reward(weight=1.0, term=still_upright),
            "effort": Reward(weight=-0.1, term=effort),
            "action_rate": Reward(weight=-0.01, term=action_rate),
        },
        terminations={"spun": spun(pace)},
        start=start(pace),
        goal=Goal(
            text=f"within {UPRIGHT_TOLERANCE} rad of upright from {SWING_UP_TIME:g} s at the latest to the end of 10 s",
            holds=upright,
            after=SWING_UP_TIME,
            share=1.0,
        ),
        episode_length=10.0,
        training_episode_length=4.0,
        sensors=SensorSpec(signals={"joint_pos": SignalErrors(noise=0.0015), "joint_vel": SignalErrors(noise=0.06)}),
        rebuild=lambda other: swingup(other, stiffness_of(other)),
    )


TASK: Final = swingup(ROBOT, STIFFNESS)
