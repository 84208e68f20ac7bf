"""The proof that an exported policy computes what was trained: over sequences, from raw measurements.

One step shows little: an export with the wrong gate order, without the normaliser, or that forgets its state can look
right in it. So whole sequences are compared, with each side feeding its own recurrent state back.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.bundle import write_bundle
from sim2real.contract import PolicyContract
from sim2real.golden import Golden
from sim2real.observation import ObservationBuilder
from sim2real_train.evaluate import BatchPolicy
from sim2real_train.policy import OnnxPolicy

__all__ = ["SEQUENCE_STEPS", "TOLERANCE", "Parity", "prove"]

TOLERANCE: Final = 1e-5
"""Largest difference |got − trained| / max(1, |trained|) of any action of any step."""
SEQUENCE_STEPS: Final = 200
_SEED: Final = 20_170_704


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison with the trainer's own network."""

    engine: str
    """What was compared."""
    measurements: str
    """Where they came from."""
    steps: int
    error: float
    """Largest |got − trained| / max(1, |trained|)."""
    where: str
    """Which action, of which step."""
    tolerance: float = TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether every action of every step is within the tolerance."""
        return self.error <= self.tolerance


def prove(
    trained: BatchPolicy,
    contract: PolicyContract,
    onnx: bytes,
    golden: Golden,
    *,
    measurements: str = "the task in simulation",
) -> tuple[Parity, ...]:
    """Compare the ONNX file with the trained policy, on plain ONNX Runtime and on the robot's engine.

    Args:
        trained: What was trained, as its trainer computes it.
        contract: Its contract.
        onnx: The exported file.
        golden: A run recorded with `trained`.
        measurements: Where those of `golden` came from.
    """
    onnx_policy = OnnxPolicy(onnx, contract.model)
    wide = _wide_measurements(contract, golden.signals)
    starts = np.zeros(len(wide), np.bool_)
    starts[0] = True
    comparisons = ((measurements, golden.signals, golden.episode_start), ("ten times wider", wide, starts))
    found: list[Parity] = []
    for name, signals, begins in comparisons:
        error, where = _error(
            contract,
            _replay(onnx_policy, contract, signals, begins),
            _replay(trained, contract, signals, begins),
        )
        found.append(Parity(engine="onnxruntime", measurements=name, steps=len(signals), error=error, where=where))
    return (*found, _edge_parity(contract, onnx, golden, measurements))


def _wide_measurements(contract: PolicyContract, signals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Measurements that reach far beyond what training saw, so that the normaliser's clip takes part."""
    rng = np.random.default_rng(_SEED)
    spread = 10.0 * np.maximum(np.abs(signals).max(axis=0), 1.0)
    return rng.uniform(-spread, spread, (SEQUENCE_STEPS, signals.shape[1]))


def _replay(
    policy: BatchPolicy,
    contract: PolicyContract,
    signals: npt.NDArray[np.float64],
    episode_start: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float32]:
    """Return the actions, shape (T, A), of a policy that sees these measurements, shape (T, S)."""
    builder = ObservationBuilder(contract, 1)
    actions = np.zeros((len(signals), contract.model.action_size), np.float32)
    for step, (measured, starts) in enumerate(zip(signals, episode_start, strict=True)):
        builder.signals[0] = measured
        builder.last_action[0] = 0.0 if starts else actions[step - 1]
        if starts:
            policy.reset(1)
        actions[step] = policy.act(builder.reset() if starts else builder.update())[0]
    return actions


def _error(
    contract: PolicyContract, got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]
) -> tuple[float, str]:
    """Return the largest error, infinite if one is not finite, and where it is."""
    scale = np.maximum(1.0, np.abs(expected.astype(np.float64)))
    errors = np.abs(got.astype(np.float64) - expected) / scale
    errors[~np.isfinite(errors)] = np.inf
    step, element = np.unravel_index(int(errors.argmax()), errors.shape)
    return float(errors[step, element]), f"{contract.action.joints[int(element)]} in step {int(step)}"


def _edge_parity(contract: PolicyContract, onnx: bytes, golden: Golden, measurements: str) -> Parity:
    """Let the robot's engine replay the golden run from a bundle, as it does before it may drive."""
    from sim2real_edge.engine import load_engine
    from sim2real_edge.golden import replay_golden

    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(
            Path(folder) / "policy.s2r",
            contract=contract,
            models={"float32": onnx},
            golden=golden,
            created_by="sim2real export",
        )
        report = replay_golden(load_engine("onnxruntime-cpu", bundle), bundle)
    error = max(report.observation_error, report.action_error, report.target_error)
    return Parity(
        engine=f"edge, {report.engine}",
        measurements=measurements,
        steps=report.steps,
        error=error if report.passed or error > TOLERANCE else float("inf"),
        where=f"step {report.worst_step}",
    )
