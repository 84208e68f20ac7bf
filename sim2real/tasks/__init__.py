"""Tasks: robot + contract + rewards + resets + randomization."""

from __future__ import annotations

from sim2real.tasks.base import Commands, Curriculum, Event, Goal, Motion, Reward, Task, get_task, task_names
from sim2real.tasks.env import TaskEnv
from sim2real.tasks.vector import StepResult, VectorEnv

__all__ = [
    "Commands",
    "Curriculum",
    "Event",
    "Goal",
    "Motion",
    "Reward",
    "StepResult",
    "Task",
    "TaskEnv",
    "VectorEnv",
    "get_task",
    "task_names",
]
