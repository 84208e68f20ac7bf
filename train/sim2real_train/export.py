"""From a checkpoint to a policy bundle: contract, ONNX, golden vectors, parity; signed and written only if it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sim2real.bundle import write_bundle
from sim2real.contract import PolicyContract, contract_hash
from sim2real.errors import InputError
from sim2real.tasks import Task, get_task
from sim2real.tasks.base import task_identity, unpublished
from sim2real.tasks.gym_tasks import is_foreign
from sim2real_train.checkpoint import Checkpoint, checkpoint_of, read_checkpoint
from sim2real_train.config import config_sha256
from sim2real_train.deploy_yaml import deploy_folder, deploy_yaml, write_deploy_folder
from sim2real_train.environments import sizes_of
from sim2real_train.findings import Findings, findings_of
from sim2real_train.golden_run import record_golden
from sim2real_train.models import Actor, encoder_columns
from sim2real_train.onnx_graph import OPSET, actor_to_onnx
from sim2real_train.parity import Parity, prove
from sim2real_train.policy import TorchPolicy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "ExportResult",
    "actor_of",
    "contract_of",
    "export",
    "task_of",
    "with_robot",
]


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real export` reports."""

    bundle: Path | None
    """None: parity failed, and nothing was written."""
    task: str
    checkpoint: Path
    """Its folder."""
    iteration: int
    """That the checkpoint was saved after."""
    checkpoint_sha256: str
    contract_sha256: str
    opset: int
    onnx_bytes: int
    parity: tuple[Parity, ...]
    findings: Findings
    deploy_folder: Path | None = None
    """Where Unitree's deploy.yaml is; None: it was not asked for."""

    @property
    def passed(self) -> bool:
        """Whether every comparison is within its tolerance."""
        return all(each.passed for each in self.parity)


def export(
    checkpoint_folder: Path,
    out: Path,
    *,
    signing_key: Ed25519PrivateKey | None = None,
    seed: int = 0,
    robot: str | None = None,
    motors: Sequence[str] | None = None,
) -> ExportResult:
    """Write the bundle of a checkpoint's policy to `out`, if it computes what was trained.

    Args:
        checkpoint_folder: Folder of a run, of which the last checkpoint is exported, or a checkpoint folder.
        out: Where the bundle goes: one zip file, or a folder if a bundle folder is there already.
        signing_key: Secret key; None: a one-time key, which shows integrity but not who signed.
        seed: Seeds the golden run's start states and noise.
        robot: Where the file of the policy's robot is now; None: where it was in training.
        motors: Joints in the order of the robot's motors, for Unitree's deploy.yaml beside the bundle; None: without.

    Raises:
        InputError: The checkpoint is missing or damaged, or the bundle cannot be written; or the policy is a teacher,
            which reads what no robot measures.
    """
    checkpoint_folder = checkpoint_of(checkpoint_folder)
    checkpoint = read_checkpoint(checkpoint_folder)
    _check_deployable(checkpoint)
    here = with_robot(checkpoint, robot)
    task = task_of(here)
    actor = actor_of(here)
    contract = contract_of(checkpoint, task, actor)
    # Whether the format can hold it is told before anything is written.
    deploy = None if motors is None else (deploy_folder(out), deploy_yaml(contract, motors))
    onnx = actor_to_onnx(actor, contract)
    policy = TorchPolicy(actor)
    golden = record_golden(policy, task, contract, seed=seed)
    parity = prove(policy, contract, onnx, golden)
    result = ExportResult(
        bundle=None,
        task=task.name,
        checkpoint=checkpoint_folder,
        iteration=checkpoint.state.iteration,
        checkpoint_sha256=checkpoint.weights_sha256,
        contract_sha256=contract_hash(contract).hex(),
        opset=OPSET,
        onnx_bytes=len(onnx),
        parity=parity,
        findings=findings_of(actor, contract, golden),
    )
    if not result.passed:
        return result
    write_bundle(
        out,
        contract=contract,
        models={"float32": onnx},
        golden=golden,
        created_by="sim2real export",
        signing_key=signing_key,
    )
    if deploy is not None:
        write_deploy_folder(*deploy, onnx)
        result = msgspec.structs.replace(result, deploy_folder=deploy[0])
    return msgspec.structs.replace(result, bundle=out)


def task_of(checkpoint: Checkpoint) -> Task:
    """Return the task that a checkpoint's policy was trained for.

    Raises:
        InputError: It was trained in a foreign environment, whose inputs and outputs no contract describes.
    """
    config = checkpoint.state.config
    if is_foreign(config.task):
        raise InputError(
            f"checkpoint: was trained in {config.task}, which has no contract: no signals, joints, gains or limits "
            "that a robot could be driven by; train one of: sim2real tasks"
        )
    return get_task(config.task, config.robot)


def with_robot(checkpoint: Checkpoint, where: str | None) -> Checkpoint:
    """Return the checkpoint with its robot's file where that is now; None: where it was in training.

    Raises:
        InputError: There is no such file, or it is another robot's, or was changed.
    """
    if where is None:
        return checkpoint
    config = checkpoint.state.config
    found = get_task(config.task, config.robot, where=where).robot.name
    state = msgspec.structs.replace(checkpoint.state, config=msgspec.structs.replace(config, robot=found))
    return msgspec.structs.replace(checkpoint, state=state)


def actor_of(checkpoint: Checkpoint) -> Actor:
    """Return the actor that a checkpoint holds the weights of.

    Raises:
        InputError: A weight is not finite: training diverged; or the weights do not fit the configured network.
    """
    config = checkpoint.state.config
    task = task_of(checkpoint)
    contract = task.contract(unpublished(task))
    observation_size = sizes_of(config)[1] if config.model.privileged else contract.model.observation_size
    actor = Actor(config.model, observation_size, contract.model.action_size, encoder_columns(config.model, contract))
    actor.load_weights(checkpoint.arrays["weights"])
    return actor


def _check_deployable(checkpoint: Checkpoint) -> None:
    config = checkpoint.state.config
    if config.model.privileged:
        raise InputError(
            "checkpoint: its policy reads what only a simulation knows, so that no robot can run it; it is a teacher: "
            f"train a student of it by sim2real train {config.task} --algo distill --teacher RUN"
        )


def contract_of(checkpoint: Checkpoint, task: Task, actor: Actor) -> PolicyContract:
    """Return the contract of a checkpoint's policy: the task's, with this network's state and these hashes."""
    identity = task_identity(
        task, checkpoint_sha256=checkpoint.weights_sha256, config_sha256=config_sha256(checkpoint.state.config)
    )
    contract = task.contract(identity)
    return msgspec.structs.replace(contract, model=actor.contract_model(contract.model))
