"""The controller: one tick from measurement to command, the same wherever it runs. About 3 s."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sim2real.bundle import Bundle
from sim2real.clock import now_ns
from sim2real.wire import Status
from sim2real_edge.bench import drivable
from sim2real_edge.controller import Controller
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import GOLDEN_TOLERANCES, require_golden
from sim2real_edge.loopback import Loopback
from sim2real_edge.process import without_collector
from sim2real_edge.recorder import Recorder
from sim2real_edge.tick import Tick
from tests.edge.plants import at_rest
from tests.edge.policies import Array


def make_controller(bundle: Bundle) -> Controller:
    engine = load_engine("onnxruntime-cpu", bundle)
    require_golden(engine, bundle)
    return Controller(bundle, engine)


def drive_golden(controller: Controller, bundle: Bundle) -> tuple[Array, Array]:
    """Actions and commands over the golden run, episodes included."""
    golden = bundle.golden
    actions, commands = np.zeros(golden.actions.shape), np.zeros(golden.targets.shape)
    for step, starts in enumerate(golden.episode_start):
        controller.measurement[:], controller.operator[:] = golden.signals[step], golden.commands[step]
        if starts:
            controller.start()
        commands[step] = controller.tick(0, 0)
        actions[step] = controller.action
        assert controller.level is Status.RUN
    return actions, commands


@pytest.mark.parametrize("name", ["pendulum", "recurrent", "quadruped"])
def test_within_the_limits_the_golden_run_is_what_comes_out(name: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    actions, commands = drive_golden(make_controller(bundle), bundle)
    np.testing.assert_allclose(actions, bundle.golden.actions, rtol=0, atol=GOLDEN_TOLERANCES["float32"])
    np.testing.assert_allclose(commands, bundle.golden.targets, rtol=0, atol=GOLDEN_TOLERANCES["float32"])


def test_the_same_inputs_give_the_same_bits(recurrent: Bundle) -> None:
    controller = make_controller(recurrent)
    first = drive_golden(controller, recurrent)
    for other in (drive_golden(controller, recurrent), drive_golden(make_controller(recurrent), recurrent)):
        np.testing.assert_array_equal(first[0], other[0])
        np.testing.assert_array_equal(first[1], other[1])


def test_the_first_observation_gives_the_first_action(pendulum: Bundle) -> None:
    # Case 22: nothing waits for a second observation.
    controller = make_controller(pendulum)
    controller.measurement[:] = pendulum.golden.signals[0]
    command = controller.tick(0, 0)
    assert controller.level is Status.RUN
    np.testing.assert_allclose(command, pendulum.golden.targets[0], rtol=0, atol=GOLDEN_TOLERANCES["float32"])
    assert command.any()


def test_after_a_hold_the_policy_begins_as_in_a_new_episode(quadruped: Bundle) -> None:
    controller, fresh = make_controller(quadruped), make_controller(quadruped)
    still = at_rest(quadruped)
    for wobble in np.linspace(0.0, 0.2, 10):
        controller.measurement[:] = still + wobble * (still != 0)
        controller.tick(0, 0)
    controller.measurement[0] = 1.4
    controller.tick(0, 0)
    assert controller.level is Status.HOLD
    controller.measurement[:] = still
    command = controller.tick(0, 0)
    for _ in range(quadruped.contract.safety.recover_after - 1):
        command = controller.tick(0, 0)
    assert controller.level is Status.RUN
    fresh.measurement[:] = still
    for _ in range(5):
        np.testing.assert_array_equal(command, fresh.tick(0, 0))
        np.testing.assert_array_equal(controller.observation, fresh.observation)
        command = controller.tick(0, 0)


def test_what_a_network_swallows_is_seen_before_it_and_forgotten_after_it(recurrent: Bundle) -> None:
    # onnxruntime's GRU turns a NaN into an ordinary number: looking at the action alone shows nothing, and the hidden
    # state would carry what it saw on and on.
    controller, fresh = make_controller(recurrent), make_controller(recurrent)
    still = at_rest(recurrent)
    for measured in (0.0, 0.1, np.nan):
        controller.measurement[:] = still
        controller.measurement[1] = measured
        controller.tick(0, 0)
    assert np.isnan(controller.observation).any()
    assert controller.level is Status.STOP
    assert controller.reason.startswith("joint_vel is not finite")
    controller.measurement[:] = fresh.measurement[:] = still
    controller.tick(0, 0)
    fresh.tick(0, 0)
    np.testing.assert_array_equal(controller.action, fresh.action)
    assert controller.level is Status.STOP


@pytest.mark.parametrize("value", [1e308, 1e39, float("inf"), float("nan")])
def test_garbage_makes_no_noise(quadruped: Bundle, value: float) -> None:
    # Warnings are errors here: numpy's would be printed from the control loop.
    controller = make_controller(quadruped)
    controller.measurement[:] = value
    assert np.isfinite(controller.tick(0, 0)).all()
    assert controller.level is Status.DAMP


def test_operator_inputs_are_clamped_to_their_ranges(quadruped: Bundle) -> None:
    controller = make_controller(quadruped)
    controller.measurement[:] = at_rest(quadruped)
    controller.operator[:] = [7.0, -7.0, 0.5]
    controller.tick(0, 0)
    np.testing.assert_array_equal(controller.operator, [1.0, -1.0, 0.5])
    assert controller.level is Status.RUN


def test_the_stamps_are_those_of_the_stages_in_order(pendulum: Bundle) -> None:
    controller = make_controller(pendulum)
    before = now_ns()
    controller.tick(0, 0)
    stamps = (controller.started_ns, controller.observed_ns, controller.inferred_ns, controller.supervised_ns)
    assert list(stamps) == sorted(stamps)
    assert before <= stamps[0]
    assert stamps[-1] <= now_ns()


def forbidden() -> float:
    raise AssertionError("the wall clock was read")


@pytest.mark.parametrize("name", ["pendulum", "recurrent", "quadruped"])
def test_ticks_allocate_nothing_and_read_no_wall_clock(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Cases 20 and 21: frames, checks, network, supervisor, histograms and recorder, over thousands of ticks.
    bundle: Bundle = request.getfixturevalue(name)
    wire = Loopback(bundle, drivable(bundle))
    with Recorder(tmp_path / "ticks.mcap", bundle.contract, {}, capacity=64) as recorder, without_collector():
        tick = Tick(bundle.contract, make_controller(bundle), wire, recorder)
        step = stepper(tick, wire)
        step(500)
        monkeypatch.setattr(time, "time", forbidden)
        monkeypatch.setattr(time, "time_ns", forbidden)
        before = sys.getallocatedblocks()
        step(3000)
        grown = sys.getallocatedblocks() - before
        tracemalloc.start()
        step(10)
        tracemalloc.reset_peak()
        size, _ = tracemalloc.get_traced_memory()
        step(200)
        after, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        monkeypatch.undo()
    assert gc.isenabled()
    # A handful of blocks is the interpreter's own: counters that outgrow the small integers, specialised bytecode.
    assert grown < 50
    assert after - size < 2000
    assert peak - size < 4000
    assert tick.ticks == tick.states == 3710


def stepper(tick: Tick, wire: Loopback) -> Callable[[int], None]:
    def step(count: int) -> None:
        for _ in range(count):
            wire.offer()
            scheduled = now_ns()
            tick.run(tick.ticks, scheduled, scheduled, 0)

    return step
