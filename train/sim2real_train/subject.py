"""What `sim2real evaluate` is given: a bundle or a checkpoint, loaded as a policy and its task."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from sim2real.bundle import read_bundle
from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.tasks import Task, get_task
from sim2real_train.checkpoint import has_checkpoint, read_checkpoint
from sim2real_train.evaluate import BatchPolicy
from sim2real_train.export import actor_of, task_of, with_robot
from sim2real_train.policy import OnnxPolicy, TorchPolicy

__all__ = ["Subject", "load_subject"]


class Subject(NamedTuple):
    """What is judged."""

    policy: BatchPolicy
    task: Task
    privileged: bool
    """Whether the policy reads what a critic sees: a teacher."""


def load_subject(path: Path, robot: str | None = None) -> Subject:
    """Load the policy of a bundle or of a checkpoint folder, and the task it was trained for.

    Args:
        path: The bundle or the folder.
        robot: Where the file of the policy's robot is now; None: where it was in training.

    Raises:
        InputError: Neither, or damaged, or of a task that has changed since.
        BundleError: The bundle does not pass its checks.
    """
    if has_checkpoint(path / "checkpoint"):
        path /= "checkpoint"
    if has_checkpoint(path):
        checkpoint = with_robot(read_checkpoint(path), robot)
        privileged = checkpoint.state.config.model.privileged
        return Subject(TorchPolicy(actor_of(checkpoint)), task_of(checkpoint), privileged)
    bundle = read_bundle(path)
    task = get_task(bundle.contract.identity.task, bundle.contract.identity.robot, where=robot)
    _check_task(path, bundle.contract, task)
    if "float32" not in bundle.models:
        raise InputError(f"{path}: holds no float32 model to evaluate, only {', '.join(bundle.models)}")
    return Subject(OnnxPolicy(bundle.models["float32"], bundle.contract.model), task, privileged=False)


def _check_task(path: Path, contract: PolicyContract, task: Task) -> None:
    """The simulation builds observations by the task's contract: it must be the bundle's, but for the network."""
    present = msgspec.structs.replace(task.contract(contract.identity), model=contract.model)
    differing = [name for name in PolicyContract.__struct_fields__ if getattr(present, name) != getattr(contract, name)]
    if differing:
        raise InputError(
            f"{path}: its contract differs from that of task {task.name} in {', '.join(differing)}; evaluate it with "
            f"sim2real {contract.identity.toolkit_version}, which exported it, or train and export anew"
        )
