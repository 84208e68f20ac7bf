"""The proof that an engine computes the policy that was trained: the bundle's golden run, from raw measurements."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.bundle import Bundle
from sim2real.errors import EngineError
from sim2real.observation import ObservationBuilder
from sim2real_edge.engine import Engine

__all__ = ["GOLDEN_TOLERANCE", "GoldenReport", "replay_golden", "require_golden"]

GOLDEN_TOLERANCE: Final = 1e-5
"""Largest error of any value at any step; see `GoldenReport`."""


class GoldenReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far an engine's run is from the golden one.

    An error is the largest |got − expected| / max(1, |expected|). A target is an action times its scale, and so is its
    error: where the scale is larger than 1, it takes the place of the 1.
    """

    engine: str
    precision: str
    steps: int
    episodes: int
    observation_error: float
    action_error: float
    target_error: float
    """Of the command blocks."""
    first_bad_step: int | None
    """First step at which any error exceeds `tolerance`."""
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether every value of every step is within the tolerance."""
        return self.first_bad_step is None


def replay_golden(engine: Engine, bundle: Bundle) -> GoldenReport:
    """Run the bundle's golden measurements through observation builder, engine and action mapper, and compare.

    The whole sequence is replayed, with the recurrent state and the last action fed back and reset where the golden run
    began an episode: an export that is right in its first step and drifts afterwards does not pass.
    """
    golden, contract = bundle.golden, bundle.contract
    builder, mapper = ObservationBuilder(contract, 1), ActionMapper(contract, 1)
    joint_pos = builder.signals[:, builder.layout.slices["joint_pos"]]
    unit = max(1.0, *map(abs, contract.action.scale))
    errors = np.zeros((len(golden.signals), 3))
    for step, (signals, commands, starts) in enumerate(
        zip(golden.signals, golden.commands, golden.episode_start, strict=True)
    ):
        builder.signals[0], builder.commands[0] = signals, commands
        builder.last_action[:] = 0.0 if starts else engine.action
        if starts:
            mapper.reset(joint_pos)
            engine.reset()
        engine.observation[:] = builder.reset() if starts else builder.update()
        engine.run()
        command = mapper.apply(engine.action)
        errors[step] = (
            _error(engine.observation[0], golden.observations[step]),
            _error(engine.action[0], golden.actions[step]),
            _error(command[0], golden.targets[step], unit),
        )
    # Asked this way round, an error that is not a number is too large.
    bad = np.flatnonzero(~(errors <= GOLDEN_TOLERANCE).all(axis=1))
    observation_error, action_error, target_error = errors.max(axis=0).tolist()
    return GoldenReport(
        engine=engine.name,
        precision=engine.precision,
        steps=len(errors),
        episodes=int(np.count_nonzero(golden.episode_start)),
        observation_error=observation_error,
        action_error=action_error,
        target_error=target_error,
        first_bad_step=int(bad[0]) if len(bad) else None,
        tolerance=GOLDEN_TOLERANCE,
    )


def require_golden(engine: Engine, bundle: Bundle) -> GoldenReport:
    """Return the report of `replay_golden`; the engine is reset and may drive.

    Raises:
        EngineError: The engine does not reproduce the golden run.
    """
    report = replay_golden(engine, bundle)
    if not report.passed:
        raise EngineError(
            f"{bundle.path}: {report.engine} ({report.precision}) does not reproduce the golden run: expected every "
            f"error <= {report.tolerance:g}, got {report.observation_error:.2g} (observation), "
            f"{report.action_error:.2g} (action), {report.target_error:.2g} (target), first at step "
            f"{report.first_bad_step} of {report.steps}; it must not drive: use another --engine, or export again"
        )
    engine.reset()
    return report


def _error(
    got: npt.NDArray[np.float32] | npt.NDArray[np.float64], expected: npt.NDArray[np.floating], unit: float = 1.0
) -> float:
    scale = np.maximum(unit, np.abs(expected.astype(np.float64)))
    return float(np.max(np.abs(got.astype(np.float64) - expected) / scale))
