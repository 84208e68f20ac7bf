"""The bench at work: a plant in this process, an edge in another, and what is made of their run."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sim2real.bundle import Bundle
from sim2real.clock import NS_PER_S
from sim2real.command import Outcome
from sim2real.contract import END_TO_END
from sim2real.latency import LatencyReport, make_report, read_latency, write_latency
from sim2real.sim.plant import Plant
from sim2real.tasks import get_task
from sim2real.tasks.goal import states_succeed
from sim2real_edge.process import fifo_priority, with_priority
from sim2real_hil.bench_sections import (
    LockstepResult,
    RealtimeCounts,
    latency_section,
    lockstep_section,
    motion_section,
    provenance_section,
)
from sim2real_hil.connection import connected
from sim2real_hil.inprocess import make_controller, run_in_process
from sim2real_hil.plant_server import RealtimePlant, RealtimeRun, make_plant, serve_lockstep
from sim2real_hil.progress import bar, watched
from sim2real_hil.provenance import created_now, facts_of
from sim2real_hil.report import Report, Section, verdict_table, write_report
from sim2real_hil.trajectory import Trajectory, compare, write_trajectory

if TYPE_CHECKING:
    from sim2real_hil.commands import HilRunArgs

__all__ = ["run_lockstep", "run_realtime"]

_TICKS: Final = 2000
_SECONDS: Final = 20.0
_EDGE_END_S: Final = 10.0
"""Time for the edge to write what it measured, once it was told to end."""


class _LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``sim2real edge run --json`` that says what the supervisor did."""

    sequence: int
    level: str
    reason: str


class _EdgeRun(msgspec.Struct, frozen=True, kw_only=True):
    changes: tuple[_LevelChange, ...]


class _EdgeResult(msgspec.Struct, frozen=True, kw_only=True):
    run: _EdgeRun


def run_lockstep(bundle: Bundle, args: HilRunArgs, out: Path) -> Outcome:
    """Run plant and edge in lockstep over each transport and compare with a single process."""
    began = time.monotonic()
    chosen = args.endpoint or args.transport
    places = (chosen,) if chosen else ("ipc", "tcp")
    ticks = args.ticks or _TICKS
    runs: dict[str, tuple[Trajectory, float]] = {}
    # First, since it finds out whether the engine can be used at all.
    controller = make_controller(bundle, args.engine, args.precision)
    with bar(ticks * (1 + len(places)), f"lockstep, {len(places) + 1} runs", "tick") as progress:
        for where in places:
            run_began = time.monotonic()
            trajectory = _exchange(bundle, args, where, ticks, progress.update)
            runs[where.partition(":")[0]] = trajectory, time.monotonic() - run_began
        plant = _lockstep_plant(bundle, args)
        reference = run_in_process(plant, controller, bundle, ticks=ticks, progress=progress.update)
    results = [
        LockstepResult(transport=name, ticks=ticks, difference=compare(trajectory, reference), elapsed_s=elapsed_s)
        for name, (trajectory, elapsed_s) in runs.items()
    ]
    trajectories = {out / f"trajectory-{name}.npz": trajectory for name, (trajectory, _) in runs.items()}
    trajectories[out / "trajectory-in-process.npz"] = reference
    for path, trajectory in trajectories.items():
        write_trajectory(path, trajectory)
    sections = (
        lockstep_section(results),
        motion_section(reference, bundle.contract, title="Motion in lockstep"),
        provenance_section(facts_of(bundle)),
    )
    details = {"lockstep": [msgspec.structs.asdict(result) for result in results]}
    return _finish(bundle, "lockstep", sections, tuple(trajectories), out, time.monotonic() - began, details)


def run_realtime(bundle: Bundle, args: HilRunArgs, out: Path) -> Outcome:
    """Run the plant in real time under the edge, and judge latencies."""
    began = time.monotonic()
    contract = bundle.contract
    seconds = args.seconds or _SECONDS
    ticks = round(seconds * NS_PER_S / contract.timing.physics_step_ns)
    plant = make_plant(contract, start=args.start or "rest", seed=args.seed, robot=args.robot)
    where = args.endpoint or args.transport or "ipc"
    with contextlib.ExitStack() as stack:
        measured = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sim2real-"))) / "latency.json"
        priority = fifo_priority() if args.scheduling == "fifo_if_permitted" else None
        words = [*_edge_words(args), "--latency", str(measured), *_scheduling_words(priority)]
        socket, edge = stack.enter_context(connected(bundle, mode="realtime", where=where, edge_words=words))
        timeout_ns = round(args.timeout * NS_PER_S)
        server = RealtimePlant(plant, socket, contract, ticks=ticks, timeout_ns=timeout_ns, check=edge.check)
        with watched(lambda: server.ticker.index + 1, ticks, "real time", "tick"), with_priority(priority):
            run = server.run()
        socket.bye(f"done: {seconds:g} s")
        told = msgspec.convert(edge.result(_EDGE_END_S), _EdgeResult)
        latency = _merge(read_latency(measured), run)
    counts = _counts(bundle, run, told.run.changes, args.robot)
    measurements = (out / "latency.json", out / "trajectory.npz")
    write_latency(measurements[0], latency)
    write_trajectory(measurements[1], run.trajectory)
    sections = (
        latency_section(latency, contract, counts, elapsed_s=seconds),
        motion_section(run.trajectory, contract, title="Motion in real time"),
        provenance_section(facts_of(bundle)),
    )
    details = {"counts": msgspec.to_builtins(counts)}
    return _finish(bundle, "real time", sections, measurements, out, time.monotonic() - began, details)


