"""Bundles of policies that have learned nothing, for whatever task and robot."""

from __future__ import annotations

from pathlib import Path

from sim2real_train.checkpoint import State, write_checkpoint
from sim2real_train.export import export
from sim2real_train.models import ModelConfig
from tests.train.builders import make_worker, metrics, small_config

__all__ = ["random_policy"]


def random_policy(task: str, folder: Path, *, robot: str | None = None) -> Path:
    """Export a bundle with the weights that training begins with."""
    config = small_config(task=task, robot=robot, num_envs=2, command_delay=(0.0, 0.0), model=ModelConfig(hidden=(16,)))
    worker = make_worker(config)
    state = worker.state()
    write_checkpoint(
        folder / "checkpoint",
        State(
            schema_version=2,
            toolkit_version="0",
            config=config,
            iteration=1,
            wall_seconds=0.0,
            metrics=(metrics(1),),
            generators=(state.generator,),
            members={},
        ),
        worker.learner_state() | {"worker-0": state.arrays},
    )
    result = export(folder / "checkpoint", folder / "policy.s2r")
    assert result.passed
    return folder / "policy.s2r"
