"""`sim2real tasks`: what can be learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim2real.command import Outcome
from sim2real.tasks.base import FETCHED, get_task, task_names, unpublished

__all__ = ["TasksArgs", "run_tasks"]


@dataclass(frozen=True)
class TasksArgs:
    """List the tasks: robot, rates, sizes, and what counts as success."""


def run_tasks(args: TasksArgs) -> Outcome:
    """Describe every registered task; of one whose robot may have to be fetched first, what it is about."""
    rows = [_describe(name) for name in task_names()]
    return Outcome(passed=True, result={"tasks": rows}, summary="\n".join(_in_words(row) for row in rows))


def _in_words(row: dict[str, Any]) -> str:
    about = f"{row['name']}\n    {row['summary']}\n    robot {row['robot']}, "
    if row["name"] in FETCHED:
        return f"{about}which is downloaded when the task is first used"
    actions = f"{row['action_size']} action{'s' if row['action_size'] > 1 else ''}"
    return (
        f"{about}{row['control_rate_hz']:g} Hz, {row['observation_size']} observations, {actions}\n"
        f"    success: {row['success']}"
    )


def _describe(name: str) -> dict[str, Any]:
    if name in FETCHED:
        return {"name": name, "robot": FETCHED[name].robot, "summary": FETCHED[name].summary}
    task = get_task(name)
    contract = task.contract(unpublished(task))
    return {
        "name": task.name,
        "robot": task.robot.name,
        "summary": task.summary,
        "control_rate_hz": 1e9 / contract.timing.control_period_ns,
        "observation_size": contract.model.observation_size,
        "action_size": contract.model.action_size,
        "commands": [f"{each.name} {each.low:g} to {each.high:g} {each.unit}" for each in contract.commands],
        "rewards": {name: reward.weight for name, reward in task.rewards.items()},
        "terminations": list(task.terminations),
        "episode_length_s": task.episode_length,
        "success": task.goal.text,
    }
