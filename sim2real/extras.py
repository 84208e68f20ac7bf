"""Optional dependencies: one sentence for the user when an extra is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from sim2real.errors import MissingExtraError

__all__ = ["missing", "require"]


def missing(module: str, extra: str) -> MissingExtraError:
    """Return the error that says that `module` is not installed and that `extra` brings it."""
    return MissingExtraError(f"{module} is not installed: needs the '{extra}' extra: pip install 'sim2real[{extra}]'")


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra brings it.

    Args:
        module: Dotted name of the module, e.g. ``"onnxruntime"``.
        extra: Name of the extra of the `sim2real` distribution that installs it, e.g. ``"edge"``.

    Raises:
        MissingExtraError: The module, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error.name or module, extra) from error
