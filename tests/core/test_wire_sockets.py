"""Plant and edge over real sockets: the handshake, the newest message, strangers, goodbyes. About 4 s."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from sim2real import wire_edge
from sim2real.clock import NS_PER_MS, NS_PER_S, now_ns
from sim2real.errors import WireError
from sim2real.wire import Drop, FrameWriter, MessageType, decode_control, encode_control
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_link import Session
from sim2real.wire_messages import Refuse, Start
from sim2real.wire_plant import PlantSocket
from tests.core.wire_peers import HELLO, SHORT_NS, WAIT_NS, answer, command_array, echo, running, send, state_array

HASH = HELLO.contract_hash


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/wire"


@pytest.fixture
def plant(endpoint: str) -> Iterator[PlantSocket]:
    with PlantSocket(endpoint, hello=HELLO) as socket:
        yield socket


@pytest.fixture
def edge(plant: PlantSocket) -> Iterator[EdgeSocket]:
    with EdgeSocket(plant.endpoint, hello=HELLO) as socket:
        yield socket


def meet(plant: PlantSocket, edge: EdgeSocket) -> tuple[Session, Session]:
    with ThreadPoolExecutor(1) as pool:
        accepted: Future[Session] = pool.submit(plant.accept, WAIT_NS)
        connected = edge.connect(WAIT_NS)
        return accepted.result(), connected


@contextlib.contextmanager
def stranger(plant: PlantSocket) -> Generator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, WAIT_NS // NS_PER_MS)
        socket.connect(plant.endpoint)
        yield socket


def test_a_session_and_the_way_of_every_stamp(plant: PlantSocket, edge: EdgeSocket) -> None:
    accepted, connected = meet(plant, edge)
    assert accepted.peer == connected.peer == HELLO
    assert accepted.clock == connected.clock
    assert (connected.clock.offset_ns, connected.clock.uncertainty_ns) == (0, 0)

    before = now_ns()
    assert plant.send_state(np.array([1.0, 2.0, 3.0]), sequence=0, scheduled_ns=11, sensed_ns=12)
    state = state_array()
    received = edge.receive_state(state, WAIT_NS)
    assert received is not None
    assert received.type is MessageType.STATE
    assert state.tolist() == [1.0, 2.0, 3.0]
    assert (received.sequence, received.scheduled_ns, received.sensed_ns) == (0, 11, 12)
    assert before <= received.sent_ns == plant.sent_ns <= received.received_ns == received.read_ns <= now_ns()
    assert received.age_ns == received.read_ns - 12
    assert received.transit_ns == received.read_ns - received.sent_ns

    read_at = received.received_ns
    values = np.arange(5.0).reshape(5, 1)
    assert edge.send_command(
        values, status=2, sequence=40, answered=0, scheduled_ns=21, sensed_ns=12, received_ns=read_at
    )
    command = command_array()
    received = plant.receive_command(command, WAIT_NS)
    assert received is not None
    assert command.tolist() == values.tolist()
    assert (received.type, received.status, received.sequence, received.answered) == (MessageType.COMMAND, 2, 40, 0)
    assert (received.scheduled_ns, received.sensed_ns, received.received_ns) == (21, 12, read_at)
    assert received.sent_ns == edge.sent_ns


def test_every_lockstep_message_arrives(tmp_path: Path) -> None:
    # Fast round trips are what makes libzmq forget a message: a conflating reader that looks while one arrives, or a
    # short queue whose emptying it has not noticed. Both came within thousands.
    rounds = 5000
    command = command_array()
    with PlantSocket(f"ipc://{tmp_path}/wire", hello=HELLO) as plant, running(echo, plant.endpoint, None) as (_, pipe):
        plant.accept(WAIT_NS)
        for sequence in range(rounds):
            assert send(plant, sequence, value=sequence)
            received = plant.receive_command(command, 5 * NS_PER_S)
            assert received is not None, f"round {sequence}"
            assert (received.sequence, received.answered, command[0, 0]) == (sequence, sequence, sequence)
        plant.bye("enough")
        assert pipe.recv() == "connected"
        assert pipe.recv() == ("enough", rounds, 0, {})
        assert plant.superseded == plant.unsent == plant.drops.total == 0


def test_late_answers_to_questions_that_were_asked_again_are_no_surprise(
    plant: PlantSocket, edge: EdgeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where both ends share a busy machine."""
    monkeypatch.setattr(wire_edge, "RETRY_NS", NS_PER_MS)
    with ThreadPoolExecutor(1) as pool:
        connected = pool.submit(edge.connect, WAIT_NS)
        started = now_ns()
        while now_ns() - started < 50 * NS_PER_MS:
            pass
        plant.accept(WAIT_NS)
        connected.result()
    # The last of the answers comes before this state.
    assert send(plant, 0)
    while (received := edge.receive_state(state_array(), WAIT_NS)) is None or received.sequence != 0:
        pass
    assert edge.drops.total == 0


