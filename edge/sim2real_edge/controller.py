"""One tick of the edge: measurement in, command out. The loop, the bench and the in-process run all call this."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim2real.bundle import Bundle
from sim2real.clock import now_ns
from sim2real.observation import ObservationBuilder
from sim2real.wire import Status
from sim2real_edge.engine import Engine
from sim2real_edge.supervisor import Supervisor

__all__ = ["Controller"]


class Controller:
    """Observation builder, engine and supervisor in a row; nothing else turns measurements into commands.

    Write `measurement` (and `operator`), call `start` once per episode, then `tick` at every control step, the first
    included: it is the first observation that gives the first action. The commands depend on nothing but what was
    written and passed, so the same inputs give the same bits wherever they come from.

    As long as the supervisor does not let the policy drive, every tick is evaluated as the first of a new episode:
    history, last action, recurrent state, rate limits and increments begin again at the measured state. So the policy
    takes over again as it would after `start`, and nothing that went wrong before lives on in its memory.

    Attributes:
        measurement: Newest measurement in `SignalLayout` order, shape (S,), float64; live.
        operator: Operator inputs in contract order, shape (C,), float64; live. At the contract's initial values until
            written; each tick clamps them to their ranges, in place.
        observation: What the network was given last, shape (O,), float32; live.
        action: What it gave, shape (A,), float32; live.
        started_ns: When the last tick began; then `observed_ns`, `inferred_ns`, `supervised_ns`: when each of its
            stages ended.
    """

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        """Put the parts together.

        Args:
            bundle: Whose contract is enforced.
            engine: Runs one of its models; must have passed `sim2real_edge.golden.require_golden`.
        """
        self._builder = ObservationBuilder(bundle.contract, 1)
        self._engine = engine
        self._supervisor = Supervisor(bundle.contract)
        self.measurement: npt.NDArray[np.float64] = self._builder.signals[0]
        self.operator: npt.NDArray[np.float64] = self._builder.commands[0]
        self.observation: npt.NDArray[np.float32] = engine.observation[0]
        self.action: npt.NDArray[np.float32] = engine.action[0]
        self.started_ns = self.observed_ns = self.inferred_ns = self.supervised_ns = 0
        self._operator_low = np.array([command.low for command in bundle.contract.commands])
        self._operator_high = np.array([command.high for command in bundle.contract.commands])
        self._fresh = True

    @property
    def level(self) -> Status:
        """Level of the last command."""
        return self._supervisor.level

    @property
    def reason(self) -> str:
        """Why the level is not run; empty if it is."""
        return self._supervisor.reason

    @property
    def cause(self) -> str:
        """The kind of that reason, one word for programs (`sim2real_edge.supervisor.Cause`)."""
        return self._supervisor.cause.value

    def start(self) -> None:
        """Make the next tick the first of an episode. A latched damp or stop stays: it ends with the controller."""
        self._fresh = True

    def tick(self, age_ns: int, missed: int) -> npt.NDArray[np.float64]:
        """Compute one command from `measurement` and `operator`.

        Args:
            age_ns: How old the measurement is [ns]; 0 in lockstep.
            missed: Ticks lost just before this one; 0 in lockstep.

        Returns:
            The command block, shape (5, num_joints), float64, rows as in `sim2real.layout`; live until the next call.
        """
        self.started_ns = now_ns()
        self._observe()
        self.observed_ns = now_ns()
        self._engine.run()
        self.inferred_ns = now_ns()
        command = self._supervisor.supervise(
            self.measurement, self.operator, self._engine.observation, self._engine.action, age_ns, missed
        )
        self._fresh = self._supervisor.level is not Status.RUN
        self.supervised_ns = now_ns()
        return command

    def halt(self, level: Status, reason: str) -> npt.NDArray[np.float64]:
        """Raise the level to damp or stop for good and return the command for it: the last one before an end."""
        return self._supervisor.halt(level, reason)

    def _observe(self) -> None:
        # Garbage from a sensor may overflow on its way to float32; the supervisor sees it, so numpy need not warn.
        with np.errstate(all="ignore"):
            builder = self._builder
            if self.operator.size:
                # A NaN stays one, and the supervisor finds it.
                np.clip(self.operator, self._operator_low, self._operator_high, out=self.operator)
            if self._fresh:
                builder.last_action[...] = 0.0
                builder.reset()
                self._engine.reset()
                self._supervisor.begin(self.measurement)
            else:
                builder.last_action[...] = self._engine.action
                builder.update()
            self._engine.observation[...] = builder.observation