def _exchange(bundle: Bundle, args: HilRunArgs, where: str, ticks: int, progress: Callable[[], object]) -> Trajectory:
    """Return the trajectory of one lockstep run over the wire."""
    plant = _lockstep_plant(bundle, args)
    with connected(bundle, mode="lockstep", where=where, edge_words=_edge_words(args)) as (socket, edge):
        trajectory = serve_lockstep(
            plant,
            socket,
            bundle.contract,
            ticks=ticks,
            timeout_ns=round(args.timeout * NS_PER_S),
            check=edge.check,
            progress=progress,
        )
        socket.bye(f"done: {ticks} ticks")
        edge.result(_EDGE_END_S)
    return trajectory


def _lockstep_plant(bundle: Bundle, args: HilRunArgs) -> Plant:
    """Return the plant that every run of one comparison starts from."""
    return make_plant(bundle.contract, start=args.start or "random", seed=args.seed, robot=args.robot)


def _edge_words(args: HilRunArgs) -> list[str]:
    trusted = [word for key in args.trust for word in ("--trust", str(key))]
    return ["--engine", args.engine, "--precision", args.precision, "--unproven", *trusted]


def _scheduling_words(priority: int | None) -> list[str]:
    """What the edge is told of its priority, and what it writes down of the machine's load."""
    if priority is None:
        return ["--load", "the plant on the same machine, both as ordinary processes"]
    return [
        "--load",
        f"the plant on the same machine, both under SCHED_FIFO {priority}",
        "--realtime-priority",
        str(priority),
    ]


def _merge(edge: LatencyReport, run: RealtimeRun) -> LatencyReport:
    """Return the edge's latencies together with what only the plant can measure."""
    stages = {part.stage: edge.histogram(part.stage) for part in edge.stages}
    stages |= {"command_transport": run.command_transport, END_TO_END: run.end_to_end}
    return make_report(
        stages,
        conditions=edge.conditions,
        ticks=edge.ticks,
        misses=edge.misses,
        max_action_age_ns=run.max_action_age_ns,
    )


def _counts(bundle: Bundle, run: RealtimeRun, changes: Sequence[_LevelChange], robot: str | None) -> RealtimeCounts:
    contract, trajectory = bundle.contract, run.trajectory
    task = get_task(contract.identity.task, contract.identity.robot, where=robot)
    rows = trajectory.control_rows(contract)
    judged = len(rows) >= round(task.episode_length / (contract.timing.control_period_ns * 1e-9))
    return RealtimeCounts(
        plant_ticks=run.ticks,
        plant_lost_ticks=run.lost_ticks,
        waiting_ticks=run.waiting_ticks,
        damped_ticks=run.damped_ticks,
        supervised_ticks=run.supervised_ticks,
        superseded=run.superseded,
        supervisor=tuple(f"tick {each.sequence}: {each.level} {each.reason}".rstrip() for each in changes),
        dropped=run.drops,
        success=states_succeed(task, trajectory.qpos[rows], trajectory.qvel[rows]) if judged else None,
        criterion=task.goal.text,
    )


def _finish(
    bundle: Bundle,
    mode: str,
    sections: Sequence[Section],
    recorded: Sequence[Path],
    out: Path,
    elapsed_s: float,
    details: Mapping[str, Any],
) -> Outcome:
    """Write the report beside what was `recorded`, and return what the command tells."""
    report = Report(
        title=f"{bundle.contract.identity.task}: {mode}",
        created=created_now(),
        elapsed_s=elapsed_s,
        sections=tuple(sections),
    )
    page, data, junit = write_report(report, out)
    result = {
        "passed": report.passed,
        "mode": mode,
        "verdicts": [msgspec.structs.asdict(verdict) for verdict in report.verdicts],
        "report": {"html": page, "json": data, "junit": junit},
        "recorded": recorded,
        **details,
    }
    beside = ", ".join(path.name for path in (data, junit, *recorded))
    told = f"{verdict_table(report.verdicts)}\nreport: {page}\nalso in {out}: {beside}"
    return Outcome(passed=report.passed, result=result, summary=told)