def test_what_nobody_asked_for_is_counted(
    plant: PlantSocket, edge: EdgeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_edge, "RETRY_NS", WAIT_NS)
    meet(plant, edge)
    surprise = encode_control(HELLO, HASH)
    plant._send(surprise)  # pyright: ignore[reportPrivateUsage]
    assert send(plant, 0)
    assert edge.receive_state(state_array(), WAIT_NS) is not None
    assert edge.drops[Drop.UNEXPECTED] == 1


@pytest.mark.parametrize("timeout_ns", [0, WAIT_NS])
def test_the_newest_command_wins(plant: PlantSocket, edge: EdgeSocket, timeout_ns: int) -> None:
    meet(plant, edge)
    send(plant, 0)
    received = edge.receive_state(state_array(), WAIT_NS)
    assert received is not None
    for sequence in range(300):
        # The short queue to libzmq's thread may be full for a moment.
        while not answer(edge, received, np.full((5, 1), float(sequence)), sequence):
            pass
    while now_ns() - edge.sent_ns < 5 * NS_PER_MS:
        pass
    command = command_array()
    seen: list[int] = []
    while not seen or seen[-1] < 299:
        got = plant.receive_command(command, timeout_ns)
        if got is not None:
            assert command[0, 0] == got.sequence
            seen.append(got.sequence)
    assert len(seen) <= 3, f"a queue was read one after another: {seen}"
    assert len(seen) + plant.superseded == 300


def test_without_messages_a_receive_ends_in_time(plant: PlantSocket, edge: EdgeSocket) -> None:
    meet(plant, edge)
    for receive, values in ((plant.receive_command, command_array()), (edge.receive_state, state_array())):
        for timeout_ns in (0, 20 * NS_PER_MS):
            started = now_ns()
            assert receive(values, timeout_ns) is None
            assert timeout_ns <= now_ns() - started < timeout_ns + NS_PER_S


@pytest.mark.parametrize("speaker", ["plant", "edge"])
def test_a_goodbye_arrives_after_the_last_message_and_stays(plant: PlantSocket, edge: EdgeSocket, speaker: str) -> None:
    meet(plant, edge)
    state, command = state_array(), command_array()
    send(plant, 0)
    received = edge.receive_state(state, WAIT_NS)
    assert received is not None
    if speaker == "plant":
        send(plant, 1)
        plant.bye("the motor is hot")
        plant.close()
        messages = [edge.receive_state(state, WAIT_NS) for _ in range(3)]
    else:
        answer(edge, received, command, 0)
        edge.bye("the motor is hot")
        edge.close()
        messages = [plant.receive_command(command, WAIT_NS) for _ in range(3)]
    last = messages[-1]
    assert last is not None
    assert last.type is MessageType.BYE
    assert last.reason == "the motor is hot"


