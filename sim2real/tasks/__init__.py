"""Tasks: robot + contract + rewards + resets + randomization."""

from __future__ import annotations

from sim2real.tasks.base import Task, get_task, task_names
from sim2real.tasks.env import StepResult, TaskEnv

__all__ = ["StepResult", "Task", "TaskEnv", "get_task", "task_names"]
