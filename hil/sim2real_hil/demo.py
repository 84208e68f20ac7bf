"""``sim2real demo``: the whole path once, each step a command that a person could have typed."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sim2real.arguments import check_seed
from sim2real.command import Outcome
from sim2real.errors import InputError

__all__ = ["DemoArgs", "run_demo"]

_MARKER: Final = ".sim2real-demo"
_OURS: Final = ("logs", "randomization.json", "train", "policy.s2r", "hil", "report.html", "report.json", "junit.xml")
"""What a demo leaves in its folder, beside the marker."""


@dataclass(frozen=True)
class DemoArgs:
    """Walk the whole path once: calibrate, train, evaluate, export, verify, and prove on the bench.

    With SIM2REAL_DATA set to a folder that holds the pendulum's logs in simple_pendulum/, the simulator is fitted to
    the real robot; without, to logs that are recorded first from a plant whose parameters the fit is not told.
    """

    out: Path = Path("runs/demo")
    """Folder for all that comes out; what an earlier demo left in it is removed first."""
    seed: int = 0
    """Seed of every draw."""
    fast: bool = False
    """Take every step, but train and run the bench for so short a time that the verdicts must fail."""


def run_demo(args: DemoArgs) -> Outcome:
    """Take all steps and write the report on them.

    Raises:
        InputError: `out` holds something else than an earlier demo, or cannot be written.
        ChildError: A step could not do its work; the message is its own.
    """
    from sim2real_hil.demo_steps import take_all

    check_seed(args.seed)
    with _alone_in(args.out):
        return take_all(args)


@contextlib.contextmanager
def _alone_in(out: Path) -> Generator[None]:
    """Make `out` a demo's folder without anything of an earlier one, and keep other demos out while the block lasts.

    Raises:
        InputError: It is not empty and not a demo's, another demo is at work in it, or it cannot be written.
    """
    marker = out / _MARKER
    _check_ours(out, marker)
    # The marker is the lock too: the kernel lets go of it however this process ends. It is never replaced.
    with contextlib.ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(marker.open("r+")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{out}: another demo is at work in it; wait for its end or choose another folder with --out"
            ) from error
        except OSError as error:
            raise _unusable(out, error) from error
        _remove_earlier(out)
        yield


def _check_ours(out: Path, marker: Path) -> None:
    """Lay the marker unless it is there, and touch nothing that is not a demo's."""
    try:
        if out.exists() and any(out.iterdir()) and not marker.exists():
            raise InputError(f"{out}: holds something else than a demo; choose an empty or a new folder with --out")
        out.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), marker.open("x") as file:
            file.write("What sim2real demo made here is removed by the next sim2real demo.\n")
    except OSError as error:
        raise _unusable(out, error) from error


def _remove_earlier(out: Path) -> None:
    try:
        for name in _OURS:
            path = out / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(out, error) from error


def _unusable(out: Path, error: OSError) -> InputError:
    return InputError(f"{out}: cannot be prepared ({error.strerror}); choose another folder with --out")
