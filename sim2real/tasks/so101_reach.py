"""The SO-101, or another arm, brings its gripper to where the operator says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from sim2real.contract import Command, Identity, PolicyContract
from sim2real.errors import InputError
from sim2real.randomization import ParameterRange
from sim2real.robots import Robot
from sim2real.robots.so101 import ROBOT
from sim2real.sim.scene import EMPTY
from sim2real.sim.sensors import SensorSpec, SignalErrors
from sim2real.tasks import contracts
from sim2real.tasks.base import Array, Commands, Flags, Goal, Motion, Reward, Task
from sim2real.tasks.starts import Rest, rest_of, typical_ranges

__all__ = ["TASK"]

GRIPPER: Final = "gripper"
"""The site that is brought to the target."""
TOOLS: Final = (GRIPPER, "attachment_site", "pinch", "pinch_site", "tcp", "link_tcp", "tool", "ee", "grasp_site")
"""What that site may be called in another arm; the first that it has."""
RADIUS: Final = (0.18, 0.34)
"""Nearest and farthest target [m] from the axis of the first joint."""
HEADING: Final = 1.2
"""Largest angle [rad] of a target to the left or right."""
HEIGHT: Final = (0.06, 0.28)
"""Lowest and highest target [m] above the table."""
TOLERANCE: Final = 0.02
"""Distance [m] from the target that counts as there."""
POSES: Final = 4096
"""Poses of another arm that targets are taken from."""
CLEARANCE: Final = 0.05
"""Height [m] above its base's foot from which on they count."""


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an arm's targets are [m], in the world."""

    site: str
    """What is brought there."""
    bounds: dict[str, tuple[float, float]]
    """Least and greatest x, y and z."""
    middle: dict[str, float]
    """Where the target is as long as the operator says nothing."""
    scale: float
    """Of what the policy sees of it [1/m]."""
    draw: Callable[[np.random.Generator, int], Array]
    """Draws targets, shape (num, 3)."""


def miss(site: str) -> Callable[[Motion], Array]:
    """Return |p − p*| [m]."""
    return lambda motion: np.linalg.norm(motion.site_pos(site) - motion.command, axis=1)


def near(site: str, distance: float) -> Callable[[Motion], Array]:
    """Return 1 / (1 + (|p − p*| / `distance`)²): leads there from some of these distances [m] away."""
    missed = miss(site)
    return lambda motion: 1.0 / (1.0 + np.square(missed(motion) / distance))


def speed(motion: Motion) -> Array:
    """Σ q̇² [(rad/s)²]."""
    return np.square(motion.joint_vel).sum(axis=1)


def action_rate(motion: Motion) -> Array:
    """Σ (clipped action − clipped previous action)²."""
    change = np.clip(motion.action, -1.0, 1.0) - np.clip(motion.previous_action, -1.0, 1.0)
    return np.square(change.astype(np.float64)).sum(axis=1)


def there(site: str) -> Callable[[Motion], Flags]:
    """Return: within `TOLERANCE` of the target."""
    missed = miss(site)
    return lambda motion: missed(motion) <= TOLERANCE


def draw_target(rng: np.random.Generator, num: int) -> Array:
    """Draw targets [m], x forward and y to the left of the arm's foot, evenly over radius, heading and height."""
    radius, heading = rng.uniform(*RADIUS, num), rng.uniform(-HEADING, HEADING, num)
    return np.stack((radius * np.cos(heading), radius * np.sin(heading), rng.uniform(*HEIGHT, num)), axis=1)


OWN: Final = Workspace(
    site=GRIPPER,
    bounds={"x": (-RADIUS[1], RADIUS[1]), "y": (-RADIUS[1], RADIUS[1]), "z": HEIGHT},
    middle={"x": sum(RADIUS) / 2.0, "y": 0.0, "z": sum(HEIGHT) / 2.0},
    scale=4.0,
    draw=draw_target,
)
"""In front of the SO-101."""


def limits(robot: Robot) -> tuple[Array, Array]:
    """Return each joint's least and greatest position [rad], shape (J,): half a turn from its default at most."""
    own = [joint.position_limits or (-np.inf, np.inf) for joint in robot.joints]
    default = [joint.default_position for joint in robot.joints]
    low = [max(low, middle - np.pi) for (low, _), middle in zip(own, default, strict=True)]
    high = [min(high, middle + np.pi) for (_, high), middle in zip(own, default, strict=True)]
    return np.array(low), np.array(high)