def test_an_edge_with_another_contract_is_refused_and_the_next_one_served(plant: PlantSocket, endpoint: str) -> None:
    other = msgspec.structs.replace(HELLO, contract_sha256="cd" * 32)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(plant.accept, WAIT_NS)
        with (
            EdgeSocket(endpoint, hello=other) as wrong,
            pytest.raises(
                WireError, match=f"refused this edge: contract_sha256: plant has '{'ab' * 32}', edge has '{'cd' * 32}'"
            ),
        ):
            wrong.connect(WAIT_NS)
        with EdgeSocket(endpoint, hello=HELLO) as right:
            right.connect(WAIT_NS)
            accepted.result()
    assert plant.drops.total == 0


def test_a_second_edge_is_turned_away_and_the_first_notices_nothing(plant: PlantSocket) -> None:
    command = command_array()
    with running(echo, plant.endpoint, None) as (_, pipe), ThreadPoolExecutor(1) as pool:
        plant.accept(WAIT_NS)
        with EdgeSocket(plant.endpoint, hello=HELLO) as second:
            refused = pool.submit(second.connect, WAIT_NS)
            sequence = 0
            while not refused.done() or sequence < 100:
                assert send(plant, sequence)
                received = plant.receive_command(command, WAIT_NS)
                assert received is not None
                assert received.answered == sequence
                sequence += 1
            with pytest.raises(WireError, match="refused this edge: busy: this plant serves another edge already"):
                refused.result()
        plant.bye("done")
        assert [pipe.recv(), pipe.recv()] == ["connected", ("done", sequence, 0, {})]


def test_after_one_edge_comes_the_next(plant: PlantSocket, endpoint: str) -> None:
    for _ in range(2):
        with EdgeSocket(endpoint, hello=HELLO) as edge:
            meet(plant, edge)
            send(plant, 0)
            received = edge.receive_state(state_array(), WAIT_NS)
            assert received is not None
            answer(edge, received, command_array(), 0)
            received = plant.receive_command(command_array(), WAIT_NS)
            assert received is not None
            assert received.type is MessageType.COMMAND
            edge.bye("next please")
            received = plant.receive_command(command_array(), WAIT_NS)
            assert received is not None
            assert received.reason == "next please"


def test_nobody_there_is_one_clear_line(endpoint: str, plant: PlantSocket) -> None:
    with pytest.raises(WireError, match=r"no edge connected within 0\.05 s; dropped messages: none; start one with"):
        plant.accept(50 * NS_PER_MS)
    with (
        EdgeSocket(f"{endpoint}.else", hello=HELLO) as edge,
        pytest.raises(WireError, match=r"no answer from a plant within 0\.[0-9] s; check that it runs"),
    ):
        edge.connect(50 * NS_PER_MS)


def test_strangers_are_counted_and_change_nothing(plant: PlantSocket, edge: EdgeSocket) -> None:
    meet(plant, edge)
    send(plant, 0)
    received = edge.receive_state(state_array(), WAIT_NS)
    assert received is not None
    writer = FrameWriter(MessageType.COMMAND, HASH, (5, 1))
    forged = bytes(writer.write(np.full((5, 1), 9.0), sequence=7, scheduled_ns=0, sensed_ns=0))
    with stranger(plant) as socket:
        for _ in range(50):
            socket.send(b"junk")
            socket.send(forged)
            socket.send_multipart([b"junk", forged, b"more", forged])
        # The refusal shows that all before it has been read.
        socket.send(encode_control(HELLO, HASH))
        command = command_array()
        while not socket.poll(0):
            assert plant.receive_command(command, 10 * NS_PER_MS) is None
    assert answer(edge, received, np.full((5, 1), 1.0), 0)
    got = plant.receive_command(command, WAIT_NS)
    assert got is not None
    assert (got.sequence, command[0, 0]) == (0, 1.0)
    # An appended frame with another behind it passes for a name, and the one behind it for a message; a last one not.
    assert plant.drops.as_dict() == {"short": 150, "unexpected": 50, "multipart": 50}


