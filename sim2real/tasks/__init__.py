"""Tasks: robot + contract + rewards + resets + randomization."""

from __future__ import annotations

from sim2real.tasks.base import Task, get_task, task_names
from sim2real.tasks.env import TaskEnv
from sim2real.tasks.vector import StepResult, VectorEnv

__all__ = ["StepResult", "Task", "TaskEnv", "VectorEnv", "get_task", "task_names"]
