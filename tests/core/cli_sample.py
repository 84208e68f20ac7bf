"""A command that ends the way it is told to: what test_cli.py puts into the table of `sim2real.cli`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from sim2real import cli
from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real.files import atomic_write


@dataclass(frozen=True)
class SampleArgs:
    """End in one of many ways."""

    ending: tyro.conf.Positional[
        Literal["pass", "fail", "refuse", "crash", "missing", "noise", "numbers", "leave", "wait"]
    ]
    """How to end."""
    length: float = 1.0
    """A length [m]."""
    out: Path = Path("out.txt")
    """Where `wait` is writing when it is interrupted."""


def run_sample(args: SampleArgs) -> Outcome:
    result: dict[str, Any] = {"length": args.length}
    match args.ending:
        case "refuse":
            raise InputError(f"{args.out}: expected a number,\n  got a letter")
        case "crash":
            raise ZeroDivisionError("over nothing")
        case "missing":
            __import__("a_library_that_is_not_there.part")
        case "noise":
            print("from Python")
            os.write(1, b"from C\n")
            subprocess.run([sys.executable, "-I", "-c", "print('from a child')"], check=True)
        case "numbers":
            result |= {"nan": float("nan"), "inf": float("inf"), "array": np.arange(3.0), "scalar": np.float32(0.5)}
            result |= {"path": args.out}
        case "leave":
            sys.exit(15)
        case "wait":
            with atomic_write(args.out) as path:
                path.write_text("half")
                print("waiting", file=sys.stderr, flush=True)
                signal.pause()
        case "pass" | "fail":
            pass
    return Outcome(passed=args.ending != "fail", result=result, summary=f"a sample of {args.length} m")


if __name__ == "__main__":
    cli.COMMANDS = (
        cli.Command("sample", "End in one of many ways", "tests.core.cli_sample", "SampleArgs", "run_sample", "edge"),
    )
    sys.exit(cli.main())
