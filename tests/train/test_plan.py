from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real_train.plan import (
    Candidate,
    Curve,
    Prediction,
    StageCurves,
    choose,
    enumerate_placements,
    predict,
)

SECONDS = st.floats(1e-3, 10.0)
STEPS = st.lists(st.floats(0.0, 5.0), min_size=3, max_size=3)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any curve that does not fall."""
    seconds = np.cumsum([draw(SECONDS), *draw(STEPS)]).tolist()
    return Curve(sizes=(8.0, 64.0, 256.0, 1024.0), seconds=tuple(seconds))


@st.composite
def stages(draw: st.DrawFn) -> StageCurves:
    return StageCurves(
        simulate=draw(curves()),
        infer=draw(curves()),
        score=draw(curves()),
        update=draw(curves()),
        transfer=draw(curves()),
        correct=draw(curves()),
        average=Curve(sizes=(1.0, 8.0), seconds=(draw(SECONDS), 11.0)),
        publish=draw(st.floats(0.0, 2.0)),
        thread_gain={1: 1.0, 2: draw(st.floats(0.5, 1.0))},
        spread=draw(st.floats(0.0, 0.5)),
        quiet=draw(st.floats(0.5, 1.0)),
        hidden=draw(st.floats(0.0, 1.0)),
    )


def proportional(seconds: float, at: float = 1024.0) -> Curve:
    return Curve(sizes=(at / 4, at), seconds=(seconds / 4, seconds))


def test_a_curve_is_straight_between_and_beyond_its_points() -> None:
    curve = Curve(sizes=(10.0, 20.0, 40.0), seconds=(1.0, 3.0, 4.0))
    assert [curve.at(size) for size in (10, 15, 20, 30, 40, 60)] == [1.0, 2.0, 3.0, 3.5, 4.0, 5.0]
    assert curve.at(5) == 0.0
    assert Curve(sizes=(4.0,), seconds=(2.0,)).at(6.0) == 3.0
    # A larger size that was measured faster: the smaller one was disturbed.
    assert Curve(sizes=(1.0, 2.0), seconds=(2.0, 1.0)).at(100.0) == 1.0


@pytest.mark.parametrize(("sizes", "seconds"), [((), ()), ((1.0, 1.0), (1.0, 1.0)), ((1.0,), (-1.0,)), ((1.0,), ())])
def test_points_that_are_no_curve_are_refused(sizes: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="expected rising sizes with a time each"):
        Curve(sizes=sizes, seconds=seconds)


@pytest.mark.parametrize("cpus", [2, 3, 4, 8])
def test_one_worker_against_all_the_rest_is_tried(cpus: int) -> None:
    """RLinf's search leaves out the split (n − 1, 1), and with it every split of two devices."""
    found = enumerate_placements(cpus, 0, num_envs=840)
    splits = {(each.sims, each.learners) for each in found if each.kind == "overlapped"}
    assert {(cpus - 1, 1), (1, cpus - 1)} <= splits
    assert splits == {(sims, learners) for sims in range(1, cpus) for learners in range(1, cpus - sims + 1)}
    assert {each.sims for each in found if each.kind == "colocated"} == set(range(1, cpus + 1))


def test_only_what_fits_is_tried() -> None:
    assert [each.kind for each in enumerate_placements(1, 0, num_envs=64)] == ["colocated"]
    found = enumerate_placements(8, 2, num_envs=64)
    assert all(each.sims + each.learners <= 8 for each in found if each.kind != "colocated")
    assert all(each.learners <= 2 for each in found if each.device == "gpu")
    assert all(64 % each.chunks_per_update == 0 for each in found)
    assert (7, 1, "gpu") not in {(each.sims, each.learners, each.device) for each in found}  # 64 is no multiple of 7


