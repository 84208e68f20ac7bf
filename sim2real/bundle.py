"""The policy bundle, `policy.s2r`: a policy with its contract and its proof, as one folder or one zip file.

    contract.json             the policy contract, canonical JSON
    policy.<precision>.onnx   at least one; carries the contract's text in its own metadata
    golden.npz                what went in and what must come out of each model (`sim2real.golden`)
    calibration.npz           optional: what the quantizer was calibrated with
    acceptance.json           optional: what was judged before release
    manifest.json             `Manifest`: size and SHA-256 of each file above
    manifest.sig              one line: ``ed25519 <public key> <signature of manifest.json>``, both in hex

The signature is checked before anything is interpreted, then the hashes, then each member against the contract. A
change of any single byte, a missing or an additional file are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from sim2real import __version__
from sim2real.contract import SCHEMA_VERSION, PolicyContract, decode_contract, encode_contract
from sim2real.errors import BundleError, ContractError
from sim2real.golden import Golden, decode_goldens, encode_goldens
from sim2real.members import (
    ACCEPTANCE,
    CALIBRATION,
    CONTRACT,
    GOLDEN,
    MANIFEST,
    MODEL_NAME,
    PRECISIONS,
    SIGNATURE,
    is_member,
    load_members,
    store_members,
)
from sim2real.npz import read_npz
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY, read_metadata
from sim2real.signing import one_time_signing_key, public_key_of, sign, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "Bundle",
    "Manifest",
    "Member",
    "Signature",
    "read_bundle",
    "write_bundle",
]

_SIGNATURE_LINE: Final = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_AGAIN: Final = "copy or export it again"


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a bundle, as the manifest vouches for it."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bundle holds; the signature covers exactly these bytes."""

    schema_version: int
    """`sim2real.contract.SCHEMA_VERSION` of the writer; grows with any change of any member's format."""
    toolkit_version: str
    created_by: str
    """Command that wrote the bundle, e.g. ``sim2real export``."""
    contract_sha256: str
    """The contract's hash, hex; plant and edge compare it before any command."""
    members: tuple[Member, ...]
    """All files but the manifest and its signature, sorted by name."""


class _ManifestVersion(msgspec.Struct, frozen=True):
    """The part of a manifest that every version has, to say which toolkit a newer bundle needs."""

    schema_version: int
    toolkit_version: str


@dataclass(frozen=True)
class Signature:
    """Who signed."""

    public_key: str
    """64 hex digits."""
    trusted: bool
    """Whether the key is one that the reader asked for; if not, the signature shows integrity only."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle that passed every check of `read_bundle`."""

    path: Path
    contract: PolicyContract
    contract_hash: bytes
    """SHA-256 digest, 32 bytes."""
    models: Mapping[str, bytes]
    """Precision to ONNX file."""
    goldens: Mapping[str, Golden]
    """Precision to what its model must reproduce."""
    members: Mapping[str, bytes]
    """Name to content, manifest and signature included."""
    manifest: Manifest
    signature: Signature

    @property
    def golden(self) -> Golden:
        """That of the float32 policy."""
        return self.goldens["float32"]


