"""Keys of plant and edge, and the authentication of one by the other (CurveZMQ, ZAP)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import zmq

from sim2real.errors import InputError, WireError
from sim2real.files import atomic_write, read_bytes

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

__all__ = ["CurveKeys", "Role", "authenticate", "write_keys"]

Role = Literal["plant", "edge"]
_PEER: Final[dict[Role, Role]] = {"plant": "edge", "edge": "plant"}
_Z85_LENGTH: Final = 40


class CurveKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What one side needs: its own pair and the public keys of the peers that it trusts, all in Z85 (40 characters)."""

    public: bytes
    secret: bytes
    peers: tuple[bytes, ...]
    """The plant: edges that may connect. The edge: the one plant it connects to."""

    @classmethod
    def load(cls, directory: Path, role: Role) -> CurveKeys:
        """Read ``ROLE.secret``, ``ROLE.public`` and the peer's public key from a directory.

        A plant trusts every key in files ``edge*.public``; an edge trusts ``plant.public``. A machine needs only its
        own secret: do not copy the other one to it.

        Raises:
            WireError: A file is missing, is not a key, or is a secret that others than its owner may read.
        """
        secret_path = directory / f"{role}.secret"
        secret = _read_key(secret_path)
        mode = stat.S_IMODE(secret_path.stat().st_mode)
        if mode & 0o077:
            raise WireError(
                f"{secret_path}: a secret key must be readable by its owner alone, but its mode is {mode:04o}; "
                f"run: chmod 600 {secret_path}"
            )
        peer_files = sorted(directory.glob("edge*.public")) if role == "plant" else [directory / "plant.public"]
        if not peer_files:
            raise WireError(f"{directory}: no public key of an edge (edge*.public); copy edge.public of the edge here")
        return cls(
            public=_read_key(directory / f"{role}.public"),
            secret=secret,
            peers=tuple(_read_key(path) for path in peer_files),
        )


def write_keys(directory: Path) -> None:
    """Make a pair for the plant and one for the edge; secrets get mode 0600.

    Raises:
        WireError: A key is there already; it is never replaced.
        InputError: The directory cannot be written.
    """
    names = [f"{role}.{part}" for role in _PEER for part in ("secret", "public")]
    present = [name for name in names if (directory / name).exists()]
    if present:
        raise WireError(
            f"{directory}: holds {', '.join(present)} already; give an empty directory or remove them first"
        )
    for role in _PEER:
        public, secret = zmq.curve_keypair()
        _write_key(directory / f"{role}.secret", secret, 0o600)
        _write_key(directory / f"{role}.public", public, 0o644)


def authenticate(context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys) -> ThreadAuthenticator:
    """Let only the peers of `keys` connect to servers of `context`; stop what is returned before the context ends."""
    # It brings asyncio along, which connections without keys need not load.
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.configure_curve_callback("*", _Trusted(keys.peers))
    authenticator.start()
    return authenticator


class _Trusted:
    """The credentials provider that ZAP asks."""

    def __init__(self, peers: tuple[bytes, ...]) -> None:
        self._peers = frozenset(peers)

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._peers


def _read_key(path: Path) -> bytes:
    try:
        key = read_bytes(path, "key").strip()
    except InputError as error:
        raise WireError(f"{error}, or make keys with: sim2real keygen {path.parent}") from error
    try:
        zmq.curve_public(key)
    except (ValueError, zmq.ZMQError) as error:
        raise WireError(
            f"{path}: expected a key of {_Z85_LENGTH} Z85 characters, got {len(key)} bytes that are none; "
            f"make keys with: sim2real keygen DIR"
        ) from error
    return key


def _write_key(path: Path, key: bytes, mode: int) -> None:
    with atomic_write(path) as partial:
        # The mode is given at creation: set afterwards, there would be an instant in which others could read it.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key + b"\n")
