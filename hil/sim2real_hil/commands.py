"""The commands of the bench: ``sim2real hil run`` and ``sim2real hil plant``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real.wire_messages import Mode

if TYPE_CHECKING:
    from sim2real.bundle import Bundle

__all__ = ["HilRunArgs", "PlantArgs", "run_hil", "run_plant"]


@dataclass(frozen=True)
class HilRunArgs:
    """Prove a bundle over the wire: this process is the robot, the edge is a process of its own.

    In lockstep the trajectory must equal the one of a single process, bit for bit. In real time every latency must keep
    to the contract's budget. The verdicts go to the report, and to the exit code: 0 pass, 1 fail.
    """

    bundle: tyro.conf.Positional[Path]
    """The policy bundle."""
    mode: Mode = "lockstep"
    """lockstep: the plant waits for each command; realtime: it does not, and latency is judged."""
    ticks: int | None = None
    """Control steps of a lockstep run; by default 2000."""
    seconds: float | None = None
    """Length [s] of a realtime run; by default 20."""
    transport: Literal["ipc", "tcp"] | None = None
    """Transport; by default lockstep runs over both, one after the other, and realtime over ipc."""
    endpoint: str | None = None
    """Where to bind instead, e.g. tcp://127.0.0.1:5555."""
    start: Literal["rest", "random"] | None = None
    """Start state: at rest as the robot's model has it (a pendulum hangs), or drawn by the task; by default random in
    lockstep and rest in real time."""
    seed: int = 0
    """Seed of a random start state."""
    engine: str = "onnxruntime-cpu"
    """Inference engine of the edge."""
    scheduling: Literal["fifo_if_permitted", "ordinary"] = "fifo_if_permitted"
    """In real time: plant and edge run under SCHED_FIFO, as a robot's loop does, where the system permits it, or as
    ordinary processes. The report says which it was."""
    timeout: float = 10.0
    """Longest silence [s] of the edge before the run ends with an error."""
    out: Path | None = None
    """Folder for report.html, report.json, junit.xml, latency.json and trajectories; by default runs/hil/MODE."""
    trust: tuple[Path, ...] = ()
    """Public keys of signers; with any given, a bundle that another signed is refused."""


@dataclass(frozen=True)
class PlantArgs:
    """Serve a simulated robot to an edge on this or another machine, until the edge leaves or the time is over."""

    bundle: tyro.conf.Positional[Path]
    """The policy bundle whose contract the plant follows; an edge with another one is refused."""
    bind: str
    """Endpoint, e.g. ipc:///tmp/plant.ipc or tcp://127.0.0.1:5555; any other machine can reach the plant only with
    keys."""
    mode: Mode = "realtime"
    """lockstep: the plant waits for each command; realtime: it does not."""
    seconds: float | None = None
    """Time [s] to serve, in lockstep simulated time; by default until the edge leaves."""
    start: Literal["rest", "random"] = "rest"
    """Start state: at rest as the robot's model has it, or drawn by the task."""
    seed: int = 0
    """Seed of a random start state."""
    keys: Path | None = None
    """Folder with this plant's keys and the public keys of the edges (sim2real keygen)."""
    wait: float = 60.0
    """Longest time [s] to wait for an edge."""
    timeout: float = 10.0
    """Longest silence [s] of the edge before the plant ends with an error."""
    trust: tuple[Path, ...] = ()
    """Public keys of signers; with any given, a bundle that another signed is refused."""


def run_hil(args: HilRunArgs) -> Outcome:
    """Run the bench as `args` say and write the report.

    Raises:
        InputError: An argument is out of range, or the report cannot be written.
        Sim2RealError: The bundle, the endpoint or the edge cannot be used; the message says which and why.
    """
    from sim2real_hil.bench import run_lockstep, run_realtime

    for name in ("ticks", "seconds", "timeout"):
        value = getattr(args, name)
        if value is not None:
            _check_positive(name, value)
    foreign = "seconds" if args.mode == "lockstep" else "ticks"
    if getattr(args, foreign) is not None:
        raise InputError(f"--{foreign}: has no meaning in {args.mode}; leave it out, or choose the other --mode")
    bundle = _read(args.bundle, args.trust)
    run = run_lockstep if args.mode == "lockstep" else run_realtime
    return run(bundle, args, args.out or Path("runs/hil") / args.mode)


def run_plant(args: PlantArgs) -> Outcome:
    """Serve one edge.

    Raises:
        InputError: An argument is out of range.
        Sim2RealError: The bundle or the endpoint cannot be used, no edge came, or it fell silent.
    """
    from sim2real_hil.serve import serve

    for name in ("seconds", "wait", "timeout"):
        value = getattr(args, name)
        if value is not None:
            _check_positive(name, value)
    return serve(_read(args.bundle, args.trust), args)


def _read(path: Path, trust: tuple[Path, ...]) -> Bundle:
    from sim2real.bundle import read_bundle
    from sim2real.signing import load_public_key

    return read_bundle(path, trusted_keys=[load_public_key(key) for key in trust] or None)


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"--{name}: expected a number > 0, got {value}")
