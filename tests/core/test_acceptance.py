"""Which judgement of a quantized policy counts: a refusal does not go away by asking again more gently."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.acceptance import SCHEMA_VERSION, Acceptance, Trial, read_acceptance
from sim2real.errors import BundleError

FILE, OTHER = "a" * 64, "b" * 64


def trial(verdict: Any, *, onnx: str = FILE, max_loss: float = 0.02, episodes: int = 512) -> Trial:
    return Trial(
        precision="int8",
        verdict=verdict,
        reason="for a test",
        onnx_sha256=onnx,
        method="percentile",
        layers=(),
        output_error=0.0,
        max_loss=max_loss,
        plants="none",
        seed=0,
        episodes=episodes,
        success=None,
        falls=None,
        returns=None,
        jerk=None,
        terms={},
    )


def counts(*trials: Trial) -> str | None:
    found = Acceptance(schema_version=SCHEMA_VERSION, toolkit_version="0", calibration_sha256="", trials=trials).of(
        FILE
    )
    return None if found is None else found.verdict


@pytest.mark.parametrize(
    ("later", "verdict"),
    [
        (trial("not judged"), "refused"),
        (trial("accepted", max_loss=0.2), "refused"),
        (trial("accepted", episodes=150), "refused"),
        (trial("accepted", onnx=OTHER), "refused"),
        (trial("accepted"), "accepted"),
        (trial("accepted", max_loss=0.01, episodes=1000), "accepted"),
    ],
)
def test_a_refusal_stands_until_it_is_judged_as_strictly(later: Trial, verdict: str) -> None:
    assert counts(trial("refused"), later) == verdict
    assert counts(later, trial("refused")) == "refused"


@given(st.lists(st.sampled_from([trial("accepted"), trial("not judged"), trial("not judged", onnx=OTHER)]), max_size=6))
def test_whoever_was_accepted_is_so_still_if_somebody_did_not_judge(trials: list[Trial]) -> None:
    own = [each.verdict for each in trials if each.onnx_sha256 == FILE]
    expected = "accepted" if "accepted" in own else "not judged" if own else None
    assert counts(*trials) == expected


def test_what_is_no_acceptance_is_refused() -> None:
    whole = Acceptance(schema_version=2, toolkit_version="0", calibration_sha256="", trials=())
    for content, told in (
        (b"{", "quantize it again"),
        (msgspec.json.encode(whole), "expected schema version 1, got 2"),
    ):
        with pytest.raises(BundleError, match=told):
            read_acceptance(content)
