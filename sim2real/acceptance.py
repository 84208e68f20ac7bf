"""`acceptance.json`: what was judged of each quantized policy before release, beside the float32 one it came from.

Written by `sim2real quantize`, read by the edge, which runs no policy that was refused, or judged by nobody, unless it
is told to.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from sim2real.errors import BundleError
from sim2real.members import ACCEPTANCE

__all__ = ["SCHEMA_VERSION", "Acceptance", "Figure", "LayerError", "Paired", "Trial", "read_acceptance"]

SCHEMA_VERSION: Final = 1


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete, named, closed: no field has a default."""


class Figure(_Part, frozen=True):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


class Paired(_Part, frozen=True):
    """One measure over the same episodes under both policies."""

    float32: Figure
    quantized: Figure
    change: Figure
    """Of the quantized policy from the float32 one, episode by episode."""


class LayerError(_Part, frozen=True):
    """What one matrix product alone in few bits costs."""

    product: str
    shape: tuple[int, ...]
    error: float
    """Root mean square change of the actions, over their root mean square."""
    kept: bool
    """Whether it stays float32."""


class Trial(_Part, frozen=True):
    """One policy in few bits, and what came of it."""

    precision: str
    verdict: Literal["accepted", "refused", "not judged"]
    reason: str
    """In one sentence."""
    onnx_sha256: str
    method: str
    """How ranges were chosen from the calibration set."""
    layers: tuple[LayerError, ...]
    output_error: float
    """Root mean square change of the actions on the calibration set, over their root mean square."""
    max_loss: float
    """Largest loss that is accepted: of successful episodes, of episodes without a fall, of the mean return."""
    plants: str
    """What the episodes' plants were drawn from, in words."""
    seed: int
    episodes: int
    """Of each policy; 0: none was run."""
    success: Paired | None
    falls: Paired | None
    returns: Paired | None
    jerk: Paired | None
    """Mean square second difference of the actions."""
    terms: dict[str, Paired]
    """Of the reward, per control step."""


class Acceptance(_Part, frozen=True):
    """What a bundle's quantized policies were judged by."""

    schema_version: int
    toolkit_version: str
    calibration_sha256: str
    """Of the bundle's ``calibration.npz``."""
    trials: tuple[Trial, ...]
    """In the order in which they were tried."""

    def of(self, onnx_sha256: str) -> Trial | None:
        """Return what counts of a file; None: nobody tried it.

        A refusal stands until as many episodes under as strict a limit say otherwise, and whoever was accepted is so
        still if somebody did not judge.
        """
        counts: Trial | None = None
        for trial in self.trials:
            if trial.onnx_sha256 == onnx_sha256 and (counts is None or _outweighs(trial, counts)):
                counts = trial
        return counts


def _outweighs(trial: Trial, earlier: Trial) -> bool:
    if earlier.verdict == "not judged" or trial.verdict == "refused":
        return True
    if trial.verdict == "not judged":
        return False
    return earlier.verdict == "accepted" or (trial.max_loss <= earlier.max_loss and trial.episodes >= earlier.episodes)


def read_acceptance(content: bytes) -> Acceptance:
    """Read an ``acceptance.json``.

    Raises:
        BundleError: It is none, or of another version.
    """
    try:
        found = msgspec.json.decode(content, type=Acceptance)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{ACCEPTANCE}: {error}; quantize it again") from error
    if found.schema_version != SCHEMA_VERSION:
        raise BundleError(
            f"{ACCEPTANCE}: expected schema version {SCHEMA_VERSION}, got {found.schema_version}; quantize it again"
        )
    return found
