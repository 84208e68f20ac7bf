"""What the edge's stages cost on this machine, ticked as on a robot but without one."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.bundle import Bundle
from sim2real.clock import NS_PER_S, Ticker
from sim2real.contract import LatencyBudget
from sim2real.errors import InputError
from sim2real.latency import Conditions, LatencyReport, Verdict, judge, make_report
from sim2real.wire import Status
from sim2real_edge.controller import Controller
from sim2real_edge.engine import Engine
from sim2real_edge.loopback import Loopback
from sim2real_edge.process import without_collector
from sim2real_edge.supervisor import Supervisor
from sim2real_edge.tick import Tick

__all__ = ["bench", "drivable", "stage_verdicts"]

_LOCAL_STAGES: Final = ("wake", "observe", "infer", "supervise", "tick")
"""Those that mean the same without a plant."""


def bench(bundle: Bundle, engine: Engine, *, seconds: float, load: str) -> LatencyReport:
    """Return the latencies of ticks at the contract's control period over `seconds`.

    The measurements are those of the golden run that lie within the limits: beyond them, the supervisor would drive.

    Raises:
        InputError: Less than one control period is asked for, or no golden measurement lies within the limits.
    """
    period_ns = bundle.contract.timing.control_period_ns
    count = round(seconds * NS_PER_S / period_ns)
    if count < 1:
        raise InputError(f"--seconds {seconds:g}: expected at least one control period, {period_ns / NS_PER_S:g} s")
    wire = Loopback(bundle, drivable(bundle))
    tick = Tick(bundle.contract, Controller(bundle, engine), wire, None)
    ticker = Ticker(period_ns)
    with without_collector():
        while ticker.index + 1 < count:
            wire.offer()
            ticker.wait()
            tick.run(ticker.index, ticker.scheduled_ns, ticker.woke_ns, ticker.skipped)
    conditions = Conditions(
        mode="realtime", endpoint="loopback", engine=engine.name, duration_ns=count * period_ns, load=load
    )
    return make_report(
        {stage: tick.histograms[stage] for stage in _LOCAL_STAGES},
        conditions=conditions,
        ticks=tick.ticks + ticker.total_skipped,
        misses=tick.late + ticker.total_skipped,
        max_action_age_ns=None,
    )


def drivable(bundle: Bundle) -> list[npt.NDArray[np.float64]]:
    """Return the golden measurements, shape (S,) each, at which the supervisor lets the policy drive.

    Raises:
        InputError: There are none.
    """
    operator = np.array([command.initial for command in bundle.contract.commands])
    observation = np.zeros((1, bundle.contract.model.observation_size), np.float32)
    action = np.zeros((1, bundle.contract.model.action_size), np.float32)
    found: list[npt.NDArray[np.float64]] = []
    for signals in bundle.golden.signals:
        supervisor = Supervisor(bundle.contract)
        supervisor.begin(signals)
        supervisor.supervise(signals, operator, observation, action, 0, 0)
        if supervisor.level is Status.RUN:
            found.append(signals)
    if not found:
        raise InputError(f"{bundle.path}: no golden measurement lies within the contract's limits; export it again")
    return found


def stage_verdicts(budget: LatencyBudget, report: LatencyReport) -> tuple[Verdict, ...]:
    """Return the verdicts on the stages that `report` measured, and on missed deadlines."""
    measured = {stage.stage for stage in report.stages}
    return tuple(
        verdict
        for verdict in judge(budget, report)
        if verdict.stage in measured or verdict.quantity == "deadline_miss_rate"
    )
