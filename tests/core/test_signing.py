"""Signatures follow RFC 8032, and secret keys stay secret."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sim2real.errors import InputError
from sim2real.signing import (
    generate_signing_key,
    load_public_key,
    load_signing_key,
    one_time_signing_key,
    public_key_of,
    sign,
    verify,
)

RFC_8032_TEST_3 = (
    "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
    "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    "af82",
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
)


def test_signature_is_that_of_the_standard() -> None:
    secret, public, message, signature = RFC_8032_TEST_3
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    assert public_key_of(key) == public
    assert sign(key, bytes.fromhex(message)).hex() == signature
    assert verify(public, bytes.fromhex(signature), bytes.fromhex(message))


def test_signature_fits_one_message_and_one_key() -> None:
    key, other = one_time_signing_key(), one_time_signing_key()
    signature = sign(key, b"message")
    assert verify(public_key_of(key), signature, b"message")
    assert not verify(public_key_of(key), signature, b"message.")
    assert not verify(public_key_of(other), signature, b"message")
    assert not verify(public_key_of(key), signature[:-1], b"message")


def test_generated_keys_belong_together_and_are_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "signing.key"
    public_key = generate_signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert public_key_of(load_signing_key(path)) == public_key
    assert load_public_key(path.with_name("signing.key.pub")) == public_key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl program here")
def test_openssl_reads_the_keys_and_accepts_the_signature(tmp_path: Path) -> None:
    generate_signing_key(tmp_path / "key")
    (tmp_path / "message").write_bytes(b"message")
    (tmp_path / "signature").write_bytes(sign(load_signing_key(tmp_path / "key"), b"message"))
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "key.pub", "-in", "message"]
    subprocess.run([*command, "-sigfile", "signature"], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("existing", ["key", "key.pub"])
def test_keys_are_never_overwritten(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("mine")
    with pytest.raises(InputError, match=rf"/{existing}: exists and keys are never overwritten; choose another name"):
        generate_signing_key(tmp_path / "key")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(existing, "mine")]


def test_unwritable_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        generate_signing_key(tmp_path / "file" / "key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_secret_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    generate_signing_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(InputError, match=rf"expected mode 600, got {mode:o}: others can read it; chmod 600"):
        load_signing_key(tmp_path / "key")


def test_what_is_no_ed25519_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    elliptic = ec.generate_private_key(ec.SECP256R1())
    secret = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked = one_time_signing_key().private_bytes(*secret, serialization.BestAvailableEncryption(b"password"))
    public = elliptic.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for content in (b"", b"text", locked, public, elliptic.private_bytes(*secret, serialization.NoEncryption())):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InputError, match="expected an Ed25519 secret key in PEM, got something else; make one"):
            load_signing_key(path)
        with pytest.raises(InputError, match="expected an Ed25519 public key in PEM, got something else; make one"):
            load_public_key(path)
    with pytest.raises(InputError, match=r"signing key .*: cannot be read"):
        load_signing_key(tmp_path / "none")
