"""Latency of a run: the file that carries it, and verdicts against the contract's budget."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from sim2real.contract import END_TO_END, STAGES, LatencyBudget, StageBudget
from sim2real.errors import InputError
from sim2real.files import atomic_write, read_bytes
from sim2real.histogram import Histogram
from sim2real.wire_messages import Mode

__all__ = [
    "Conditions",
    "LatencyReport",
    "Machine",
    "Quantity",
    "StageHistogram",
    "Verdict",
    "judge",
    "make_report",
    "read_latency",
    "this_machine",
    "write_latency",
]

Quantity = Literal["p50", "p99", "p99.9", "max", "deadline_miss_rate", "action_age"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the parts of a latency file share: complete, and nothing unknown."""


class Machine(_Part, frozen=True, kw_only=True):
    """What was measured on."""

    cpu: str
    cores: int
    """Processors that the process could run on."""
    kernel: str
    python: str


class Conditions(_Part, frozen=True, kw_only=True):
    """How it was measured."""

    mode: Mode
    endpoint: str
    engine: str
    duration_ns: int
    load: str
    """What else the machine was doing, in words, e.g. ``idle``."""


class StageHistogram(_Part, frozen=True, kw_only=True):
    """One stage's histogram, sparse."""

    stage: str
    """One of `sim2real.contract.STAGES`, or `END_TO_END`."""
    count: int
    min_ns: int | None
    """None: nothing was measured."""
    max_ns: int | None
    buckets: tuple[tuple[int, int], ...]
    """(index, count), indices ascending, counts > 0."""

    def histogram(self) -> Histogram:
        """Return it as a histogram.

        Raises:
            ValueError: The parts do not belong together; the message begins with the part that is wrong.
        """
        if self.min_ns is None or self.max_ns is None:
            if self.count or self.buckets or self.min_ns is not self.max_ns:
                raise ValueError("min_ns, max_ns: expected numbers, because there are values, got null")
            return Histogram()
        result = Histogram.from_buckets(self.buckets, min_ns=self.min_ns, max_ns=self.max_ns)
        if result.count != self.count:
            raise ValueError(f"count: expected {result.count}, the sum of the buckets, got {self.count}")
        return result


class LatencyReport(_Part, frozen=True, kw_only=True):
    """What ``latency.json`` holds: one run's latencies and how they came about."""

    schema_version: Literal[1]
    machine: Machine
    conditions: Conditions
    ticks: int
    """Ticks that were due: those that ran and those that were lost."""
    misses: int
    """Ticks that were lost to an overrun, or whose command was sent after the next one's deadline."""
    max_action_age_ns: int | None
    """Oldest measurement behind a command that the plant applied; None: it applied none."""
    stages: tuple[StageHistogram, ...]

    def histogram(self, stage: str) -> Histogram:
        """Return the histogram of a stage; empty if it was not measured."""
        for part in self.stages:
            if part.stage == stage:
                return part.histogram()
        return Histogram()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a budget, and whether it was kept."""

    stage: str
    """Of `STAGES`, `END_TO_END`, or ``loop`` for what concerns all ticks."""
    quantity: Quantity
    unit: Literal["ns", "1"]
    measured: float | None
    """In `unit`; None: nothing was measured, which never passes."""
    budget: float
    passed: bool
    message: str


def this_machine() -> Machine:
    """Describe the machine that this process runs on."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def make_report(
    histograms: Mapping[str, Histogram],
    *,
    conditions: Conditions,
    ticks: int,
    misses: int,
    max_action_age_ns: int | None,
) -> LatencyReport:
    """Return the report of a run on this machine; `histograms` by stage."""
    return LatencyReport(
        schema_version=1,
        machine=this_machine(),
        conditions=conditions,
        ticks=ticks,
        misses=misses,
        max_action_age_ns=max_action_age_ns,
        stages=tuple(_sparse(stage, histogram) for stage, histogram in histograms.items()),
    )


