"""The simulated robot behind the wire, in two modes that are never mixed.

``lockstep``: the plant sends a state and waits for the command that answers it, so the host's speed changes nothing and
the trajectory must equal the in-process one bit for bit. ``realtime``: physics keeps to the monotonic clock and waits
for nobody; only here is latency measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from sim2real.action import ActionMapper
from sim2real.clock import NS_PER_MS, NS_PER_S, Ticker, now_ns
from sim2real.contract import PolicyContract
from sim2real.errors import WireError
from sim2real.heap import frozen_heap
from sim2real.histogram import Histogram
from sim2real.layout import KD, SignalLayout, command_shape
from sim2real.sim.engines import make_sim
from sim2real.sim.plant import Plant
from sim2real.tasks import get_task
from sim2real.tasks.starts import put_down, rest_of
from sim2real.wire import MessageType, Received, Status
from sim2real.wire_plant import PlantSocket
from sim2real_hil.trajectory import Recorder, Trajectory

__all__ = ["RealtimePlant", "RealtimeRun", "Start", "make_plant", "serve_lockstep"]

Start = Literal["rest", "random"]
"""rest: the robot's default pose, at rest (a pendulum hangs, a quadruped stands); random: drawn by the task."""

_SLICE_NS: Final = 100 * NS_PER_MS
"""How often a plant that waits looks whether waiting still makes sense."""
_CHECK_NS: Final = 50 * NS_PER_MS
_WAIT_UNIT_NS: Final = NS_PER_MS
"""The socket waits in whole milliseconds; a shorter rest of the period is left to the ticker."""
_WAKE_NS: Final = NS_PER_MS // 4
"""How much later than asked for the socket may return without costing the plant its next tick."""


def make_plant(contract: PolicyContract, *, start: Start, seed: int, robot: str | None = None) -> Plant:
    """Return one simulated robot (N = 1) in its start state, with the nominal parameters.

    Args:
        contract: What it is driven by.
        start: Its start state.
        seed: Of a random one.
        robot: Where the robot's file is now, as for `get_task`.

    Raises:
        ContractError: The contract's joints are not the robot's.
        InputError: The contract's task or robot is unknown here.
    """
    task = get_task(contract.identity.task, contract.identity.robot, where=robot)
    plant = Plant(contract, make_sim(contract, 1, robot=task.robot, scene=task.scene))
    sim, rng = plant.sim, np.random.default_rng(seed)
    sim.reset()
    if start == "random":
        sim.qpos[:], sim.qvel[:] = task.start(rng, 1)
    else:
        sim.qpos[:] = rest_of(task.robot).qpos
    put_down(task, sim.qpos, rng, np.zeros(1, np.int64))
    signals = np.zeros((1, plant.layout.size))
    plant.read(signals)
    mapper = ActionMapper(contract, 1)
    mapper.reset(signals[:, plant.layout.slices["joint_pos"]])
    plant.reset(mapper.command)
    sim.refresh()
    return plant


def serve_lockstep(
    plant: Plant,
    socket: PlantSocket,
    contract: PolicyContract,
    *,
    ticks: int | None,
    timeout_ns: int,
    check: Callable[[], None],
    progress: Callable[[], object],
) -> Trajectory:
    """Exchange states and commands with the edge that `socket` has accepted.

    Args:
        plant: The robot, N = 1.
        socket: Connected socket.
        contract: What both agreed on.
        ticks: Control periods; None: until the edge leaves, and nothing is recorded.
        timeout_ns: Longest wait [ns] for one command.
        check: Called while waiting; raises if waiting makes no sense any more.
        progress: Called after each control period.

    Raises:
        WireError: The edge left, answered another state, or did not answer in time.
    """
    signals = np.zeros((1, plant.layout.size))
    command = np.zeros((1, *command_shape(contract)))
    recorder = Recorder(contract, plant, ticks or 0, contract.timing.control_period_ns)
    for tick in itertools.count() if ticks is None else range(ticks):
        plant.read(signals)
        sensed_ns = now_ns()
        if not socket.send_state(signals[0], sequence=tick, scheduled_ns=sensed_ns, sensed_ns=sensed_ns):
            check()
            raise WireError(f"tick {tick}: the edge is gone; start it again")
        received = _await_command(socket, command[0], tick, timeout_ns, check)
        if received.type is MessageType.BYE:
            if ticks is None:
                break
            raise WireError(f"tick {tick}: the edge ended the run: {received.reason}")
        if received.answered != tick:
            raise WireError(
                f"tick {tick}: expected the command for state {tick}, got one for state {received.answered}; "
                "in lockstep every state is answered once: is the edge in realtime mode?"
            )
        recorder.add(tick, signals[0], command[0], received.status)
        plant.step(command)
        progress()
    return recorder.trajectory()


