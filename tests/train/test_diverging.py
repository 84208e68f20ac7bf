"""Training that diverges stops with one line and leaves the last good checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real_train.checkpoint import read_checkpoint
from sim2real_train.models import ModelConfig
from sim2real_train.trainer import Schedule, TrainingStoppedError, train
from tests.train.builders import make_worker, small_config


@pytest.mark.parametrize(
    ("task", "advice"),
    [
        ("pendulum-swingup", "train anew with a lower --learning-rate"),
        ("gym:Pendulum-v1", "look for huge rewards or observations of gym:Pendulum-v1"),
    ],
)
def test_a_run_that_diverges_saves_nothing_that_is_not_finite(task: str, advice: str, tmp_path: Path) -> None:
    # The variance of such noise is 0 in single precision, and the policy's change divides by it.
    model = ModelConfig(hidden=(16,), initial_std=1e-30)
    schedule = Schedule(iterations=5, save_every=1, evaluate_every=100, evaluate_starts=4)
    with pytest.raises(TrainingStoppedError, match=rf"^training diverged: in iteration . .*; {advice}"):
        train(small_config(model=model, task=task), schedule, tmp_path)
    for file in (tmp_path / "checkpoint").glob("state.json"):
        weights = read_checkpoint(file.parent).arrays["weights"]
        assert all(np.isfinite(array).all() for array in weights.values())


def test_a_worker_refuses_the_state_of_another_network() -> None:
    other = make_worker(small_config(model=msgspec.structs.replace(small_config().model, hidden=(8,))))
    worker = make_worker(small_config())
    with pytest.raises(InputError, match="checkpoint: does not fit this run"):
        worker.load_state(other.learner_state(), other.state())
