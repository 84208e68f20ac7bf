"""What every `sim2real` command returns to the command line."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Outcome"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command that could do its work; one that could not raises `Sim2RealError` instead."""

    passed: bool
    """The verdict: True ends the process with 0, False with 1."""
    result: Any
    """What ``--json`` prints as one object; anything that msgspec encodes."""
    summary: str
    """What a person reads on stdout without ``--json``."""
