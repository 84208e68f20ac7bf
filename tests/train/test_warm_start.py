"""Runs that begin with what others have learned. About 35 s; with the slow ones 150 s on a busy machine."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from sim2real.errors import InputError
from sim2real_train.checkpoint import State, read_checkpoint, write_checkpoint
from sim2real_train.checks import check_run
from sim2real_train.chunks import WarmStart, WorkerState
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.distill import DistillConfig
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.placements import Machines, placed
from sim2real_train.policy import TorchPolicy
from sim2real_train.ppo import PpoConfig
from sim2real_train.presets import preset_of
from sim2real_train.provenance import read_record
from sim2real_train.sac import SacConfig
from sim2real_train.teacher import teacher_at
from sim2real_train.train_command import TrainArgs, config_of, run_train
from sim2real_train.trainer import Schedule, train
from sim2real_train.warm_start import init_at, warm_start
from sim2real_train.worker import Worker
from tests.train.builders import TASK, iterate, make_worker, metrics, small_config, task_env

ITERATIONS = 2
WALK, ROUGH = "go2-velocity-flat", "go2-velocity-rough"


def trained(run: Path, config: TrainConfig, iterations: int = ITERATIONS) -> Path:
    """A run whose weights, moments and optimiser have moved."""
    worker = make_worker(config)
    for _ in range(iterations):
        iterate(worker)
    state = worker.state()
    write_checkpoint(
        run / "checkpoint",
        State(
            schema_version=2,
            toolkit_version="0",
            config=config,
            iteration=iterations,
            wall_seconds=1.0,
            metrics=tuple(metrics(number + 1) for number in range(iterations)),
            generators=(state.generator,),
            members={},
        ),
        worker.learner_state() | {"worker-0": state.arrays},
    )
    return run


def begun_with(run: Path, config: TrainConfig) -> WarmStart:
    """What a run of this configuration takes from another."""
    warm = warm_start(msgspec.structs.replace(config, init_from=init_at(run)))
    assert warm is not None
    return warm


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
def test_a_run_is_resumed_without_what_it_began_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its critic is to remember, so it is another and begins anew, which is told when the run begins, and only then."""
    told = "--init-from: the policy begins as it was there, the critic anew: model.recurrent_critic is false there and"
    model = ModelConfig(hidden=(16,), recurrent="gru")
    first = trained(tmp_path / "first", small_config(model=model))
    args = args_of(tmp_path / "second", init_from=first, recurrent="gru", set=("model.recurrent_critic=true",))
    run_train(args)
    assert told in capsys.readouterr().err
    reference = init_at(first)
    assert read_record(tmp_path / "second").config.init_from == reference
    shutil.rmtree(first)
    assert run_train(dataclasses.replace(args, resume=True, iterations=2)).result.iterations == 2
    assert told not in capsys.readouterr().err
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


