"""A recorded run where no plant of ours is known: measurements that wander through all that the contract allows."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.contract import PolicyContract
from sim2real.golden import Golden
from sim2real.layout import SignalLayout
from sim2real.signals import SIGNALS
from sim2real_train.evaluate import BatchPolicy
from sim2real_train.golden_run import GoldenRecorder

__all__ = ["record_wandering"]

_SMOOTHING: Final = 0.9
"""Of the walk that a measurement takes: it moves on by a tenth of its range's width, as a robot's does."""
_FREE_RANGE: Final = np.pi
"""Range [rad] of joints that turn without end."""
_RANGES: Final = {"base_ang_vel": 3.0, "base_lin_vel": 2.0, "base_lin_acc": 15.0}
"""Of measurements of the base, in their units, to both sides."""


def record_wandering(policy: BatchPolicy, contract: PolicyContract, *, steps: int, seed: int) -> Golden:
    """Record what `policy` answers to measurements and commands within the contract's limits, in two episodes."""
    rng = np.random.default_rng(seed)
    layout = SignalLayout(contract)
    walks = rng.uniform(-1.0, 1.0, (steps, layout.size + len(contract.commands)))
    for step in range(1, steps):
        walks[step] = _SMOOTHING * walks[step - 1] + (1.0 - _SMOOTHING) * 3.0 * walks[step]
    walks = np.clip(walks, -1.0, 1.0)
    signals = np.empty((steps, layout.size))
    for name, columns in layout.slices.items():
        signals[:, columns] = _signal(name, walks[:, columns], contract)
    low, high = (np.array([getattr(each, end) for each in contract.commands]) for end in ("low", "high"))
    commands = low + 0.5 * (walks[:, layout.size :] + 1.0) * (high - low)
    recorder = GoldenRecorder(policy, contract, steps)
    for step in range(steps):
        recorder.record(signals[step], commands[step], starts=step in (0, steps // 2))
    return recorder.golden


def _signal(name: str, walk: npt.NDArray[np.float64], contract: PolicyContract) -> npt.NDArray[np.float64]:
    """Turn walks within ±1 into one signal."""
    joints = contract.joints
    if name == "joint_pos":
        low = np.array([(each.position_limits or (-_FREE_RANGE, _FREE_RANGE))[0] for each in joints])
        high = np.array([(each.position_limits or (-_FREE_RANGE, _FREE_RANGE))[1] for each in joints])
        return low + 0.5 * (walk + 1.0) * (high - low)
    if name == "joint_vel":
        return walk * np.array([each.velocity_limit for each in joints])
    if name == "joint_effort":
        return walk * np.array([each.effort_limit for each in joints])
    if name in _RANGES:
        return walk * _RANGES[name]
    # A direction or an orientation, mostly upright: of length 1.
    assert SIGNALS[name].unit == "1", name
    upright = np.zeros(walk.shape[1])
    upright[0 if name == "base_quat" else 2] = 1.0 if name == "base_quat" else -1.0
    vectors = upright + 0.4 * walk
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
