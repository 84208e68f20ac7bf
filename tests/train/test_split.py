from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from sim2real.errors import InputError
from sim2real_train import hang
from sim2real_train.cluster import local_cluster
from sim2real_train.disaggregated import Disaggregated
from sim2real_train.moments import merge
from sim2real_train.overlapped import Overlapped
from sim2real_train.sleepers import Naps, sleeping_learners, sleeping_sims
from sim2real_train.split import Pools, Split
from sim2real_train.watch import WorkerLostError
from tests.train.builders import children_named
from tests.train.processes import PATIENCE

MakeOverlapped = Callable[[Pools], Overlapped]
MakeDisaggregated = Callable[..., Disaggregated]
FED = ("version", "of_weights", "rank", "incarnation", "sequence")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Places for eight workers that sleep."""
    with local_cluster(8):
        yield


def pools(naps: Naps, *, sims: int, learners: int = 1, chunks: int = 0, **options: Any) -> Pools:
    return Pools(
        sims=sleeping_sims(naps),
        learners=sleeping_learners(naps),
        num_sims=sims,
        num_learners=learners,
        chunks_per_update=chunks or sims,
        **options,
    )


@pytest.fixture
def overlapped() -> Iterator[MakeOverlapped]:
    """Makes placements whose workers are gone at the end."""
    with contextlib.ExitStack() as opened:

        def make(pools: Pools) -> Overlapped:
            placement = Overlapped(pools)
            opened.callback(placement.close)
            return placement

        yield make


@pytest.fixture
def disaggregated() -> Iterator[MakeDisaggregated]:
    """Makes placements whose workers are gone at the end."""
    with contextlib.ExitStack() as opened:

        def make(pools: Pools, **options: Any) -> Disaggregated:
            placement = Disaggregated(pools, **options)
            opened.callback(placement.close)
            return placement

        yield make


def iterate(placement: Split, updates: int) -> None:
    """As the controller does it."""
    for _ in range(updates):
        collected = placement.collect()
        placement.learn(merge(placement.score()))
        placement.publish(merge(each.observations for each in collected))


def fed(placement: Split) -> list[dict[str, int]]:
    """What the learners learned from: chunk by chunk its identity, its weights' version and theirs."""
    tables = [state.arrays["fed"] for state in placement.states() if "fed" in state.arrays]
    return [dict(zip(FED, row, strict=True)) for row in np.concatenate(tables).tolist()]


def identities(chunks: list[dict[str, int]]) -> list[tuple[int, int, int]]:
    return [(each["rank"], each["incarnation"], each["sequence"]) for each in chunks]


def test_overlapped_is_one_version_behind_in_lock_step(overlapped: MakeOverlapped) -> None:
    naps = Naps(simulate=0.01, straggle=(0.3, 4.0))
    placement = overlapped(pools(naps, sims=2, learners=2, chunks=4))
    iterate(placement, 4)
    chunks = fed(placement)
    assert Counter((each["version"], each["of_weights"]) for each in chunks) == {
        (0, 0): 4,
        (1, 0): 4,
        (2, 1): 4,
        (3, 2): 4,
    }
    # Which chunk is learned when, and by which learner, is decided by its name alone.
    first, second = chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]
    assert identities(first) == [(0, 0, sequence) for sequence in range(8)]
    assert identities(second) == [(1, 0, sequence) for sequence in range(8)]
    figures = placement.stages()
    assert (figures["staleness_0"], figures["staleness_1"], figures["staleness_max"]) == (4.0, 12.0, 1.0)
    assert figures["moved_bytes"] > 0
    assert figures["spilled_bytes"] == 0


