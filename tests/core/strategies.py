"""Contracts and measurements to test with: one fixed pendulum, and random ones of every shape the schema allows.

One generator serves both hypothesis (which draws and shrinks through `st.randoms`) and plain seeded loops that need
more examples than hypothesis has time for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from sim2real.contract import (
    SCHEMA_VERSION,
    Action,
    DeadlineLadder,
    Fallback,
    Identity,
    Joint,
    LatencyBudget,
    Model,
    Observation,
    ObservationTerm,
    PolicyContract,
    Safety,
    StageBudget,
    Timing,
)
from sim2real.golden import MIN_GOLDEN_STEPS, Golden
from sim2real.layout import SignalLayout, command_shape
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from tests.core.contract_generator import ContractGenerator

__all__ = [
    "contracts",
    "model_without_graph",
    "pendulum_contract",
    "random_contract",
    "random_golden",
    "random_measurements",
    "with_field",
]

Part = TypeVar("Part", bound=msgspec.Struct)


def pendulum_contract() -> PolicyContract:
    """Return the contract of a torque-controlled pendulum that turns without end, 100 Hz, observing sin, cos, speed."""
    terms = (
        _term("sin", "joint_pos", ("pivot",), "joint", function="sin"),
        _term("cos", "joint_pos", ("pivot",), "joint", function="cos"),
        _term("speed", "joint_vel", ("pivot",), "joint", scale=(0.1,)),
    )
    joint = Joint(
        name="pivot",
        axis_sign=1,
        position_limits=None,
        velocity_limit=30.0,
        effort_limit=2.5,
        default_position=0.0,
        command_mode="effort",
        kp=0.0,
        kd=0.0,
    )
    return PolicyContract(
        schema_version=SCHEMA_VERSION,
        identity=Identity(
            task="pendulum-swingup",
            robot="pendulum",
            toolkit_version="0.1.0",
            checkpoint_sha256="0" * 64,
            config_sha256="f" * 64,
        ),
        timing=Timing(control_period_ns=10_000_000, physics_step_ns=2_000_000, decimation=5),
        joints=(joint,),
        observation=Observation(terms=terms, layout="term_major", history_order="oldest_first", startup_fill="first"),
        action=Action(
            mode="absolute", joints=("pivot",), scale=(2.5,), offset=(0.0,), clip=(-1.0, 1.0), rate_limit=None
        ),
        commands=(),
        model=Model(observation_name="obs", observation_size=3, action_name="action", action_size=1, recurrent=()),
        safety=Safety(
            stale_timeout_ns=30_000_000,
            on_stale="hold",
            on_non_finite="damp",
            on_position_limit="damp",
            position_margin=0.1,
            on_velocity_limit="damp",
            on_effort_limit="damp",
            effort_margin=0.5,
            max_tilt=None,
            on_tilt="damp",
            deadline_ladder=DeadlineLadder(hold_after=2, damp_after=5, stop_after=20),
            recover_after=5,
            fallback=Fallback(hold_kp=(4.0,), hold_kd=(0.2,), damp_kd=(0.1,)),
        ),
        latency=LatencyBudget(
            stages=(StageBudget(stage="infer", p50_ns=200_000, p99_ns=500_000, p999_ns=1_000_000, max_ns=5_000_000),),
            end_to_end=StageBudget(
                stage="end_to_end", p50_ns=3_000_000, p99_ns=6_000_000, p999_ns=10_000_000, max_ns=20_000_000
            ),
            max_deadline_miss_rate=0.01,
            max_action_age_ns=30_000_000,
        ),
    )


def with_field(part: Part, path: str, value: object) -> Part:
    """Return a contract, or a part of one, with `value` at `path`, e.g. ``joints[0].kp``; nothing is checked."""
    steps = [int(index) if index else name for name, index in re.findall(r"([a-z_0-9]+)(?!\])|\[(\d+)\]", path)]
    return _replaced(part, steps, value)


def _replaced(part: Any, steps: Sequence[int | str], value: object) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        return (*part[:step], _replaced(part[step], rest, value), *part[step + 1 :])
    return msgspec.structs.replace(part, **{step: _replaced(getattr(part, step), rest, value)})


def contracts(*, extreme: bool = False) -> st.SearchStrategy[PolicyContract]:
    """Strategy of valid contracts; see `random_contract`."""
    return st.randoms(use_true_random=False).map(lambda rng: random_contract(rng, extreme=extreme))


def random_measurements(rng: np.random.Generator, contract: PolicyContract, rows: int) -> npt.NDArray[np.float64]:
    """Return finite measurements, shape (rows, SignalLayout.size), with unit quaternions and unit gravity."""
    layout = SignalLayout(contract)
    values = rng.normal(size=(rows, layout.size))
    for name in ("base_quat", "projected_gravity"):
        if name in layout.slices:
            block = values[:, layout.slices[name]]
            block /= np.linalg.norm(block, axis=1, keepdims=True)
    return values


def random_golden(contract: PolicyContract, *, steps: int = MIN_GOLDEN_STEPS, seed: int = 0) -> Golden:
    """Return golden vectors of the right shapes whose numbers mean nothing; three episodes."""
    rng = np.random.default_rng(seed)
    return Golden(
        signals=random_measurements(rng, contract, steps),
        commands=rng.normal(size=(steps, len(contract.commands))),
        episode_start=np.arange(steps) % (steps // 3 + 1) == 0,
        observations=rng.normal(size=(steps, contract.model.observation_size)).astype(np.float32),
        actions=rng.normal(size=(steps, contract.model.action_size)).astype(np.float32),
        targets=rng.normal(size=(steps, *command_shape(contract))),
    )


def model_without_graph(text: bytes, key: str = CONTRACT_METADATA_KEY) -> bytes:
    """Return the bytes of an ONNX ``ModelProto`` with nothing but ir_version 10 and one metadata entry."""
    entry = _string_field(1, key.encode()) + _string_field(2, text)
    return b"\x08\x0a" + _string_field(14, entry)


def _string_field(number: int, content: bytes) -> bytes:
    length, encoded = len(content), bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + content


def random_contract(rng: random.Random, *, extreme: bool = False) -> PolicyContract:
    """Return a random valid contract.

    Args:
        rng: Source of every choice.
        extreme: Draw floats from the whole of float64 (subnormals, -0.0, the largest); otherwise from ranges in which
            observations and commands can be computed without overflow.
    """
    return ContractGenerator(rng, extreme).contract()


def _term(name: str, source: str, joints: tuple[str, ...], frame: str, **changes: Any) -> ObservationTerm:
    plain = ObservationTerm(
        name=name,
        source=source,
        joints=joints,
        function="identity",
        offset=(0.0,) * len(joints),
        scale=(1.0,) * len(joints),
        clip=None,
        history_length=1,
        history_stride=1,
        quaternion=None,
        frame=frame,
    )
    return msgspec.structs.replace(plain, **changes)
