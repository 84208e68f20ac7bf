"""Which of a bundle's policies may drive: the float32 one, and quantized ones that were judged in closed loop."""

from __future__ import annotations

import hashlib

from sim2real.acceptance import Trial, read_acceptance
from sim2real.bundle import Bundle
from sim2real.errors import EngineError
from sim2real.members import ACCEPTANCE

__all__ = ["judgement_of", "require_released"]


def judgement_of(bundle: Bundle, precision: str) -> Trial | None:
    """Return what counts of a bundle's quantized policy; None: nobody tried this file."""
    digest = hashlib.sha256(bundle.models[precision]).hexdigest()
    return read_acceptance(bundle.members[ACCEPTANCE]).of(digest) if ACCEPTANCE in bundle.members else None


def require_released(bundle: Bundle, precision: str, *, unproven: bool) -> None:
    """Check that a bundle's policy of this precision was accepted.

    Args:
        bundle: The bundle.
        precision: Which policy.
        unproven: Whether one may drive that nobody judged; one that was refused never may.

    Raises:
        EngineError: It was refused, or not judged, or what was judged is another file.
    """
    if precision == "float32":
        return
    name = f"{bundle.path}: policy.{precision}.onnx"
    judged = judgement_of(bundle, precision)
    if judged is None:
        raise EngineError(f"{name}: {ACCEPTANCE} says nothing of this file; quantize the policy again")
    if judged.verdict == "refused":
        raise EngineError(f"{name}: was refused: {judged.reason}; use another --precision")
    if judged.verdict == "not judged" and not unproven:
        raise EngineError(
            f"{name}: nobody judged it in closed loop: quantize it with acceptance, or say --unproven to run it so"
        )
