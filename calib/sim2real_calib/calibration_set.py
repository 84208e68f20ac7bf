"""What the quantizer is calibrated with: observations of the policy at work, where it is pushed and where it errs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.layout import observation_names
from sim2real.npz import read_npz, write_npz
from sim2real.randomization import RandomizationFile
from sim2real.tasks import Task, TaskEnv
from sim2real_calib.batch_policy import OnnxBatch

__all__ = [
    "CalibrationSet",
    "Coverage",
    "check_set",
    "coverage_of",
    "decode_set",
    "encode_set",
    "record_set",
]

Array = npt.NDArray[np.float32]

FEWEST: Final = 100
"""Samples from which on a range says something."""
NOISY_SHARE: Final = 0.25
"""Share of the environments whose actions are disturbed: what comes before a fall is seldom seen otherwise."""
DISTURBANCE: Final = 0.5
"""Standard deviation of that disturbance, of actions that a contract clips to ±1."""
_MOVES: Final = 1e-6
"""Least span of an observation that is not constant, in standard deviations of training."""


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """N sequences of T observations."""

    observations: Array
    """Shape (T, N, O), raw."""
    episode_start: npt.NDArray[np.bool_]
    """Shape (T, N); where the recurrent state is reset before the step."""

    @property
    def samples(self) -> int:
        """T × N."""
        return self.episode_start.size


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What a calibration set has seen of one number of the observation."""

    name: str
    """Term and index, e.g. ``velocity[3]``."""
    low: float
    high: float
    clipped: float
    """Share of the samples that the policy's normaliser clips."""
    constant: bool


def record_set(
    onnx_file: bytes,
    contract: PolicyContract,
    task: Task,
    *,
    num_envs: int,
    steps: int,
    seed: int,
    randomization: RandomizationFile | None,
    progress: Callable[[], object],
) -> CalibrationSet:
    """Let the float32 policy act under training's pushes, noise and ranges; a quarter of it with disturbed actions.

    Args:
        onnx_file: The float32 policy.
        contract: Its contract.
        task: What it does.
        num_envs: N.
        steps: T.
        seed: Seeds everything that is drawn.
        randomization: Ranges that each episode's plant is drawn from; None: the nominal plant.
        progress: Called after each step.
    """
    events = task.events if task.training_events is None else task.training_events
    env = TaskEnv(
        msgspec.structs.replace(task, events=events), num_envs, seed=seed, randomization=randomization, stagger=True
    )
    policy, rng = OnnxBatch(onnx_file, contract.model), np.random.default_rng(seed)
    disturbed = np.arange(num_envs) < round(NOISY_SHARE * num_envs)
    observations = np.empty((steps, num_envs, env.observation_size), np.float32)
    starts = np.zeros((steps, num_envs), np.bool_)
    starts[0] = True
    policy.reset(num_envs)
    for step in range(steps):
        observations[step] = env.observation
        action = policy.act(env.observation)
        noise = DISTURBANCE * rng.standard_normal(action.shape, np.float32)
        result = env.step(np.where(disturbed[:, None], action + noise, action))
        done = result.terminated | result.truncated
        policy.restart(done)
        if step + 1 < steps:
            starts[step + 1] = done
        progress()
    return CalibrationSet(observations=observations, episode_start=starts)


def check_set(content: CalibrationSet, contract: PolicyContract) -> None:
    """Check a set before anything is calibrated with it.

    Raises:
        InputError: It is not this policy's, is empty, or holds what is no number; the message says where.
    """
    shape, size = content.observations.shape, contract.model.observation_size
    if len(shape) != 3 or shape[2] != size or shape[:2] != content.episode_start.shape or 0 in shape:
        raise InputError(
            f"calibration: expected observations of shape (T, N, {size}) and episode_start of (T, N), got {shape} and "
            f"{content.episode_start.shape}; record them with this policy"
        )
    strange = ~np.isfinite(content.observations)
    if strange.any():
        step, env, element = (int(where[0]) for where in np.nonzero(strange))
        raise InputError(
            f"calibration: {observation_names(contract)[element]} is {content.observations[step, env, element]} in "
            f"step {step} of sequence {env}, and not finite in {int(strange.sum())} places; record it again"
        )
    if content.samples < FEWEST:
        raise InputError(f"calibration: expected at least {FEWEST} samples, got {content.samples}; record more")
    if not content.episode_start[0].all():
        raise InputError("calibration: expected episode_start to be True at step 0 of each sequence; record it again")


def coverage_of(
    content: CalibrationSet, contract: PolicyContract, mean: Array, inverse_std: Array, limit: float
) -> tuple[Coverage, ...]:
    """Return what the set has seen of each number of the observation, beside what training saw.

    Args:
        content: The set.
        contract: Names the observation's numbers.
        mean: What the policy's normaliser takes off, shape (O,).
        inverse_std: What it multiplies by, shape (O,).
        limit: What it clips to, in standard deviations of training.
    """
    rows = content.observations.reshape(-1, content.observations.shape[2])
    normalized = (rows - mean) * inverse_std
    clipped = (np.abs(normalized) > limit).mean(axis=0)
    low, high = rows.min(axis=0), rows.max(axis=0)
    constant = np.ptp(normalized, axis=0) < _MOVES
    return tuple(
        Coverage(
            name=name, low=float(low[i]), high=float(high[i]), clipped=float(clipped[i]), constant=bool(constant[i])
        )
        for i, name in enumerate(observation_names(contract))
    )


def encode_set(content: CalibrationSet) -> bytes:
    """Return the set as ``calibration.npz``."""
    return write_npz({"observations": content.observations, "episode_start": content.episode_start})


def decode_set(content: bytes) -> CalibrationSet:
    """Read a ``calibration.npz``.

    Raises:
        InputError: It is none.
    """
    arrays: Mapping[str, npt.NDArray[np.generic]] = read_npz(content, finite=False)
    try:
        observations, starts = arrays["observations"], arrays["episode_start"]
    except KeyError as error:
        raise InputError(f"calibration: expected the arrays observations and episode_start, got no {error}") from error
    if observations.dtype != np.float32 or starts.dtype != np.bool_:
        raise InputError(
            f"calibration: expected float32 observations and bool episode_start, got {observations.dtype} and "
            f"{starts.dtype}"
        )
    return CalibrationSet(observations=observations, episode_start=starts)  # pyright: ignore[reportArgumentType]