@pytest.mark.parametrize("eta", [0, 2])
def test_disaggregated_learns_each_chunk_once_and_none_too_old(disaggregated: MakeDisaggregated, eta: int) -> None:
    naps = Naps(simulate=0.004, learn=0.004, straggle=(0.2, 10.0))
    placement = disaggregated(pools(naps, sims=4, chunks=2), max_staleness=eta)
    iterate(placement, 25)
    chunks = fed(placement)
    assert len(chunks) == 50
    assert len(set(identities(chunks))) == 50
    assert all(0 <= each["version"] - each["of_weights"] <= eta for each in chunks)
    assert Counter(each["version"] for each in chunks) == dict.fromkeys(range(25), 2)
    assert sum(placement.admission.staleness.values()) == 50


def test_a_killed_simulator_is_replaced_and_nothing_is_learned_twice(disaggregated: MakeDisaggregated) -> None:
    """Case 24. Killed as a person would: by its name in the list of processes."""
    naps = Naps(simulate=0.1, learn=0.02)
    placement = disaggregated(pools(naps, sims=2), max_staleness=1)
    iterate(placement, 2)
    victims = children_named("SleepingSim")
    assert len(victims) == 2
    for victim in victims:
        victim.kill()
    iterate(placement, 6)
    chunks = fed(placement)
    assert len(set(identities(chunks))) == len(chunks) == 16
    assert all(0 <= each["version"] - each["of_weights"] <= 1 for each in chunks)
    assert {each["incarnation"] for each in chunks} == {0, 1}
    figures = placement.stages()
    assert (figures["replaced_workers"], figures["sim_workers"]) == (2.0, 2.0)
    assert figures["lost_chunks"] == placement.admission.lost > 0


def test_overlapped_collects_a_lost_chunk_again_with_the_weights_of_the_others(overlapped: MakeOverlapped) -> None:
    placement = overlapped(pools(Naps(simulate=0.1), sims=2))
    iterate(placement, 2)
    children_named("SleepingSim")[0].kill()
    iterate(placement, 3)
    assert Counter((each["version"], each["of_weights"]) for each in fed(placement)) == {
        (0, 0): 2,
        (1, 0): 2,
        (2, 1): 2,
        (3, 2): 2,
        (4, 3): 2,
    }
    assert placement.pool.replaced == 1


def stop(name: str) -> psutil.Process:
    """Let one of these workers hang, as one that waits for something that never comes."""
    worker = next(each for each in children_named(name) if each.status() != psutil.STATUS_STOPPED)
    worker.suspend()
    return worker


def test_a_simulator_that_hangs_is_replaced_and_nothing_is_learned_twice(
    disaggregated: MakeDisaggregated, capfd: pytest.CaptureFixture[str]
) -> None:
    placement = disaggregated(pools(Naps(simulate=0.05, learn=0.02), sims=2, hang_limit=1.0), max_staleness=1)
    iterate(placement, 2)
    stopped = stop("SleepingSim")
    while not placement.pool.replaced:
        iterate(placement, 1)
    iterate(placement, 4)
    chunks = fed(placement)
    assert len(set(identities(chunks))) == len(chunks)
    assert all(0 <= each["version"] - each["of_weights"] <= 1 for each in chunks)
    assert placement.admission.lost == 1
    # Its place is its successor's.
    stopped.wait(PATIENCE)
    assert "has not answered for 1 s (it is stopped, or its environment hangs" in capfd.readouterr().err