@given(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), st.sampled_from([1, 2, 4, 8, 16]))
def test_if_every_stage_scales_apart_gains_nothing(seconds: tuple[float, float, float, float], cpus: int) -> None:
    """Also where halves take turns as well as they can: what is hidden is work, and all CPUs have work already."""
    simulate, infer, score, update = map(proportional, seconds)
    of_cpu = StageCurves(simulate=simulate, infer=infer, score=score, update=update, hidden=1.0)
    predictions = [
        predict(each, {"cpu": of_cpu}, num_envs=1024, cpus=cpus)
        for each in enumerate_placements(cpus, 0, num_envs=1024)
    ]
    chosen = choose(predictions, margin=0.0)
    assert (chosen.candidate.kind, chosen.candidate.sims) == ("colocated", cpus)
    assert chosen.step_seconds == pytest.approx(sum(seconds) / cpus)
    assert min(each.step_seconds for each in predictions) == pytest.approx(sum(seconds) / cpus)


def gain(curves: StageCurves, threads: int) -> float:
    return curves.thread_gain[2 if threads >= 2 else 1]


def brute_force(cpus: int, gpus: int, num_envs: int, of_cpu: StageCurves, of_gpu: StageCurves) -> float:
    """The shortest step, written down once more, over everything that there might be."""
    best = math.inf
    for sims in range(1, cpus + 1):
        for learners in range(1, cpus + 1):
            for on_gpu in (False, True):
                if (on_gpu and learners > gpus) or num_envs % sims or num_envs % learners:
                    continue
                own = of_gpu if on_gpu else of_cpu
                batch = num_envs / learners
                learn = own.score.at(batch) + own.update.at(batch) + (own.average.at(learners) if learners > 1 else 0)
                if sims == learners:
                    act = own.simulate.at(batch) * gain(own, cpus // sims) + own.infer.at(batch)
                    step = act * (1 + own.spread * math.sqrt(2 * math.log(sims))) + learn
                    best = min(best, step * own.quiet if sims == 1 else step)
                chunks = sims * learners // math.gcd(sims, learners)
                if sims + learners <= cpus and num_envs % chunks == 0:
                    threads = (cpus - learners) // sims
                    half = num_envs / chunks / 2
                    calls = chunks / sims
                    turns = 2 if half >= 1 else 1
                    simulate = calls * turns * of_cpu.simulate.at(2 * half / turns)
                    infer = calls * turns * of_cpu.infer.at(2 * half / turns)
                    hidden = of_cpu.hidden * (turns - 1)
                    learn += own.correct.at(batch) + own.transfer.at(batch)
                    for waits in (1 + of_cpu.spread * math.sqrt(2 * math.log(sims)), 1):
                        threaded = simulate * gain(of_cpu, threads)
                        act = (threaded + infer - hidden * min(threaded, infer)) * waits
                        beside = max(act, (simulate + infer) * waits / threads)
                        alone = max(act, sims * (simulate + infer) * waits / cpus)
                        # What was not collected while the learners held their CPUs is collected while they wait.
                        step = learn + max(0, 1 - learn / beside) * alone
                        best = min(best, step + (own.publish if waits > 1 or sims == 1 else math.inf))
                        if waits == 1:
                            best = min(best, step + max(0, own.publish - beside))
    return best


@given(st.integers(1, 6), st.integers(0, 3), st.sampled_from([12, 60, 840]), stages(), stages())
def test_the_choice_is_that_of_brute_force(
    cpus: int, gpus: int, num_envs: int, of_cpu: StageCurves, of_gpu: StageCurves
) -> None:
    candidates = enumerate_placements(cpus, gpus, num_envs=num_envs)
    predictions = [predict(each, {"cpu": of_cpu, "gpu": of_gpu}, num_envs=num_envs, cpus=cpus) for each in candidates]
    best = brute_force(cpus, gpus, num_envs, of_cpu, of_gpu)
    assert choose(predictions, margin=0.0).step_seconds == pytest.approx(best)
    chosen = choose(predictions, margin=0.1)
    assert chosen.step_seconds <= 1.1 * best * (1 + 1e-6)
    if chosen.candidate.kind != "colocated":
        colocated = [each.step_seconds for each in predictions if each.candidate.kind == "colocated"]
        assert min(colocated) > 1.1 * best


def test_overlap_pays_where_a_stage_does_not_scale() -> None:
    """An update that takes as long with half of the samples: two learners are no faster than one."""
    of_cpu = StageCurves(
        simulate=proportional(2.0),
        infer=proportional(0.0),
        score=proportional(0.0),
        update=Curve(sizes=(1.0, 1024.0), seconds=(1.9, 2.0)),
    )
    predictions = [predict(each, {"cpu": of_cpu}, num_envs=1024) for each in enumerate_placements(2, 0, num_envs=1024)]
    chosen = choose(predictions)
    assert (chosen.candidate.kind, chosen.candidate.sims, chosen.candidate.learners) == ("overlapped", 1, 1)
    assert chosen.step_seconds == pytest.approx(2.0)
    together = next(each for each in predictions if each.candidate.kind == "colocated" and each.candidate.sims == 2)
    assert together.step_seconds == pytest.approx(1.0 + 1.95, abs=0.01)


def test_threads_are_what_other_workers_leave() -> None:
    assert [each.threads for each in enumerate_placements(4, 0, num_envs=12) if each.kind == "colocated"] == [
        4,
        2,
        1,
        1,
    ]
    half = StageCurves(
        simulate=proportional(1.0),
        infer=proportional(0.5),
        score=proportional(0.0),
        update=proportional(0.0),
        thread_gain={1: 1.0, 2: 0.6},
    )
    for threads, seconds in ((1, 1.5), (2, 1.1), (8, 1.1)):
        candidate = Candidate(kind="colocated", sims=1, learners=1, threads=threads)
        assert predict(candidate, {"cpu": half}, num_envs=1024).step_seconds == pytest.approx(seconds)


def test_halves_that_take_turns_hide_a_stage_where_a_cpu_is_idle() -> None:
    of_cpu = StageCurves(
        simulate=proportional(3.0), infer=proportional(2.0), score=proportional(0.0), update=proportional(1.0)
    )
    apart = Candidate(kind="overlapped", sims=1, learners=1)

    def step(hidden: float, update: float, cpus: int | None) -> float:
        curves = msgspec.structs.replace(of_cpu, hidden=hidden, update=proportional(update))
        return predict(apart, {"cpu": curves}, num_envs=1024, cpus=cpus).step_seconds

    # Nobody lacks a CPU: the slower stage sets the pace, as in a pipeline.
    assert [step(hidden, 1.0, None) for hidden in (0.0, 0.5, 1.0)] == pytest.approx([5.0, 4.0, 3.0])
    # Two CPUs, one of which the learner has all the time, a fifth of it, or never.
    assert step(1.0, 5.0, 2) == pytest.approx(5.0)
    assert step(1.0, 1.0, 2) == pytest.approx(1.0 + 4.0 / 5.0 * 3.0)
    assert step(1.0, 0.0, 2) == pytest.approx(3.0)
    # A single environment has no halves.
    assert predict(apart, {"cpu": msgspec.structs.replace(of_cpu, hidden=1.0)}, num_envs=1).step_seconds == (
        pytest.approx(5.0 / 1024.0)
    )


def test_a_worker_alone_is_as_fast_as_it_was_measured_alone() -> None:
    stage = proportional(1.0)
    of_cpu = StageCurves(simulate=stage, infer=stage, score=stage, update=stage, quiet=0.75)
    one, two = (
        predict(Candidate(kind="colocated", sims=count, learners=count), {"cpu": of_cpu}, num_envs=1024)
        for count in (1, 2)
    )
    assert (one.step_seconds, two.step_seconds) == (3.0, 2.0)


def test_stragglers_speak_for_streaming() -> None:
    stage = proportional(1.0)
    of_cpu = StageCurves(simulate=stage, infer=proportional(0.0), score=proportional(0.0), update=stage, spread=0.5)

    def step(candidate: Candidate) -> Prediction:
        return predict(candidate, {"cpu": of_cpu}, num_envs=1024)

    lock_step = step(Candidate(kind="overlapped", sims=4, learners=4))
    streamed = step(Candidate(kind="disaggregated", sims=4, learners=4))
    assert streamed.step_seconds < lock_step.step_seconds
    assert streamed.collect_seconds == pytest.approx(0.25)
