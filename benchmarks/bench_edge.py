"""What the edge adds to the network: a whole tick against the bare call of the same engine.

A tick is all the work between the arrival of a state's frame and the departure of a command's: check and decode the
frame, build the observation, run the network, supervise, encode the command, seven histograms, one row for the
recorder (which is running). Not in it: waiting, and the system calls of the socket, which `bench_bridge.py` measures.
Ticks and bare calls alternate in one run, so that whatever else the machine does meets both.

Two figures each. *Back to back*: one tick after another, as in lockstep. *Paced*: at the contract's control period,
as on the robot, where the processor has slept and its caches have been used by others: the same instructions take a
multiple of the time there, in the bare call as well. The bar, 60 µs, is on the first.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from sim2real.bundle import Bundle, write_bundle
from sim2real.clock import Ticker, now_ns
from sim2real.contract import PolicyContract, encode_contract
from sim2real.golden import MIN_GOLDEN_STEPS, Golden
from sim2real.layout import SignalLayout, command_shape
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from sim2real_edge.bench import drivable
from sim2real_edge.controller import Controller
from sim2real_edge.engine import Engine, load_engine
from sim2real_edge.loopback import Loopback
from sim2real_edge.process import without_collector
from sim2real_edge.recorder import Recorder
from sim2real_edge.tick import Tick

__all__ = ["measure"]

BACK_TO_BACK: Final = 10_000
PACED: Final = 300
WARM_UP: Final = 500
HIDDEN: Final = 64


def measure() -> dict[str, float]:
    """Return medians and their difference [µs]."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = _bundle(Path(folder) / "policy.s2r")
        engine = load_engine("onnxruntime-cpu", bundle)
        tick_us, engine_us = _alternate(bundle, engine, BACK_TO_BACK, None)
        paced_tick_us, paced_engine_us = _alternate(bundle, engine, PACED, bundle.contract.timing.control_period_ns)
    return {
        "edge_tick_overhead_median_us": tick_us - engine_us,
        "edge_tick_median_us": tick_us,
        "edge_engine_median_us": engine_us,
        "edge_tick_overhead_paced_median_us": paced_tick_us - paced_engine_us,
        "edge_tick_paced_median_us": paced_tick_us,
        "edge_engine_paced_median_us": paced_engine_us,
    }


def _alternate(bundle: Bundle, engine: Engine, count: int, period_ns: int | None) -> tuple[float, float]:
    """Return the medians [µs] of a tick and of a bare call, `count` of each, one pair a period."""
    wire = Loopback(bundle, drivable(bundle))
    ticks: list[int] = []
    calls: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "ticks.mcap"
        with Recorder(record, bundle.contract, {}, capacity=count + WARM_UP) as recorder, without_collector():
            tick = Tick(bundle.contract, Controller(bundle, engine), wire, recorder)
            ticker = None if period_ns is None else Ticker(period_ns)
            for number in range(count + WARM_UP if ticker is None else count):
                # A pair swaps its order each time: the second finds the caches as the first leaves them.
                for part in (0, 1) if number % 2 else (1, 0):
                    wire.offer()
                    if ticker is not None:
                        ticker.wait()
                    start = now_ns()
                    if part:
                        engine.run()
                        calls.append(now_ns() - start)
                    else:
                        tick.run(number, start, start, 0)
                        ticks.append(now_ns() - start)
        if recorder.result.dropped or tick.changes:
            raise AssertionError(f"not an undisturbed run: {recorder.result}, {len(tick.changes)} changes of level")
    skip = WARM_UP if period_ns is None else 0
    return statistics.median(ticks[skip:]) / 1e3, statistics.median(calls[skip:]) / 1e3


def _bundle(path: Path) -> Bundle:
    """The pendulum's contract with a network of random weights; it is timed and drives nothing."""
    task = get_task("pendulum-swingup")
    contract = task.contract(unpublished(task))
    steps, model = MIN_GOLDEN_STEPS, contract.model
    golden = Golden(
        signals=np.zeros((steps, SignalLayout(contract).size)),
        commands=np.zeros((steps, len(contract.commands))),
        episode_start=np.arange(steps) == 0,
        observations=np.zeros((steps, model.observation_size), np.float32),
        actions=np.zeros((steps, model.action_size), np.float32),
        targets=np.zeros((steps, *command_shape(contract))),
    )
    models = {"float32": _network(contract)}
    return write_bundle(path, contract=contract, models=models, golden=golden, created_by="benchmarks/bench_edge.py")


def _network(contract: PolicyContract) -> bytes:
    """Normalise, two hidden layers of 64 with tanh, one linear layer: the usual size for a small robot."""
    rng, model = np.random.default_rng(0), contract.model
    sizes = (model.observation_size, HIDDEN, HIDDEN, model.action_size)
    arrays = {"mean": np.zeros(sizes[0]), "deviation": np.ones(sizes[0])}
    nodes = [
        helper.make_node("Sub", [model.observation_name, "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "deviation"], ["x0"]),
    ]
    for index in range(3):
        arrays[f"w{index}"] = rng.normal(size=sizes[index : index + 2]) * 0.1
        arrays[f"b{index}"] = np.zeros(sizes[index + 1])
        out = model.action_name if index == 2 else f"h{index}"
        nodes.append(helper.make_node("Gemm", [f"x{index}", f"w{index}", f"b{index}"], [out]))
        if index < 2:
            nodes.append(helper.make_node("Tanh", [out], [f"x{index + 1}"]))
    observation = helper.make_tensor_value_info(model.observation_name, TensorProto.FLOAT, [1, sizes[0]])
    action = helper.make_tensor_value_info(model.action_name, TensorProto.FLOAT, [1, sizes[-1]])
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "policy", [observation], [action], weights)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(file, {CONTRACT_METADATA_KEY: encode_contract(contract).decode()})
    return file.SerializeToString()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