def _await_command(
    socket: PlantSocket,
    command: npt.NDArray[np.float64],
    tick: int,
    timeout_ns: int,
    check: Callable[[], None],
) -> Received:
    """Return the answer to state `tick`, or the edge's BYE."""
    deadline = now_ns() + timeout_ns
    while True:
        received = socket.receive_command(command, min(_SLICE_NS, max(0, deadline - now_ns())))
        # An edge that ends sends a last damping command, which answers nothing, before it says why.
        last_words = received is not None and received.answered != tick and received.status is not Status.RUN
        if received is not None and (received.type is MessageType.BYE or not last_words):
            return received
        check()
        if now_ns() >= deadline:
            raise WireError(
                f"tick {tick}: no command within {timeout_ns / NS_PER_S:g} s, the edge hangs or is gone; "
                f"dropped messages: {socket.drops}"
            )


@dataclass(frozen=True, eq=False)
class RealtimeRun:
    """What a plant saw of one realtime run."""

    trajectory: Trajectory
    ticks: int
    """Physics ticks that ran."""
    lost_ticks: int
    """Physics ticks that the plant itself lost to an overrun; their physics was made up for at the next one."""
    waiting_ticks: int
    """Physics ticks before the first command; the plant was damped."""
    damped_ticks: int
    """Physics ticks after it at which the newest command was too old to apply, or from a future that is as far away;
    the plant was damped."""
    supervised_ticks: int
    """Physics ticks under a command of the supervisor (hold, damp, stop) and not of the policy."""
    superseded: int
    """Commands that a newer one replaced before the plant read them."""
    drops: dict[str, int]
    """Messages dropped, by reason."""
    command_transport: Histogram
    """From the edge's send to the plant's read [ns]."""
    end_to_end: Histogram
    """From sensing to the physics tick that first applied the command computed from it [ns]."""
    max_action_age_ns: int | None
    """Oldest measurement behind the newest command at any physics tick; None: no command came."""


