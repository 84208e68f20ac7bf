"""What walking costs: control steps of `go2-velocity-flat` beside the bare physics and beside EnvPool's Go1.

A control step is everything that training needs of it (see `sim2real.tasks.bench_sim`), with the noise, pushes,
commands and critic's observations of the task, under actions drawn anew at each step from all that is allowed: robots
fall, so episodes begin in nearly every step. Two threads. The bars: 0.85 of the bare physics at each number of
environments; twice as many steps as EnvPool's `Go1JoystickFlatTerrain-v1`, which also steps at 50 Hz (5 × 4 ms of
physics, here 4 × 5 ms), with as many environments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from timing import BLOCK, env_steps, medians, pool_steps

from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.bench_sim import BenchSimArgs
from sim2real.tasks.bench_sim import measure as measure_size

__all__ = ["measure"]

TASK: Final = get_task("go2-velocity-flat")
THREADS: Final = 2
SECONDS: Final = {256: 8.0, 1024: 8.0, 4096: 10.0}
"""Time for each number of environments [s]."""
POOL_BYTES: Final = 60e6
"""What EnvPool takes for each environment [bytes]."""
MEMINFO: Final = Path("/proc/meminfo")
FEW: Final = 256
MANY: Final = 8192


def measure() -> dict[str, float]:
    """Return shares, ratios, rates and memory."""
    return _beside_physics() | _beside_envpool() | _linearity()


def _beside_physics() -> dict[str, float]:
    results: dict[str, float] = {}
    for num_envs, seconds in SECONDS.items():
        size = measure_size(TASK, num_envs, BenchSimArgs(task=TASK.name, threads=THREADS, seconds=seconds))
        results[f"go2_env_step_over_bare_batch_step_{num_envs}"] = size.share_of_bare
        results[f"go2_env_steps_per_second_{num_envs}"] = size.steps_per_second
        results[f"go2_kilobytes_per_env_{num_envs}"] = size.memory_per_env / 1024
    return results


def _beside_envpool() -> dict[str, float]:
    """As many of both as there is plenty of memory for, 256 at most."""
    num_envs = 256 if _available_bytes() > 1.3 * 256 * POOL_BYTES else 64
    env = _make_env(num_envs)
    with pool_steps("Go1JoystickFlatTerrain-v1", num_envs, THREADS) as theirs:
        our_time, their_time = medians([env_steps(env), theirs], seconds=8.0)
    return {
        "go2_env_step_over_envpool_go1": their_time / our_time,
        "go2_beside_envpool_num_envs": num_envs,
        "envpool_go1_steps_per_second": num_envs * BLOCK / their_time,
    }


def _available_bytes() -> int:
    available = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


def _linearity() -> dict[str, float]:
    """Time per environment of many beside that of few: as many environment steps of each take turns."""
    few, many = env_steps(_make_env(FEW), count=MANY // FEW), env_steps(_make_env(MANY), count=1)
    time_of_few, time_of_many = medians([few, many], seconds=6.0)
    return {f"go2_seconds_per_env_{MANY}_over_{FEW}": time_of_many / time_of_few}


def _make_env(num_envs: int) -> TaskEnv:
    return TaskEnv(TASK, num_envs, seed=0, num_threads=THREADS, stagger=True)
