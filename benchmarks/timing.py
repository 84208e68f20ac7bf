"""Steps that take turns, so that whatever else the machine does meets them all; and EnvPool's environments."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Generator
from typing import Any, Final

import numpy as np

from sim2real.extras import require
from sim2real.tasks import TaskEnv
from sim2real.tasks.bench_sim import random_actions

__all__ = ["Step", "env_steps", "medians", "pool_steps"]

Step = Callable[[], object]

BLOCK: Final = 8
"""Control steps that are timed together."""
WARM_UP: Final = 2
FEWEST: Final = 7


def medians(blocks: list[Step], seconds: float) -> list[float]:
    """Return the median time [s] of each of `blocks`, which take turns for about `seconds`."""
    spent: list[list[float]] = [[] for _ in blocks]
    for block in blocks * WARM_UP:
        block()
    end = time.perf_counter() + seconds
    while len(spent[0]) < FEWEST or time.perf_counter() < end:
        for block, times in zip(blocks, spent, strict=True):
            began = time.perf_counter()
            block()
            times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in spent]


def env_steps(env: TaskEnv, count: int = BLOCK) -> Step:
    """Return what steps our environments `count` times under random actions."""
    actions = random_actions(env, seed=0)

    def block() -> None:
        for number in range(count):
            env.step(actions[number % len(actions)])

    return block


@contextlib.contextmanager
def pool_steps(env_id: str, num_envs: int, num_threads: int) -> Generator[Step]:
    """Give what steps as many of EnvPool's environments `BLOCK` times under random actions.

    EnvPool keeps 50 MB for each environment of some kinds; they are freed at the end.
    """
    envs: Any = require("envpool", "envpool").make(
        env_id, env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=0
    )
    envs.reset()
    shape = (BLOCK, num_envs, *envs.action_space.shape)
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, shape).astype(envs.action_space.dtype)
    kept = [envs]

    def block() -> None:
        for action in actions:
            kept[0].step(action)

    yield block
    envs.close()
    kept.clear()
