"""How much the wire costs: STATE → COMMAND round trips against a bare pyzmq echo.

Two processes, as in use. Both kinds of round trip cross sockets of the same types and options, at endpoints of the same
kind, with messages of the same sizes, in alternating blocks of one run, so that whatever else the machine does meets
both. `make bench` collects `measure`; run alone, this file prints the same numbers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

import numpy as np
import zmq

from sim2real.clock import NS_PER_S
from sim2real.wire import HEADER_SIZE
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_messages import WIRE_VERSION, Hello
from sim2real.wire_plant import PlantSocket

__all__ = ["measure"]

BLOCKS: Final = 50
ROUNDS: Final = 40
WARM_UP_BLOCKS: Final = 5
RUNS: Final = 3
"""Fresh pairs of processes for each number. Their median counts: where a scheduler puts the threads is luck."""
JOINTS: Final = (1, 12)
"""A pendulum and a quadruped."""
RATIO: Final = "bridge_round_trip_over_bare_echo_median"
TIMEOUT_NS: Final = 20 * NS_PER_S


def measure() -> dict[str, float]:
    """Return ratios and medians [µs]; the pendulum's ratio over ipc is the one with a bar, 1.3."""
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for joints in JOINTS:
            for transport in ("ipc", "tcp"):
                runs = [_compare(joints, *_endpoints(transport, f"{folder}/{joints}.{run}")) for run in range(RUNS)]
                suffix = f"{transport}_{joints}_joints"
                for position, name in enumerate((RATIO, "bridge_round_trip_median_us", "bare_echo_median_us")):
                    result[f"{name}_{suffix}"] = statistics.median(run[position] for run in runs)
    return {RATIO: result[f"{RATIO}_ipc_1_joints"]} | result


def _endpoints(transport: str, path: str) -> tuple[str, str]:
    if transport == "ipc":
        return f"ipc://{path}.bridge", f"ipc://{path}.bare"
    return "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"


def _compare(joints: int, bridge_endpoint: str, bare_endpoint: str) -> tuple[float, float, float]:
    """Return the median of the blocks' ratios, and the medians [µs] of a bridge and of a bare round trip."""
    hello = _hello(joints)
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as bare,
        PlantSocket(bridge_endpoint, hello=hello) as plant,
    ):
        bare.setsockopt(zmq.LINGER, 0)
        bare.setsockopt(zmq.RCVTIMEO, TIMEOUT_NS // 1_000_000)
        bare.bind(bare_endpoint)
        bare_at = bare.getsockopt_string(zmq.LAST_ENDPOINT)
        with subprocess.Popen([sys.executable, __file__, "edge", str(joints), plant.endpoint, bare_at]) as edge:
            try:
                plant.accept(TIMEOUT_NS)
                identity, _ = bare.recv_multipart()
                pairs = _run_blocks(_bridge_rounds(plant, hello), _bare_rounds(bare, identity, hello))
                edge.wait(timeout=10)
            finally:
                edge.kill()
    pairs = pairs[WARM_UP_BLOCKS:]
    return (
        statistics.median(bridge / bare for bridge, bare in pairs),
        statistics.median(bridge for bridge, _ in pairs),
        statistics.median(bare for _, bare in pairs),
    )


def _run_blocks(bridge: Callable[[], float], bare: Callable[[], float]) -> list[tuple[float, float]]:
    return [(bridge(), bare()) for _ in range(BLOCKS + WARM_UP_BLOCKS)]


def _bridge_rounds(plant: PlantSocket, hello: Hello) -> Callable[[], float]:
    state, command = np.zeros(hello.state_shape), np.zeros(hello.command_shape)
    sequence = 0

    def block() -> float:
        nonlocal sequence
        times: list[int] = []
        for _ in range(ROUNDS):
            start = perf_counter_ns()
            plant.send_state(state, sequence=sequence, scheduled_ns=start, sensed_ns=start)
            received = plant.receive_command(command, TIMEOUT_NS)
            times.append(perf_counter_ns() - start)
            assert received is not None
            assert received.answered == sequence
            sequence += 1
        return statistics.median(times) / 1e3

    return block


def _bare_rounds(server: zmq.Socket[bytes], identity: bytes, hello: Hello) -> Callable[[], float]:
    message = bytes(HEADER_SIZE + 8 * hello.state_size)

    def block() -> float:
        times: list[int] = []
        for _ in range(ROUNDS):
            start = perf_counter_ns()
            server.send_multipart([identity, message])
            server.recv_multipart()
            times.append(perf_counter_ns() - start)
        return statistics.median(times) / 1e3

    return block


def _edge(joints: int, bridge_endpoint: str, bare_endpoint: str) -> None:
    """Answer both kinds of round trip, in the order in which the plant makes them."""
    hello = _hello(joints)
    state, command = np.zeros(hello.state_shape), np.zeros(hello.command_shape)
    answer = bytes(HEADER_SIZE + command.nbytes)
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare, EdgeSocket(bridge_endpoint, hello=hello) as edge:
        bare.setsockopt(zmq.LINGER, 1000)
        bare.setsockopt(zmq.RCVTIMEO, TIMEOUT_NS // 1_000_000)
        bare.connect(bare_endpoint)
        edge.connect(TIMEOUT_NS)
        bare.send(b"here")
        sequence = 0
        for _ in range(BLOCKS + WARM_UP_BLOCKS):
            for _ in range(ROUNDS):
                received = edge.receive_state(state, TIMEOUT_NS)
                assert received is not None
                edge.send_command(
                    command,
                    status=0,
                    sequence=sequence,
                    answered=received.sequence,
                    scheduled_ns=received.read_ns,
                    sensed_ns=received.sensed_ns,
                    received_ns=received.received_ns,
                )
                sequence += 1
            for _ in range(ROUNDS):
                bare.recv()
                bare.send(answer)


def _hello(joints: int) -> Hello:
    return Hello(
        wire_version=WIRE_VERSION,
        toolkit_version="benchmark",
        contract_sha256="0" * 64,
        robot="benchmark",
        task="benchmark",
        joint_names=tuple(f"joint_{i}" for i in range(joints)),
        state_size=3 * joints,
        control_period_ns=10_000_000,
        mode="lockstep",
        clock_id="",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["edge"]:
        _edge(int(sys.argv[2]), *sys.argv[3:5])
    else:
        print(json.dumps(measure(), indent=2))
