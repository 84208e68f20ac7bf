from __future__ import annotations

import os
from pathlib import Path

import pytest

from sim2real.errors import InputError
from sim2real_train.cluster import local_cluster
from sim2real_train.colocated import Colocated
from sim2real_train.models import ModelConfig
from sim2real_train.moments import merge
from sim2real_train.placements import Machines, placed
from sim2real_train.watch import WorkerLostError
from tests.train.builders import iterate, make_worker, small_config


def test_two_workers_stay_one_learner_and_a_dead_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Of a cluster that is not ours, and must not be joined.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    before = Path.cwd()
    with placed(small_config(num_workers=2), Machines(), dumps=tmp_path) as workers:
        assert isinstance(workers, Colocated)
        assert Path.cwd() == before
        for _ in range(3):
            collected = workers.collect()
            advantages = merge(workers.score())
            updates = workers.learn(advantages)
            workers.publish(merge(each.observations for each in collected))
            assert len(set(workers.weights_sha256())) == 1
            # Their rollouts differ, so that without averaging their weights would.
            assert collected[0].mean_reward != collected[1].mean_reward
            assert updates[0]["policy_loss"] != updates[1]["policy_loss"]
            assert advantages.count == 8 * 16

        first, second = workers.process_ids()
        assert os.getpid() not in (first, second)
        os.kill(second, 9)
        with pytest.raises(WorkerLostError, match="a worker process died"):
            workers.collect()


def test_one_worker_in_ray_is_the_worker_without_ray(tmp_path: Path) -> None:
    """The placement decides where things run, and nothing else."""
    alone = make_worker(small_config())
    with placed(small_config(), Machines(), dumps=tmp_path) as workers:
        assert isinstance(workers, Colocated)
        for _ in range(3):
            collected = workers.collect()
            workers.learn(merge(workers.score()))
            workers.publish(merge(each.observations for each in collected))
            iterate(alone)
        assert workers.weights_sha256() == [alone.weights_sha256()]
        # A second one in the same process would share Ray with the first.
        with pytest.raises(InputError, match=r"call ray\.shutdown\(\) before training"), local_cluster(1):
            pass


def test_what_keeps_a_worker_from_being_built_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"cannot be built .*; give smaller"),
        placed(small_config(model=ModelConfig(hidden=(10**15,))), Machines(), dumps=tmp_path),
    ):
        pass