def start(robot: Robot) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    """Return what draws poses within half of each joint's range around its default, at rest."""
    low, high = limits(robot)
    default = np.array([joint.default_position for joint in robot.joints])

    @functools.cache
    def rest() -> Rest:
        return rest_of(robot)

    def draw(rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        spread = rng.uniform(-0.5, 0.5, (num, len(default)))
        qpos = np.empty((num, len(rest().qpos)))
        qpos[:] = rest().qpos
        qpos[:, rest().joints] = default + np.where(spread < 0.0, spread * (default - low), spread * (high - default))
        return qpos, np.zeros((num, rest().num_velocities))

    return draw


def workspace_of(robot: Robot) -> Workspace:
    """Return where another arm's targets are: where its tool is in random poses, above the foot of its base.

    Raises:
        InputError: It is no arm: its base floats, it has no site of a name in `TOOLS`, or that hardly moves.
    """
    # Loads MuJoCo, without which the arm that ships with the toolkit can be named and described.
    import mujoco

    from sim2real.sim.model import load_model

    model = load_model(robot, EMPTY)[1]
    sites = [model.site(index).name for index in range(model.nsite)]
    found = [name for name in TOOLS if name in sites]
    if robot.base != "fixed" or not found:
        raise InputError(
            f"robot {robot.name}: expected an arm with a fixed base and a site at its tool, named "
            f"{' or '.join(TOOLS)}, got a {robot.base} base and the sites {', '.join(sites) or 'none'}; add one"
        )
    data, places = mujoco.MjData(model), np.empty((POSES, 3))
    for pose, place in zip(start(robot)(np.random.default_rng(0), POSES)[0], places, strict=True):
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        place[:] = data.site(found[0]).xpos
    above = places[places[:, 2] > float(data.xpos[1, 2]) + CLEARANCE]
    size = float(np.ptp(above, axis=0).max()) if len(above) else 0.0
    if len(above) < POSES // 10 or size < 10.0 * TOLERANCE:
        raise InputError(
            f"robot {robot.name}: expected an arm whose {found[0]!r} moves about above its base, got {len(above)} of "
            f"{POSES} poses there, {size:.2f} m apart at most"
        )
    return Workspace(
        site=found[0],
        bounds={name: (float(values.min()), float(values.max())) for name, values in zip("xyz", above.T, strict=True)},
        middle=dict(zip("xyz", np.median(above, axis=0).tolist(), strict=True)),
        scale=1.3 / size,
        draw=lambda rng, num: above[rng.integers(len(above), size=num)],
    )


def contract_of(robot: Robot, workspace: Workspace) -> Callable[[Identity], PolicyContract]:
    """Return the contract: 50 Hz as the servo bus allows, joint positions, their past, the target; positions out."""
    joints = contracts.joints(robot, "position")
    names = [joint.name for joint in joints]
    low, high = limits(robot)

    def contract(identity: Identity) -> PolicyContract:
        return contracts.contract(
            identity,
            control_period_ns=20_000_000,
            decimation=4,
            joints=joints,
            terms=(
                # The servo's own velocity lags by a period; positions of three steps say the same without lag.
                contracts.term("position", "joint_pos", joints=names, history=3),
                contracts.term("target", "command", width=3, scale=workspace.scale),
                contracts.term("last_action", "last_action", joints=names, clip=(-1.0, 1.0)),
            ),
            action=contracts.action(joints, scale=(0.5 * (high - low)).tolist(), offset=(0.5 * (high + low)).tolist()),
            safety=contracts.safety(
                hold_kp=[joint.kp for joint in joints],
                hold_kd=[joint.kd for joint in joints],
                damp_kd=[max(joint.kd, 0.5) for joint in joints],
                position_margin=0.1,
                effort_margin=1.0,
            ),
            commands=tuple(
                Command(name=name, unit="m", low=least, high=most, initial=workspace.middle[name])
                for name, (least, most) in workspace.bounds.items()
            ),
        )

    return contract


RANGES: Final = typical_ranges(
    ROBOT,
    tuple(f"{joint.name}_{kind}" for joint in ROBOT.joints for kind in ("damping", "frictionloss", "armature")),
)


def reach(robot: Robot, workspace: Workspace, ranges: tuple[ParameterRange, ...]) -> Task:
    """Return the task for an arm."""
    site = workspace.site
    return Task(
        name="so101-reach",
        robot=robot,
        summary="Bring the gripper of the SO-101 to a point in front of it, and keep it there.",
        contract=contract_of(robot, workspace),
        rewards={
            "near": Reward(weight=1.0, term=near(site, 0.1)),
            # Worth having only at the target.
            "close": Reward(weight=1.0, term=near(site, 0.01)),
            "speed": Reward(weight=-0.005, term=speed),
            "action_rate": Reward(weight=-0.1, term=action_rate),
        },
        terminations={},
        start=start(robot),
        goal=Goal(
            text=f"the gripper is within {TOLERANCE * 100:g} cm of the target from 2 s to the end of 4 s",
            holds=there(site),
            after=2.0,
            share=1.0,
        ),
        episode_length=4.0,
        training_episode_length=4.0,
        commands=Commands(draw=workspace.draw, period=(8.0, 8.0)),
        critic={
            "velocity": lambda motion: 0.2 * motion.joint_vel,
            "miss": lambda motion: workspace.scale * (motion.site_pos(site) - motion.command),
        },
        sensors=SensorSpec(
            signals={"joint_pos": SignalErrors(noise=0.0005, step=2.0 * np.pi / 4096)}, encoder_offset=0.01
        ),
        ranges=ranges,
        rebuild=lambda other: reach(other, workspace_of(other), ()),
    )


TASK: Final = reach(ROBOT, OWN, RANGES)