class RealtimePlant:
    """Physics on absolute deadlines: at each one the newest command, the state to the edge, one physics step.

    Args:
        plant: The robot, N = 1.
        socket: Connected socket.
        contract: What both agreed on.
        ticks: Physics ticks to run; None: until the edge says goodbye.
        timeout_ns: Silence of the edge [ns] after which the run ends.
        check: Called every 50 ms; raises if the run should end.
    """

    def __init__(
        self,
        plant: Plant,
        socket: PlantSocket,
        contract: PolicyContract,
        *,
        ticks: int | None,
        timeout_ns: int,
        check: Callable[[], None],
    ) -> None:
        self._plant = plant
        self._socket = socket
        self._ticks = ticks
        self._timeout_ns = timeout_ns
        self._check = check
        self._max_age_ns = contract.latency.max_action_age_ns
        self._recorder = Recorder(contract, plant, ticks or 0, contract.timing.physics_step_ns)
        self._signals = np.zeros((1, SignalLayout(contract).size))
        shape = (1, *command_shape(contract))
        self._newest, self._damp = np.zeros(shape), np.zeros(shape)
        self._damp[0, KD] = contract.safety.fallback.damp_kd
        self._in_force = self._damp
        self.ticker = Ticker(contract.timing.physics_step_ns)
        self._status = Status.RUN
        self._sensed_ns = self._heard_ns = 0
        self._is_new = self._any = self._ended = False
        self._waiting = self._damped = self._supervised = 0
        self._max_action_age_ns: int | None = None
        self._transport, self._end_to_end = Histogram(), Histogram()

    def run(self) -> RealtimeRun:
        """Run to the end and return what was seen.

        Raises:
            WireError: The edge fell silent, or ended a run of a given length.
        """
        with frozen_heap():
            self._loop()
        return RealtimeRun(
            trajectory=self._recorder.trajectory(),
            ticks=self.ticker.ticks,
            lost_ticks=self.ticker.total_skipped,
            waiting_ticks=self._waiting,
            damped_ticks=self._damped,
            supervised_ticks=self._supervised,
            superseded=self._socket.superseded,
            drops=self._socket.drops.as_dict(),
            command_transport=self._transport,
            end_to_end=self._end_to_end,
            max_action_age_ns=self._max_action_age_ns,
        )

    def _loop(self) -> None:
        ticker, check_every = self.ticker, max(1, _CHECK_NS // self.ticker.period_ns)
        self._heard_ns = now_ns()
        while not self._ended and (self._ticks is None or ticker.index + 1 < self._ticks):
            ticker.wait()
            self._make_up()
            self._take_command(0)
            self._publish()
            self._apply()
            if ticker.ticks % check_every == 0:
                self._still_there()
            self._listen()

    def _make_up(self) -> None:
        """Physics keeps to the clock: run the steps of lost ticks, under the command that was in force."""
        if self.ticker.skipped:
            self._plant.drive(self._in_force, self.ticker.skipped)

    def _publish(self) -> None:
        self._plant.read(self._signals)
        self._socket.send_state(
            self._signals[0], sequence=self.ticker.index, scheduled_ns=self.ticker.scheduled_ns, sensed_ns=now_ns()
        )

    def _take_command(self, timeout_ns: int) -> None:
        """Take the newest command, if one comes in time, and note how long it was under way."""
        received = self._socket.receive_command(self._newest[0], timeout_ns)
        if received is None:
            return
        if received.type is MessageType.BYE:
            if self._ticks is not None:
                raise WireError(f"tick {self.ticker.index}: the edge ended the run: {received.reason}")
            self._ended = True
            return
        self._any = self._is_new = True
        self._status = received.status
        self._sensed_ns = received.sensed_ns
        self._heard_ns = received.read_ns
        self._transport.record(received.transit_ns)

    def _apply(self) -> None:
        """Step the physics under the newest command or, if there is none or it is too old, under damping alone."""
        applied_ns = now_ns()
        age_ns = applied_ns - self._sensed_ns
        self._in_force = self._newest
        if not self._any:
            self._waiting += 1
            self._in_force = self._damp
        else:
            self._max_action_age_ns = max(age_ns, self._max_action_age_ns or 0)
            # A stamp from the future would keep its command fresh for as long as it says.
            if abs(age_ns) > self._max_age_ns:
                self._damped += 1
                self._in_force = self._damp
            elif self._is_new:
                self._end_to_end.record(age_ns)
            self._is_new = False
            self._supervised += self._status is not Status.RUN
        self._recorder.add(self.ticker.index, self._signals[0], self._in_force[0], self._status)
        self._plant.drive(self._in_force, 1)

    def _listen(self) -> None:
        """Read commands as they come, so that what is measured is the transport and not the plant's own tick."""
        deadline = self.ticker.scheduled_ns + self.ticker.period_ns
        while not self._ended:
            units = (deadline - now_ns() - _WAKE_NS) // _WAIT_UNIT_NS
            if units <= 0:
                return
            self._take_command(units * _WAIT_UNIT_NS)

    def _still_there(self) -> None:
        self._check()
        silent_ns = now_ns() - self._heard_ns
        if silent_ns > self._timeout_ns:
            raise WireError(
                f"tick {self.ticker.index}: no command for {silent_ns / NS_PER_S:.1f} s, the edge hangs or is gone; "
                f"dropped messages: {self._socket.drops}"
            )
