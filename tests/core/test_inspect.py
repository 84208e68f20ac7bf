"""`sim2real inspect` shows the whole contract, with the numbers that the robot will use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from sim2real.bundle import write_bundle
from sim2real.contract import PolicyContract, encode_contract
from sim2real.errors import BundleError, InputError
from sim2real.inspect import InspectArgs, run_inspect
from sim2real.observation import ObservationBuilder
from sim2real.signing import generate_signing_key, load_signing_key
from tests.core.strategies import contracts, model_without_graph, pendulum_contract, random_golden

PENDULUM = pendulum_contract()


def _write(path: Path, contract: PolicyContract = PENDULUM, key: Path | None = None) -> Path:
    write_bundle(
        path,
        contract=contract,
        models={"float32": model_without_graph(encode_contract(contract))},
        golden=random_golden(contract),
        created_by="test",
        signing_key=load_signing_key(key) if key else None,
    )
    return path


def _section(summary: str, title: str) -> list[str]:
    """Return the lines of the table whose title begins with `title`."""
    return next(part.splitlines() for part in summary.split("\n\n") if part.startswith(title))


@settings(max_examples=25, deadline=None)
@given(contract=contracts(extreme=True))
def test_shows_every_joint_number_in_full(contract: PolicyContract, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = _write(tmp_path_factory.getbasetemp() / "inspect.s2r", contract)
    shown = run_inspect(InspectArgs(bundle=path)).summary
    rows = _section(shown, "joints")[2:]
    for joint, row in zip(contract.joints, rows, strict=True):
        limits = "endless" if joint.position_limits is None else f"[{joint.position_limits[0]!r}, "
        numbers = (joint.default_position, joint.velocity_limit, joint.effort_limit, joint.kp, joint.kd)
        assert limits in row
        assert [cell for cell in row.split() if cell in map(repr, numbers)] == [repr(number) for number in numbers]
    assert contract.identity.checkpoint_sha256 in shown


@settings(max_examples=25, deadline=None)
@given(contract=contracts())
def test_index_ranges_are_those_of_the_observation(
    contract: PolicyContract, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _write(tmp_path_factory.getbasetemp() / "ranges.s2r", contract)
    rows = _section(run_inspect(InspectArgs(bundle=path)).summary, "observation")[2:]
    # An observation whose values are their own indices, taken apart by the code that the robot runs.
    numbered = np.arange(contract.model.observation_size, dtype=np.float32)[None]
    frames = ObservationBuilder(contract, 1).split(numbered)
    for term, row in zip(contract.observation.terms, rows, strict=True):
        ranges = [cell.split(":") for cell in row.split(f"  {term.name}")[0].split()]
        shown = [index for start, stop in ranges for index in range(int(start), int(stop))]
        assert shown == frames[term.name].ravel().tolist()


@settings(max_examples=25, deadline=None)
@given(contract=contracts(extreme=True))
def test_result_is_the_whole_contract(contract: PolicyContract, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = _write(tmp_path_factory.getbasetemp() / "result.s2r", contract)
    result = msgspec.json.decode(msgspec.json.encode(run_inspect(InspectArgs(bundle=path)).result))
    assert msgspec.json.encode(msgspec.convert(result["contract"], PolicyContract)) == encode_contract(contract)
    assert [member["name"] for member in result["manifest"]["members"]] == [
        "contract.json",
        "golden.npz",
        "policy.float32.onnx",
    ]


def test_says_whether_the_signer_is_known(tmp_path: Path) -> None:
    public_key = generate_signing_key(tmp_path / "key")
    generate_signing_key(tmp_path / "other")
    path = _write(tmp_path / "policy.s2r", key=tmp_path / "key")
    assert f"{public_key}\n                 integrity only" in run_inspect(InspectArgs(bundle=path)).summary
    known = run_inspect(InspectArgs(bundle=path, trust=(tmp_path / "other.pub", tmp_path / "key.pub")))
    assert f"{public_key}\n                 trusted" in known.summary
    assert known.result["signature"].trusted
    with pytest.raises(BundleError, match=f"got {public_key}"):
        run_inspect(InspectArgs(bundle=path, trust=(tmp_path / "other.pub",)))
    with pytest.raises(InputError, match=r"none\.pub: cannot be read"):
        run_inspect(InspectArgs(bundle=path, trust=(tmp_path / "none.pub",)))


def _command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "sim2real.cli", "inspect", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_command_prints_tables_or_json_and_refuses_a_truncated_bundle(tmp_path: Path) -> None:
    path = _write(tmp_path / "policy.s2r")
    table = _command(path)
    assert (table.returncode, table.stderr) == (0, "")
    assert "  0      pivot  2.5    0.0     -" in table.stdout.splitlines()
    plain = _command(path, "--json")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert json.loads(plain.stdout)["contract"]["timing"]["control_period_ns"] == 10_000_000
    path.write_bytes(path.read_bytes()[:-100])
    refused = _command(path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith("bytes have no end record; copy it again\n")
    assert refused.stderr.count("\n") == 1
