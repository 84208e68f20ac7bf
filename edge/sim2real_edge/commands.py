"""The commands of the edge: `sim2real edge run`, `sim2real edge bench`, `sim2real verify`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import tyro

from sim2real.arguments import check_number, check_writable
from sim2real.bundle import Bundle, read_bundle
from sim2real.clock import NS_PER_S
from sim2real.command import Outcome
from sim2real.curve import CurveKeys
from sim2real.errors import EngineError, WireError
from sim2real.latency import LatencyReport, write_latency
from sim2real.signing import load_public_key
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_messages import Mode, make_hello
from sim2real_edge.engine import Engine, available_engines, load_engine, precisions_here
from sim2real_edge.golden import GoldenReport, replay_golden, require_golden
from sim2real_edge.release import judgement_of, require_released

if TYPE_CHECKING:
    from sim2real_edge.loop import LoopResult
    from sim2real_edge.recorder import Recorder, RecorderResult

__all__ = [
    "EdgeBenchArgs",
    "EdgeRunArgs",
    "VerifyArgs",
    "golden_table",
    "read_trusted",
    "run_bench",
    "run_edge",
    "run_verify",
]

_PEER_TIMEOUT_S: Final[dict[Mode, float]] = {"realtime": 1.0, "lockstep": 60.0}


@dataclass(frozen=True)
class EdgeRunArgs:
    """Drive a robot, or a simulated plant, with a policy bundle.

    Before anything moves, the bundle's hashes and signature are checked, the engine replays the golden run, and the
    plant must announce the same contract. Ends with exit code 1 if the supervisor had to damp or stop the robot or the
    recording is incomplete, with 2 if the plant fell silent. Ctrl-C sends a command that damps, and ends with 0.
    """

    bundle: tyro.conf.Positional[Path]
    """The bundle: a folder or a zip file."""
    connect: str
    """Endpoint at which the plant is bound: ipc:///path/to/socket or tcp://host:port."""
    engine: str = "onnxruntime-cpu"
    """What runs the network: onnxruntime-cpu, onnxruntime-cuda, onnxruntime-tensorrt or tensorrt."""
    precision: str = "float32"
    """Which of the bundle's models to run."""
    unproven: bool = False
    """Run a quantized model that nobody judged in closed loop (sim2real quantize --no-acceptance) all the same."""
    mode: Mode = "realtime"
    """realtime: the plant does not wait; lockstep: it waits for each command."""
    seconds: float | None = None
    """Control time after which to end; by default until the plant says goodbye or Ctrl-C."""
    record: Path | None = None
    """Write every tick to this MCAP file."""
    latency: Path | None = None
    """Write the latency of each stage to this JSON file."""
    load: str = "not stated"
    """What else the machine is doing, in words, for the latency file."""
    keys: Path | None = None
    """Folder with edge.secret, edge.public and plant.public (sim2real keygen); needed beyond this machine."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys (.pub); a bundle signed with any other key is refused."""
    connect_timeout: float = 10.0
    """How long [s] to wait for the plant, and then for its first state."""
    peer_timeout: float | None = None
    """Silence of the plant [s] that ends the run; by default 1 in realtime, 60 in lockstep."""
    cpu: int | None = None
    """Keep the loop on this processor."""
    realtime_priority: int | None = None
    """Run the loop under SCHED_FIFO with this priority (1 to 99) and lock its memory; needs permission."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `sim2real edge run --json` prints."""

    golden: GoldenReport
    run: LoopResult
    recording: RecorderResult | None