def test_a_policy_of_another_shape_is_refused_with_its_first_tensor_before_anything_is_written(tmp_path: Path) -> None:
    small, large = (ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=size) for size in (8, 12))
    first = trained(tmp_path / "first", small_config(model=small))
    other = small_config(model=large, init_from=init_at(first))
    told = r"cannot begin with it: actor\.\S+ is of shape \([^)]*\) there and of shape \([^)]*\) here$"
    with pytest.raises(InputError, match=told):
        train(other, Schedule(iterations=1), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_teacher_is_not_taken_for_a_policy_that_sees_less(tmp_path: Path) -> None:
    """Nor one that saw other things, though all that differs is what a critic sees too."""
    model = ModelConfig(hidden=(16,), privileged=True)
    first = init_at(trained(tmp_path / "first", small_config(task=WALK, model=model)))
    with pytest.raises(InputError, match=r"model\.privileged is true there and false here$"):
        warm_start(small_config(task=WALK, init_from=first))
    with pytest.raises(InputError, match=r"cannot begin with it: critic: only here height_scan$"):
        warm_start(small_config(task=ROUGH, model=model, init_from=first))


def acts(worker: Worker, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    policy = TorchPolicy(worker.algorithm.actor)
    policy.reset(len(observations))
    return policy.act(observations)


def test_a_policy_goes_on_to_a_task_whose_critic_sees_more(tmp_path: Path) -> None:
    """It acts as it did; the critic, and how its values are normalised, are those of a run from nothing."""
    ppo = PpoConfig(num_steps=16, epochs=1, minibatches=2, normalize_values=True)
    base = small_config(task=WALK, algorithm=ppo)
    first = trained(tmp_path / "first", base)
    config = msgspec.structs.replace(base, task=ROUGH, seed=9, init_from=init_at(first))
    check_run(config)
    warm = warm_start(config)
    assert warm is not None
    assert warm.critic_differs == "critic: only here height_scan"
    before, worker = make_worker(base), make_worker(config)
    before.begin_with(begun_with(first, base))
    fresh = worker.learner_state()
    worker.begin_with(warm)
    begun = worker.learner_state()
    seen = task_env(worker).observation.copy()
    np.testing.assert_array_equal(acts(worker, seen), acts(before, seen))
    for name in (name for name in begun["weights"] if name.startswith("critic.network.")):
        np.testing.assert_array_equal(begun["weights"][name], fresh["weights"][name], err_msg=name)
    for name in (name for name in begun["learner"] if name.startswith("values/")):
        np.testing.assert_array_equal(begun["learner"][name], fresh["learner"][name], err_msg=name)
    # What both read is normalised alike; what only the critic sees, not at all yet.
    of_actor, of_critic = (begun["weights"][f"{part}.normalizer.mean"] for part in ("actor", "critic"))
    np.testing.assert_array_equal(of_critic[: len(of_actor)], of_actor)
    assert not of_critic[len(of_actor) :].any()
    np.testing.assert_allclose(begun["weights"]["critic.normalizer.inverse_std"][len(of_actor) :], 1.0 / 1.01)
    iterate(worker)
    assert all(np.isfinite(array).all() for array in worker.learner_state()["weights"].values())


def test_critics_of_other_returns_begin_anew(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", small_config(algorithm=SacConfig(num_steps=16)))
    warm = warm_start(small_config(algorithm=SacConfig(num_steps=16, atoms=31), init_from=init_at(first)))
    assert warm is not None
    assert {name.partition(".")[0] for name in warm.weights} == {"actor", "log_std", "log_alpha"}
    assert re.fullmatch(r"critics\.\S+ is of shape \([^)]*\) there and of shape \(31.*\) here", warm.critic_differs)


def test_whole_episodes_are_those_of_the_other_run(tmp_path: Path) -> None:
    """From the same starts on the same plants, whatever the seed of the run."""
    base = small_config()
    trained(tmp_path / "first", base)
    there, here = make_worker(base), make_worker(msgspec.structs.replace(base, seed=9))
    before = here.evaluate(4, seed=0)
    for _ in range(ITERATIONS):
        iterate(there)
    here.begin_with(begun_with(tmp_path / "first", base))
    last, first = there.evaluate(4, seed=0), here.evaluate(4, seed=0)
    assert (first.returns, first.success) == (last.returns, last.success)
    assert first.returns != before.returns


@pytest.mark.slow
def test_a_run_is_soon_as_good_as_the_one_it_began_with(tmp_path: Path) -> None:
    """A new optimiser and a memory of many observations undo nothing. Who begins at the bottom is up after an episode,
    which takes 7 iterations; the rewards before that are those of the way there, for whichever policy."""
    preset = preset_of(TASK, None)
    base = small_config(num_envs=64, algorithm=preset.algorithm, model=preset.model, seed=5)
    trained(tmp_path / "first", base, iterations=50)
    other = msgspec.structs.replace(base, seed=11)
    there, here, fresh = make_worker(base), make_worker(other), make_worker(other)
    checkpoint = read_checkpoint(tmp_path / "first" / "checkpoint")
    there.load_state(
        checkpoint.arrays,
        WorkerState(arrays=checkpoint.arrays["worker-0"], generator=checkpoint.state.generators[0]),
    )
    here.begin_with(begun_with(tmp_path / "first", other))
    last = there.collect().mean_reward
    soon, from_nothing = ([iterate(worker) for _ in range(10)][7:] for worker in (here, fresh))
    bottom = float(np.mean(from_nothing))
    assert last > bottom + 0.5
    assert float(np.mean(soon)) > last - 0.25 * (last - bottom)


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
