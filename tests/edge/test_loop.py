"""The loop over real sockets: lockstep bit for bit, realtime on its deadlines, and every way to end. About 10 s."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sim2real.bundle import Bundle
from sim2real.clock import NS_PER_S, now_ns
from sim2real.contract import DeadlineLadder
from sim2real.errors import EngineError, InputError, WireError
from sim2real.wire import Received, Status
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_messages import Mode, make_hello
from sim2real.wire_plant import PlantSocket
from sim2real_edge.controller import Controller
from sim2real_edge.engine import load_engine
from sim2real_edge.loop import EdgeLoop, Ending, LoopResult, aligned_start
from sim2real_edge.onnx_engine import CpuEngine
from sim2real_edge.process import StopRequest, fifo_priority, on_processor, with_priority
from tests.edge import policies
from tests.edge.plants import WAIT_NS, Plant, at_rest, plant_thread
from tests.edge.policies import MS, Array


def run_edge(
    bundle: Bundle,
    endpoint: str,
    mode: Mode,
    *,
    seconds: float | None = None,
    peer_timeout_ns: int = NS_PER_S,
    stop: StopRequest | None = None,
    controller: Controller | None = None,
) -> LoopResult:
    with EdgeSocket(endpoint, hello=make_hello(bundle.contract, mode=mode)) as socket:
        socket.connect(WAIT_NS)
        loop = EdgeLoop(
            bundle.contract,
            controller or Controller(bundle, load_engine("onnxruntime-cpu", bundle)),
            socket,
            mode=mode,
            engine="onnxruntime-cpu",
            seconds=seconds,
            start_timeout_ns=NS_PER_S // 2,
            peer_timeout_ns=peer_timeout_ns,
        )
        return loop.run(stop or StopRequest())


def still(bundle: Bundle) -> Callable[[int], Array]:
    measurement = at_rest(bundle)
    return lambda _: measurement


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/plant"


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_lockstep_equals_a_controller_without_a_wire_bit_for_bit(recurrent: Bundle, ipc: str, transport: str) -> None:
    signals = np.tile(recurrent.golden.signals, (3, 1))
    controller = Controller(recurrent, load_engine("onnxruntime-cpu", recurrent))
    expected: list[Array] = []
    for row in signals:
        controller.measurement[:] = row
        expected.append(controller.tick(0, 0).copy())
    endpoint = ipc if transport == "ipc" else "tcp://127.0.0.1:*"
    with plant_thread(recurrent, endpoint, "lockstep", lambda plant: plant.serve_lockstep(signals)) as plant:
        result = run_edge(recurrent, plant.socket.endpoint, "lockstep", peer_timeout_ns=WAIT_NS)
    assert result.ending is Ending.BYE
    assert result.ticks == len(signals)
    assert plant.heard.answered == list(range(len(signals)))
    np.testing.assert_array_equal(plant.heard.commands[: len(expected)], expected)
    assert set(plant.heard.status) == {Status.RUN}


def test_realtime_answers_every_state_in_time_on_the_plants_phase(patient: Bundle, ipc: str) -> None:
    def serve(plant: Plant) -> None:
        plant.serve_realtime(still(patient), 1000)

    with plant_thread(patient, ipc, "realtime", serve) as plant:
        result = run_edge(patient, ipc, "realtime", seconds=1.0)
    assert result.ending is Ending.DONE
    assert result.level == "run"
    assert result.ticks + result.misses >= 100
    assert 0 < result.states <= result.ticks + 1
    sequence = plant.heard.sequence
    assert sequence == sorted(set(sequence))
    ages = result.latency.histogram("state_age")
    # An eighth of a period, 1.25 ms, and what the machine adds, which may be much.
    assert ages.percentile(50) > 1 * MS
    assert result.latency.histogram("tick").count == result.ticks


def test_the_measurement_behind_a_command_is_never_older_than_the_contract_allows(patient: Bundle, ipc: str) -> None:
    # Case 18: the plant stalls, its last state ages, and the policy stops driving.
    def serve(plant: Plant) -> None:
        # The stall begins when the policy drives, however long a busy machine takes to get there.
        for _ in range(1000):
            plant.send(at_rest(patient))
            plant.receive(10 * MS)
            if plant.heard.status.count(Status.RUN) >= 10:
                break
        plant.listen(5 * NS_PER_S)

    with plant_thread(patient, ipc, "realtime", serve) as plant:
        result = run_edge(patient, ipc, "realtime", peer_timeout_ns=5 * NS_PER_S // 2)
    heard = plant.heard
    assert result.ending is Ending.PEER_LOST
    assert result.level == "damp"
    assert [change.cause for change in result.changes] == ["stale"]
    first_damp = heard.status.index(Status.DAMP)
    assert set(heard.status[first_damp:]) == {Status.DAMP}
    assert len(heard.status) - first_damp > 5, "commands go on while the plant is silent"
    stale_ns = patient.contract.safety.stale_timeout_ns
    ages = [age for age, status in zip(heard.age_ns, heard.status, strict=True) if status is Status.RUN]
    # The edge's own clock reading comes before the plant's by what the machine takes to deliver the command.
    assert max(ages) < 1.5 * stale_ns
    np.testing.assert_array_equal(heard.commands[-1][:, 0], [0, 0, 0, 0, 0.5])
    assert heard.bye == "no state from the plant for 2.5 s"


def test_the_newest_state_is_what_counts(pendulum: Bundle, ipc: str) -> None:
    # Case 18: a burst of states is answered once, by its last.
    def serve(plant: Plant) -> None:
        for _ in range(3):
            for value in range(200):
                state = at_rest(pendulum)
                state[0] = value
                plant.send(state)
            plant.receive(WAIT_NS)
            plant.receive(200 * MS)
        plant.socket.bye("done")

    with plant_thread(pendulum, ipc, "realtime", serve) as plant:
        result = run_edge(pendulum, ipc, "realtime")
    assert result.ending is Ending.BYE
    assert result.states < 60
    assert plant.heard.answered[-1] >= 400


def test_a_request_to_stop_sends_a_damping_command_and_a_goodbye(patient: Bundle, ipc: str) -> None:
    stop = StopRequest()
    asked_ns = 0

    def serve(plant: Plant) -> None:
        nonlocal asked_ns
        for tick in range(1000):
            plant.send(at_rest(patient))
            plant.receive(10 * MS)
            if tick == 30:
                asked_ns = now_ns()
                stop.reason = "asked to end by the test"
            if plant.heard.bye is not None:
                break

    with plant_thread(patient, ipc, "realtime", serve) as plant:
        result = run_edge(patient, ipc, "realtime", stop=stop)
        ended_ns = now_ns()
    assert result.ending is Ending.STOPPED
    assert result.level == "run"
    assert plant.heard.bye == "asked to end by the test"
    assert plant.heard.status[-1] is Status.DAMP
    assert ended_ns - asked_ns < NS_PER_S


class BrokenEngine(CpuEngine):
    """An engine whose device goes away."""

    left = 30

    def run(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise EngineError("the device is gone")
        super().run()


@pytest.mark.parametrize("mode", ["realtime", "lockstep"])
def test_whatever_fails_the_robot_is_damped_first(pendulum: Bundle, ipc: str, mode: Mode) -> None:
    def serve(plant: Plant) -> None:
        while plant.heard.bye is None:
            plant.send(at_rest(pendulum))
            plant.receive(20 * MS)

    controller = Controller(pendulum, BrokenEngine(pendulum, "float32"))
    with (
        plant_thread(pendulum, ipc, mode, serve) as plant,
        pytest.raises(EngineError, match="the device is gone"),
    ):
        run_edge(pendulum, ipc, mode, controller=controller)
    assert plant.heard.status[-1] is Status.DAMP
    assert plant.heard.bye == "the edge failed"
    assert gc.isenabled()


@pytest.mark.parametrize("mode", ["realtime", "lockstep"])
@pytest.mark.parametrize("stamp", [2**63 - 1, -(2**63), 2**61, -(2**61)])
def test_no_time_stamp_keeps_the_robot_from_being_damped(patient: Bundle, ipc: str, mode: Mode, stamp: int) -> None:
    # The clocks differ, so every stamp is shifted by what the plant claimed when they were compared.
    def serve(plant: Plant) -> None:
        for tick in range(1000):
            extreme = stamp if tick >= 20 else None
            plant.send(at_rest(patient), sensed_ns=extreme, scheduled_ns=extreme)
            plant.receive(10 * MS)
            if plant.heard.bye is not None:
                break

    hello = msgspec.structs.replace(make_hello(patient.contract, mode=mode), clock_id="another")
    socket = PlantSocket(ipc, hello=hello)
    with plant_thread(patient, ipc, mode, serve, socket=socket) as plant:
        result = run_edge(patient, ipc, mode, seconds=0.6, peer_timeout_ns=NS_PER_S // 4)
    assert result.ending in (Ending.DONE, Ending.PEER_LOST)
    assert plant.heard.status[-1] is Status.DAMP
    assert plant.heard.bye is not None
    assert abs(plant.heard.age_ns[-1]) < NS_PER_S, "the last command carries the edge's own time"


def test_a_last_command_that_fails_does_not_keep_the_goodbye_back(patient: Bundle, ipc: str) -> None:
    class Halting(Controller):
        def halt(self, level: Status, reason: str) -> Array:
            raise EngineError("no command to be had")

    def serve(plant: Plant) -> None:
        plant.serve_realtime(still(patient), 1000)

    controller = Halting(patient, load_engine("onnxruntime-cpu", patient))
    with (
        plant_thread(patient, ipc, "realtime", serve) as plant,
        pytest.raises(EngineError, match="no command to be had"),
    ):
        run_edge(patient, ipc, "realtime", seconds=0.1, controller=controller)
    assert plant.heard.bye == "the time it was to last is over"


def test_nothing_is_commanded_before_the_first_state(pendulum: Bundle, ipc: str) -> None:
    def serve(plant: Plant) -> None:
        plant.receive(1000 * MS)

    with (
        plant_thread(pendulum, ipc, "realtime", serve) as plant,
        pytest.raises(WireError, match=r"no state within 0.5 s of connecting, so nothing was commanded"),
    ):
        run_edge(pendulum, ipc, "realtime")
    assert plant.heard.commands == []


def test_a_goodbye_instead_of_a_first_state_is_said(pendulum: Bundle, ipc: str) -> None:
    with (
        plant_thread(pendulum, ipc, "realtime", lambda plant: plant.socket.bye("out of order")),
        pytest.raises(WireError, match="said goodbye before its first state: out of order"),
    ):
        run_edge(pendulum, ipc, "realtime")


def test_a_stop_before_the_first_state_ends_quietly(pendulum: Bundle, ipc: str) -> None:
    stop = StopRequest()
    stop.reason = "asked"
    with plant_thread(pendulum, ipc, "realtime", lambda plant: None) as plant:
        assert run_edge(pendulum, ipc, "realtime", stop=stop).ending is Ending.STOPPED
    assert plant.heard.commands == []


def test_lost_deadlines_are_counted_and_lead_to_a_hold(patient: Bundle, ipc: str, tmp_path: Path) -> None:
    # Case 16. Each tick takes one and a half periods, so that every second deadline is lost. Nothing else is at fault.
    class SlowEngine(CpuEngine):
        def run(self) -> None:
            super().run()
            time.sleep(0.015)

    def serve(plant: Plant) -> None:
        plant.serve_realtime(still(patient), 1000)

    ladder = DeadlineLadder(hold_after=2, damp_after=20_000, stop_after=30_000)
    safety = msgspec.structs.replace(patient.contract.safety, stale_timeout_ns=WAIT_NS, deadline_ladder=ladder)
    bundle = policies.mlp(msgspec.structs.replace(patient.contract, safety=safety)).write(tmp_path / "policy.s2r")
    controller = Controller(bundle, SlowEngine(bundle, "float32"))
    with plant_thread(bundle, ipc, "realtime", serve):
        result = run_edge(bundle, ipc, "realtime", seconds=0.3, peer_timeout_ns=WAIT_NS, controller=controller)
    causes = [(change.level, change.cause) for change in result.changes]
    assert causes[0] == ("hold", "deadline_misses")
    assert result.misses > result.ticks
    assert result.latency.misses == result.misses


def test_ticks_are_an_eighth_of_a_period_after_the_plants() -> None:
    state = Received()
    for scheduled, now in ((1000, 5000), (0, 0), (10**12, 3), (7, 10**12 + 11)):
        state.scheduled_ns = scheduled
        start = aligned_start(state, 800, lambda now=now: now)
        assert 0 <= start - now < 800
        assert (start - scheduled) % 800 == 100


def test_a_processor_and_a_priority_are_taken_and_given_back_or_refused() -> None:
    allowed = os.sched_getaffinity(0)
    with on_processor(min(allowed)):
        assert os.sched_getaffinity(0) == {min(allowed)}
    assert os.sched_getaffinity(0) == allowed
    with pytest.raises(InputError, match=r"--cpu 4096: expected one of"), on_processor(4096):
        pass
    with pytest.raises(InputError, match=r"--realtime-priority 100: expected 1 to 99"), with_priority(100):
        pass


def scheduler_with_priority() -> int | str:
    """The scheduler under a priority, or what was said instead."""
    try:
        with with_priority(5):
            return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    except InputError as error:
        return str(error)


def test_a_priority_is_granted_or_an_error_but_never_silently_missing() -> None:
    before = os.sched_getscheduler(0)
    granted = scheduler_with_priority()
    assert granted == os.SCHED_FIFO or "/etc/security/limits.conf" in str(granted)
    assert (fifo_priority() is not None) == (granted == os.SCHED_FIFO)
    assert os.sched_getscheduler(0) == before


def test_a_plant_of_another_kind_is_never_driven(pendulum: Bundle, quadruped: Bundle, ipc: str) -> None:
    plant = Plant(quadruped, ipc, "realtime")

    def wait() -> None:
        with pytest.raises(WireError, match="the last one was refused"):
            plant.socket.accept(1500 * MS)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        with pytest.raises(WireError, match="contract_sha256"):
            run_edge(pendulum, ipc, "realtime")
        waiting.result(10)
        plant.socket.close()
    assert plant.heard.commands == []
