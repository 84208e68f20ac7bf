"""Sections of a report on the bench: lockstep equality, latency, what the robot did, and what all this was run with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.contract import END_TO_END, STAGES, PolicyContract, StageBudget
from sim2real.histogram import Histogram
from sim2real.latency import LatencyReport, judge
from sim2real.latency import Verdict as LatencyVerdict
from sim2real.layout import SignalLayout
from sim2real_hil.plots import Curve, Ridge, curves, ridges
from sim2real_hil.report_parts import Figure, Section, Table, Verdict
from sim2real_hil.trajectory import Trajectory
from sim2real_hil.units import nanoseconds, percent

__all__ = [
    "LockstepResult",
    "RealtimeCounts",
    "latency_section",
    "lockstep_section",
    "motion_section",
    "provenance_section",
]

_PERCENTS: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
_BINS_PER_DECADE: Final = 24
_LINES: Final = 3
"""Joints in one drawing: as many as lines can be told apart, and a leg's."""
_MEANING: Final = {
    "wake": "tick's deadline → loop awake",
    "state_age": "sensed → read by the tick",
    "observe": "measurements → observation",
    "infer": "observation → action",
    "supervise": "action → checked command",
    "send": "command → handed to the wire",
    "tick": "loop awake → command sent",
    "command_transport": "command sent → read by the plant",
    END_TO_END: "sensed → applied by the plant",
}


class LockstepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one run over the wire equals the run in one process."""

    transport: str
    """``ipc`` or ``tcp``."""
    ticks: int
    difference: str
    """First difference; empty: none."""
    elapsed_s: float


def lockstep_section(results: Sequence[LockstepResult]) -> Section:
    """Return whether the bridge changes anything."""
    return Section(
        title="Lockstep",
        text=(
            "Plant and edge in two processes, the plant waiting for each command, compared with the same policy and "
            "plant in one process: state, measurements and commands of every control step, bit for bit."
        ),
        tables=(
            Table(
                title="Equality",
                columns=("transport", "control steps", "first difference", "time"),
                rows=tuple(
                    (each.transport, str(each.ticks), each.difference or "none", f"{each.elapsed_s:.1f} s")
                    for each in results
                ),
            ),
        ),
        verdicts=tuple(
            Verdict(
                name=f"{each.transport} equals in-process",
                passed=not each.difference,
                measured=each.difference or f"equal over {each.ticks} control steps",
                allowed="equal, bit for bit",
                advice="plant and edge must run the same versions; look at the first field that differs",
            )
            for each in results
        ),
        elapsed_s=sum(each.elapsed_s for each in results),
        data={"lockstep": [msgspec.structs.asdict(each) for each in results]},
    )


class RealtimeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in a realtime run beside latencies."""

    plant_ticks: int
    plant_lost_ticks: int
    waiting_ticks: int
    """Physics ticks before the first command."""
    damped_ticks: int
    supervised_ticks: int
    superseded: int
    supervisor: tuple[str, ...]
    """Each change of the supervisor's level, in words."""
    dropped: Mapping[str, int]
    success: bool | None
    """The task's own criterion; None: the run is shorter than an episode."""
    criterion: str


def latency_section(
    latency: LatencyReport, contract: PolicyContract, counts: RealtimeCounts, *, elapsed_s: float
) -> Section:
    """Return latencies per stage against the contract's budget, deadline misses, and what the supervisor did."""
    stages = [stage for stage in (*STAGES, END_TO_END) if latency.histogram(stage).count]
    budgets = {budget.stage: budget for budget in (*contract.latency.stages, contract.latency.end_to_end)}
    histograms = {stage: latency.histogram(stage) for stage in stages}
    rows = [_ridge(stage, histograms[stage], budgets.get(stage)) for stage in stages]
    transport = latency.conditions.endpoint.partition(":")[0]
    return Section(
        title="Latency",
        text=(
            f"{latency.conditions.duration_ns / 1e9:.0f} s in real time over {transport}; "
            f"load: {latency.conditions.load}. The plant waits for nobody. Waking up counts from the tick's deadline, "
            "a tick that a stall costs counts as missed, and end to end is from the measurement to the physics step "
            "that applies the command computed from it."
        ),
        tables=(_percentile_table(histograms, budgets), _count_table(latency, contract, counts)),
        figures=(
            Figure(
                title="Where the time goes",
                caption=(
                    "Distribution of each stage on a logarithmic axis; heights are square roots, so that the rare slow "
                    "ticks show. Short lines: p50, p99, p99.9, max. Dashed: the contract's budget for the same."
                ),
                svg=ridges(rows, alt="Latency distributions of " + ", ".join(stages)),
            ),
        )
        if rows
        else (),
        verdicts=(*_latency_verdicts(latency, contract), *_count_verdicts(counts)),
        elapsed_s=elapsed_s,
        data={"latency": msgspec.to_builtins(latency), "counts": msgspec.structs.asdict(counts)},
    )


