"""Where the time of an iteration went, on the side of the simulators and on that of the learner."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator

from sim2real_train.chunks import Collected

__all__ = ["Stages"]


class Stages:
    """Adds up what happens between two reports.

    Args:
        clock: Seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._busy = 0.0
        self._clear()

    def _clear(self) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._simulation = 0.0
        self._inference = 0.0
        self._env_steps = 0
        self._bytes = 0
        self._staleness: Counter[int] = Counter()

    @contextlib.contextmanager
    def spend(self, stage: str) -> Generator[None]:
        """Count the time of a block to a stage."""
        began = self._clock()
        try:
            yield
        finally:
            self._spent[stage] += self._clock() - began

    def add(self, collected: Collected, *, env_steps: int, staleness: int = 0) -> None:
        """Count a chunk that is learned; it may have been collected before the last report."""
        self._simulation += collected.simulation_seconds
        self._inference += collected.inference_seconds
        self._env_steps += env_steps
        self._staleness[staleness] += 1

    def add_bytes(self, moved: int) -> None:
        """Count what travelled between workers."""
        self._bytes += moved

    def report(self, sim_workers: int, *, busy_seconds: float | None = None) -> dict[str, float]:
        """Return the figures since the last report, and begin anew.

        Args:
            sim_workers: Number of workers that simulate.
            busy_seconds: Time that they have spent on chunks since the run began, all together, those that are not
                finished included; None: on those that were learned, each of them since the last report.

        Returns:
            ``wall_seconds``; ``<stage>_seconds`` of the controller's stages; ``simulation_seconds`` and
            ``inference_seconds`` of the chunks that were learned, the mean over workers; ``sim_idle`` and
            ``learner_idle``, shares of the wall time in which that side had nothing to do; ``env_steps_per_second`` and
            the same of each stage alone; ``moved_bytes``; ``staleness_mean``, ``staleness_max`` and
            ``staleness_<k>``, the number of learned chunks that missed k updates.
        """
        now = self._clock()
        wall = max(now - self._began, 1e-9)
        busy = self._busy_since(busy_seconds)
        workers = max(sim_workers, 1)
        seconds = dict(self._spent) | {
            "simulation": self._simulation / workers,
            "inference": self._inference / workers,
        }
        learner = sum(spent for stage, spent in self._spent.items() if stage != "collect")
        figures = {f"{stage}_seconds": spent for stage, spent in seconds.items()}
        figures |= {
            f"{stage}_env_steps_per_second": self._env_steps / seconds[stage]
            for stage in ("simulation", "inference", "score", "learn")
            if seconds.get(stage, 0.0) > 0.0 and self._env_steps
        }
        figures |= {
            "wall_seconds": wall,
            "env_steps_per_second": self._env_steps / wall,
            "sim_idle": max(0.0, 1.0 - busy / (workers * wall)),
            "learner_idle": max(0.0, 1.0 - learner / wall),
            "moved_bytes": float(self._bytes),
        }
        figures |= self._staleness_figures()
        self._began = now
        self._clear()
        return figures

    def _busy_since(self, total: float | None) -> float:
        """Return how long simulators were busy since the last report, all together [s]."""
        if total is None:
            return self._simulation + self._inference
        before, self._busy = self._busy, total
        return total - before

    def _staleness_figures(self) -> dict[str, float]:
        if not self._staleness:
            return {}
        total = sum(age * count for age, count in self._staleness.items())
        return {
            "staleness_mean": total / self._staleness.total(),
            "staleness_max": float(max(self._staleness)),
            **{f"staleness_{age}": float(count) for age, count in sorted(self._staleness.items())},
        }
