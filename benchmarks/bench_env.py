"""What an environment adds to the physics: a whole control step against the bare `Batch.step` of the same batch.

A control step is everything that training needs of it: action mapping, delayed commands, measurement with noise,
observation, reward, terminations and restarts. Both calls advance the same simulations by the same physics steps on the
same threads, and alternate, so that states and whatever else the machine does meet both. The figure is the bare call's
share of the control step's time; the bar is 0.70.

*Randomized* also draws each episode's masses, friction and command delay; delays that end between two control steps
divide the call of `Batch.step` into several.
"""

from __future__ import annotations

import statistics
from typing import Final

from sim2real import __version__
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.bench_sim import alternate

__all__ = ["measure"]

NUM_ENVS: Final = 1024


def measure() -> dict[str, float]:
    """Return shares, and the rate of whole control steps."""
    nominal, nominal_rate = _share(None)
    randomized, randomized_rate = _share(_ranges())
    return {
        "env_step_over_bare_batch_step_1024": nominal,
        "env_step_over_bare_batch_step_1024_randomized": randomized,
        "env_steps_per_second_1024": nominal_rate,
        "env_steps_per_second_1024_randomized": randomized_rate,
    }


def _share(ranges: RandomizationFile | None) -> tuple[float, float]:
    """Return median bare time over median control-step time, and control steps of all environments per second."""
    env = TaskEnv(get_task("pendulum-swingup"), NUM_ENVS, seed=0, randomization=ranges, num_threads=1, stagger=True)
    whole, bare, _ = alternate(env, seconds=6.0, seed=0)
    step = statistics.median(whole)
    return statistics.median(bare) / step, NUM_ENVS / (step * 1e-9)


def _ranges() -> RandomizationFile:
    def uniform(name: str, unit: str, low: float, high: float) -> ParameterRange:
        return ParameterRange(
            name=name,
            unit=unit,
            nominal=low,
            low=low,
            high=high,
            operation="set",
            distribution="uniform",
            identified=False,
            how="About what calibration finds.",
            delays="command" if name == COMMAND_DELAY else None,
        )

    return RandomizationFile(
        schema_version=2,
        robot="pendulum",
        toolkit_version=__version__,
        parameters=(
            uniform("mass", "kg", 0.65, 0.82),
            uniform("armature", "kg·m²", 0.0005, 0.01),
            uniform("damping", "N·m·s/rad", 0.0, 0.03),
            uniform("frictionloss", "N·m", 0.08, 0.45),
            uniform(COMMAND_DELAY, "s", 0.0, 0.02),
        ),
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )
