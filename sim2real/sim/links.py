"""The two links between a policy and its simulated robots: messages that are late, lost, or sent again.

One message per control step and group travels on each. The newest wins, as on the wire: a message that arrives after a
later one is dropped, so no command overtakes another and no measurement is followed by an older one. Times are counted
in physics steps, to the nearest.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.layout import COMMAND_ROWS, zero_commands
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.delays import MAX_DELAY, Fixed, GroupDelay, sampler

__all__ = ["CommandLink", "SignalLink", "require_generator"]

Array = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

_NEVER: Final = 2**62
"""Physics step that never comes; a power of two, so that a snapshot's float64 holds it."""
_PROMPT: Final = GroupDelay(delay=Fixed(value=0.0))
_ROWS: Final = np.arange(COMMAND_ROWS)


def require_generator(rng: np.random.Generator | None, what: str) -> np.random.Generator:
    """Return `rng`, which something that is drawn at random needs.

    Raises:
        ValueError: There is none.
    """
    if rng is None:
        raise ValueError(f"rng: expected a generator, because {what} drawn at random, got None")
    return rng


class _Groups:
    """What both links share: groups of columns, each with its delay per environment.

    Attributes:
        delay: Delay in force, before jitter [s], shape (N, G).
        given: Whether it was set from outside, and not drawn, shape (N,).
    """

    def __init__(
        self, specs: Sequence[GroupDelay], members: Mapping[str, Sequence[int]], num_envs: int, dt: float, what: str
    ) -> None:
        self.specs = specs
        self.columns = _columns_of(specs, members, what)
        self.draws = any(spec.draws for spec in specs)
        self._draws_episodes = any(not isinstance(spec.delay, Fixed) for spec in specs)
        self._samplers = [sampler(spec.delay) for spec in specs]
        self._unused = np.random.default_rng(0)
        self._dt = dt
        self._what = what
        self.delay = np.zeros((num_envs, len(specs)))
        self.given = np.zeros(num_envs, np.bool_)
        for index, spec in enumerate(specs):
            self.delay[:, index] = spec.delay.value if isinstance(spec.delay, Fixed) else 0.0

    def generator(self, rng: np.random.Generator | None) -> np.random.Generator:
        """Return the generator for what is drawn for each message; where nothing is, any will do."""
        return require_generator(rng, f"{self._what} delays are") if self.draws else self._unused

    def set(self, delay: Array, rows: slice | EnvIds) -> None:
        """Let `delay` [s], shape (n,), replace what would be drawn in `rows`, in all groups."""
        self.delay[rows] = delay[:, None]
        self.given[rows] = True

    def redraw(self, rows: slice | EnvIds, rng: np.random.Generator | None) -> None:
        """Draw the delays of new episodes in `rows`; one that is fixed stays as it is."""
        if not self._draws_episodes:
            return
        rng = require_generator(rng, f"{self._what} delays are")
        for index, draw in enumerate(self._samplers):
            self._draw(index, draw(rng, self.given[rows].shape), rows)

    def steps(self, index: int, rows: slice | EnvIds, rng: np.random.Generator) -> Steps:
        """Return how late the next message of a group is, in physics steps, shape (n,)."""
        spec = self.specs[index]
        shape = self.given[rows].shape
        if spec.redraw:
            self._draw(index, self._samplers[index](rng, shape), rows)
        late = self.delay[rows, index]
        if spec.jitter:
            late = late + spec.jitter * rng.random(shape)
        return np.rint(late / self._dt).astype(np.int64)

    def _draw(self, index: int, drawn: Array, rows: slice | EnvIds) -> None:
        self.delay[rows, index] = np.where(self.given[rows], self.delay[rows, index], drawn)

    def longest(self) -> float:
        """Longest delay [s] that a message can have, if nothing else is set."""
        return max(spec.delay.longest + spec.jitter for spec in self.specs)


