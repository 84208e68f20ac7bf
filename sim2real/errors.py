"""The errors that end a command with one clear line and exit code 2."""

from __future__ import annotations

__all__ = [
    "BundleError",
    "ContractError",
    "EngineError",
    "InputError",
    "MissingExtraError",
    "Sim2RealError",
    "WireError",
]


class Sim2RealError(Exception):
    """Something the toolkit could not do. The message is one line: expected, came, allowed, what to do."""


class ContractError(Sim2RealError):
    """A contract, or something that should match one, does not hold; the message names the path of the field."""


class BundleError(Sim2RealError):
    """A policy bundle is truncated, altered, unsigned or of another version."""


class EngineError(Sim2RealError):
    """An inference engine cannot load, bind or run a model."""


class InputError(Sim2RealError):
    """A file or argument given by the user is unusable."""


class WireError(Sim2RealError):
    """The connection between plant and edge could not be made, was refused, or ended."""


class MissingExtraError(Sim2RealError):
    """An optional dependency is not installed; the message names the extra that brings it."""
