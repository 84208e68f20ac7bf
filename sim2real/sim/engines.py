"""The simulation of a contract's robot, by the engine's name."""

from __future__ import annotations

import difflib
from typing import Final, get_args

from sim2real.arguments import EngineName
from sim2real.contract import PolicyContract
from sim2real.errors import ContractError, InputError
from sim2real.extras import require
from sim2real.robots import Robot, get_robot
from sim2real.sim.base import BatchedSim
from sim2real.sim.scene import EMPTY, Scene

__all__ = ["ENGINES", "make_sim"]

ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
_UNLIMITED: Final = 1e9
"""Effort [N·m] that nothing reaches."""


def make_sim(
    contract: PolicyContract,
    num_envs: int,
    *,
    robot: Robot | None = None,
    engine: EngineName = "mujoco",
    scene: Scene = EMPTY,
    num_threads: int = 1,
) -> BatchedSim:
    """Make the simulation of a contract's robot, with the contract's physics step and effort limits.

    Args:
        contract: The contract.
        num_envs: Number of environments.
        robot: The robot; None: the one that the contract names.
        engine: One of `ENGINES`.
        scene: What surrounds the robot.
        num_threads: Threads that step the simulation, 0: one per CPU; for engines on a CPU.

    Raises:
        ContractError: The contract's joints are not the robot's.
        InputError: There is no such engine or robot, or its MJCF does not fit.
        MissingExtraError: The engine's package is not installed.
    """
    if robot is None:
        robot = get_robot(contract.identity.robot)
    limits = {joint.name: joint.effort_limit for joint in contract.joints}
    known = {joint.name for joint in robot.joints}
    if limits.keys() != known:
        raise ContractError(
            f"contract.joints: robot {robot.name} has the joints {sorted(known)}, the contract names {sorted(limits)}"
        )
    dt = contract.timing.physics_step_ns * 1e-9
    # Behind a real drive's own limit come friction and impacts, which no engine may cut off: see `sim2real.sim.drives`.
    is_ideal = all(joint.drive.ideal for joint in robot.joints)
    effort_limits = [limits[joint.name] if is_ideal else _UNLIMITED for joint in robot.joints]
    match engine:
        case "mujoco":
            from sim2real.sim.mujoco import MujocoSim

            return MujocoSim(robot, num_envs, scene=scene, dt=dt, effort_limits=effort_limits, num_threads=num_threads)
        case "mujoco_warp":
            require("mujoco_warp", "warp")
            from sim2real.sim.mujoco_warp import MujocoWarpSim

            return MujocoWarpSim(robot, num_envs, scene=scene, dt=dt, effort_limits=effort_limits)
        case "newton":
            require("newton", "newton")
            from sim2real.sim.newton import NewtonSim

            return NewtonSim(robot, num_envs, scene=scene, dt=dt, effort_limits=effort_limits)
        case _:
            close = difflib.get_close_matches(engine, ENGINES, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InputError(f"engine {engine!r}: unknown; allowed: {', '.join(ENGINES)}{hint}")
