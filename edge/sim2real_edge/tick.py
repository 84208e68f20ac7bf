"""What the loop does at every tick, without the waiting: newest state in, command out, everything noted."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from sim2real.clock import now_ns
from sim2real.contract import PolicyContract
from sim2real.histogram import Histogram
from sim2real.wire import MessageType, Received, Status
from sim2real_edge.controller import Controller
from sim2real_edge.recorder import Recorder

__all__ = ["EDGE_STAGES", "LevelChange", "StateSocket", "Tick"]

EDGE_STAGES: Final = ("wake", "state_age", "observe", "infer", "supervise", "send", "tick")
"""Stages that end on the edge; the plant measures the others."""
_MOST_CHANGES: Final = 1000


class StateSocket(Protocol):
    """What a tick needs of `sim2real.wire_edge.EdgeSocket`."""

    @property
    def sent_ns(self) -> int:
        """When the last command was sent [ns]."""
        ...

    def receive_state(self, values: npt.NDArray[np.float64], timeout_ns: int) -> Received | None:
        """Return the newest state that was not returned before."""
        ...

    def send_command(
        self,
        values: npt.NDArray[np.float64],
        *,
        status: int,
        sequence: int,
        answered: int,
        scheduled_ns: int,
        sensed_ns: int,
        received_ns: int,
    ) -> bool:
        """Send one command without waiting."""
        ...


class LevelChange:
    """The supervisor changed its level."""

    __slots__ = ("cause", "level", "reason", "sequence", "time_ns")

    def __init__(self, sequence: int, time_ns: int, controller: Controller) -> None:
        self.sequence = sequence
        self.time_ns = time_ns
        self.level = controller.level
        self.cause = controller.cause
        self.reason = controller.reason


class Tick:
    """Ticks of one run. Nothing is allocated by them while the level stays what it is.

    Attributes:
        goodbye: Why the plant said BYE; None: it did not.
        ticks: Ticks done.
        states: States received.
        last_state_ns: When the newest was read [ns].
        late: Commands that were sent after the next tick's deadline.
        histograms: By stage, `EDGE_STAGES`.
        changes: Changes of the supervisor's level, the first thousand.
    """

    def __init__(
        self, contract: PolicyContract, controller: Controller, socket: StateSocket, recorder: Recorder | None
    ) -> None:
        self._controller = controller
        self._socket = socket
        self._recorder = recorder
        self._period_ns = contract.timing.control_period_ns
        self._answered = 0
        self._sensed_ns = 0
        self._received_ns = 0
        self._sequence = -1
        self._level = Status.RUN
        self.goodbye: str | None = None
        self.ticks = 0
        self.states = 0
        self.last_state_ns = 0
        self.late = 0
        self.changes: list[LevelChange] = []
        self.histograms = {stage: Histogram() for stage in EDGE_STAGES}
        self._wake, self._age, self._observe, self._infer, self._supervise, self._send, self._whole = (
            self.histograms.values()
        )

    def receive(self, timeout_ns: int) -> Received | None:
        """Take the newest state, waiting for one if there is none; return it, or None: no new state, or a BYE."""
        received = self._socket.receive_state(self._controller.measurement, timeout_ns)
        if received is None:
            return None
        if received.type is MessageType.BYE:
            self.goodbye = received.reason
            return None
        self._answered = received.sequence
        self._sensed_ns = received.sensed_ns
        self._received_ns = received.received_ns
        self.last_state_ns = received.read_ns
        self.states += 1
        return received

    def run(self, sequence: int, scheduled_ns: int, woke_ns: int, missed: int) -> None:
        """Take the newest state if there is one, and answer it with a command.

        Args:
            sequence: Number of the tick, growing.
            scheduled_ns: Its deadline [ns].
            woke_ns: When it began [ns].
            missed: Ticks lost just before it.
        """
        self.receive(0)
        if self.goodbye is None:
            age_ns = now_ns() - self._sensed_ns
            self._answer(sequence, scheduled_ns, woke_ns, age_ns, missed)
            self._age.record(age_ns)
            self._wake.record(woke_ns - scheduled_ns)

    def answer(self, sequence: int) -> None:
        """Answer the state taken last, in lockstep: time stands still until the plant has the command."""
        self._answer(sequence, self._received_ns, self._received_ns, 0, 0)

    def halt(self, reason: str) -> None:
        """Send a last command, which damps, and which no state can undo.

        Its stamps are this process's own, and fresh: whatever the last state was, the plant is to heed this command.
        """
        command = self._controller.halt(Status.DAMP, reason)
        self._sensed_ns = self._received_ns = now = now_ns()
        self._transmit(command, self._sequence + 1, now)

    def _answer(self, sequence: int, scheduled_ns: int, woke_ns: int, age_ns: int, missed: int) -> None:
        controller = self._controller
        command = controller.tick(age_ns, missed)
        self._transmit(command, sequence, scheduled_ns)
        sent_ns = self._socket.sent_ns
        self._observe.record(controller.observed_ns - controller.started_ns)
        self._infer.record(controller.inferred_ns - controller.observed_ns)
        self._supervise.record(controller.supervised_ns - controller.inferred_ns)
        self._send.record(sent_ns - controller.supervised_ns)
        self._whole.record(sent_ns - woke_ns)
        self.ticks += 1
        self.late += sent_ns - scheduled_ns > self._period_ns
        if controller.level is not self._level:
            self._note_change(sequence, woke_ns)
        if self._recorder is not None:
            self._recorder.write(
                time_ns=woke_ns,
                scheduled_ns=scheduled_ns,
                sensed_ns=self._sensed_ns,
                sent_ns=sent_ns,
                level=controller.level,
                missed=missed,
                signals=controller.measurement,
                observation=controller.observation,
                action=controller.action,
                command=command,
            )

    def _transmit(self, command: npt.NDArray[np.float64], sequence: int, scheduled_ns: int) -> None:
        self._sequence = sequence
        self._socket.send_command(
            command,
            status=self._controller.level,
            sequence=sequence,
            answered=self._answered,
            scheduled_ns=scheduled_ns,
            sensed_ns=self._sensed_ns,
            received_ns=self._received_ns,
        )

    def _note_change(self, sequence: int, time_ns: int) -> None:
        self._level = self._controller.level
        if len(self.changes) < _MOST_CHANGES:
            self.changes.append(LevelChange(sequence, time_ns, self._controller))
