"""Contracts and commands for tests of plants: of a two-legged robot that measures everything there is."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import ObservationTerm, PolicyContract, Timing
from sim2real.layout import EFFORT, KD, KP, POSITION
from sim2real.signals import SIGNALS, width_of
from tests.core.strategies import pendulum_contract

__all__ = ["DECIMATION", "DT", "commands", "walker_contract"]

DT = 0.005
"""Physics step [s]."""
DECIMATION = 4


def walker_contract(
    *, joints: tuple[str, ...] = ("left", "right"), signals: tuple[str, ...] = tuple(SIGNALS)
) -> PolicyContract:
    """Return a contract of `tests.core.sim_robots.walker` with its joints in this order; nothing is checked."""
    base = pendulum_contract()
    joint, term = base.joints[0], base.observation.terms[0]
    limits = {"effort_limit": 20.0, "velocity_limit": 50.0, "command_mode": "position", "kp": 30.0, "kd": 1.0}
    return msgspec.structs.replace(
        base,
        timing=Timing(control_period_ns=DECIMATION * 5_000_000, physics_step_ns=5_000_000, decimation=DECIMATION),
        joints=tuple(msgspec.structs.replace(joint, name=name, **limits) for name in joints),
        observation=msgspec.structs.replace(
            base.observation, terms=tuple(_term(term, name, joints) for name in signals)
        ),
    )


def _term(plain: ObservationTerm, name: str, joints: tuple[str, ...]) -> ObservationTerm:
    width = width_of(name, len(joints))
    return msgspec.structs.replace(
        plain,
        name=name,
        source=name,
        joints=joints if SIGNALS[name].per_joint else (),
        function="identity",
        offset=(0.0,) * width,
        scale=(1.0,) * width,
        quaternion="wxyz" if name == "base_quat" else None,
        frame=SIGNALS[name].frame,
    )


def commands(rng: np.random.Generator, steps: int, num_envs: int, num_joints: int = 2) -> npt.NDArray[np.float64]:
    """Return random command blocks of every kind, shape (steps, num_envs, 5, num_joints)."""
    blocks = np.zeros((steps, num_envs, 5, num_joints))
    blocks[:, :, POSITION] = rng.uniform(-0.5, 0.5, (steps, num_envs, num_joints))
    blocks[:, :, EFFORT] = rng.uniform(-1.0, 1.0, (steps, num_envs, num_joints))
    blocks[:, :, KP] = rng.uniform(5.0, 30.0, (steps, num_envs, num_joints))
    blocks[:, :, KD] = rng.uniform(0.1, 1.0, (steps, num_envs, num_joints))
    return blocks
