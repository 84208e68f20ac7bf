"""The plant in real time and in lockstep, against an edge that does on purpose what a real one should not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from sim2real.bundle import Bundle
from sim2real.clock import NS_PER_S
from sim2real.contract import PolicyContract
from sim2real.errors import WireError
from sim2real.layout import EFFORT, KD, command_shape
from sim2real.wire import Received, Status
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_messages import Mode, make_hello
from sim2real.wire_plant import PlantSocket
from sim2real_hil.inprocess import make_controller, run_in_process
from sim2real_hil.plant_server import RealtimePlant, RealtimeRun, make_plant, serve_lockstep
from sim2real_hil.trajectory import Trajectory, compare
from tests.edge.policies import pendulum_contract

TIMEOUT_NS = 20 * NS_PER_S
EFFORT_SENT = 0.25

Answer = Callable[[EdgeSocket, Received, int], bool]
"""What the edge does with a state: socket, state, how many it has had; whether to go on."""


def send(edge: EdgeSocket, state: Received, sequence: int, *, answered: int | None = None, status: int = 0) -> bool:
    command = np.zeros(command_shape(pendulum_contract()))
    command[EFFORT] = EFFORT_SENT
    return edge.send_command(
        command,
        status=status,
        sequence=sequence,
        answered=state.sequence if answered is None else answered,
        scheduled_ns=state.scheduled_ns,
        sensed_ns=state.sensed_ns,
        received_ns=state.received_ns,
    )


@contextmanager
def plant_with_edge(contract: PolicyContract, mode: Mode, answer: Answer) -> Generator[PlantSocket]:
    """A plant's socket that an edge has connected to; the edge answers in a thread of its own."""
    hello = make_hello(contract, mode=mode)
    over = threading.Event()

    def follow(endpoint: str) -> None:
        with EdgeSocket(endpoint, hello=hello) as edge:
            edge.connect(TIMEOUT_NS)
            values, count = np.zeros(hello.state_size), 0
            while not over.is_set():
                state = edge.receive_state(values, NS_PER_S // 10)
                if state is not None and not answer(edge, state, count):
                    break
                count += state is not None
            over.wait()

    with PlantSocket("tcp://127.0.0.1:*", hello=hello) as socket:
        thread = threading.Thread(target=follow, args=(socket.endpoint,))
        thread.start()
        try:
            socket.accept(TIMEOUT_NS)
            yield socket
        finally:
            over.set()
            thread.join()


def patient_contract() -> PolicyContract:
    """The pendulum's, but commands stay valid for so long that a busy machine does not matter."""
    contract = pendulum_contract()
    latency = msgspec.structs.replace(contract.latency, max_action_age_ns=NS_PER_S // 4)
    return msgspec.structs.replace(contract, latency=latency)


def run_realtime(answer: Answer, *, ticks: int = 100, timeout_ns: int = TIMEOUT_NS) -> RealtimeRun:
    contract = patient_contract()
    with plant_with_edge(contract, "realtime", answer) as socket:
        plant = make_plant(contract, start="random", seed=2)
        return RealtimePlant(plant, socket, contract, ticks=ticks, timeout_ns=timeout_ns, check=lambda: None).run()


def test_a_command_that_grows_too_old_gives_way_to_damping() -> None:
    contract = patient_contract()
    run = run_realtime(lambda edge, state, count: count == 0 and send(edge, state, 0) and False, ticks=200)
    efforts, damping = run.trajectory.command[:, EFFORT, 0], run.trajectory.command[:, KD, 0]
    fallback = contract.safety.fallback.damp_kd[0]
    driven = np.flatnonzero(efforts == EFFORT_SENT)
    assert len(driven)
    assert run.waiting_ticks >= 1
    assert run.damped_ticks >= 1
    assert run.waiting_ticks + len(driven) + run.damped_ticks == run.ticks
    others = np.setdiff1d(np.arange(len(efforts)), driven)
    assert np.all(damping[others] == fallback)
    assert np.all(efforts[others] == 0.0)
    # Applied until it was too old, counted from the tick at which its state was sensed, one of the first.
    first_damped = run.trajectory.time[driven[-1] + 1]
    assert first_damped >= contract.latency.max_action_age_ns * 1e-9
    assert run.max_action_age_ns is not None
    assert run.max_action_age_ns > contract.latency.max_action_age_ns
    assert run.end_to_end.count == run.command_transport.count == 1


@pytest.mark.parametrize("ahead_ns", [NS_PER_S, 2**60])
def test_a_command_from_the_future_is_not_applied(ahead_ns: int) -> None:
    def answer(edge: EdgeSocket, state: Received, count: int) -> bool:
        state.sensed_ns += ahead_ns
        return send(edge, state, count)

    run = run_realtime(answer)
    assert run.damped_ticks
    assert run.damped_ticks + run.waiting_ticks == run.ticks
    assert not np.any(run.trajectory.command[:, EFFORT] == EFFORT_SENT)


def test_commands_of_the_supervisor_are_counted() -> None:
    def answer(edge: EdgeSocket, state: Received, count: int) -> bool:
        return send(edge, state, count, status=Status.HOLD if count < 20 else Status.RUN)

    run = run_realtime(answer)
    assert 0 < run.supervised_ticks < run.ticks
    held = run.trajectory.status == Status.HOLD
    assert np.count_nonzero(held) == run.supervised_ticks


def test_an_edge_that_falls_silent_ends_the_run() -> None:
    with pytest.raises(WireError, match=r"tick \d+: no command for 0\.\d s, the edge hangs or is gone"):
        run_realtime(lambda edge, state, count: False, ticks=100_000, timeout_ns=NS_PER_S // 5)


def test_an_edge_that_leaves_ends_a_run_of_given_length_with_its_reason() -> None:
    def leave(edge: EdgeSocket, state: Received, count: int) -> bool:
        edge.bye("battery empty")
        return False

    with pytest.raises(WireError, match=r"the edge ended the run: battery empty"):
        run_realtime(leave, ticks=100_000)
    contract = pendulum_contract()
    with pytest.raises(WireError, match=r"tick 0: the edge ended the run: battery empty"):
        lockstep(contract, leave)


def test_physics_keeps_to_the_clock_when_the_plant_stalls() -> None:
    contract = pendulum_contract()
    stalled: list[int] = []

    def stall_once() -> None:
        if not stalled:
            time.sleep(0.03)
            stalled.append(1)

    with plant_with_edge(contract, "realtime", send) as socket:
        plant = make_plant(contract, start="random", seed=2)
        run = RealtimePlant(plant, socket, contract, ticks=100, timeout_ns=TIMEOUT_NS, check=stall_once).run()
    assert run.lost_ticks >= 10
    assert run.ticks + run.lost_ticks == run.trajectory.tick[-1] + 1 >= 100
    simulated = float(plant.snapshot()["time"][0])
    assert simulated == pytest.approx((run.ticks + run.lost_ticks) * contract.timing.physics_step_ns * 1e-9)


def lockstep(contract: PolicyContract, answer: Answer, *, ticks: int = 50, timeout_ns: int = TIMEOUT_NS) -> None:
    with plant_with_edge(contract, "lockstep", answer) as socket:
        serve_lockstep(
            make_plant(contract, start="random", seed=2),
            socket,
            contract,
            ticks=ticks,
            timeout_ns=timeout_ns,
            check=lambda: None,
            progress=lambda: None,
        )


def test_lockstep_refuses_a_command_for_another_state() -> None:
    def answer(edge: EdgeSocket, state: Received, count: int) -> bool:
        return send(edge, state, count, answered=max(0, state.sequence - (count == 7)))

    with pytest.raises(WireError, match=r"tick 7: expected the command for state 7, got one for state 6"):
        lockstep(pendulum_contract(), answer)


def test_lockstep_waits_but_not_for_ever() -> None:
    with pytest.raises(WireError, match=r"tick 3: no command within 0\.2 s"):
        lockstep(
            pendulum_contract(),
            lambda edge, state, count: count < 3 and send(edge, state, count),
            timeout_ns=NS_PER_S // 5,
        )


def test_another_start_is_another_trajectory(bundle: Bundle) -> None:
    def run(seed: int) -> Trajectory:
        plant = make_plant(bundle.contract, start="random", seed=seed)
        controller = make_controller(bundle, "onnxruntime-cpu")
        return run_in_process(plant, controller, bundle, ticks=50, progress=lambda: None)

    first, again, other = run(1), run(1), run(2)
    assert compare(first, again) == ""
    assert compare(first, other).startswith("tick 0: ")
