"""Bundles that all tests of the edge share."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sim2real.bundle import Bundle
from sim2real.contract import DeadlineLadder
from tests.edge import policies


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The pendulum task's contract and an MLP."""
    return policies.mlp(policies.pendulum_contract()).write(_place(tmp_path_factory, "pendulum"))


@pytest.fixture(scope="session")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The pendulum's policy under a supervisor that overlooks the hiccups of a machine busy with tests."""
    contract = policies.pendulum_contract()
    safety = msgspec.structs.replace(
        contract.safety,
        stale_timeout_ns=1000 * policies.MS,
        deadline_ladder=DeadlineLadder(hold_after=10_000, damp_after=20_000, stop_after=30_000),
    )
    return policies.mlp(msgspec.structs.replace(contract, safety=safety)).write(_place(tmp_path_factory, "patient"))


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A GRU with history."""
    return policies.gru(policies.recurrent_contract()).write(_place(tmp_path_factory, "recurrent"))


@pytest.fixture(scope="session")
def quadruped(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Twelve joints and an MLP."""
    return policies.mlp(policies.quadruped_contract()).write(_place(tmp_path_factory, "quadruped"))


def _place(factory: pytest.TempPathFactory, name: str) -> Path:
    return factory.mktemp(name) / "policy.s2r"