def _latency_verdicts(latency: LatencyReport, contract: PolicyContract) -> list[Verdict]:
    return [
        Verdict(
            name=f"{each.stage} {each.quantity.replace('_', ' ')}",
            passed=each.passed,
            measured="not measured" if each.measured is None else _in_unit(each, each.measured),
            allowed=f"≤ {_in_unit(each, each.budget)}",
            advice="run on a quieter machine, or give the contract a budget that the robot can live with",
        )
        for each in judge(contract.latency, latency)
    ]


def _in_unit(verdict: LatencyVerdict, value: float) -> str:
    return nanoseconds(value) if verdict.unit == "ns" else percent(value)


def _count_verdicts(counts: RealtimeCounts) -> list[Verdict]:
    verdicts = [
        Verdict(
            name="the policy drove throughout",
            passed=not counts.supervised_ticks and not counts.damped_ticks,
            measured=f"{counts.supervised_ticks} ticks under the supervisor, {counts.damped_ticks} damped",
            allowed="0 ticks",
            advice="; ".join(counts.supervisor[:3]) or "commands came too late to be applied",
        )
    ]
    if counts.success is not None:
        verdicts.append(
            Verdict(
                name="the task succeeds in real time",
                passed=counts.success,
                measured="succeeded" if counts.success else "failed",
                allowed=counts.criterion,
                advice="compare the delay seen here with the delay that the policy was trained with",
            )
        )
    return verdicts


def _percentile_table(histograms: Mapping[str, Histogram], budgets: Mapping[str, StageBudget]) -> Table:
    def row(stage: str, histogram: Histogram) -> tuple[str, ...]:
        limits = _limits(budgets.get(stage))
        values = dict(zip(_PERCENTS, histogram.percentiles(_PERCENTS.values()), strict=True))
        cells = [
            f"{nanoseconds(value)} (≤ {nanoseconds(limits[name])})" if name in limits else nanoseconds(value)
            for name, value in values.items()
        ]
        # A number stays on one line with its unit and its budget.
        return stage, _MEANING[stage], *(cell.replace(" ", "\u00a0") for cell in cells), f"{histogram.count}"

    return Table(
        title="Percentiles (and budgets)",
        columns=("stage", "from → to", *_PERCENTS, "samples"),
        rows=tuple(row(stage, histogram) for stage, histogram in histograms.items()),
    )


def _count_table(latency: LatencyReport, contract: PolicyContract, counts: RealtimeCounts) -> Table:
    age = latency.max_action_age_ns
    lost = sum(counts.dropped.values())
    return Table(
        title="Counts",
        columns=("what", "measured", "note"),
        rows=(
            (
                "edge deadline misses",
                f"{latency.misses} of {latency.ticks} ({percent(latency.misses / max(1, latency.ticks))})",
                f"allowed: {percent(contract.latency.max_deadline_miss_rate)}",
            ),
            ("plant ticks lost", f"{counts.plant_lost_ticks} of {counts.plant_ticks}", "the bench's own overruns"),
            (
                "oldest action",
                "–" if age is None else nanoseconds(age),
                f"allowed: {nanoseconds(contract.latency.max_action_age_ns)}",
            ),
            ("damped ticks", str(counts.damped_ticks), f"and {counts.waiting_ticks} before the first command"),
            (
                "supervised ticks",
                str(counts.supervised_ticks),
                "; ".join(counts.supervisor) or "none",
            ),
            ("superseded commands", str(counts.superseded), "a newer one came before the plant read them"),
            ("dropped messages", str(lost), ", ".join(f"{k} {v}" for k, v in counts.dropped.items()) or "none"),
        ),
    )


