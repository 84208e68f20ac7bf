"""Where a PPO iteration's time goes: one worker, one thread, the command's default settings.

The shares of collecting (simulation and inference), scoring (values and advantages), learning and publishing (the
normaliser) add up to 1. Ray takes no part: what it adds is a call each, some hundred microseconds an iteration.
"""

from __future__ import annotations

import time
from typing import Final

from sim2real_train.config import PlacementConfig, TrainConfig
from sim2real_train.moments import merge
from sim2real_train.presets import preset_of
from sim2real_train.worker import Worker

__all__ = ["measure"]

TASK: Final = "pendulum-swingup"
ITERATIONS: Final = 20
WARM_UP: Final = 2


def measure() -> dict[str, float]:
    """Return control steps per second, and the share of each part."""
    preset = preset_of(TASK)
    config = TrainConfig(
        task=TASK,
        robot=None,
        engine="mujoco",
        seed=0,
        num_envs=preset.num_envs,
        num_workers=1,
        command_delay=(0.0, 0.02),
        delays=None,
        randomization=None,
        model=preset.model,
        placement=PlacementConfig(),
        algorithm=preset.algorithm,
    )
    worker = Worker(config, 0, lambda gradient: None)
    for _ in range(WARM_UP):
        _iteration(worker, config)
    parts = [_iteration(worker, config) for _ in range(ITERATIONS)]
    collect, score, learn, publish = (sum(column) for column in zip(*parts, strict=True))
    total = collect + score + learn + publish
    return {
        "train_steps_per_second": ITERATIONS * config.num_envs * config.algorithm.num_steps / total,
        "train_collect_share": collect / total,
        "train_score_share": score / total,
        "train_learn_share": learn / total,
        "train_publish_share": publish / total,
    }


def _iteration(worker: Worker, config: TrainConfig) -> tuple[float, float, float, float]:
    """One iteration; return the seconds that each part took."""
    began = time.perf_counter()
    collected = worker.collect()
    gathered = time.perf_counter()
    advantages = merge([worker.score()])
    scored = time.perf_counter()
    worker.learn(advantages)
    learned = time.perf_counter()
    worker.publish(collected.observations)
    return gathered - began, scored - gathered, learned - scored, time.perf_counter() - learned