def run_edge(args: EdgeRunArgs) -> Outcome:
    """Drive until the end; see `EdgeRunArgs`.

    Raises:
        BundleError: The bundle does not pass.
        EngineError: The engine cannot be loaded, or does not reproduce the golden run.
        InputError: A number is out of range; a file, the processor or the priority is not to be had.
        WireError: No plant, another plant, or one that fell silent.
    """
    from sim2real_edge.controller import Controller
    from sim2real_edge.loop import EdgeLoop, Ending
    from sim2real_edge.process import on_processor, stop_on_signals, with_priority

    peer_timeout = _PEER_TIMEOUT_S[args.mode] if args.peer_timeout is None else args.peer_timeout
    _check(args.seconds, {"--latency": args.latency, "--record": args.record})
    check_number("--connect-timeout", args.connect_timeout)
    check_number("--peer-timeout", peer_timeout)
    bundle = read_trusted(args.bundle, args.trust)
    engine = load_engine(args.engine, bundle, args.precision)
    require_released(bundle, args.precision, unproven=args.unproven)
    golden = require_golden(engine, bundle)
    keys = None if args.keys is None else CurveKeys.load(args.keys, "edge")
    hello = make_hello(bundle.contract, mode=args.mode)
    # The recorder comes first and ends last: the robot is let go of before the file is finished.
    with _recorder(args.record, bundle, engine, args.mode) as recorder:
        with (
            EdgeSocket(args.connect, hello=hello, keys=keys) as socket,
            on_processor(args.cpu),
            with_priority(args.realtime_priority),
        ):
            socket.connect(_ns(args.connect_timeout))
            loop = EdgeLoop(
                bundle.contract,
                Controller(bundle, engine),
                socket,
                mode=args.mode,
                engine=args.engine,
                load=args.load,
                seconds=args.seconds,
                start_timeout_ns=_ns(args.connect_timeout),
                peer_timeout_ns=_ns(peer_timeout),
                recorder=recorder,
            )
            with stop_on_signals() as stop:
                result = loop.run(stop)
        recording = None if recorder is None else recorder.result
    if args.latency is not None:
        write_latency(args.latency, result.latency)
    if result.ending is Ending.PEER_LOST:
        raise WireError(
            f"{args.connect}: {result.reason} after {result.states} states; the robot was sent a command that damps; "
            "check the plant, or raise --peer-timeout"
        )
    complete = recording is None or recording.complete
    report = RunReport(golden=golden, run=result, recording=recording)
    return Outcome(passed=complete and not result.damped, result=report, summary=_describe_run(report))


@dataclass(frozen=True)
class EdgeBenchArgs:
    """Time a bundle's engine and the edge's whole tick on this machine, without a plant.

    Ticks are paced like on the robot, at the contract's control period, so that caches and the processor's clock are
    in the state that they will be in. A tick takes a state from a frame, checks it, computes, supervises, and encodes
    the command: all but the system calls of a socket. Fails if a stage exceeds its budget in the contract.
    """

    bundle: tyro.conf.Positional[Path]
    """The bundle: a folder or a zip file."""
    engine: str = "onnxruntime-cpu"
    """What runs the network: onnxruntime-cpu, onnxruntime-cuda, onnxruntime-tensorrt or tensorrt."""
    precision: str = "float32"
    """Which of the bundle's models to run."""
    seconds: float = 10.0
    """How long to measure."""
    load: str = "not stated"
    """What else the machine is doing, in words, for the latency file."""
    latency: Path | None = None
    """Write the latency of each stage to this JSON file."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys (.pub); a bundle signed with any other key is refused."""
    cpu: int | None = None
    """Keep the loop on this processor."""
    realtime_priority: int | None = None
    """Run the loop under SCHED_FIFO with this priority (1 to 99) and lock its memory; needs permission."""


def run_bench(args: EdgeBenchArgs) -> Outcome:
    """Measure; see `EdgeBenchArgs`.

    Raises:
        BundleError: The bundle does not pass.
        EngineError: The engine cannot be loaded, or does not reproduce the golden run.
        InputError: A number is out of range; a file, the processor or the priority is not to be had.
    """
    from sim2real_edge.bench import bench, stage_verdicts
    from sim2real_edge.process import on_processor, with_priority

    _check(args.seconds, {"--latency": args.latency})
    bundle = read_trusted(args.bundle, args.trust)
    engine = load_engine(args.engine, bundle, args.precision)
    golden = require_golden(engine, bundle)
    with on_processor(args.cpu), with_priority(args.realtime_priority):
        report = bench(bundle, engine, seconds=args.seconds, load=args.load)
    if args.latency is not None:
        write_latency(args.latency, report)
    verdicts = stage_verdicts(bundle.contract.latency, report)
    passed = all(verdict.passed for verdict in verdicts)
    lines = [f"{args.bundle}: {_about(engine)}", *_stage_table(report), *(verdict.message for verdict in verdicts)]
    result = {"golden": golden, "latency": report, "verdicts": verdicts}
    return Outcome(passed=passed, result=result, summary="\n".join(lines))