def write_bundle(
    path: Path,
    *,
    contract: PolicyContract,
    models: Mapping[str, bytes],
    golden: Golden,
    created_by: str,
    answers: Mapping[str, Golden] = MappingProxyType({}),
    extras: Mapping[str, bytes] = MappingProxyType({}),
    signing_key: Ed25519PrivateKey | None = None,
    folder: bool = False,
) -> Bundle:
    """Check, sign and write a bundle; it is whole or not there.

    Args:
        path: Where it goes; an earlier bundle there is replaced.
        contract: The policy contract.
        models: Precision (one of `PRECISIONS`) to ONNX file, each with the contract's text in its metadata.
        golden: The golden vectors of the float32 policy.
        created_by: Command that writes it, e.g. ``"sim2real export"``.
        answers: The same of other precisions, which saw the same measurements.
        extras: ``calibration.npz`` and ``acceptance.json``, where there are any.
        signing_key: Secret key; None: a one-time key, which shows integrity but not who signed.
        folder: Write a folder instead of one zip file; also done when `path` is an existing bundle folder.

    Raises:
        BundleError: Something in it does not fit the contract; the message names member and array.
        ContractError: The contract does not hold together.
        InputError: It cannot be written.
    """
    unknown = sorted(set(extras) - {CALIBRATION, ACCEPTANCE})
    if unknown:
        raise BundleError(f"{path}: expected extras named {CALIBRATION} or {ACCEPTANCE}, got {', '.join(unknown)}")
    key = signing_key or one_time_signing_key()
    members = {
        CONTRACT: encode_contract(contract),
        GOLDEN: encode_goldens({**answers, "float32": golden}),
        **{f"policy.{precision}.onnx": model for precision, model in models.items()},
        **extras,
    }
    members[MANIFEST] = msgspec.json.encode(_manifest_of(members, created_by))
    members[SIGNATURE] = f"ed25519 {public_key_of(key)} {sign(key, members[MANIFEST]).hex()}\n".encode()
    with _at(path):
        # What is written is what a reader accepts, because the reader's own checks look at it first.
        bundle = _open(path, members, trusted_keys=None)
        store_members(path, members, folder=folder or path.is_dir())
    return bundle


def read_bundle(path: Path, *, trusted_keys: Collection[str] | None = None) -> Bundle:
    """Read and check a bundle, folder or zip.

    Args:
        path: The bundle.
        trusted_keys: Public keys (64 hex digits each) of which one must have signed; None: any signer will do.

    Raises:
        BundleError: One line that starts with the path: what does not hold, and what to do.
    """
    with _at(path):
        return _open(path, load_members(path), trusted_keys)


def _open(path: Path, members: Mapping[str, bytes], trusted_keys: Collection[str] | None) -> Bundle:
    signature = _check_signature(members, trusted_keys)
    manifest = _check_manifest(members)
    _check_names(members)
    _check_hashes(members, manifest)
    contract = _check_contract(members[CONTRACT], manifest)
    models = _check_models(members)
    with _at(GOLDEN):
        goldens = decode_goldens(members[GOLDEN], contract, models)
    _check_extras(members)
    return Bundle(
        path=path,
        contract=contract,
        contract_hash=bytes.fromhex(manifest.contract_sha256),
        models=MappingProxyType(models),
        goldens=MappingProxyType(goldens),
        members=MappingProxyType(dict(members)),
        manifest=manifest,
        signature=signature,
    )


def _check_signature(members: Mapping[str, bytes], trusted_keys: Collection[str] | None) -> Signature:
    for name in (MANIFEST, SIGNATURE):
        if name not in members:
            raise BundleError(f"has no {name}; {_AGAIN}")
    line = _SIGNATURE_LINE.fullmatch(members[SIGNATURE])
    if line is None:
        raise BundleError(f"{SIGNATURE}: expected 'ed25519 <public key> <signature>' in hex; {_AGAIN}")
    public_key = line[1].decode()
    if not verify(public_key, bytes.fromhex(line[2].decode()), members[MANIFEST]):
        raise BundleError(f"{MANIFEST}: altered, the signature does not fit it; {_AGAIN}")
    if trusted_keys is not None and public_key not in trusted_keys:
        allowed = ", ".join(sorted(trusted_keys)) or "none"
        raise BundleError(
            f"{SIGNATURE}: expected a trusted signer ({allowed}), got {public_key}; ask its exporter to sign it"
        )
    return Signature(public_key=public_key, trusted=trusted_keys is not None)


