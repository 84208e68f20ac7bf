"""What placements cost beside their stages, by workers that sleep for as long as a stage would take.

`placement_<kind>_over_identity` is the measured time of a step over what the plan says: the sum of all stages for
`colocated`, the longest side for `overlapped` and `disaggregated`. `placement_weak_scaling_<n>` is how much of n times
the throughput of one simulator worker n of them reach, with a learner that takes as long however many there are.
`placement_streaming_over_lock_step` is how much faster streaming is where one chunk in five takes twice as long.
`placement_overhead_share` is the controller's part of a real iteration at 1,024 environments: the time of a step whose
stages take none, over that of the iteration in this process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final, Protocol

from timing import medians

from sim2real_train.chunks import Collected
from sim2real_train.cluster import local_cluster
from sim2real_train.colocated import Colocated
from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.disaggregated import Disaggregated
from sim2real_train.moments import Moments, merge
from sim2real_train.overlapped import Overlapped
from sim2real_train.plan import Candidate, Curve, StageCurves, predict
from sim2real_train.presets import preset_of
from sim2real_train.sleepers import Naps, sleeping_learners, sleeping_replicas, sleeping_sims
from sim2real_train.split import Pools
from sim2real_train.worker import Worker

__all__ = ["measure"]

NAPS: Final = Naps(simulate=0.2, infer=0.1, score=0.05, learn=0.2)
"""Of one worker; long beside the noise of a busy machine."""
UNEVEN: Final = Naps(simulate=0.2, infer=0.1, score=0.0, learn=0.1, straggle=(0.2, 2.0))
STEPS: Final = 7
WARM_UP: Final = 2
MOST_WORKERS: Final = 16
TASK: Final = "pendulum-swingup"
NUM_ENVS: Final = 1024
SECONDS: Final = 10.0


class _Placement(Protocol):
    def collect(self) -> list[Collected]: ...
    def score(self) -> list[Moments]: ...
    def learn(self, advantages: Moments) -> list[dict[str, float]]: ...
    def publish(self, observations: Moments) -> None: ...
    def close(self) -> None: ...


def measure() -> dict[str, float]:
    """Return the ratios, by key."""
    with local_cluster(MOST_WORKERS + 1):
        results = _identities()
        results |= _weak_scaling()
        results |= _streaming_gain()
        results |= _overhead()
    return results


def _identities() -> dict[str, float]:
    """Two workers on either side."""
    makers: dict[str, Callable[[], _Placement]] = {
        "colocated": lambda: Colocated(sleeping_replicas(NAPS), 2, env_steps=2),
        "overlapped": lambda: Overlapped(_pools(NAPS, sims=2, learners=2)),
        "disaggregated": lambda: Disaggregated(_pools(NAPS, sims=2, learners=2), max_staleness=1),
    }
    stages = StageCurves(
        simulate=_flat(NAPS.simulate), infer=_flat(NAPS.infer), score=_flat(NAPS.score), update=_flat(NAPS.learn)
    )
    results: dict[str, float] = {}
    for kind, make in makers.items():
        candidate = Candidate(kind=kind, sims=2, learners=2)  # pyright: ignore[reportArgumentType] the keys are kinds
        predicted = predict(candidate, {"cpu": stages}, num_envs=2).step_seconds
        results[f"placement_{kind}_over_identity"] = _step_seconds(make) / predicted
    return results


def _weak_scaling() -> dict[str, float]:
    """As many chunks an update as workers: n workers do n times the work, in the time of one at best."""
    naps = Naps(simulate=0.3, learn=0.1)
    seconds = {
        count: _step_seconds(lambda count=count: Disaggregated(_pools(naps, sims=count), max_staleness=1))
        for count in (1, 2, 4, 8, 16)
    }
    return {f"placement_weak_scaling_{count}": seconds[1] / seconds[count] for count in seconds if count > 1}


def _streaming_gain() -> dict[str, float]:
    """Chunks of which one in five takes twice as long: lock step waits for it, streaming does not."""
    lock_step = _step_seconds(lambda: Overlapped(_pools(UNEVEN, sims=8)), steps=20)
    streamed = _step_seconds(lambda: Disaggregated(_pools(UNEVEN, sims=8), max_staleness=2), steps=20)
    return {"placement_streaming_over_lock_step": lock_step / streamed}


def _overhead() -> dict[str, float]:
    """Of one worker, where the controller's part is the largest."""
    preset = preset_of(TASK)
    config = TrainConfig(
        task=TASK,
        robot=None,
        engine="mujoco",
        seed=0,
        num_envs=NUM_ENVS,
        num_workers=1,
        command_delay=(0.0, 0.02),
        delays=None,
        randomization=None,
        model=preset.model,
        placement=PlacementConfig(),
        algorithm=preset.algorithm,
    )
    alone = Worker(config, 0, lambda vector: None)

    def iterate() -> None:
        collected = alone.collect()
        alone.learn(merge([alone.score()]))
        alone.publish(collected.observations)

    (iteration,) = medians([iterate], SECONDS)
    step = _step_seconds(lambda: Colocated(sleeping_replicas(Naps()), 1, env_steps=1), steps=50)
    return {"placement_overhead_share": step / (step + iteration)}


def _iterate(placement: _Placement) -> None:
    """As the controller does it."""
    collected = placement.collect()
    placement.learn(merge(placement.score()))
    placement.publish(merge(each.observations for each in collected))


def _pools(naps: Naps, *, sims: int, learners: int = 1) -> Pools:
    return Pools(
        sims=sleeping_sims(naps),
        learners=sleeping_learners(naps),
        num_sims=sims,
        num_learners=learners,
        chunks_per_update=sims,
    )


def _flat(seconds: float) -> Curve:
    """Of a stage that sleeps as long however much there is to do."""
    return Curve(sizes=(1.0, 2.0), seconds=(seconds, seconds))


def _step_seconds(make: Callable[[], _Placement], steps: int = 0) -> float:
    """Return the median time of a step; of many, their mean."""
    placement = make()
    spent: list[float] = []
    for _ in range(WARM_UP + (steps or STEPS)):
        began = time.perf_counter()
        _iterate(placement)
        spent.append(time.perf_counter() - began)
    placement.close()
    return statistics.fmean(spent[WARM_UP:]) if steps else statistics.median(spent[WARM_UP:])


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:<40} {value:.3f}")
