"""The proof that an engine computes the policy that was trained: the bundle's golden run, from raw measurements."""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.bundle import Bundle
from sim2real.contract import PolicyContract
from sim2real.errors import EngineError
from sim2real.golden import Golden
from sim2real.observation import ObservationBuilder
from sim2real_edge.engine import Engine

__all__ = ["GOLDEN_TOLERANCES", "GoldenReport", "replay_golden", "require_golden", "run_golden"]

GOLDEN_TOLERANCES: Final = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.05, "int8": 0.1, "fp8": 0.15}
"""Largest error of any value at any step, by precision; see `GoldenReport`.

Engines add in other orders, so that a number here and there is rounded to the neighbouring code, and what follows from
it differs; one code of FP8 is 6 % wide.
"""


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
    worst_step: int
    """Step of the largest error of any value."""
    first_bad_step: int | None
    """First step at which any error exceeds `tolerance`."""
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether every value of every step is within the tolerance."""
        return self.first_bad_step is None


def run_golden(engine: Engine, bundle: Bundle) -> Golden:
    """Return the golden run with what the engine answers to the same measurements."""
    golden = bundle.golden
    run = _Run(engine, bundle.contract)
    answers = [
        [values.copy() for values in run.step(signals, commands, bool(starts))]
        for signals, commands, starts in zip(golden.signals, golden.commands, golden.episode_start, strict=True)
    ]
    observations, actions, targets = (np.array(column) for column in zip(*answers, strict=True))
    return dataclasses.replace(golden, observations=observations, actions=actions, targets=targets)


def replay_golden(engine: Engine, bundle: Bundle) -> GoldenReport:
    """Run the bundle's golden measurements through observation builder, engine and action mapper, and compare.

    The whole sequence is replayed, with the recurrent state and the last action fed back and reset where the golden run
    began an episode: an export that is right in its first step and drifts afterwards does not pass.
    """
    golden, contract = bundle.goldens[engine.precision], bundle.contract
    tolerance = GOLDEN_TOLERANCES[engine.precision]
    run, unit = _Run(engine, contract), max(1.0, *map(abs, contract.action.scale))
    errors = np.zeros((len(golden.signals), 3))
    for step, (signals, commands, starts) in enumerate(
        zip(golden.signals, golden.commands, golden.episode_start, strict=True)
    ):
        observation, action, command = run.step(signals, commands, bool(starts))
        errors[step] = (
            _error(observation, golden.observations[step]),
            _error(action, golden.actions[step]),
            _error(command, golden.targets[step], unit),
        )
    # Asked this way round, an error that is not a number is too large.
    bad = np.flatnonzero(~(errors <= tolerance).all(axis=1))
    observation_error, action_error, target_error = errors.max(axis=0).tolist()
    return GoldenReport(
        engine=engine.name,
        precision=engine.precision,
        steps=len(errors),
        episodes=int(np.count_nonzero(golden.episode_start)),
        observation_error=observation_error,
        action_error=action_error,
        target_error=target_error,
        worst_step=int(errors.max(axis=1).argmax()),
        first_bad_step=int(bad[0]) if len(bad) else None,
        tolerance=tolerance,
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


class _Run:
    """Observation builder, engine and action mapper, one after the other, with the last action fed back."""

    def __init__(self, engine: Engine, contract: PolicyContract) -> None:
        self._engine = engine
        self._builder, self._mapper = ObservationBuilder(contract, 1), ActionMapper(contract, 1)
        self._joint_pos = self._builder.signals[:, self._builder.layout.slices["joint_pos"]]

    def step(
        self, signals: npt.NDArray[np.float64], commands: npt.NDArray[np.float64], starts: bool
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Return observation, action and command block of one control step; live."""
        builder, engine = self._builder, self._engine
        builder.signals[0], builder.commands[0] = signals, commands
        builder.last_action[:] = 0.0 if starts else engine.action
        if starts:
            self._mapper.reset(self._joint_pos)
            engine.reset()
        engine.observation[:] = builder.reset() if starts else builder.update()
        engine.run()
        return engine.observation[0], engine.action[0], self._mapper.apply(engine.action)[0]


def _error(
    got: npt.NDArray[np.float32] | npt.NDArray[np.float64], expected: npt.NDArray[np.floating], unit: float = 1.0
) -> float:
    scale = np.maximum(unit, np.abs(expected.astype(np.float64)))
    return float(np.max(np.abs(got.astype(np.float64) - expected) / scale))