def _check_manifest(members: Mapping[str, bytes]) -> Manifest:
    try:
        version = msgspec.json.decode(members[MANIFEST], type=_ManifestVersion)
        if version.schema_version != SCHEMA_VERSION:
            # Only the number decides: what else a newer manifest holds is unknown here.
            raise BundleError(
                f"{MANIFEST}: expected schema version {SCHEMA_VERSION}, which sim2real {__version__} reads, got "
                f"{version.schema_version}; install sim2real {version.toolkit_version!r} or export it again"
            )
        return msgspec.json.decode(members[MANIFEST], type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{MANIFEST}: {error}; export it again") from error


def _check_names(members: Mapping[str, bytes]) -> None:
    for name in members:
        if not is_member(name):
            raise BundleError(f"unexpected file {name!r}; remove it or {_AGAIN}")
    for name in (CONTRACT, GOLDEN):
        if name not in members:
            raise BundleError(f"has no {name}; {_AGAIN}")
    if not any(MODEL_NAME.fullmatch(name) for name in members):
        raise BundleError(f"has no policy.<precision>.onnx ({', '.join(PRECISIONS)}); {_AGAIN}")


def _check_hashes(members: Mapping[str, bytes], manifest: Manifest) -> None:
    vouched = {member.name: member for member in manifest.members}
    if sorted(vouched) != _vouched_names(members) or len(vouched) != len(manifest.members):
        raise BundleError(f"expected the files {sorted(vouched)}, got {_vouched_names(members)}; {_AGAIN}")
    for name, member in vouched.items():
        content = members[name]
        if len(content) != member.size:
            raise BundleError(f"{name}: expected {member.size} bytes, got {len(content)}; {_AGAIN}")
        if hashlib.sha256(content).hexdigest() != member.sha256:
            raise BundleError(f"{name}: altered, its SHA-256 is not the one in {MANIFEST}; {_AGAIN}")


def _check_contract(content: bytes, manifest: Manifest) -> PolicyContract:
    with _at(CONTRACT):
        try:
            contract = decode_contract(content)
        except ContractError as error:
            raise BundleError(f"{error}; export it again") from error
        if encode_contract(contract) != content:
            raise BundleError("expected canonical JSON, as encode_contract writes it; export it again")
        if hashlib.sha256(content).hexdigest() != manifest.contract_sha256:
            raise BundleError(f"its SHA-256 is not contract_sha256 of {MANIFEST}; export it again")
    return contract


def _check_models(members: Mapping[str, bytes]) -> dict[str, bytes]:
    models: dict[str, bytes] = {}
    for name, content in members.items():
        match = MODEL_NAME.fullmatch(name)
        if match is None:
            continue
        with _at(name):
            # A hash binds a file to this bundle; only the model itself can say which contract it was exported with.
            if read_metadata(content).get(CONTRACT_METADATA_KEY, "").encode() != members[CONTRACT]:
                raise BundleError(
                    f"expected {CONTRACT} in its metadata ({CONTRACT_METADATA_KEY}), got another or no contract: "
                    "the model belongs to another bundle; export it again"
                )
        models[match[1]] = content
    return models


def _check_extras(members: Mapping[str, bytes]) -> None:
    if CALIBRATION in members:
        with _at(CALIBRATION):
            read_npz(members[CALIBRATION])
    if ACCEPTANCE in members:
        try:
            msgspec.json.decode(members[ACCEPTANCE])
        except (msgspec.DecodeError, RecursionError) as error:
            raise BundleError(f"{ACCEPTANCE}: {error}; export it again") from error


def _manifest_of(members: Mapping[str, bytes], created_by: str) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        toolkit_version=__version__,
        created_by=created_by,
        contract_sha256=hashlib.sha256(members[CONTRACT]).hexdigest(),
        members=tuple(
            Member(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in sorted(members.items())
        ),
    )


def _vouched_names(members: Mapping[str, bytes]) -> list[str]:
    return sorted(set(members) - {MANIFEST, SIGNATURE})


@contextlib.contextmanager
def _at(place: Path | str) -> Generator[None, None, None]:
    """Put `place` in front of the message of an error from within."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{place}: {error}") from error
