"""Plant peers for the tests: a real socket in a thread or a process, and a robot of few equations behind it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sim2real.bundle import Bundle, read_bundle
from sim2real.clock import NS_PER_S, Ticker, now_ns
from sim2real.curve import CurveKeys
from sim2real.layout import SignalLayout, command_shape
from sim2real.wire import MessageType, Status
from sim2real.wire_messages import Mode, make_hello
from sim2real.wire_plant import PlantSocket
from tests.edge.policies import Array

WAIT_NS = 20 * NS_PER_S


class Heard:
    """What the plant got; `age_ns` of the measurement behind each command, when the command was read."""

    def __init__(self) -> None:
        self.commands: list[Array] = []
        self.status: list[Status] = []
        self.answered: list[int] = []
        self.sequence: list[int] = []
        self.age_ns: list[int] = []
        self.bye: str | None = None


class Plant:
    """A wire end that sends rows of `signals` and keeps what comes back. Used in lockstep or at the control period."""

    def __init__(
        self,
        bundle: Bundle,
        endpoint: str,
        mode: Mode,
        keys: CurveKeys | None = None,
        socket: PlantSocket | None = None,
    ) -> None:
        self.contract = bundle.contract
        self.socket = socket or PlantSocket(endpoint, hello=make_hello(bundle.contract, mode=mode), keys=keys)
        self.heard = Heard()
        self._command = np.zeros(command_shape(bundle.contract))
        self._sequence = 0

    def accept(self) -> None:
        self.socket.accept(WAIT_NS)

    def send(self, signals: Array, sensed_ns: int | None = None, scheduled_ns: int | None = None) -> None:
        now = now_ns()
        self.socket.send_state(
            signals,
            sequence=self._sequence,
            scheduled_ns=now if scheduled_ns is None else scheduled_ns,
            sensed_ns=now if sensed_ns is None else sensed_ns,
        )
        self._sequence += 1

    def receive(self, timeout_ns: int) -> bool:
        """Take one command if one comes; tell whether there was one."""
        received = self.socket.receive_command(self._command, timeout_ns)
        if received is None:
            return False
        if received.type is MessageType.BYE:
            self.heard.bye = received.reason
            return False
        self.heard.commands.append(self._command.copy())
        self.heard.status.append(received.status)
        self.heard.answered.append(received.answered)
        self.heard.sequence.append(received.sequence)
        self.heard.age_ns.append(now_ns() - received.sensed_ns)
        return True

    def serve_lockstep(self, signals: Array) -> None:
        """Send every row and wait for its answer, then say goodbye."""
        for row in signals:
            self.send(row)
            if not self.receive(WAIT_NS):
                return
        self.socket.bye("done")

    def serve_realtime(self, signals: Callable[[int], Array], ticks: int) -> None:
        """Send a row each control period, heed what comes; end at the edge's BYE or after `ticks`, with our own."""
        ticker = Ticker(self.contract.timing.control_period_ns)
        while ticker.index + 1 < ticks and self.heard.bye is None:
            ticker.wait()
            self.send(signals(ticker.index), scheduled_ns=ticker.scheduled_ns)
            self.receive(ticker.period_ns * 3 // 4)
        self.socket.bye("done")

    def listen(self, timeout_ns: int) -> None:
        """Send nothing more and heed what comes, until the edge's BYE."""
        deadline = now_ns() + timeout_ns
        while self.heard.bye is None and now_ns() < deadline:
            self.receive(NS_PER_S // 20)


@contextlib.contextmanager
def plant_thread(
    bundle: Bundle,
    endpoint: str,
    mode: Mode,
    serve: Callable[[Plant], None],
    keys: CurveKeys | None = None,
    socket: PlantSocket | None = None,
) -> Generator[Plant, None, None]:
    """A bound plant whose `serve` runs in a thread once an edge is there; failures in it fail the test."""
    plant = Plant(bundle, endpoint, mode, keys, socket)

    def work() -> None:
        plant.accept()
        serve(plant)

    with ThreadPoolExecutor(1) as pool:
        work_done = pool.submit(work)
        try:
            yield plant
            work_done.result(60)
        finally:
            plant.socket.close()


def at_rest(bundle: Bundle) -> Array:
    """Measurements of a robot that stands still in its default pose, shape (S,)."""
    layout = SignalLayout(bundle.contract)
    signals = np.zeros(layout.size)
    signals[layout.slices["joint_pos"]] = [joint.default_position for joint in bundle.contract.joints]
    if "base_quat" in layout.slices:
        signals[layout.slices["base_quat"]] = [1.0, 0.0, 0.0, 0.0]
    if "projected_gravity" in layout.slices:
        signals[layout.slices["projected_gravity"]] = [0.0, 0.0, -1.0]
    return signals


def main() -> None:
    """Serve in a process of its own: BUNDLE ENDPOINT; says on stdout when it is bound and when it sends."""
    bundle = read_bundle(Path(sys.argv[1]))
    plant = Plant(bundle, sys.argv[2], "realtime")
    print(json.dumps("bound"), flush=True)
    plant.accept()
    ticker = Ticker(bundle.contract.timing.control_period_ns)
    still = at_rest(bundle)
    while plant.heard.bye is None:
        ticker.wait()
        plant.send(still, scheduled_ns=ticker.scheduled_ns)
        plant.receive(0)
        if len(plant.heard.commands) == 20:
            print(json.dumps("driven"), flush=True)


if __name__ == "__main__":
    main()