def write_latency(path: Path, report: LatencyReport) -> None:
    """Write ``latency.json``, whole or not at all.

    Raises:
        InputError: The report does not hold together, or the file cannot be written.
    """
    _check(report)
    with atomic_write(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def read_latency(path: Path) -> LatencyReport:
    """Read and check ``latency.json``.

    Raises:
        InputError: It cannot be read, or is not a latency report; the message names the place.
    """
    try:
        report = msgspec.json.decode(read_bytes(path, "latency file"), type=LatencyReport)
        _check(report)
    except (msgspec.DecodeError, RecursionError, InputError) as error:
        raise InputError(
            f"{path}: {_as_path(str(error))}; make one with: sim2real hil run BUNDLE --mode realtime"
        ) from error
    return report


def judge(budget: LatencyBudget, report: LatencyReport) -> tuple[Verdict, ...]:
    """Hold a realtime run against its budget: one verdict for each number in it.

    Raises:
        InputError: The run was in lockstep, where the plant waits and latency means nothing.
    """
    if report.conditions.mode != "realtime":
        raise InputError(
            f"latency.conditions.mode: expected 'realtime', got {report.conditions.mode!r}; in lockstep the plant "
            "waits, so latency is judged in realtime only: sim2real hil run BUNDLE --mode realtime"
        )
    verdicts: list[Verdict] = []
    for stage in (*budget.stages, budget.end_to_end):
        verdicts += _judge_stage(stage, report.histogram(stage.stage))
    rate = report.misses / report.ticks if report.ticks else None
    verdicts.append(_verdict("loop", "deadline_miss_rate", "1", rate, budget.max_deadline_miss_rate))
    verdicts.append(_verdict("loop", "action_age", "ns", report.max_action_age_ns, budget.max_action_age_ns))
    return tuple(verdicts)


def _judge_stage(budget: StageBudget, histogram: Histogram) -> list[Verdict]:
    measured: tuple[int | None, ...] = (None,) * 4
    if histogram.count:
        measured = (*histogram.percentiles((50, 99, 99.9)), histogram.max_ns)
    return [
        _verdict(budget.stage, quantity, "ns", value, allowed)
        for quantity, value, allowed in zip(
            ("p50", "p99", "p99.9", "max"),
            measured,
            (budget.p50_ns, budget.p99_ns, budget.p999_ns, budget.max_ns),
            strict=True,
        )
    ]


def _verdict(
    stage: str, quantity: Quantity, unit: Literal["ns", "1"], measured: float | None, budget: float
) -> Verdict:
    passed = measured is not None and measured <= budget
    allowed = f"the budget of {_readable(budget, unit)}"
    if measured is None:
        finding = f"nothing was measured to hold against {allowed}"
    else:
        finding = f"{_readable(measured, unit)} is {'within' if passed else 'above'} {allowed}"
    return Verdict(
        stage=stage,
        quantity=quantity,
        unit=unit,
        measured=measured,
        budget=budget,
        passed=passed,
        message=f"{stage} {quantity}: {finding}",
    )


def _readable(value: float, unit: Literal["ns", "1"]) -> str:
    return f"{value / 1e6:.4g} ms" if unit == "ns" else f"{value * 100:.3g} %"


def _sparse(stage: str, histogram: Histogram) -> StageHistogram:
    return StageHistogram(
        stage=stage,
        count=histogram.count,
        min_ns=histogram.min_ns if histogram.count else None,
        max_ns=histogram.max_ns if histogram.count else None,
        buckets=histogram.buckets(),
    )


def _check(report: LatencyReport) -> None:
    """Check what types do not say; the message names the place, from ``latency.`` on."""
    if not 0 <= report.misses <= report.ticks:
        raise InputError(f"latency.misses: expected 0 to {report.ticks}, the number of ticks, got {report.misses}")
    known = (*STAGES, END_TO_END)
    seen: set[str] = set()
    for position, part in enumerate(report.stages):
        path = f"latency.stages[{position}]"
        if part.stage not in known or part.stage in seen:
            raise InputError(f"{path}.stage: expected one of {', '.join(known)}, each once, got {part.stage!r}")
        seen.add(part.stage)
        try:
            part.histogram()
        except ValueError as error:
            raise InputError(f"{path}.{error}") from error


def _as_path(message: str) -> str:
    """Turn msgspec's ``Expected ... - at `$.ticks` `` into ``latency.ticks: expected ...``."""
    if message.startswith("latency."):
        return message
    reason, separator, path = message.partition(" - at `$")
    return f"latency{path.rstrip('`') if separator else ''}: {reason[:1].lower()}{reason[1:]}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    # ARM kernels name the machine, not the processor, and some name neither.
    for key in ("model name", "Model", "Hardware"):
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return platform.processor() or platform.machine()
