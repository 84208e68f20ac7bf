"""The edge's loop: what a robot runs from the first state to the last command."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Final

import msgspec

from sim2real.clock import NS_PER_MS, NS_PER_S, Ticker, now_ns
from sim2real.contract import PolicyContract
from sim2real.errors import WireError
from sim2real.latency import Conditions, LatencyReport, make_report
from sim2real.wire import Received
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_messages import Mode
from sim2real_edge.controller import Controller
from sim2real_edge.process import StopRequest, without_collector
from sim2real_edge.recorder import Recorder
from sim2real_edge.tick import LevelChange, Tick

__all__ = ["Change", "EdgeLoop", "Ending", "LoopResult", "aligned_start"]

_PHASE: Final = 8
"""The edge ticks an eighth of a period after the plant: late enough for the state to have arrived, and not later."""
_WAIT_NS: Final = 100 * NS_PER_MS
"""Longest wait in one go, after which the loop looks whether it should end."""
_FAREWELL_PERIODS: Final = 2
_LONGEST_FAREWELL_NS: Final = 100 * NS_PER_MS
"""Between the last command and the BYE the plant gets the time to read it: of two messages, the newest counts."""


class Ending(enum.Enum):
    """Why a run ended."""

    DONE = "done"
    """The time it was to last is over."""
    BYE = "bye"
    """The plant said goodbye."""
    STOPPED = "stopped"
    """Asked to, by a signal."""
    PEER_LOST = "peer_lost"
    """The plant fell silent."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor changed its level."""

    sequence: int
    """Tick."""
    time_ns: int
    """Since the first tick."""
    level: str
    cause: str
    reason: str


class LoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run."""

    ending: Ending
    reason: str
    """The ending in words."""
    ticks: int
    states: int
    misses: int
    """Ticks lost to an overrun, and commands sent after the next tick's deadline."""
    level: str
    """Of the last command that answered a state."""
    changes: tuple[Change, ...]
    """What the supervisor did."""
    dropped: dict[str, int]
    """Messages from the wire that were dropped, by reason."""
    unsent: int
    """Commands that could not be sent."""
    duration_ns: int
    cpu_ns: int
    """Processor time of the whole process in that time."""
    latency: LatencyReport

    @property
    def damped(self) -> bool:
        """Whether the supervisor took the robot from the policy for good."""
        return self.level in ("damp", "stop")


