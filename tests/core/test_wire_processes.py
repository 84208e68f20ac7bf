"""Plant and edge as real processes that are stopped and killed at the worst moments. About 8 s."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sim2real.clock import NS_PER_MS, NS_PER_S, now_ns
from sim2real.errors import WireError
from sim2real.wire import MessageType
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_plant import PlantSocket
from tests.core.wire_peers import (
    HELLO,
    SHORT_NS,
    WAIT_NS,
    answer,
    command_array,
    echo,
    read_when_told,
    running,
    send,
    serve,
    state_array,
)


@pytest.fixture(params=["ipc", "tcp"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/wire" if request.param == "ipc" else "tcp://127.0.0.1:*"


def seconds_to(action: object, *arguments: object) -> float:
    started = now_ns()
    assert callable(action)
    action(*arguments)
    return (now_ns() - started) / NS_PER_S


def test_an_edge_killed_in_mid_run_is_noticed_and_closing_takes_no_time(endpoint: str) -> None:
    command = command_array()
    plant = PlantSocket(endpoint, hello=HELLO)
    with running(echo, plant.endpoint, None) as (process, _):
        plant.accept(WAIT_NS)
        for sequence in range(20):
            assert send(plant, sequence)
            assert plant.receive_command(command, WAIT_NS) is not None
        process.kill()
        process.join()
    # The states go nowhere, without an exception and without a wait, and that is counted once it is known.
    sequence = 20
    while send(plant, sequence):
        sequence += 1
        plant.receive_command(command, NS_PER_MS)
    assert plant.unsent == 1
    assert plant.receive_command(command, SHORT_NS) is None
    plant.bye("nobody hears this")
    assert seconds_to(plant.close) < 1


def test_an_edge_killed_at_any_moment_leaves_the_plant_usable(endpoint: str) -> None:
    plant = PlantSocket(endpoint, hello=HELLO)
    with running(echo, plant.endpoint, None) as (process, pipe):
        plant.accept(WAIT_NS)
        assert pipe.recv() == "connected"
        # While it waits, with states on their way to it that it will never read.
        process.kill()
        for sequence in range(100):
            send(plant, sequence)
    with running(echo, plant.endpoint, None) as (_, pipe):
        plant.accept(WAIT_NS)
        assert send(plant, 0)
        received = plant.receive_command(command_array(), WAIT_NS)
        assert received is not None
        assert received.answered == 0
        plant.bye("done")
        assert [pipe.recv(), pipe.recv()] == ["connected", ("done", 1, 0, {})]
    assert seconds_to(plant.close) < 1


def test_a_plant_killed_in_mid_run_ends_in_silence_and_closing_takes_no_time(endpoint: str) -> None:
    state, command = state_array(), command_array()
    with running(serve, endpoint, 0) as (process, pipe):
        edge = EdgeSocket(pipe.recv(), hello=HELLO)
        edge.connect(WAIT_NS)
        received = edge.receive_state(state, WAIT_NS)
        for sequence in range(20):
            assert received is not None
            answer(edge, received, command, sequence)
            received = edge.receive_state(state, WAIT_NS)
        assert received is not None
        process.kill()
        process.join()
        while edge.receive_state(state, SHORT_NS) is not None:
            pass
        for sequence in range(20, 200):
            answer(edge, received, command, sequence)
        edge.bye("nobody hears this")
        assert seconds_to(edge.close) < 1


def test_a_plant_that_is_stopped_in_the_handshake_is_given_up_in_time(endpoint: str) -> None:
    with running(serve, endpoint, 0) as (process, pipe):
        edge = EdgeSocket(pipe.recv(), hello=HELLO)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        started = now_ns()
        with pytest.raises(WireError, match="no answer from a plant within"):
            edge.connect(SHORT_NS)
        assert now_ns() - started < SHORT_NS + NS_PER_S
        assert seconds_to(edge.close) < 1


def test_a_goodbye_outlives_its_speaker(endpoint: str) -> None:
    state, command = state_array(), command_array()
    with running(serve, endpoint, 5) as (process, pipe), EdgeSocket(pipe.recv(), hello=HELLO) as edge:
        edge.connect(WAIT_NS)
        sequence = 0
        while (received := edge.receive_state(state, WAIT_NS)) is not None and received.type is MessageType.STATE:
            answer(edge, received, command, sequence)
            sequence += 1
        assert received is not None
        assert received.reason == "all states sent"
        assert sequence == 5
        process.join()


def test_a_reader_that_was_stopped_gets_the_newest_state(endpoint: str) -> None:
    """What CASES calls a stalled reader: it must not see a second of old states, one after another."""
    states = 300
    with PlantSocket(endpoint, hello=HELLO) as plant, running(read_when_told, plant.endpoint) as (process, pipe):
        plant.accept(WAIT_NS)
        assert pipe.recv() == "connected"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        sent = 0
        for sequence in range(states):
            # Never blocks, however little the reader takes.
            started = now_ns()
            sent += send(plant, sequence)
            assert now_ns() - started < NS_PER_S
        # What the kernel took is old by now; what it did not take was refused, and the plant knows.
        assert sent + plant.unsent == states
        os.kill(process.pid, signal.SIGCONT)
        while not send(plant, states):
            plant.receive_command(command_array(), NS_PER_MS)
        pipe.send(states)
        seen, superseded = pipe.recv()
        pipe.send("end")
    assert seen[-1] == states
    assert len(seen) <= 10, f"old states were read one after another: {seen}"
    assert len(seen) + superseded == sent + 1