def test_what_is_wrong_with_the_peers_own_messages_is_counted(plant: PlantSocket) -> None:
    with stranger(plant) as peer, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(plant.accept, WAIT_NS)
        peer.send(encode_control(HELLO, HASH))
        peer.recv()
        peer.send(encode_control(Start(offset_ns=5, uncertainty_ns=1), HASH))
        accepted.result()
        writer = FrameWriter(MessageType.COMMAND, HASH, (5, 1))
        good = [bytes(writer.write(np.zeros((5, 1)), sequence=k, scheduled_ns=0, sensed_ns=0)) for k in (1, 2)]
        peer.send(b"x")
        peer.send(good[0][:-1])
        peer.send(good[0] + b"x")
        peer.send_multipart([good[0], good[1]])
        peer.send(good[0])
        peer.send(writer.write(np.full((5, 1), np.nan), sequence=3, scheduled_ns=0, sensed_ns=0))
        peer.send(encode_control(HELLO, HASH))
        peer.send(good[1])
        command = command_array()
        sequence = 0
        while sequence < 2:
            received = plant.receive_command(command, WAIT_NS)
            assert received is not None
            sequence = received.sequence
    assert plant.drops.as_dict() == {
        "short": 2,
        "long": 1,
        "multipart": 1,
        "old_sequence": 1,
        "not_finite": 1,
        "unexpected": 1,
    }


def test_stamps_are_handed_out_on_the_readers_clock(plant: PlantSocket) -> None:
    offset = 5 * NS_PER_S
    with stranger(plant) as peer, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(plant.accept, WAIT_NS)
        peer.send(encode_control(HELLO, HASH))
        peer.recv()
        peer.send(encode_control(Start(offset_ns=offset, uncertainty_ns=9), HASH))
        session = accepted.result()
        assert (session.clock.offset_ns, session.clock.uncertainty_ns) == (offset, 9)
        writer = FrameWriter(MessageType.COMMAND, HASH, (5, 1))
        peer.send(writer.write(command_array(), sequence=0, scheduled_ns=1, sensed_ns=2, received_ns=3))
        received = plant.receive_command(command_array(), WAIT_NS)
    assert received is not None
    stamps = (received.scheduled_ns, received.sensed_ns, received.received_ns, received.sent_ns)
    assert stamps == (offset + 1, offset + 2, offset + 3, offset + writer.sent_ns)


@pytest.mark.parametrize("clock_id", ["", "another"])
def test_clocks_that_may_differ_are_compared(plant: PlantSocket, endpoint: str, clock_id: str) -> None:
    # Both read the same clock in truth, so the true offset is 0.
    with EdgeSocket(endpoint, hello=msgspec.structs.replace(HELLO, clock_id=clock_id)) as edge:
        accepted, connected = meet(plant, edge)
    clock = connected.clock
    assert accepted.clock == clock
    assert 0 < clock.uncertainty_ns < NS_PER_S
    assert abs(clock.offset_ns) <= clock.uncertainty_ns


def test_an_edge_that_vanishes_in_the_handshake_loses_its_place(plant: PlantSocket, endpoint: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(plant.accept, WAIT_NS)
        with stranger(plant) as half:
            half.send(encode_control(HELLO, HASH))
            half.recv()
        with EdgeSocket(endpoint, hello=HELLO) as edge:
            edge.connect(WAIT_NS)
            assert accepted.result().peer == HELLO


def test_a_hello_that_is_none_is_refused(plant: PlantSocket, edge: EdgeSocket) -> None:
    meet(plant, edge)
    frame = bytearray(encode_control(HELLO, HASH))
    renamed = encode_control(msgspec.structs.replace(HELLO, robot="acrobot"), HASH)
    with stranger(plant) as socket:
        socket.send(renamed)
        assert plant.receive_command(command_array(), SHORT_NS) is None
        refusal = decode_control(socket.recv()[96:], Refuse)
        assert refusal is not None
        assert refusal.reason == "robot: plant has 'pendulum', edge has 'acrobot'"
        frame[100] ^= 1
        socket.send(frame)
        assert plant.receive_command(command_array(), SHORT_NS) is None
        assert plant.drops[Drop.CORRUPT] == 1
