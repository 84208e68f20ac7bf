"""PPO on HalfCheetah, collecting and learning: our trainer beside four others, same network, batch and passes.

Ours steps our own `half_cheetah` task; a PPO in CleanRL's manner, rsl_rl's and stable-baselines3's step EnvPool's, and
RLlib's two env runners Gymnasium's. Two cores. Each trainer lives in a process of its own, with one or two of PyTorch's
threads, whichever was faster in a trial; then all take turns. Figures are of the median turn, without warm-up.

The bars: 2 times as many environment steps as in CleanRL's manner and as rsl_rl, 2.5 times stable-baselines3, 4 times
RLlib. A library that is not installed (`pip install 'sim2real[bench]'`) leaves its figures out.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Final

from ppo_settings import SAMPLES
from timing import Step, medians
from turns import Contender, contender

__all__ = ["measure"]

OURS: Final = "ours"
TRAINERS: Final[Mapping[str, str]] = {
    OURS: "ppo_ours",
    "cleanrl_envpool": "ppo_cleanrl",
    "rsl_rl": "ppo_rsl_rl",
    "sb3": "ppo_sb3",
    "rllib": "ppo_rllib",
}
"""Names, as they are in the figures, and modules."""
SECONDS: Final = 90.0
ITERATIONS: Final = 2
"""In each turn."""
THREADS: Final = (1, 2)
"""Numbers of PyTorch's threads that each may choose from; simulators have two in any case."""
TRIALS: Final = 4


def measure() -> dict[str, float]:
    """Return ratios, and rates of environment steps that were collected and learned from."""
    rates = {name: ITERATIONS * SAMPLES / seconds for name, seconds in turn_times().items()}
    ours = rates[OURS]
    ratios = {f"train_halfcheetah_over_{name}": ours / rate for name, rate in rates.items() if name != OURS}
    return ratios | {f"train_halfcheetah_{name}_steps_per_second": rate for name, rate in rates.items()}


def turn_times() -> dict[str, float]:
    """Return the median time [s] of a turn of each trainer that is installed."""
    turns: dict[str, Step] = {}
    with contextlib.ExitStack() as processes:
        for name, module in TRAINERS.items():
            if trainer := started(name, module, processes):
                turns[name] = trainer.block(fastest(trainer), ITERATIONS)
        return dict(zip(turns, medians(list(turns.values()), SECONDS), strict=True))


def started(name: str, module: str, processes: contextlib.ExitStack) -> Contender | None:
    """Return the trainer of `module` in a process that ends with `processes`; None where its library is missing."""
    try:
        return processes.enter_context(contender(module))
    except ImportError as error:
        if name == OURS:
            raise
        print(f"train_halfcheetah_over_{name}: left out: {error}", file=sys.stderr, flush=True)
        return None


def fastest(trainer: Contender) -> int:
    """Return the number of threads with which `trainer` had the shortest iteration."""
    best: dict[int, float] = {}
    for threads in THREADS:
        iteration = trainer.block(threads, 1)
        iteration()
        best[threads] = min(_seconds(iteration) for _ in range(TRIALS))
    return min(best, key=best.__getitem__)


def _seconds(step: Step) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
