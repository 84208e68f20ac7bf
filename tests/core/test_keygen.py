"""`sim2real keygen`: whole sets of keys, secret where they must be, never replaced. About 0.1 s."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sim2real.curve import CurveKeys
from sim2real.errors import InputError, Sim2RealError
from sim2real.keygen import KeygenArgs, run_keygen
from sim2real.signing import load_public_key, load_signing_key, public_key_of


def test_plant_and_edge_trust_each_other_and_the_signer_is_the_one_announced(tmp_path: Path) -> None:
    outcome = run_keygen(KeygenArgs(tmp_path / "keys"))
    plant, edge = CurveKeys.load(tmp_path / "keys", "plant"), CurveKeys.load(tmp_path / "keys", "edge")
    assert plant.peers == (edge.public,)
    assert edge.peers == (plant.public,)
    signer = public_key_of(load_signing_key(tmp_path / "keys" / "signing.key"))
    assert signer == load_public_key(tmp_path / "keys" / "signing.key.pub") == outcome.result["signing_key"]
    assert signer in outcome.summary


def test_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    run_keygen(KeygenArgs(tmp_path / "keys"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()}
    secrets = {"plant.secret", "edge.secret", "signing.key"}
    assert {name: mode for name, mode in modes.items() if name in secrets} == dict.fromkeys(secrets, 0o600)
    assert all(name in secrets or name.endswith((".public", ".pub")) for name in modes)


def test_no_two_sets_are_alike(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_keygen(KeygenArgs(tmp_path / name))
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() != (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.parametrize("there", ["plant.secret", "signing.key", "anything"])
def test_what_is_there_is_never_replaced(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(InputError, match="never replaced"):
        run_keygen(KeygenArgs(tmp_path))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


def test_a_place_that_cannot_be_written_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Sim2RealError, match="file"):
        run_keygen(KeygenArgs(tmp_path / "file" / "keys"))
    with pytest.raises(InputError, match="file"):
        run_keygen(KeygenArgs(tmp_path / "file"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
