"""The commands of the bench: ``sim2real hil run`` and ``sim2real hil plant``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import tyro

from sim2real.arguments import check_number, check_seed, check_writable
from sim2real.command import Outcome
from sim2real.errors import InputError
from sim2real.wire_messages import Mode

if TYPE_CHECKING:
    from sim2real.bundle import Bundle

__all__ = ["HilRunArgs", "PlantArgs", "run_hil", "run_plant"]

_MOST_TICKS: Final = 10_000_000
"""A trajectory is kept in memory while it is recorded: 100 bytes per tick of a pendulum."""
_LONGEST_S: Final = 86_400.0
"""A day: of waiting, and of serving."""


@dataclass(frozen=True)
class HilRunArgs:
    """Prove a bundle over the wire: this process is the robot, the edge is a process of its own.

    In lockstep the trajectory must equal the one of a single process, bit for bit. In real time every latency must keep
    to the contract's budget. The verdicts go to the report, which is written to runs/hil/MODE unless --out says
    otherwise, and to the exit code: 0 pass, 1 fail.
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
    """Start state: at rest in the robot's default pose (a pendulum hangs, a quadruped stands), or drawn by the task; by
    default random in lockstep and rest in real time."""
    seed: int = 0
    """Seed of a random start state."""
    robot: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: where it was in training)")
    ] = None
    """Where the file of the policy's robot is now, if it was trained with --robot path/to.xml; its content must be the
    same."""
    engine: str = "onnxruntime-cpu"
    """Inference engine of the edge."""
    precision: str = "float32"
    """Which of the bundle's models to run; on the bench also one that nobody judged."""
    scheduling: Literal["fifo_if_permitted", "ordinary"] = "fifo_if_permitted"
    """In real time: plant and edge run under SCHED_FIFO, as a robot's loop does, where the system permits it, or as
    ordinary processes. The report says which it was."""
    timeout: float = 10.0
    """Longest silence [s] of the edge before the run ends with an error."""
    out: Path | None = None
    """Folder for report.html, report.json, junit.xml, latency.json and trajectories; by default runs/hil/MODE."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
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
    """Start state: at rest in the robot's default pose, or drawn by the task."""
    seed: int = 0
    """Seed of a random start state."""
    robot: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: where it was in training)")
    ] = None
    """Where the file of the policy's robot is now, if it was trained with --robot path/to.xml; its content must be the
    same."""
    keys: Path | None = None
    """Folder with this plant's keys and the public keys of the edges (sim2real keygen)."""
    wait: float = 60.0
    """Longest time [s] to wait for an edge."""
    timeout: float = 10.0
    """Longest silence [s] of the edge before the plant ends with an error."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys of signers; with any given, a bundle that another signed is refused."""


def run_hil(args: HilRunArgs) -> Outcome:
    """Run the bench as `args` say and write the report.

    Raises:
        InputError: An argument is out of range, or the report cannot be written.
        Sim2RealError: The bundle, the endpoint or the edge cannot be used; the message says which and why.
    """
    from sim2real_edge.engine import ENGINES
    from sim2real_hil.bench import run_lockstep, run_realtime

    foreign = "seconds" if args.mode == "lockstep" else "ticks"
    if getattr(args, foreign) is not None:
        raise InputError(f"--{foreign}: has no meaning in {args.mode}; leave it out, or choose the other --mode")
    if args.ticks is not None:
        check_number("--ticks", args.ticks, high=_MOST_TICKS)
    check_number("--timeout", args.timeout, high=_LONGEST_S)
    check_seed(args.seed)
    if args.endpoint is not None:
        _check_endpoint(args.endpoint, keys=None)
    if args.engine not in ENGINES:
        raise InputError(f"--engine: expected one of {', '.join(ENGINES)}, got {args.engine!r}")
    out = args.out or Path("runs/hil") / args.mode
    check_writable("--out", out / "report.html")
    bundle = _read(args.bundle, args.trust)
    if args.seconds is not None:
        _check_seconds(args.seconds, bundle.contract.timing.physics_step_ns)
    run = run_lockstep if args.mode == "lockstep" else run_realtime
    return run(bundle, args, out)


def run_plant(args: PlantArgs) -> Outcome:
    """Serve one edge.

    Raises:
        InputError: An argument is out of range.
        Sim2RealError: The bundle or the endpoint cannot be used, no edge came, or it fell silent.
    """
    from sim2real_hil.serve import serve

    check_number("--wait", args.wait, high=_LONGEST_S)
    check_number("--timeout", args.timeout, high=_LONGEST_S)
    check_seed(args.seed)
    _check_endpoint(args.bind, keys=args.keys)
    bundle = _read(args.bundle, args.trust)
    if args.seconds is not None:
        timing = bundle.contract.timing
        tick_ns = timing.control_period_ns if args.mode == "lockstep" else timing.physics_step_ns
        _check_seconds(args.seconds, tick_ns)
    return serve(bundle, args)


def _read(path: Path, trust: tuple[Path, ...]) -> Bundle:
    from sim2real.bundle import read_bundle
    from sim2real.signing import load_public_key

    return read_bundle(path, trusted_keys=[load_public_key(key) for key in trust] or None)


def _check_seconds(seconds: float, tick_ns: int) -> None:
    """Check that `seconds` are at least one tick, and no more of them than can be recorded."""
    check_number("--seconds", seconds, low=tick_ns * 1e-9, high=_MOST_TICKS * tick_ns * 1e-9, inclusive=True)


def _check_endpoint(endpoint: str, *, keys: Path | None) -> None:
    from sim2real.endpoints import check_endpoint

    check_endpoint(endpoint, has_keys=keys is not None)
