"""When events and new wishes come: never too early, never too late, each environment by its own clock."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from sim2real.tasks import get_task
from sim2real.tasks.base import Array, Commands, Event, Task
from sim2real.tasks.schedule import Schedule

PERIOD = 0.02
"""Control period [s]."""
periods = st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 0.3)).map(lambda pair: (min(pair), max(pair)))


def task(*events: tuple[float, float], commands: tuple[float, float] | None) -> Task:
    """Return a task with events of these periods, and with commands that count how often they were drawn."""
    drawn = np.zeros(1)

    def draw(rng: np.random.Generator, num: int) -> Array:
        values = drawn[0] + 1.0 + np.arange(num)
        drawn[0] += num
        return values[:, None]

    def nothing(rng: np.random.Generator, qpos: Array, qvel: Array) -> None:
        """What an event does is not the schedule's."""

    return msgspec.structs.replace(
        get_task("pendulum-swingup"),
        events=tuple(Event(name=str(index), apply=nothing, period=period) for index, period in enumerate(events)),
        commands=None if commands is None else Commands(draw=draw, period=commands),
    )


def in_steps(period: tuple[float, float]) -> tuple[int, int]:
    """Fewest and most control steps from one to the next: at least one."""
    low, high = (max(round(time / PERIOD), 1) for time in period)
    return low, high


@given(seed=st.integers(0, 2**32 - 1), first=periods, second=periods, wishes=periods, new=st.integers(0, 59))
def test_they_come_within_their_period(
    seed: int, first: tuple[float, float], second: tuple[float, float], wishes: tuple[float, float], new: int
) -> None:
    """Counted in steps since the last one, or since the episode began; one environment begins anew on the way."""
    rng = np.random.default_rng(seed)
    of = task(first, second, commands=wishes)
    schedule = Schedule(of, PERIOD, 4)
    command = np.zeros((4, 1))
    schedule.start(rng, np.arange(4), command)
    assert sorted(command[:, 0].tolist()) == [1.0, 2.0, 3.0, 4.0]
    bounds = {"0": in_steps(first), "1": in_steps(second), "wishes": in_steps(wishes)}
    since = {name: np.zeros(4, np.int64) for name in bounds}
    for step in range(60):
        for steps in since.values():
            steps += 1
        due: dict[str, npt.NDArray[np.intp]] = {event.name: rows for event, rows in schedule.due_events(rng)}
        before = command.copy()
        schedule.renew_commands(rng, command)
        due["wishes"] = np.flatnonzero(command[:, 0] != before[:, 0])
        for name, (low, high) in bounds.items():
            rows = due.get(name, np.zeros(0, np.intp))
            assert (since[name] <= high).all()
            assert (since[name][rows] >= low).all()
            late = np.setdiff1d(np.flatnonzero(since[name] == high), rows)
            assert not len(late)
            since[name][rows] = 0
        if step == new:
            others = np.delete(command[:, 0], 2).copy()
            schedule.start(rng, np.array([2]), command)
            assert np.array_equal(np.delete(command[:, 0], 2), others)
            for steps in since.values():
                steps[2] = 0


def test_every_length_of_the_period_is_drawn_alike() -> None:
    rng = np.random.default_rng(0)
    schedule = Schedule(task((0.04, 0.1), commands=None), PERIOD, 3000)
    schedule.start(rng, np.arange(3000), np.zeros((3000, 0)))
    met = [sum(len(rows) for _, rows in schedule.due_events(rng)) for _ in range(5)]
    # Of 3000 a quarter each is met first after 2, 3, 4 and 5 steps; some are met a second time from the fourth on.
    assert met[0] == 0
    assert all(abs(count - 750) < 120 for count in met[1:3])
    assert abs(met[3] - 750 - 750 / 4) < 130


def test_without_either_nothing_happens() -> None:
    rng = np.random.default_rng(0)
    schedule = Schedule(task(commands=None), PERIOD, 2)
    command = np.zeros((2, 0))
    schedule.start(rng, np.arange(2), command)
    before = rng.bit_generator.state
    for _ in range(5):
        assert list(schedule.due_events(rng)) == []
        schedule.renew_commands(rng, command)
    assert rng.bit_generator.state == before


@given(st.integers(0, 30))
def test_a_loaded_state_continues(steps: int) -> None:
    of = task((0.04, 0.3), commands=(0.02, 0.2))
    one, other = Schedule(of, PERIOD, 5), Schedule(of, PERIOD, 5)
    rng = np.random.default_rng(3)
    command = np.zeros((5, 1))
    one.start(rng, np.arange(5), command)
    for _ in range(steps):
        list(one.due_events(rng))
        one.renew_commands(rng, command)
    other.load_state(one.state())
    rngs = [np.random.default_rng(9), np.random.default_rng(9)]
    for _ in range(20):
        due = [
            [(event.name, rows.tolist()) for event, rows in schedule.due_events(own)]
            for schedule, own in zip((one, other), rngs, strict=True)
        ]
        assert due[0] == due[1]
        changed = [command.copy(), command.copy()]
        for schedule, own, each in zip((one, other), rngs, changed, strict=True):
            schedule.renew_commands(own, each)
        assert np.array_equal(changed[0] != command, changed[1] != command)
