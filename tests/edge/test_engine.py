"""Engines: bound to the contract, proved by the golden run, refused otherwise. About 3 s."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sim2real.bundle import Bundle, write_bundle
from sim2real.contract import PolicyContract
from sim2real.errors import EngineError
from sim2real_edge.engine import ENGINES, available_engines, load_engine
from sim2real_edge.golden import GOLDEN_TOLERANCES, replay_golden, require_golden
from tests.edge import policies

CPU = "onnxruntime-cpu"


@pytest.mark.parametrize("name", ["pendulum", "recurrent", "quadruped"])
def test_the_golden_run_is_reproduced_from_raw_measurements(name: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    report = replay_golden(load_engine(CPU, bundle), bundle)
    assert report.passed
    assert (report.steps, report.episodes) == (policies.STEPS, 3)
    assert 0.0 < report.action_error <= GOLDEN_TOLERANCES["float32"], "two implementations never agree to the last bit"


def test_a_replay_does_not_depend_on_what_ran_before(recurrent: Bundle) -> None:
    engine = load_engine(CPU, recurrent)
    first = replay_golden(engine, recurrent)
    engine.run()
    assert replay_golden(engine, recurrent) == first


def test_an_export_that_drifts_passes_its_first_step_and_not_its_sequence(tmp_path: Path) -> None:
    # Case 6: one step shows nothing.
    bundle = policies.drifting(policies.gru(policies.recurrent_contract())).write(tmp_path / "policy.s2r")
    engine = load_engine(CPU, bundle)
    report = replay_golden(engine, bundle)
    assert report.first_bad_step is not None
    assert 0 < report.first_bad_step < 20
    with pytest.raises(EngineError, match=r"does not reproduce the golden run.*first at step.*must not drive"):
        require_golden(engine, bundle)


def test_the_hidden_state_is_fed_back_and_begins_at_its_initial_value(recurrent: Bundle) -> None:
    # Case 5.
    engine = load_engine(CPU, recurrent)
    engine.observation[:] = 0.3
    outputs: list[float] = []
    for _ in range(2):
        engine.reset()
        for _ in range(3):
            engine.run()
            outputs.append(float(engine.action[0, 0]))
    assert outputs[:3] == outputs[3:]
    assert len(set(outputs[:3])) == 3
    _, hidden = policies.gru(recurrent.contract).compute(
        np.full(recurrent.contract.model.observation_size, 0.3), np.full(policies.HIDDEN, 0.25)
    )
    assert not np.allclose(hidden, 0.25)


def test_a_model_with_another_contract_in_it_is_refused(pendulum: Bundle) -> None:
    # Case 4: a model beside another's contract. The bundle's reader refuses it too; an engine does not rely on that.
    joint = msgspec.structs.replace(pendulum.contract.joints[0], effort_limit=2.0)
    other = msgspec.structs.replace(pendulum.contract, joints=(joint,))
    model = policies.mlp(pendulum.contract).model(other)
    with pytest.raises(EngineError, match=r"expected the bundle's contract in the model's metadata, got another one"):
        load_engine(CPU, replace(pendulum, models={"float32": model}))


def rebuilt(contract: PolicyContract, change: Callable[[onnx.GraphProto], None]) -> bytes:
    model = onnx.load_from_string(policies.mlp(contract).model())
    change(model.graph)
    return policies.finish(model.graph, contract)


def as_float64(graph: onnx.GraphProto) -> None:
    graph.node.insert(0, helper.make_node("Cast", ["obs"], ["obs32"], to=TensorProto.FLOAT))
    for node in list(graph.node)[1:]:
        node.input[:] = ["obs32" if name == "obs" else name for name in node.input]
    graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def renamed(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.input[:] = ["observations" if name == "obs" else name for name in node.input]
    graph.input[0].name = "observations"


def widened(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            as_float64,
            r"input 'obs': expected tensor\(float\) of shape \[1, 4\], got tensor\(double\) of shape \[1, 4\]",
        ),
        (widened, r"input 'obs': expected tensor\(float\) of shape \[1, 4\], got tensor\(float\) of shape \[2, 4\]"),
        (renamed, r"expected the inputs obs, got observations"),
    ],
)
def test_a_tensor_that_differs_from_the_contract_is_named(
    pendulum: Bundle, change: Callable[[onnx.GraphProto], None], told: str
) -> None:
    # Case 8.
    model = rebuilt(pendulum.contract, change)
    with pytest.raises(EngineError, match=told):
        load_engine(CPU, replace(pendulum, models={"float32": model}))


def test_a_batch_dimension_without_a_size_is_bound_to_one(pendulum: Bundle) -> None:
    def free(graph: onnx.GraphProto) -> None:
        for value in (graph.input[0], graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"

    bundle = replace(pendulum, models={"float32": rebuilt(pendulum.contract, free)})
    assert replay_golden(load_engine(CPU, bundle), bundle).passed


def test_a_graph_that_cannot_be_run_is_one_clear_line(pendulum: Bundle) -> None:
    def unknown(graph: onnx.GraphProto) -> None:
        graph.node[0].op_type = "NoSuchOperator"

    with pytest.raises(EngineError, match="cannot be loaded by onnxruntime") as caught:
        load_engine(CPU, replace(pendulum, models={"float32": rebuilt(pendulum.contract, unknown)}))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named_with_what_is(pendulum: Bundle) -> None:
    with pytest.raises(EngineError, match=r"engine 'tensorflow': unknown; allowed: onnxruntime-cpu, onnxruntime-cuda"):
        load_engine("tensorflow", pendulum)
    with pytest.raises(EngineError, match=r"holds no int8 model; allowed: float32"):
        load_engine(CPU, pendulum, "int8")


def test_an_engine_that_cannot_be_used_says_which_extra_brings_it(pendulum: Bundle) -> None:
    available = available_engines()
    assert set(available) == set(ENGINES)
    assert available[CPU] is None
    reason = available["onnxruntime-cuda"]
    if reason is None:
        assert replay_golden(load_engine("onnxruntime-cuda", pendulum), pendulum).passed
    else:
        assert "needs the 'edge-gpu' extra" in reason
        with pytest.raises(EngineError, match="edge-gpu"):
            load_engine("onnxruntime-cuda", pendulum)


def test_a_call_leaves_the_processor_alone_afterwards(tmp_path: Path) -> None:
    # Case 15: a pool of threads that spins after each call costs whole cores. The network is large enough for a pool.
    bundle = policies.mlp(policies.quadruped_contract(), hidden=512).write(tmp_path / "policy.s2r")
    threads = len(os.listdir("/proc/self/task"))
    engine = load_engine(CPU, bundle)
    engine.run()
    assert len(os.listdir("/proc/self/task")) <= threads
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03


def test_the_buffers_stay_where_they_are(recurrent: Bundle) -> None:
    engine = load_engine(CPU, recurrent)
    addresses = (engine.observation.ctypes.data, engine.action.ctypes.data)
    seen: Sequence[float] = []
    for _ in range(4):
        engine.run()
        seen = [*seen, float(engine.action[0, 0])]
    assert (engine.observation.ctypes.data, engine.action.ctypes.data) == addresses
    assert len(set(seen)) == 4


def test_a_bundle_is_written_with_its_engine_proved(pendulum: Bundle, tmp_path: Path) -> None:
    golden = replace(pendulum.golden, actions=pendulum.golden.actions + np.float32(2e-5))
    written = write_bundle(
        tmp_path / "off.s2r",
        contract=pendulum.contract,
        models=pendulum.models,
        golden=golden,
        created_by="tests",
    )
    report = replay_golden(load_engine(CPU, written), written)
    assert (report.passed, report.first_bad_step) == (False, 0)
    assert report.action_error == pytest.approx(2e-5, rel=0.05)