def _limits(budget: StageBudget | None) -> dict[str, float]:
    if budget is None:
        return {}
    return {"p50": budget.p50_ns, "p99": budget.p99_ns, "p99.9": budget.p999_ns, "max": budget.max_ns}


def _ridge(stage: str, histogram: Histogram, budget: StageBudget | None) -> Ridge:
    """Gather the histogram's fine buckets into bins of equal width on a logarithmic axis."""
    low, high, count = np.array(histogram.distribution(), np.float64).T
    edges = 10.0 ** np.arange(2.0, 11.0 + 1.0 / _BINS_PER_DECADE, 1.0 / _BINS_PER_DECADE)
    middles = np.maximum((low + high) / 2.0, edges[0])
    counts, _ = np.histogram(middles, edges, weights=count)
    values = dict(zip(_PERCENTS, map(float, histogram.percentiles(_PERCENTS.values())), strict=True))
    return Ridge(label=stage, edges_ns=edges, counts=counts, percentiles_ns=values, budgets_ns=_limits(budget))


def motion_section(trajectory: Trajectory, contract: PolicyContract, *, title: str) -> Section:
    """Return what the robot did: position, velocity and effort of each joint over time."""
    layout = SignalLayout(contract)
    position_label, position, band = _position(trajectory, contract)
    quantities = {
        position_label: position,
        "velocity [rad/s]": _per_joint(trajectory, contract, trajectory.signals[:, layout.slices["joint_vel"]]),
        "effort [N·m]": _per_joint(trajectory, contract, trajectory.signals[:, layout.slices["joint_effort"]]),
    }
    names = contract.joint_names
    damped = _spans(trajectory.time, trajectory.status != 0)
    return Section(
        title=title,
        text=f"The simulated robot under the policy for {trajectory.time[-1]:.1f} s, as the plant recorded it.",
        figures=tuple(
            Figure(
                title="Motion" if len(names) <= _LINES else f"Motion of {', '.join(names[first : first + _LINES])}",
                caption="Measurements as the plant sent them." + (" Shaded: what counts as upright." if band else ""),
                svg=curves(
                    {label: lines[first : first + _LINES] for label, lines in quantities.items()},
                    x_label="time [s]",
                    alt="Position, velocity and effort over time",
                    bands=band,
                    spans=damped,
                ),
            )
            for first in range(0, len(names), _LINES)
        ),
        data={"steps": len(trajectory), "period": trajectory.period},
    )


def _position(
    trajectory: Trajectory, contract: PolicyContract
) -> tuple[str, list[Curve], dict[str, tuple[float, float]] | None]:
    """Joint positions or, where the task is to stand upright, the angle from there and what counts as upright."""
    from sim2real.tasks.pendulum_swingup import TASK, UPRIGHT_TOLERANCE, upright_error

    values = trajectory.signals[:, SignalLayout(contract).slices["joint_pos"]]
    if contract.identity.task != TASK.name:
        label = "position [rad]"
        return label, _per_joint(trajectory, contract, values), None
    angle: npt.NDArray[np.float64] = np.unwrap(upright_error(values), axis=0)
    # Turns are taken off at the end, where it stands, and not at the start, where it hangs between +π and −π.
    angle -= 2.0 * np.pi * np.rint(angle[-1] / (2.0 * np.pi))
    label = "from upright [rad]"
    return label, _per_joint(trajectory, contract, angle), {label: (-UPRIGHT_TOLERANCE, UPRIGHT_TOLERANCE)}


def _per_joint(trajectory: Trajectory, contract: PolicyContract, values: npt.NDArray[np.float64]) -> list[Curve]:
    return [
        Curve(label=name, x=trajectory.time, y=np.ascontiguousarray(values[:, index]))
        for index, name in enumerate(contract.joint_names)
    ]


def _spans(time: npt.NDArray[np.float64], marked: npt.NDArray[np.bool_]) -> list[tuple[float, float]]:
    """Ranges of time in which `marked` holds."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(np.int8)))
    last = len(time) - 1
    return [
        (float(time[start]), float(time[min(stop, last)])) for start, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


def provenance_section(facts: Mapping[str, str]) -> Section:
    """Return what identifies this run: hashes, machine, versions."""
    return Section(
        title="Provenance",
        text="What this was run with. The hashes are what plant and edge compared before the first command.",
        tables=(Table(title="Facts", columns=("what", "value"), rows=tuple(facts.items())),),
        data={"facts": dict(facts)},
    )