class CommandLink:
    """Commands on their way from the policies to the actuators.

    Args:
        specs: Delay of each group of joints; joints in no group have none until `set_delay`.
        joints: The joints, in the order of command blocks.
        num_envs: Number of environments.
        dt: Physics step [s].
        decimation: Physics steps per control step.

    Attributes:
        in_force: Command blocks that the actuators hold, shape (N, 5, J).
    """

    def __init__(
        self, specs: Sequence[GroupDelay], joints: Sequence[str], num_envs: int, dt: float, decimation: int
    ) -> None:
        members = {name: [index] for index, name in enumerate(joints)}
        if all(spec.of for spec in specs) and not set(joints) <= {name for spec in specs for name in spec.of}:
            specs = (*specs, _PROMPT)
        self._groups = _Groups(specs, members, num_envs, dt, "command")
        jitter = max(spec.jitter for spec in self._groups.specs)
        depth = round((MAX_DELAY + jitter) / dt) // decimation + 2
        self.in_force = zero_commands(num_envs, len(joints))
        self._content = np.zeros((depth, *self.in_force.shape))
        self._arrival = np.full((depth, num_envs, len(self._groups.specs)), _NEVER, np.int64)
        self._newest = 0
        self._last_arrival = -1

    @property
    def delay(self) -> Array:
        """Delay in force, before jitter [s], shape (N, G)."""
        return self._groups.delay

    def set_delay(self, delay: Array, rows: slice | EnvIds) -> None:
        """Delay the commands of `rows` by `delay` [s], shape (n,), from now on and in later episodes.

        Raises:
            InputError: A delay is negative, not finite or above `MAX_DELAY`.
        """
        if not np.all((delay >= 0.0) & (delay <= MAX_DELAY)):
            raise InputError(f"command delay: expected 0 to {MAX_DELAY} s, got {delay.min()} to {delay.max()}")
        self._groups.set(delay, rows)

    def is_idle(self, now: int) -> bool:
        """Whether a command sent now acts now, and none is on its way."""
        return not self._groups.draws and now > self._last_arrival and not self._groups.delay.any()

    def reset(self, command: Array, rows: slice | EnvIds, rng: np.random.Generator | None) -> None:
        """Begin episodes in `rows` with `command`, shape (n, 5, J), in force and nothing on its way."""
        self.in_force[rows] = command
        self._content[self._newest, rows] = command
        self._arrival[:, rows] = _NEVER
        self._groups.redraw(rows, rng)

    def send(self, command: Array, now: int, rng: np.random.Generator | None) -> None:
        """Send command blocks, shape (N, 5, J), at the physics step `now`."""
        groups, everywhere = self._groups, slice(None)
        rng = groups.generator(rng)
        previous = self._content[self._newest]
        self._newest = (self._newest + 1) % len(self._content)
        content, arrival = self._content[self._newest], self._arrival[self._newest]
        content[:] = command
        num_envs = len(command)
        for index, spec in enumerate(groups.specs):
            arrival[:, index] = now + groups.steps(index, everywhere, rng)
            if spec.repeat:
                block = np.ix_(np.flatnonzero(rng.random(num_envs) < spec.repeat), _ROWS, groups.columns[index])
                content[block] = previous[block]
            if spec.loss:
                arrival[rng.random(num_envs) < spec.loss, index] = _NEVER
        self._drop_overtaken()
        self._last_arrival = max(self._last_arrival, int(arrival.max(where=arrival < _NEVER, initial=-1)))

    def _drop_overtaken(self) -> None:
        """Let no older message arrive with the newest one or after it."""
        newest = self._arrival[self._newest].copy()
        np.copyto(self._arrival, _NEVER, where=self._arrival >= newest)
        self._arrival[self._newest] = newest

    def due(self, end: int) -> list[int]:
        """Return the physics steps before `end` at which a command arrives, ascending."""
        return np.unique(self._arrival[self._arrival < end]).tolist()

    def deliver(self, step: int) -> EnvIds | None:
        """Put what arrives at a physics step in force; return the environments that it concerns, None for all."""
        concerned: list[EnvIds] = []
        for index, joints in enumerate(self._groups.columns):
            slots, rows = np.nonzero(self._arrival[:, :, index] == step)
            if len(joints) == self.in_force.shape[2]:
                self.in_force[rows] = self._content[slots, rows]
            else:
                self.in_force[np.ix_(rows, _ROWS, joints)] = self._content[slots, rows][:, :, joints]
            self._arrival[slots, rows, index] = _NEVER
            concerned.append(rows)
        rows = concerned[0] if len(concerned) == 1 else np.unique(np.concatenate(concerned))
        return None if len(rows) == len(self.in_force) else rows

    def snapshot(self) -> Snapshot:
        """Return a copy of everything that later commands depend on."""
        return {
            "in_force": self.in_force.copy(),
            "content": self._content.swapaxes(0, 1).copy(),
            "arrival": self._arrival.swapaxes(0, 1).astype(np.float64),
            "delay": self._groups.delay.copy(),
            "given": self._groups.given.astype(np.float64),
            "newest": np.full(len(self.in_force), float(self._newest)),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from what `snapshot` returned."""
        self.in_force[:] = snapshot["in_force"]
        self._content[:] = snapshot["content"].swapaxes(0, 1)
        self._arrival[:] = snapshot["arrival"].swapaxes(0, 1).astype(np.int64)
        self._groups.delay[:] = snapshot["delay"]
        self._groups.given[:] = snapshot["given"] != 0.0
        self._newest = int(snapshot["newest"][0])
        self._last_arrival = int(self._arrival.max(where=self._arrival < _NEVER, initial=-1))


class SignalLink:
    """Measurements on their way from the sensors to the policies.

    Sensors measure at every physics step; a policy's tick takes the newest measurement that has arrived.

    Args:
        specs: Delay of each group of signals.
        signals: Columns of each signal in the measurement vector.
        num_envs: Number of environments.
        dt: Physics step [s].
        decimation: Physics steps per control step.
    """

    def __init__(
        self, specs: Sequence[GroupDelay], signals: Mapping[str, slice], num_envs: int, dt: float, decimation: int
    ) -> None:
        members = {name: range(columns.start, columns.stop) for name, columns in signals.items()}
        self._groups = _Groups(specs, members, num_envs, dt, "observation")
        self._dt = dt
        self._decimation = decimation
        self._depth = round(self._groups.longest() / dt) + 2
        widths = [len(columns) for columns in self._groups.columns]
        self._past = [np.zeros((self._depth, num_envs, width)) for width in widths]
        self._message = [np.zeros((num_envs, width)) for width in widths]
        self._held = [np.zeros((num_envs, width)) for width in widths]
        self._begin = np.zeros(num_envs, np.int64)
        self._sent = np.full((num_envs, len(widths)), -1, np.int64)
        self._taken = np.full((num_envs, len(widths)), -1, np.int64)
        self._is_new = np.ones((num_envs, len(widths)), np.bool_)
        self._everyone = np.arange(num_envs)
        self._offsets = self._offsets_to_record()

    @property
    def delay(self) -> Array:
        """Delay in force, before jitter [s], shape (N, G)."""
        return self._groups.delay

    def set_delay(self, delay: Array, rows: slice | EnvIds) -> None:
        """Let `delay` [s], shape (n,), be that of the next episodes in `rows`, in all groups.

        Raises:
            InputError: A delay is negative, not finite or longer than the spec's longest.
        """
        longest = max(spec.delay.longest for spec in self._groups.specs)
        if not np.all((delay >= 0.0) & (delay <= longest)):
            raise InputError(
                f"observation delay: expected 0 to {longest:.6g} s, the longest of DelaySpec.observations, "
                f"got {delay.min()} to {delay.max()}"
            )
        self._groups.set(delay, rows)

    def record_at(self, start: int, steps: int) -> list[int]:
        """Return the physics steps after `start`, up to `steps` later, whose measurements some policy will use.

        Args:
            start: Physics step of a control tick, when `steps` is the decimation.
            steps: How far to look.
        """
        offsets = self._offsets if steps == self._decimation else range(1, steps + 1)
        return [start + offset for offset in offsets]

    def record(self, signals: Array, step: int) -> None:
        """Keep the measurements, shape (N, S), of a physics step."""
        for past, columns in zip(self._past, self._groups.columns, strict=True):
            past[step % self._depth] = signals[:, columns]

    def reset(self, signals: Array, now: int, rows: slice | EnvIds, rng: np.random.Generator | None) -> None:
        """Begin episodes in `rows` at the physics step `now` with the measurements `signals`, shape (n, S)."""
        for past, columns in zip(self._past, self._groups.columns, strict=True):
            past[now % self._depth, rows] = signals[:, columns]
        self._begin[rows] = now
        self._sent[rows] = self._taken[rows] = now - 1
        self._groups.redraw(rows, rng)
        self._offsets = self._offsets_to_record()

    def fetch(self, signals: Array, now: int, rows: EnvIds | None, rng: np.random.Generator | None) -> None:
        """Replace the present measurements in `signals`, shape (n, S), by those that arrive at a policy's tick now."""
        rng = self._groups.generator(rng)
        chosen = slice(None) if rows is None else rows
        numbers = self._everyone[chosen]
        for index, spec in enumerate(self._groups.specs):
            columns, past, message = self._groups.columns[index], self._past[index], self._message[index]
            past[now % self._depth, chosen] = signals[:, columns]
            sensed = np.maximum(now - self._groups.steps(index, chosen, rng), self._begin[chosen])
            content = past[sensed % self._depth, numbers]
            sent, taken = self._sent[chosen, index], self._taken[chosen, index]
            is_first = taken < self._begin[chosen]
            if spec.repeat:
                again = (rng.random(len(numbers)) < spec.repeat) & ~is_first
                sensed = np.where(again, sent, sensed)
                content[again] = message[numbers[again]]
            self._sent[chosen, index] = sensed
            message[chosen] = content
            is_new = sensed > taken
            if spec.loss:
                is_new &= (rng.random(len(numbers)) >= spec.loss) | is_first
            self._is_new[chosen, index] = is_new
            self._taken[chosen, index] = np.where(is_new, sensed, taken)
            signals[:, columns] = content

    def hold(self, signals: Array, rows: EnvIds | None) -> None:
        """Keep, in `signals`, shape (n, S), what a policy already has where nothing newer has come."""
        chosen = slice(None) if rows is None else rows
        for index, columns in enumerate(self._groups.columns):
            held, is_new = self._held[index], self._is_new[chosen, index]
            values = np.where(is_new[:, None], signals[:, columns], held[chosen])
            signals[:, columns] = held[chosen] = values

    def _offsets_to_record(self) -> list[int]:
        """Physics steps of a control period, 1 to decimation, that lie one of the delays before some tick."""
        if any(spec.redraw or spec.jitter for spec in self._groups.specs):
            return list(range(1, self._decimation + 1))
        late = np.rint(self._groups.delay / self._dt).astype(np.int64)
        return (np.unique((-1 - late) % self._decimation) + 1).tolist()

    _KEPT: Final = ("_begin", "_sent", "_taken")
    _KEPT_BY_GROUP: Final = ("_past", "_message", "_held")

    def snapshot(self) -> Snapshot:
        """Return a copy of everything that later measurements depend on."""
        state = {name.strip("_"): getattr(self, name).astype(np.float64) for name in self._KEPT}
        for name in self._KEPT_BY_GROUP:
            for index, values in enumerate(getattr(self, name)):
                state[f"{name.strip('_')}.{index}"] = (values.swapaxes(0, 1) if values.ndim == 3 else values).copy()
        return state | {"delay": self._groups.delay.copy(), "given": self._groups.given.astype(np.float64)}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from what `snapshot` returned."""
        for name in self._KEPT:
            getattr(self, name)[:] = snapshot[name.strip("_")]
        for name in self._KEPT_BY_GROUP:
            for index, values in enumerate(getattr(self, name)):
                kept = snapshot[f"{name.strip('_')}.{index}"]
                values[:] = kept.swapaxes(0, 1) if values.ndim == 3 else kept
        self._groups.delay[:] = snapshot["delay"]
        self._groups.given[:] = snapshot["given"] != 0.0
        self._offsets = self._offsets_to_record()


def _columns_of(
    specs: Sequence[GroupDelay], members: Mapping[str, Sequence[int]], what: str
) -> list[npt.NDArray[np.intp]]:
    """Columns of each group, whose members are named or left over.

    Raises:
        InputError: A member is unknown or in two groups, or a group has none.
    """
    named = [name for spec in specs for name in spec.of]
    for name in named:
        if name not in members:
            near = difflib.get_close_matches(name, members, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise InputError(f"{what} delay of {name!r}: unknown; allowed: {', '.join(members)}{hint}")
    rest = [name for name in members if name not in named]
    groups = [list(spec.of) or rest for spec in specs]
    everyone = [name for group in groups for name in group]
    if len(set(everyone)) != len(everyone) or not all(groups):
        raise InputError(
            f"{what} delays: expected each name in one group, and one group without names at most, got {groups}"
        )
    return [np.array([column for name in group for column in members[name]], np.intp) for group in groups]
