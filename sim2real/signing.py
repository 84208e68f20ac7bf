"""Ed25519 signatures (RFC 8032) of bundles: who exported this policy, and is it still what they exported?

Keys are PEM files as `openssl` reads and writes them (PKCS #8 and SubjectPublicKeyInfo). In the toolkit a public key is
32 bytes in hex, so that it can be shown, compared and put on a command line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sim2real.errors import InputError
from sim2real.files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "generate_signing_key",
    "load_public_key",
    "load_signing_key",
    "one_time_signing_key",
    "public_key_of",
    "sign",
    "verify",
]

_OWNER_ONLY: Final = 0o600
_PUBLIC: Final = 0o644
_OTHERS: Final = 0o077


def generate_signing_key(path: Path) -> str:
    """Write a new secret key to `path` (readable by its owner alone) and its public key to `path` + ``.pub``.

    Returns:
        The public key, 64 hex digits.

    Raises:
        InputError: One of the two files exists (a key is never overwritten) or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization

    key = one_time_signing_key()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write_new(path, secret, _OWNER_ONLY)
    try:
        _write_new(_public_path(path), public, _PUBLIC)
    except InputError:
        path.unlink()
        raise
    return public_key_of(key)


def one_time_signing_key() -> Ed25519PrivateKey:
    """Return a new secret key that nobody keeps: its signatures show integrity, not origin."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a secret key.

    Raises:
        InputError: Not there, not an Ed25519 secret key in PEM, or readable by others than its owner.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = read_bytes(path, "signing key")
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        raise InputError(f"signing key {path}: expected mode 600, got {mode:o}: others can read it; chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _not_a_key(path, "secret") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _not_a_key(path, "secret")
    return key


def load_public_key(path: Path) -> str:
    """Read a public key and return it as 64 hex digits.

    Raises:
        InputError: Not there, or not an Ed25519 public key in PEM.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = serialization.load_pem_public_key(read_bytes(path, "public key"))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _not_a_key(path, "public") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _not_a_key(path, "public")
    return key.public_bytes_raw().hex()


def public_key_of(key: Ed25519PrivateKey) -> str:
    """Return the public half of `key`, 64 hex digits."""
    return key.public_key().public_bytes_raw().hex()


def sign(key: Ed25519PrivateKey, message: bytes) -> bytes:
    """Return the signature of `message`, 64 bytes; the same key and message give the same signature."""
    return key.sign(message)


def verify(public_key: str, signature: bytes, message: bytes) -> bool:
    """Tell whether `signature` (64 bytes) of `message` was made by the owner of `public_key` (64 hex digits)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _public_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: of two writers one fails, and no link that somebody laid there is followed.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        if path.exists():
            raise InputError(f"{path}: exists and keys are never overwritten; choose another name") from error
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()
        raise InputError(f"{path}: cannot be written ({error.strerror}); free space or choose another place") from error


def _not_a_key(path: Path, kind: str) -> InputError:
    return InputError(
        f"{path}: expected an Ed25519 {kind} key in PEM, got something else; make one with sim2real keygen"
    )
