"""What `sim2real evaluate` is given: a bundle or a checkpoint, loaded as a policy and its task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim2real.bundle import read_bundle
from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.members import MANIFEST
from sim2real.tasks import Task, get_task
from sim2real_train.checkpoint import checkpoint_of, has_checkpoint, read_checkpoint
from sim2real_train.config import TrainConfig
from sim2real_train.evaluate import BatchPolicy
from sim2real_train.export import actor_of, task_of, with_robot
from sim2real_train.policy import OnnxPolicy, TorchPolicy
from sim2real_train.run_folder import RECORD
from sim2real_train.terms import with_weights

__all__ = ["Subject", "load_subject"]


class Subject(NamedTuple):
    """What is judged."""

    policy: BatchPolicy
    task: Task
    """With the weights of rewards that the policy was trained by, where they are known."""
    run: TrainConfig | None
    """What a checkpoint was trained with; None: of a bundle, which does not tell."""
    name: str
    """What was read, for people."""

    @property
    def privileged(self) -> bool:
        """Whether the policy reads what a critic sees: a teacher."""
        return self.run is not None and self.run.model.privileged


def load_subject(path: Path, robot: str | None = None) -> Subject:
    """Load the policy of a bundle, of a run by its last checkpoint, or of a checkpoint folder, and its task.

    Args:
        path: The bundle or the folder.
        robot: Where the file of the policy's robot is now; None: where it was in training.

    Raises:
        InputError: None of them, or damaged, or of a task that has changed since.
        BundleError: The bundle does not pass its checks.
    """
    _check_there(path)
    folder = checkpoint_of(path)
    if not has_checkpoint(folder):
        return _of_bundle(path, robot)
    checkpoint = with_robot(read_checkpoint(folder), robot)
    policy, config = TorchPolicy(actor_of(checkpoint)), checkpoint.state.config
    task = with_weights(config, task_of(checkpoint))
    return Subject(policy, task, config, f"{folder}, of iteration {checkpoint.state.iteration}")


def _check_there(path: Path) -> None:
    """Check that there is a bundle or a checkpoint, or something that may be one."""
    wanted = "give a bundle (policy.s2r), the folder of a run, or one of its checkpoint folders"
    if not os.path.lexists(path):
        raise InputError(f"{path}: there is no such file or folder; {wanted}")
    if has_checkpoint(checkpoint_of(path)):
        return
    if (path / RECORD).is_file():
        raise InputError(f"{path}: is a run that has saved no checkpoint yet; wait for its first one")
    if path.is_dir() and not (path / MANIFEST).is_file():
        raise InputError(f"{path}: holds neither a checkpoint nor a bundle; {wanted}")


def _of_bundle(path: Path, robot: str | None) -> Subject:
    bundle = read_bundle(path)
    task = get_task(bundle.contract.identity.task, bundle.contract.identity.robot, where=robot)
    _check_task(path, bundle.contract, task)
    if "float32" not in bundle.models:
        raise InputError(f"{path}: holds no float32 model to evaluate, only {', '.join(bundle.models)}")
    return Subject(OnnxPolicy(bundle.models["float32"], bundle.contract.model), task, None, f"bundle {path}")


def _check_task(path: Path, contract: PolicyContract, task: Task) -> None:
    """The simulation builds observations by the task's contract: it must be the bundle's, but for the network."""
    present = msgspec.structs.replace(task.contract(contract.identity), model=contract.model)
    differing = [name for name in PolicyContract.__struct_fields__ if getattr(present, name) != getattr(contract, name)]
    if differing:
        raise InputError(
            f"{path}: its contract differs from that of task {task.name} in {', '.join(differing)}; evaluate it with "
            f"sim2real {contract.identity.toolkit_version}, which exported it, or train and export anew"
        )
