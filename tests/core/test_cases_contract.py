"""Public failures of policy inputs and outputs, replayed as kinds on contracts and bundles.

The trackers' threads are named in each test; each check must fail on the old mistake and say what to do.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sim2real.bundle import read_bundle, write_bundle
from sim2real.contract import contract_hash, decode_contract, encode_contract
from sim2real.errors import BundleError, ContractError
from sim2real.signing import generate_signing_key, load_public_key, load_signing_key
from tests.core.strategies import (
    model_without_graph,
    pendulum_contract,
    random_contract,
    random_golden,
    with_field,
)

PHYSICAL = ("scale", "offset", "kp", "kd", "default_position", "control_period_ns", "history_length", "layout", "clip")


@pytest.mark.parametrize("field", PHYSICAL)
def test_case_1_a_policy_without_a_physical_field_is_refused(field: str) -> None:
    """amazon-far/holosoma#125: a shipped policy has no action scale, a changed default makes the robot fall."""
    text = encode_contract(pendulum_contract()).decode()
    assert f'"{field}":' in text
    # Renaming is what an older writer, or one with another name for it, amounts to.
    renamed = text.replace(f'"{field}":', f'"old_{field}":', 1)
    with pytest.raises(
        ContractError, match=rf"^contract\.\S+: object (contains unknown|missing required) field `(old_)?{field}`"
    ):
        decode_contract(renamed.encode())


def test_case_4_a_new_model_beside_an_old_contract_is_refused(tmp_path: Path) -> None:
    """unitreerobotics/unitree_rl_lab#82: a new policy file beside an old deploy file, and the robot crashes."""
    old = pendulum_contract()
    new = with_field(old, "action.scale", (1.25,))
    for name, contract in (("old", old), ("new", new)):
        write_bundle(
            tmp_path / name,
            contract=contract,
            models={"float32": model_without_graph(encode_contract(contract))},
            golden=random_golden(contract),
            created_by="test",
            folder=True,
        )
    (tmp_path / "old/policy.float32.onnx").write_bytes((tmp_path / "new/policy.float32.onnx").read_bytes())
    with pytest.raises(BundleError, match=r"policy\.float32\.onnx: .*; copy or export it again"):
        read_bundle(tmp_path / "old")


def test_case_4_the_same_mix_is_refused_when_somebody_signs_it(tmp_path: Path) -> None:
    """Hashes and a signature bind files to a bundle, not a model to its contract: the model's own metadata does."""
    old = pendulum_contract()
    new = with_field(old, "action.scale", (1.25,))
    generate_signing_key(tmp_path / "key")
    with pytest.raises(
        BundleError, match=r"policy\.float32\.onnx: .*the model belongs to another bundle; export it again"
    ):
        write_bundle(
            tmp_path / "mix.s2r",
            contract=old,
            models={"float32": model_without_graph(encode_contract(new))},
            golden=random_golden(old),
            created_by="test",
            signing_key=load_signing_key(tmp_path / "key"),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.pub"]


def test_case_4_a_whole_bundle_of_another_signer_is_refused(tmp_path: Path) -> None:
    """A consistent bundle from elsewhere is one more way to put the wrong policy on a robot."""
    contract = pendulum_contract()
    for name in ("ours", "theirs"):
        generate_signing_key(tmp_path / name)
    write_bundle(
        tmp_path / "policy.s2r",
        contract=contract,
        models={"float32": model_without_graph(encode_contract(contract))},
        golden=random_golden(contract),
        created_by="test",
        signing_key=load_signing_key(tmp_path / "theirs"),
    )
    ours, theirs = (load_public_key(tmp_path / f"{name}.pub") for name in ("ours", "theirs"))
    assert read_bundle(tmp_path / "policy.s2r", trusted_keys=[ours, theirs]).signature.trusted
    assert not read_bundle(tmp_path / "policy.s2r").signature.trusted
    with pytest.raises(BundleError, match=rf"expected a trusted signer \({ours}\), got {theirs}"):
        read_bundle(tmp_path / "policy.s2r", trusted_keys=[ours])


def test_case_7_ten_thousand_contracts_keep_every_bit() -> None:
    """mjlab, unitree_rl_lab: exporters that write gains with three digits, so kd = 0.0004 becomes 0 on the robot."""
    rng = random.Random(7)
    for _ in range(10_000):
        contract = random_contract(rng, extreme=True)
        text = encode_contract(contract)
        again = decode_contract(text)
        assert repr(again) == repr(contract)
        assert msgspec.json.encode(again) == text


@pytest.mark.parametrize("gain", [0.0004, 5e-324, 1 / 3, 0.1 + 0.2, 1e23, 1.7976931348623157e308])
def test_case_7_a_gain_keeps_its_bits_and_its_neighbour_is_another_contract(gain: float) -> None:
    contract = with_field(pendulum_contract(), "safety.fallback.damp_kd", (gain,))
    assert decode_contract(encode_contract(contract)).safety.fallback.damp_kd == (gain,)
    neighbour = with_field(contract, "safety.fallback.damp_kd", (float(np.nextafter(gain, 0.5)),))
    assert contract_hash(neighbour) != contract_hash(contract)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("observations", "float64", "expected float32 of shape (200, 3), got float64 of shape (200, 3)"),
        ("actions", "float64", "expected float32 of shape (200, 1), got float64 of shape (200, 1)"),
        ("signals", "float32", "expected float64 of shape (200, 3), got float32 of shape (200, 3)"),
        ("targets", "flat", "expected float64 of shape (200, 5, 1), got float64 of shape (1000,)"),
        ("commands", "flat", "expected float64 of shape (200, 0), got float64 of shape (0,)"),
    ],
)
def test_case_8_type_and_shape_are_named(tmp_path: Path, name: str, change: str, told: str) -> None:
    """microsoft/onnxruntime#7340: a float64 observation looks like a crash."""
    contract = pendulum_contract()
    golden = random_golden(contract)
    array = getattr(golden, name)
    wrong = dataclasses.replace(golden, **{name: array.ravel() if change == "flat" else array.astype(change)})
    with pytest.raises(BundleError) as caught:
        write_bundle(
            tmp_path / "policy.s2r",
            contract=contract,
            models={"float32": model_without_graph(encode_contract(contract))},
            golden=wrong,
            created_by="test",
        )
    assert str(caught.value) == f"{tmp_path / 'policy.s2r'}: golden.npz: {name}: {told}; export it again"
    assert list(tmp_path.iterdir()) == []
