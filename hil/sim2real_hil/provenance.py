"""What identifies a run: hashes, machine, versions."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
from datetime import datetime, timezone

from sim2real import __version__
from sim2real.bundle import Bundle
from sim2real.latency import this_machine

__all__ = ["created_now", "facts_of"]

_PACKAGES = ("numpy", "mujoco", "onnxruntime", "pyzmq", "torch", "ray")


def facts_of(bundle: Bundle) -> dict[str, str]:
    """Return what a report says about a bundle, this machine and the installed packages."""
    machine = this_machine()
    identity = bundle.contract.identity
    signer = f"{bundle.signature.public_key} ({'trusted' if bundle.signature.trusted else 'integrity only'})"
    return {
        "bundle": bundle.path.name,
        "manifest SHA-256": hashlib.sha256(bundle.members["manifest.json"]).hexdigest(),
        "contract SHA-256": bundle.contract_hash.hex(),
        "checkpoint SHA-256": identity.checkpoint_sha256,
        "configuration SHA-256": identity.config_sha256,
        "signed by": signer,
        "task, robot": f"{identity.task}, {identity.robot}",
        "made by": f"sim2real {identity.toolkit_version}",
        "judged by": f"sim2real {__version__}",
        "machine": f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {platform.machine()}",
        "Python and packages": ", ".join([machine.python, *_versions()]),
    }


def created_now() -> str:
    """Return the date and time of day, ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _versions() -> list[str]:
    versions: list[str] = []
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return versions