class EdgeLoop:
    """One run over a connected socket. Nothing is commanded before the first state has arrived."""

    def __init__(
        self,
        contract: PolicyContract,
        controller: Controller,
        socket: EdgeSocket,
        *,
        mode: Mode,
        engine: str,
        load: str = "not stated",
        seconds: float | None = None,
        start_timeout_ns: int = 10 * NS_PER_S,
        peer_timeout_ns: int = NS_PER_S,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            contract: The bundle's.
            controller: New, on an engine that has reproduced the golden run.
            socket: Connected, in the same mode.
            mode: Whether the plant waits.
            engine: Name of the engine, for the latency report.
            load: What else the machine does, for the latency report.
            seconds: Control time after which to end; None: never.
            start_timeout_ns: How long to wait for the first state.
            peer_timeout_ns: How long the plant may be silent after it before the run ends.
            recorder: Gets every tick.
        """
        self._controller = controller
        self._socket = socket
        self._mode: Mode = mode
        self._engine = engine
        self._load = load
        self._period_ns = contract.timing.control_period_ns
        self._most_ticks = None if seconds is None else max(1, round(seconds * NS_PER_S / self._period_ns))
        self._start_timeout_ns = start_timeout_ns
        self._peer_timeout_ns = peer_timeout_ns
        self._tick = Tick(contract, controller, socket, recorder)
        self._ticker = Ticker(self._period_ns)
        self._stop = StopRequest()

    def run(self, stop: StopRequest) -> LoopResult:
        """Drive until the end, whatever brings it, and say goodbye with a command that damps.

        Args:
            stop: Looked at between two ticks.

        Raises:
            WireError: No state came, or the plant said goodbye before the first; nothing was commanded.
        """
        self._stop = stop
        first = self._await_first_state()
        if first is None:
            return self._result(Ending.STOPPED, stop.reason, now_ns(), time.process_time_ns())
        self._controller.start()
        ending: Ending | None = None
        with without_collector():
            started_ns, cpu_ns = now_ns(), time.process_time_ns()
            try:
                ending = self._drive_lockstep() if self._mode == "lockstep" else self._drive_realtime(first)
            finally:
                # Also when something unforeseen ends the loop: first the robot, then everything else.
                reason = self._words(ending)
                level = self._controller.level.name.lower()
                self._say_goodbye(reason)
        assert ending is not None
        return self._result(ending, reason, started_ns, cpu_ns, level)

    def _await_first_state(self) -> Received | None:
        deadline = now_ns() + self._start_timeout_ns
        while not self._stop.reason:
            first = self._tick.receive(_WAIT_NS)
            if first is not None:
                return first
            if self._tick.goodbye is not None:
                raise WireError(
                    f"{self._socket.endpoint}: the plant said goodbye before its first state: {self._tick.goodbye}"
                )
            if now_ns() >= deadline:
                raise WireError(
                    f"{self._socket.endpoint}: no state within {self._start_timeout_ns / NS_PER_S:g} s of connecting, "
                    f"so nothing was commanded; dropped messages: {self._socket.drops}; check the plant, or raise "
                    "--connect-timeout"
                )
        return None

    def _drive_realtime(self, first: Received) -> Ending:
        ticker, tick = self._ticker, self._tick
        ticker.start_ns = aligned_start(first, self._period_ns)
        while (ending := self._ending(ticker.index + 1)) is None:
            ticker.wait()
            tick.run(ticker.index, ticker.scheduled_ns, ticker.woke_ns, ticker.skipped)
        return ending

    def _drive_lockstep(self) -> Ending:
        tick = self._tick
        tick.answer(0)
        while (ending := self._ending(tick.ticks)) is None:
            if tick.receive(_WAIT_NS) is not None:
                tick.answer(tick.ticks)
        return ending

    def _ending(self, due: int) -> Ending | None:
        """Return why to end now, when `due` ticks have been due so far; None: go on."""
        if self._tick.goodbye is not None:
            return Ending.BYE
        if self._stop.reason:
            return Ending.STOPPED
        if self._most_ticks is not None and due >= self._most_ticks:
            return Ending.DONE
        if now_ns() - self._tick.last_state_ns > self._peer_timeout_ns:
            return Ending.PEER_LOST
        return None

    def _words(self, ending: Ending | None) -> str:
        if ending is Ending.DONE:
            return "the time it was to last is over"
        if ending is Ending.BYE:
            return f"the plant said goodbye: {self._tick.goodbye}"
        if ending is Ending.STOPPED:
            return self._stop.reason
        if ending is Ending.PEER_LOST:
            return f"no state from the plant for {self._peer_timeout_ns / NS_PER_S:g} s"
        return "the edge failed"

    def _say_goodbye(self, reason: str) -> None:
        if self._tick.goodbye is None:
            try:
                self._tick.halt(reason)
                time.sleep(min(_FAREWELL_PERIODS * self._period_ns, _LONGEST_FAREWELL_NS) / NS_PER_S)
            finally:
                # A plant that gets no last command damps the robot itself once it knows that the edge is gone.
                self._socket.bye(reason)

    def _result(
        self, ending: Ending, reason: str, started_ns: int, started_cpu_ns: int, level: str = "run"
    ) -> LoopResult:
        tick, ticker, socket = self._tick, self._ticker, self._socket
        duration_ns = now_ns() - started_ns
        misses = ticker.total_skipped + tick.late if self._mode == "realtime" else 0
        latency = make_report(
            tick.histograms,
            conditions=Conditions(
                mode=self._mode,
                endpoint=socket.endpoint,
                engine=self._engine,
                duration_ns=duration_ns,
                load=self._load,
            ),
            ticks=tick.ticks + ticker.total_skipped,
            misses=misses,
            max_action_age_ns=None,
        )
        return LoopResult(
            ending=ending,
            reason=reason,
            ticks=tick.ticks,
            states=tick.states,
            misses=misses,
            level=level,
            changes=tuple(_change(change, started_ns) for change in tick.changes),
            dropped=socket.drops.as_dict(),
            unsent=socket.unsent,
            duration_ns=duration_ns,
            cpu_ns=time.process_time_ns() - started_cpu_ns,
            latency=latency,
        )


def aligned_start(state: Received, period_ns: int, now: Callable[[], int] = now_ns) -> int:
    """Return the first deadline [ns] from now on that lies an eighth of a period after a tick of the plant.

    Two loops of one period that begin at unrelated moments may stay a whole period apart: each command would answer a
    state that is one period old, or, worse, one that arrives at just that moment and is sometimes missed.
    """
    phase_ns = state.scheduled_ns + period_ns // _PHASE
    started_ns = now()
    return started_ns + (phase_ns - started_ns) % period_ns


def _change(change: LevelChange, started_ns: int) -> Change:
    return Change(
        sequence=change.sequence,
        time_ns=change.time_ns - started_ns,
        level=change.level.name.lower(),
        cause=change.cause,
        reason=change.reason,
    )
