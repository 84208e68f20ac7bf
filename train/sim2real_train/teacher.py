"""Teachers: policies of checkpoints that students are made to imitate."""

from __future__ import annotations

from pathlib import Path

from sim2real.errors import InputError
from sim2real_train.checkpoint import Checkpoint, checkpoint_of, read_checkpoint
from sim2real_train.config import TrainConfig
from sim2real_train.distill import TeacherRef
from sim2real_train.environments import columns_of
from sim2real_train.models import Actor

__all__ = ["load_teacher", "teacher_at"]


def teacher_at(path: Path) -> TeacherRef:
    """Return the teacher that the folder of a run, by its last checkpoint, or a checkpoint folder holds now.

    Raises:
        InputError: It holds no whole checkpoint.
    """
    folder = checkpoint_of(path).absolute()
    return TeacherRef(checkpoint=str(folder), weights_sha256=read_checkpoint(folder).weights_sha256)


def load_teacher(teacher: TeacherRef, config: TrainConfig, sizes: tuple[int, int, int]) -> Actor:
    """Return the policy of a teacher, without gradients.

    Args:
        teacher: Where it is.
        config: The student's run.
        sizes: Widths of the observation, of what the critic sees and of the action in that run.

    Raises:
        InputError: The checkpoint is missing, damaged or another one than it was; or it is of another task.
    """
    checkpoint = read_checkpoint(Path(teacher.checkpoint))
    _check(checkpoint, teacher, config)
    learned = checkpoint.state.config
    observation_size = sizes[1] if learned.model.privileged else sizes[0]
    normalizer = checkpoint.arrays["weights"].get("actor.normalizer.mean")
    if normalizer is not None and len(normalizer) != observation_size:
        raise InputError(
            f"{teacher.checkpoint}: the teacher reads {len(normalizer)} numbers, but {config.task} gives it "
            f"{observation_size}; the task has changed since: train the teacher anew"
        )
    actor = Actor(learned.model, observation_size, sizes[2], columns_of(learned))
    actor.load_weights(checkpoint.arrays["weights"])
    return actor


def _check(checkpoint: Checkpoint, teacher: TeacherRef, config: TrainConfig) -> None:
    """Check that a checkpoint is the teacher that the run began with, and of its task."""
    if checkpoint.weights_sha256 != teacher.weights_sha256:
        raise InputError(
            f"{teacher.checkpoint}: holds other weights (SHA-256 {checkpoint.weights_sha256[:12]}…) than those of the "
            f"run's teacher ({teacher.weights_sha256[:12]}…); put these back, or begin a new run with another --out"
        )
    learned = checkpoint.state.config
    for field in ("task", "robot"):
        theirs, ours = getattr(learned, field), getattr(config, field)
        if theirs != ours:
            raise InputError(
                f"{teacher.checkpoint}: the teacher was trained with {field} {theirs}, the student is to be with "
                f"{ours}; give a teacher of the same {field}"
            )
