"""What may be given as a policy to whoever runs one: a bundle; or a run of training, of which one is made first."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sim2real.errors import InputError
from sim2real.extras import require

if TYPE_CHECKING:
    from sim2real.bundle import Bundle

__all__ = ["Policy", "read_policy"]

_STATES: Final = ("state.json", "checkpoint/state.json")
"""What a checkpoint folder and the folder of a run have, and a bundle has not."""


class Policy(NamedTuple):
    """A policy that is ready to run."""

    bundle: Bundle
    name: str
    """What it was read from, for people."""


def read_policy(path: Path, *, trusted_keys: Collection[str] | None = None, robot: str | None = None) -> Policy:
    """Return the bundle at `path`; of a run's last checkpoint, or of a checkpoint folder, one that is made of it.

    Args:
        path: The bundle or the folder.
        trusted_keys: See `read_bundle`; None: whoever signed it.
        robot: For a run: where the file of its robot is now; None: where it was in training.

    Raises:
        InputError: A run's checkpoint cannot be exported, or is to be signed by somebody.
        BundleError: The bundle does not pass its checks.
        MissingExtraError: A run was given, and what exports it is not installed.
    """
    from sim2real.bundle import read_bundle

    if not any((path / state).is_file() for state in _STATES):
        return Policy(read_bundle(path, trusted_keys=trusted_keys), f"bundle {path}")
    if trusted_keys is not None:
        raise InputError(f"{path}: is a run, which nobody has signed; leave out --trust, or export it with a key")
    # By name, as the commands' modules are in `sim2real.cli`: whoever runs bundles knows nothing of training, and pays
    # for its libraries only where a run is given.
    export = require("sim2real_train.export", "train").export
    with tempfile.TemporaryDirectory(prefix="sim2real-") as folder:
        # The same proofs as of any export, and the same checks on reading it.
        made = export(path, Path(folder) / "policy.s2r", robot=robot)
        if not made.passed:
            raise InputError(f"{path}: its export does not compute what was trained; sim2real export says more")
        return Policy(read_bundle(made.bundle), f"{made.checkpoint}, of iteration {made.iteration}")
