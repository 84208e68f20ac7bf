"""Whether whole episodes reached their goal."""

from __future__ import annotations

import numpy as np

from sim2real.sim.engines import make_sim
from sim2real.tasks.base import Array, Flags, Goal, Motion, Task, unpublished
from sim2real.tasks.motion import MotionState

__all__ = ["states_succeed", "success", "time_to_goal"]


def success(goal: Goal, held: Flags, control_period: float) -> Flags:
    """Judge whole episodes.

    Args:
        goal: What counts.
        held: Whether the goal held after each control step, shape (T, N).
        control_period: [s].

    Returns:
        Shape (N,).
    """
    # Row k is the state at time (k + 1) · control_period.
    judged = held[max(round(goal.after / control_period) - 1, 0) :]
    return judged.mean(axis=0) >= goal.share


def time_to_goal(held: Flags, control_period: float) -> Array:
    """Return the time [s] from which the goal held to the end, infinite where it does not: (T, N) to (N,)."""
    steps_at_goal = np.argmin(held[::-1], axis=0)
    first = np.where(held.all(axis=0), 0, len(held) - steps_at_goal)
    return np.where(first < len(held), (first + (first > 0)) * control_period, np.inf)


def states_succeed(task: Task, qpos: Array, qvel: Array) -> bool:
    """Judge one episode by its states at every control step, from its start on.

    Args:
        task: Whose goal; operator inputs are taken to have been the contract's initial ones.
        qpos: Shape (T + 1, nq).
        qvel: Shape (T + 1, nv).
    """
    contract = task.contract(unpublished(task))
    # Every state is one of a batch's: sites and feet are then computed as in training.
    sim = make_sim(contract, len(qpos) - 1, robot=task.robot, scene=task.scene)
    sim.qpos[:], sim.qvel[:] = qpos[1:], qvel[1:]
    sim.refresh()
    command = np.tile([each.initial for each in contract.commands], (sim.num_envs, 1))
    held = task.goal.holds(Motion(MotionState(contract, sim, command)))
    return bool(success(task.goal, held[:, None], contract.timing.control_period_ns * 1e-9)[0])
