"""`sim2real keygen`: the keys with which plant and edge know each other, and the one that signs bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from sim2real.command import Outcome
from sim2real.curve import write_keys
from sim2real.errors import InputError
from sim2real.files import atomic_directory
from sim2real.signing import generate_signing_key

__all__ = ["KeygenArgs", "run_keygen"]

_SIGNING = "signing.key"


@dataclass(frozen=True)
class KeygenArgs:
    """Make the keys of a plant and an edge, and one that signs bundles. What is there already is never replaced."""

    directory: tyro.conf.Positional[Path]
    """A folder without keys; made if it is not there."""


def run_keygen(args: KeygenArgs) -> Outcome:
    """Write the keys into the folder, all or none; secrets are readable by their owner alone.

    Raises:
        InputError: The folder is not empty, or cannot be written.
    """
    _check_is_free(args.directory)
    with atomic_directory(args.directory) as directory:
        write_keys(directory)
        signing_key = generate_signing_key(directory / _SIGNING)
    return Outcome(
        passed=True,
        result={"directory": args.directory, "signing_key": signing_key},
        summary=(
            f"{args.directory}: made plant.secret, edge.secret, {_SIGNING} and their public halves\n"
            f"plant: takes plant.secret, plant.public, edge.public; edge: edge.secret, edge.public, plant.public\n"
            f"bundles signed with {_SIGNING} are known by {signing_key}"
        ),
    )


def _check_is_free(directory: Path) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    raise InputError(
        f"{directory}: expected a folder that is empty or not there, since keys are never replaced; name another"
    )
