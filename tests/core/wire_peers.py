"""Peers to test the wire against: real processes that can be stopped and killed."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim2real.clock import NS_PER_MS, NS_PER_S
from sim2real.curve import CurveKeys
from sim2real.wire import MessageType, Received
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_messages import WIRE_VERSION, Hello
from sim2real.wire_plant import PlantSocket

WAIT_NS: Final = 20 * NS_PER_S
SHORT_NS: Final = 300 * NS_PER_MS

HELLO: Final = Hello(
    wire_version=WIRE_VERSION,
    toolkit_version="test",
    contract_sha256="ab" * 32,
    robot="pendulum",
    task="swing",
    joint_names=("pivot",),
    state_size=3,
    control_period_ns=10_000_000,
    mode="realtime",
    clock_id="one clock",
)


def state_array() -> npt.NDArray[np.float64]:
    return np.zeros(HELLO.state_shape)


def command_array() -> npt.NDArray[np.float64]:
    return np.zeros(HELLO.command_shape)


def answer(edge: EdgeSocket, received: Received, values: npt.NDArray[np.float64], sequence: int) -> bool:
    return edge.send_command(
        values,
        status=0,
        sequence=sequence,
        answered=received.sequence,
        scheduled_ns=received.read_ns,
        sensed_ns=received.sensed_ns,
        received_ns=received.received_ns,
    )


def send(plant: PlantSocket, sequence: int, value: float = 0.0) -> bool:
    return plant.send_state(
        np.full(3, float(value)), sequence=sequence, scheduled_ns=sequence * 10, sensed_ns=sequence * 10
    )


def echo(endpoint: str, keys: Path | None, pipe: Connection) -> None:
    """An edge that answers each state with its values, until goodbye or silence; then it says why it ended."""
    state, command = state_array(), command_array()
    loaded = CurveKeys.load(keys, "edge") if keys is not None else None
    with EdgeSocket(endpoint, hello=HELLO, keys=loaded) as edge:
        edge.connect(WAIT_NS)
        pipe.send("connected")
        sequence = 0
        while (received := edge.receive_state(state, WAIT_NS)) is not None and received.type is not MessageType.BYE:
            command[:3, 0] = state
            answer(edge, received, command, sequence)
            sequence += 1
    pipe.send((received.reason if received is not None else None, sequence, edge.unsent, edge.drops.as_dict()))


def read_when_told(endpoint: str, pipe: Connection) -> None:
    """An edge that reads nothing until it is told to, then tells each sequence that it sees until the last."""
    state = state_array()
    with EdgeSocket(endpoint, hello=HELLO) as edge:
        edge.connect(WAIT_NS)
        pipe.send("connected")
        last = pipe.recv()
        seen: list[int] = []
        while not seen or seen[-1] != last:
            received = edge.receive_state(state, WAIT_NS)
            assert received is not None
            seen.append(received.sequence)
        pipe.send((seen, edge.superseded))
        pipe.recv()


def serve(endpoint: str, states: int, pipe: Connection) -> None:
    """A plant that sends states as fast as they are answered, without end if `states` is 0, then says goodbye."""
    command = command_array()
    with PlantSocket(endpoint, hello=HELLO) as plant:
        pipe.send(plant.endpoint)
        plant.accept(WAIT_NS)
        sequence = 0
        while not states or sequence < states:
            send(plant, sequence)
            received = plant.receive_command(command, WAIT_NS)
            if received is None or received.type is MessageType.BYE:
                break
            sequence += 1
        plant.bye("all states sent")


@contextlib.contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Generator[tuple[BaseProcess, Connection]]:
    """Run `target(*arguments, pipe)` in a process of its own; kill it at the end, if it still runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*arguments, there), daemon=True)
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()
