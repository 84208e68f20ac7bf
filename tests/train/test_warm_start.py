"""Runs that begin with what others have learned. About 15 s; with the slow ones 120 s on a busy machine."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real_train.checkpoint import State, read_checkpoint, write_checkpoint
from sim2real_train.checks import check_run
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.distill import DistillConfig
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.placements import Machines, placed
from sim2real_train.ppo import PpoConfig
from sim2real_train.provenance import read_record
from sim2real_train.sac import SacConfig
from sim2real_train.teacher import teacher_at
from sim2real_train.train_command import TrainArgs, config_of, run_train
from sim2real_train.warm_start import init_at, warm_start
from tests.train.builders import TASK, iterate, make_worker, metrics, small_config

ITERATIONS = 2


def trained(run: Path, config: TrainConfig) -> Path:
    """A run whose weights, moments and optimiser have moved."""
    worker = make_worker(config)
    for _ in range(ITERATIONS):
        iterate(worker)
    state = worker.state()
    write_checkpoint(
        run / "checkpoint",
        State(
            schema_version=2,
            toolkit_version="0",
            config=config,
            iteration=ITERATIONS,
            wall_seconds=1.0,
            metrics=tuple(metrics(number + 1) for number in range(ITERATIONS)),
            generators=(state.generator,),
            members={},
        ),
        worker.learner_state() | {"worker-0": state.arrays},
    )
    return run


def config_for(algorithm: str, folder: Path) -> TrainConfig:
    if algorithm == "sac":
        return small_config(algorithm=SacConfig(num_steps=16, batch_size=32))
    if algorithm == "distill":
        teacher = teacher_at(trained(folder / "teacher", small_config()))
        return small_config(algorithm=DistillConfig(teacher=teacher, num_steps=16, epochs=1, minibatches=2))
    ppo = PpoConfig(num_steps=16, epochs=2, minibatches=2, normalize_values=True)
    memory = "gru" if algorithm == "ppo-gru" else "none"
    return small_config(algorithm=ppo, model=ModelConfig(hidden=(16,), recurrent=memory, recurrent_size=8))


SPLIT = {"num_workers": 2, "num_envs": 8}
PLACES: dict[str, dict[str, Any]] = {
    "colocated": {},
    "overlapped": SPLIT | {"placement": PlacementConfig(kind="overlapped")},
    "server": SPLIT | {"placement": PlacementConfig(kind="disaggregated", inference="server")},
}


@pytest.mark.parametrize(
    ("algorithm", "place"),
    [
        ("ppo", "colocated"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("ppo-gru", "overlapped"), ("ppo", "server"), ("sac", "overlapped"), ("distill", "colocated"))
        ),
    ],
)
def test_weights_and_normalisers_are_taken_and_nothing_else(algorithm: str, place: str, tmp_path: Path) -> None:
    base = config_for(algorithm, tmp_path)
    there = read_checkpoint(trained(tmp_path / "there", base) / "checkpoint").arrays
    # Another seed: what is not taken is seen to be the run's own.
    config = msgspec.structs.replace(base, seed=9, init_from=init_at(tmp_path / "there"), **PLACES[place])
    check_run(config)
    warm = warm_start(config)
    assert warm is not None
    fresh = make_worker(msgspec.structs.replace(config, num_workers=1, placement=PlacementConfig())).learner_state()
    with placed(config, Machines(), dumps=tmp_path) as workers:
        workers.begin_with(warm)
        begun = workers.learner()
        own = {"teacher_share"} & set(begun["weights"])
        for name, array in begun["weights"].items():
            np.testing.assert_array_equal(array, (fresh if name in own else there)["weights"][name], err_msg=name)
        for name, array in begun["learner"].items():
            taken = name.startswith(("observations/", "values/"))
            np.testing.assert_array_equal(array, (there if taken else fresh)["learner"][name], err_msg=name)
        assert float(begun["learner"]["version"]) == 0.0
        collected = workers.collect()
        workers.learn(merge(workers.score()))
        workers.publish(merge(each.observations for each in collected))
        counts = [float(each["learner"]["observations/count"]) for each in (there, workers.learner())]
    assert counts[1] >= counts[0] + 8 * 16
    assert all(np.isfinite(array).all() for array in begun["weights"].values())


def args_of(out: Path, **changes: Any) -> TrainArgs:
    fields: dict[str, Any] = {"num_envs": 8, "num_steps": 16, "hidden": (16,), "iterations": 1, "evaluate_starts": 2}
    return TrainArgs(task=TASK, out=out, **(fields | changes))


def test_what_a_run_began_with_is_not_asked_for_again(tmp_path: Path) -> None:
    """It may be another by then, or gone: a run that goes on has all of it, and its checkpoint tells which it was."""
    first = trained(tmp_path / "first", small_config())
    args = args_of(tmp_path / "second", init_from=first)
    config = config_of(args)
    trained(tmp_path / "second", config)
    shutil.rmtree(first)
    with pytest.raises(InputError, match=r"first.*cannot be read"):
        config_of(args)
    assert config_of(dataclasses.replace(args, resume=True)).init_from == config.init_from
    with pytest.raises(InputError, match=r"elsewhere.*cannot be read"):
        config_of(dataclasses.replace(args, resume=True, init_from=tmp_path / "elsewhere"))


@pytest.mark.slow
def test_a_run_is_resumed_without_what_it_began_with(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", small_config())
    args = args_of(tmp_path / "second", init_from=first)
    run_train(args)
    reference = init_at(first)
    assert read_record(tmp_path / "second").config.init_from == reference
    shutil.rmtree(first)
    assert run_train(dataclasses.replace(args, resume=True, iterations=2)).result.iterations == 2
    assert read_checkpoint(tmp_path / "second" / "checkpoint").state.config.init_from == reference


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": ModelConfig(hidden=(32,))}, r"model\.hidden is \[16\] there and \[32\] here$"),
        ({"model": ModelConfig(hidden=(16,), recurrent="gru")}, 'model.recurrent is "none" there and "gru" here$'),
        ({"algorithm": SacConfig(num_steps=16)}, "it was learned by ppo, this run is to learn by sac"),
        ({"task": "acrobot-swingup"}, r"joints: only there hinge \(.*\) and only here .*; observation: only there "),
        ({"task": "gym:Pendulum-v1"}, "joints: only there hinge"),
    ],
    ids=["hidden", "memory", "algorithm", "task", "foreign"],
)
def test_what_does_not_fit_is_refused_with_what_differs(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    first = trained(tmp_path / "first", small_config())
    with pytest.raises(InputError, match=rf"^--init-from .*checkpoint: cannot begin with it: .*{told}"):
        warm_start(small_config(init_from=init_at(first), **changes))


def test_networks_of_other_shapes_are_refused(tmp_path: Path) -> None:
    """Of equal settings of the model, e.g. where a critic sees another number of things."""
    sac = small_config(algorithm=SacConfig(num_steps=16))
    first = trained(tmp_path / "first", sac)
    other = small_config(algorithm=SacConfig(num_steps=16, atoms=31), init_from=init_at(first))
    with pytest.raises(
        InputError, match=r"cannot begin with it: .* is of shape \(.*\) there and of shape \(31.*\) here"
    ):
        warm_start(other)


def test_noise_may_differ_and_is_what_was_learned(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", small_config())
    model = msgspec.structs.replace(small_config().model, initial_std=0.1)
    warm = warm_start(small_config(init_from=init_at(first), model=model))
    assert warm is not None
    assert math.exp(float(warm.weights["log_std"][0])) > 0.3


def test_a_checkpoint_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    reference = init_at(trained(tmp_path / "first", small_config()))
    trained(tmp_path / "first", small_config(seed=5))
    with pytest.raises(InputError, match=r"holds other weights \(SHA-256 .*\) than it did"):
        warm_start(small_config(init_from=reference))
    assert warm_start(small_config()) is None
