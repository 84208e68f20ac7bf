"""Where the time of a control step goes: the parts of a `TaskEnv` timed from outside, so that no other run pays for it.

Terms of the reward are computed in their order, and what several of them need is computed by the first that asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from sim2real.tasks.base import Task
from sim2real.tasks.env import TaskEnv

__all__ = ["Profile", "profiled_task"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_PARTS: Final = (
    ("action", "mapper", "apply"),
    ("physics", "plant.sim", "step"),
    ("commands and drives", "plant", "step"),
    ("measurement", "plant", "sense"),
    ("observation", "observer", "update"),
    ("critic's observation", "", "_criticize"),
    ("motion", "motion_state", "before_step"),
    ("motion", "motion_state", "after_step"),
)
"""Name of each part, the object of a `TaskEnv` that does it, and the method."""
_RESTARTS: Final = "restarts"
_REST: Final = "rest"


class Profile:
    """Adds up the time of named parts; that of a part within a part counts for the inner one alone."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, int] = defaultdict(int)
        self._inner = [0]
        self._whole = 0

    def timed(
        self, name: str, function: Callable[_Arguments, _Result], *, whole: bool = False
    ) -> Callable[_Arguments, _Result]:
        """Return `function` with its time counted under `name`; with `whole`, that of the parts within it too."""

        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if self._whole:
                return function(*args, **kwargs)
            self._inner.append(0)
            self._whole += whole
            began = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                took = perf_counter_ns() - began
                self._whole -= whole
                self._spent[name] += took - self._inner.pop()
                self._inner[-1] += took

        return call

    def attach(self, env: TaskEnv) -> None:
        """Time the parts of an environment of `profiled_task` from now on."""
        for name, path, method in _PARTS:
            owner: Any = env
            for attribute in path.split(".") if path else ():
                owner = getattr(owner, attribute)
            setattr(owner, method, self.timed(name, getattr(owner, method)))
        restart = "_start"
        setattr(env, restart, self.timed(_RESTARTS, getattr(env, restart), whole=True))
        self._spent.clear()

    def parts(self, total_ns: int) -> dict[str, int]:
        """Return the time of each part [ns], largest first, of a time `total_ns`; what no part took is the rest."""
        spent = dict(sorted(self._spent.items(), key=lambda item: -item[1]))
        return spent | {_REST: total_ns - sum(spent.values())}


def profiled_task(task: Task, profile: Profile) -> Task:
    """Return the task with each of its functions timed by `profile`."""
    rewards = {
        name: msgspec.structs.replace(reward, term=profile.timed(f"reward/{name}", reward.term))
        for name, reward in task.rewards.items()
    }
    ends = {name: profile.timed(f"termination/{name}", function) for name, function in task.terminations.items()}
    events = [
        msgspec.structs.replace(event, apply=profile.timed(f"event/{event.name}", event.apply)) for event in task.events
    ]
    return msgspec.structs.replace(task, rewards=rewards, terminations=ends, events=tuple(events))