def test_lock_step_goes_on_without_one_that_hangs_also_when_all_are_asked_for_their_state(
    overlapped: MakeOverlapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = overlapped(pools(Naps(simulate=0.05), sims=2, hang_limit=1.0))
    iterate(placement, 2)
    stop("SleepingSim")
    iterate(placement, 3)
    assert Counter((each["version"], each["of_weights"]) for each in fed(placement)) == {
        (0, 0): 2,
        (1, 0): 2,
        (2, 1): 2,
        (3, 2): 2,
        (4, 3): 2,
    }
    assert placement.pool.replaced == 1
    # Idle now, until the next batch is asked for: the only call is that for its state, which has more time.
    monkeypatch.setattr(hang, "_FIRST", 2.0)
    monkeypatch.setattr(hang, "_TIMES", 2.0)
    stop("SleepingSim")
    assert len(placement.states()) == 3
    assert placement.pool.replaced == 2


def test_a_learner_that_hangs_ends_the_run(disaggregated: MakeDisaggregated) -> None:
    placement = disaggregated(pools(Naps(simulate=0.01), sims=1, hang_limit=1.0), max_staleness=1)
    iterate(placement, 1)
    stop("SleepingLearner")
    with pytest.raises(WorkerLostError, match="learner 0 has not answered for 1 s") as lost:
        iterate(placement, 1)
    assert lost.value.worker == "learner 0"


def test_a_measurement_may_take_longer_than_a_chunk(disaggregated: MakeDisaggregated) -> None:
    naps = Naps(simulate=0.01, evaluate=1.5)
    placement = disaggregated(pools(naps, sims=1, hang_limit=1.0), max_staleness=1)
    iterate(placement, 1)
    assert placement.evaluate(4, 0)[0].success == [True] * 4
    assert placement.pool.replaced == 0


def test_what_kills_every_worker_of_a_rank_ends_the_run(disaggregated: MakeDisaggregated) -> None:
    naps = Naps(simulate=0.01, dies_at=(1, 0))
    placement = disaggregated(pools(naps, sims=2, most_deaths=2), max_staleness=1)
    with pytest.raises(WorkerLostError, match=r"3 simulator workers of rank 1 were lost one after the other"):
        iterate(placement, 10_000)


def test_workers_that_die_now_and_then_are_no_poison(disaggregated: MakeDisaggregated) -> None:
    # Each incarnation ends itself over its third chunk.
    placement = disaggregated(pools(Naps(dies_at=(-1, 2)), sims=1, most_deaths=1), max_staleness=1)
    iterate(placement, 6)
    assert placement.pool.replaced >= 2
    chunks = fed(placement)
    assert len(set(identities(chunks))) == len(chunks) == 6


def test_a_learner_that_died_is_told(disaggregated: MakeDisaggregated) -> None:
    placement = disaggregated(pools(Naps(simulate=0.01, learn=0.05), sims=1), max_staleness=1)
    iterate(placement, 1)
    (learner,) = children_named("SleepingLearner")
    learner.kill()
    with pytest.raises(WorkerLostError, match="a worker process died"):
        iterate(placement, 100)


def test_workers_join_while_there_is_room(disaggregated: MakeDisaggregated) -> None:
    placement = disaggregated(pools(Naps(simulate=0.02), sims=1), max_staleness=1, max_sims=3)
    while len(placement.pool) < 3 or placement.pool.building:
        iterate(placement, 1)
    iterate(placement, 10)
    assert {each["rank"] for each in fed(placement)} == {0, 1, 2}
    assert len(placement.pool) == 3


def test_what_has_no_place_is_told_in_time(overlapped: MakeOverlapped) -> None:
    with pytest.raises(InputError, match=r"\d of 9 workers did not start within 3 s; free are"):
        overlapped(pools(Naps(), sims=1, learners=9, chunks=9, patience=3.0))


@pytest.mark.parametrize(("sims", "learners", "chunks"), [(2, 1, 3), (1, 2, 3)])
def test_chunks_that_cannot_be_shared_equally_are_refused(
    overlapped: MakeOverlapped, sims: int, learners: int, chunks: int
) -> None:
    with pytest.raises(InputError, match="cannot be shared equally"):
        overlapped(pools(Naps(), sims=sims, learners=learners, chunks=chunks))


def test_evaluation_is_shared_and_workers_see_no_gpu(disaggregated: MakeDisaggregated) -> None:
    placement = disaggregated(pools(Naps(), sims=1, learners=2, chunks=2), max_staleness=0)
    iterate(placement, 1)
    parts = placement.evaluate(5, 7)
    assert [part.time_to_goal for part in parts] == [[7.0] * 3, [8.0] * 3]
    (sim,) = children_named("SleepingSim")
    assert sim.environ()["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
