"""Gymnasium's HalfCheetah-v5 through this toolkit (`half_cheetah.py`), beside EnvPool's and beside the bare physics.

All have the same frame skip; steps of ours and Gymnasium's are compared first. Two threads, random actions. The bars:
1.4 times as many steps as EnvPool; 0.85 of the bare physics.
"""

from __future__ import annotations

import statistics
from typing import Final

from half_cheetah import TASK, check_parity
from timing import BLOCK, env_steps, medians, pool_steps

from sim2real.tasks import TaskEnv
from sim2real.tasks.bench_sim import alternate

__all__ = ["measure"]

NUM_ENVS: Final = 1024
THREADS: Final = 2


def measure() -> dict[str, float]:
    """Return ratios, and rates of whole control steps."""
    check_parity()
    env = TaskEnv(TASK, NUM_ENVS, seed=0, num_threads=THREADS, stagger=True)
    whole, bare, _ = alternate(env, seconds=10.0, seed=0)
    with pool_steps("HalfCheetah-v5", NUM_ENVS, THREADS) as theirs:
        our_time, their_time = medians([env_steps(env), theirs], seconds=10.0)
    return {
        "halfcheetah_env_step_over_bare_batch_step": statistics.median(bare) / statistics.median(whole),
        "halfcheetah_env_step_over_envpool": their_time / our_time,
        "halfcheetah_env_steps_per_second": NUM_ENVS * BLOCK / our_time,
        "envpool_halfcheetah_steps_per_second": NUM_ENVS * BLOCK / their_time,
    }