@dataclass(frozen=True)
class VerifyArgs:
    """Check a bundle: hashes, signature, and the golden run on every engine of this machine."""

    bundle: tyro.conf.Positional[Path]
    """The bundle: a folder or a zip file."""
    trust: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Public keys (.pub); a bundle signed with any other key is refused."""


def run_verify(args: VerifyArgs) -> Outcome:
    """Check; see `VerifyArgs`. The verdict is pass if every engine that is available reproduces the golden run.

    Raises:
        BundleError: The bundle does not pass.
        EngineError: No engine is available, or a model does not fit the contract.
        InputError: A key cannot be read.
    """
    bundle = read_trusted(args.bundle, args.trust)
    engines = available_engines()
    reports = [
        replay_golden(load_engine(name, bundle, precision), bundle)
        for name, reason in engines.items()
        if reason is None
        for precision in precisions_here(name)
        if precision in bundle.models
    ]
    if not reports:
        raise EngineError("no engine: needs the 'edge' extra: pip install 'sim2real[edge]'")
    absent = {name: reason for name, reason in engines.items() if reason is not None}
    result = {"signature": bundle.signature, "manifest": bundle.manifest, "golden": reports, "unavailable": absent}
    trusted = "a key that is trusted" if bundle.signature.trusted else "not held against any key (--trust)"
    lines = [
        f"{args.bundle}: {len(bundle.manifest.members)} files, every hash as in the manifest",
        f"signed by {bundle.signature.public_key}, {trusted}",
        *golden_table(reports),
        *(_judged(bundle, precision) for precision in bundle.models if precision != "float32"),
        *(f"{name:<22}not available: {reason}" for name, reason in absent.items()),
    ]
    return Outcome(passed=all(report.passed for report in reports), result=result, summary="\n".join(lines))


def _judged(bundle: Bundle, precision: str) -> str:
    """The golden run says that an engine computes the policy; whether the policy is any good was judged elsewhere."""
    judged = judgement_of(bundle, precision)
    return f"{precision}: " + (
        "not judged: nothing is said of this file" if judged is None else f"{judged.verdict}: {judged.reason}"
    )


def read_trusted(path: Path, trust: Sequence[Path]) -> Bundle:
    """Read a bundle; if any keys are given, one of them must have signed it."""
    return read_bundle(path, trusted_keys=[load_public_key(key) for key in trust] or None)


def _check(seconds: float | None, places: Mapping[str, Path | None]) -> None:
    """Refuse what could only fail later: a run of no length, and files that cannot be made."""
    if seconds is not None:
        check_number("--seconds", seconds)
    for option, place in places.items():
        if place is not None:
            check_writable(option, place)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _recorder(
    path: Path | None, bundle: Bundle, engine: Engine, mode: Mode
) -> contextlib.AbstractContextManager[Recorder | None]:
    if path is None:
        return contextlib.nullcontext()
    from sim2real_edge.recorder import Recorder

    about = engine.describe()
    metadata = {
        "contract_sha256": bundle.contract_hash.hex(),
        "toolkit_version": bundle.manifest.toolkit_version,
        "engine": about.name,
        "precision": about.precision,
        "runtime": about.runtime,
        "mode": mode,
        "clock": "monotonic",
    }
    return Recorder(path, bundle.contract, metadata)


def _about(engine: Engine) -> str:
    about = engine.describe()
    return f"{about.name} ({about.precision}, {about.runtime}, {about.device})"


def golden_table(reports: Sequence[GoldenReport]) -> list[str]:
    """Return a line for each golden run below a line of titles."""
    titles = f"{'engine':<22}{'precision':<11}{'observation':>12}{'action':>12}{'target':>12}  golden run"
    return [titles, *(_golden_row(report) for report in reports)]


def _golden_row(report: GoldenReport) -> str:
    if report.passed:
        verdict = f"pass: {report.steps} steps, {report.episodes} episodes, every error <= {report.tolerance:g}"
    else:
        verdict = f"FAIL: an error > {report.tolerance:g} at step {report.first_bad_step} of {report.steps}"
    errors = (report.observation_error, report.action_error, report.target_error)
    return f"{report.engine:<22}{report.precision:<11}{''.join(f'{error:>12.2e}' for error in errors)}  {verdict}"


def _stage_table(report: LatencyReport) -> list[str]:
    lines = [f"{'stage':<12}{'p50':>10}{'p99':>10}{'p99.9':>10}{'max':>10}  [us]"]
    for stage in report.stages:
        histogram = stage.histogram()
        if histogram.count:
            values = (*histogram.percentiles((50, 99, 99.9)), histogram.max_ns)
            lines.append(f"{stage.stage:<12}{''.join(f'{value / 1e3:>10.1f}' for value in values)}")
    lines.append(f"ticks missed: {report.misses} of {report.ticks}")
    return lines


def _describe_run(report: RunReport) -> str:
    run, recording = report.run, report.recording
    lines = [
        f"ended: {run.reason}",
        f"{run.ticks} ticks in {run.duration_ns / NS_PER_S:.2f} s answered {run.states} states; level {run.level}",
        *_stage_table(run.latency),
        *(f"tick {change.sequence}: {change.level} {change.reason}".rstrip() for change in run.changes),
    ]
    if run.dropped:
        told = ", ".join(f"{reason} {count}" for reason, count in run.dropped.items())
        lines.append(f"messages dropped: {told}")
    if recording is not None:
        told = recording.error or "finished"
        lines.append(f"{recording.path}: {recording.rows} ticks recorded, {recording.dropped} lost; {told}")
    return "\n".join(lines)
