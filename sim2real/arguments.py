"""What the commands check of their arguments before any work begins; the error names the option."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Final, Literal

from sim2real.errors import InputError
from sim2real.files import written_file

__all__ = ["EngineName", "check_number", "check_seed", "check_writable", "short"]

EngineName = Literal["mujoco", "mujoco_warp", "newton"]
"""Which simulator; `sim2real.sim.engines.make_sim` makes it."""

_HIGHEST_SEED: Final = 2**63 - 1


def check_number(name: str, value: float, *, low: float = 0, high: float = 1e6, inclusive: bool = False) -> None:
    """Check that `value` is a number from `low` to `high`; `low` itself is allowed only if `inclusive`.

    Args:
        name: As the person typed it, e.g. ``"--seconds"``.
        value: What was typed. NaN and the infinities are refused.
        low: Lower bound.
        high: Largest value allowed.
        inclusive: Whether `low` is allowed.

    Raises:
        InputError: It is not.
    """
    # Written so that NaN, of which no comparison holds, does not pass.
    if not (low < value <= high or (inclusive and value == low)):
        least = f"at least {short(low)}" if inclusive else f"> {short(low)}"
        raise InputError(f"{name}: expected a number {least} and at most {short(high)}, got {short(value)}")


def check_seed(value: int, name: str = "--seed") -> None:
    """Check that `value` can seed every generator in use.

    Raises:
        InputError: It is not within 0 to 2^63 - 1.
    """
    if not 0 <= value <= _HIGHEST_SEED:
        raise InputError(f"{name}: expected an integer from 0 to 2^63 - 1, got {value}")


def check_writable(name: str, path: Path) -> None:
    """Check that a file can be made at `path`, or replaced; its missing parents would be made with it.

    An empty file is made beside it for a moment: permissions alone do not tell, e.g. on a read-only disk.

    Raises:
        InputError: `path` is no plain file, its name is too long, or its folder takes no files.
    """
    try:
        if path.is_dir():
            raise InputError(f"{name} {path}: expected the path of a file, got a folder; add the file's name")
        target = written_file(path, f"{name} ")
        above = next(folder for folder in target.absolute().parents if folder.exists())
        trial = above / f".{target.name}.{secrets.token_hex(4)}.partial"
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise InputError(f"{name} {path}: cannot be written ({error.strerror}); choose another place") from error


def short(value: float) -> str:
    """Return `value` with an exponent as people type it: 1e6, not 1e+06."""
    return re.sub(r"e\+0*", "e", f"{value:g}")
