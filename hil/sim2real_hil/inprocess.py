"""The reference of lockstep: the same policy and the same plant in one process, without a wire."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim2real.bundle import Bundle
from sim2real.layout import command_shape
from sim2real.sim.plant import Plant
from sim2real_edge.controller import Controller
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import require_golden
from sim2real_hil.trajectory import Recorder, Trajectory

__all__ = ["make_controller", "run_in_process"]


def make_controller(bundle: Bundle, engine: str, precision: str = "float32") -> Controller:
    """Return the edge's controller on one of its engines, which has replayed the golden vectors.

    Raises:
        EngineError: The engine is not available here, or does not reproduce the golden vectors.
    """
    loaded = load_engine(engine, bundle, precision)
    require_golden(loaded, bundle)
    return Controller(bundle, loaded)


def run_in_process(
    plant: Plant, controller: Controller, bundle: Bundle, *, ticks: int, progress: Callable[[], object]
) -> Trajectory:
    """Run `ticks` control periods of `plant` (N = 1) under `controller`.

    Measurements are as old as in lockstep: age 0, no tick lost.
    """
    contract = bundle.contract
    signals = np.zeros((1, plant.layout.size))
    command = np.zeros((1, *command_shape(contract)))
    recorder = Recorder(contract, plant, ticks, contract.timing.control_period_ns)
    controller.start()
    for tick in range(ticks):
        plant.read(signals)
        controller.measurement[:] = signals[0]
        command[0] = controller.tick(0, 0)
        recorder.add(tick, signals[0], command[0], controller.level)
        plant.step(command)
        progress()
    return recorder.trajectory()
