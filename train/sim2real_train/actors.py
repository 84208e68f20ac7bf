"""Answers of Ray actors: which failure is the cause, and waits that end."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any, Final, cast

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError

from sim2real.errors import InputError
from sim2real_train.cluster import is_private_without_gpus
from sim2real_train.hang import LOOK, Silence
from sim2real_train.watch import WHY, WorkerLostError

__all__ = [
    "HUNG",
    "NEVER_AGAIN",
    "DataLostError",
    "answers",
    "died",
    "free",
    "has_place",
    "place",
    "ready",
    "silent",
    "started",
]

HUNG: Final = "has not answered for {:g} s (it is stopped, or its environment hangs; --hang-limit gives it longer)"
"""What is said of a worker that hangs."""
_DEATH_SECONDS: Final = 10.0
"""How long Ray may take to tell of a death that others have felt."""

NEVER_AGAIN: Final[dict[str, Any]] = {"max_restarts": 0, "max_task_retries": 0}
"""Options of every actor: Ray would run its constructor again without its state, and repeat what killed it."""


class DataLostError(WorkerLostError):
    """An answer is gone with the node that kept it; whoever gave it may be alive."""


def place(role: type, *, num_cpus: int, num_gpus: int = 0, at_once: int = 1) -> Any:
    """Start an actor of class `role`, whose constructor takes nothing; one without a GPU sees none.

    Args:
        role: The class; of what a constructor raises, Ray says only that the actor died, so that a call does the work.
        num_cpus: CPUs that it takes from the cluster; Ray sets its ``OMP_NUM_THREADS`` to it.
        num_gpus: GPUs that it takes.
        at_once: Calls that it may have begun at the same time, if its methods are coroutines.
    """
    # Of a private instance without GPUs no process sees any, and its idle processes can be used as they are.
    hidden = {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}
    environment = {} if num_gpus or is_private_without_gpus() else hidden
    concurrency = {} if at_once == 1 else {"max_concurrency": at_once}
    return (
        cast("Any", ray)
        .remote(num_cpus=num_cpus, num_gpus=num_gpus, **environment, **concurrency, **NEVER_AGAIN)(role)
        .remote()
    )


def answers(calls: Sequence[Any], *, limit: float = math.inf, who: str = "worker") -> list[Any]:
    """Wait for all answers.

    Args:
        calls: What workers were asked, by rank.
        limit: How long [s] they may take.
        who: What the workers are.

    Raises:
        WorkerLostError: A worker died, or does not answer.
    """
    silence = Silence()
    try:
        while silence.seconds < limit:
            with silence.waiting():
                got = _got(calls, None if limit == math.inf else LOOK)
            if got is not None:
                return got
    except RayError as error:
        raise _cause(error, calls, who) from error
    raise silent(calls, limit, who)


def _got(calls: Sequence[Any], timeout: float | None) -> list[Any] | None:
    """Return all answers, or raise what the first that failed did; None: they were not there in time."""
    try:
        return ray.get(list(calls), timeout=timeout)
    except GetTimeoutError:
        return None


def silent(calls: Sequence[Any], limit: float, who: str) -> WorkerLostError:
    """Return what to raise for workers of which some have not answered their call in time."""
    answered = ready(calls, count=len(calls), timeout=0.0)
    ranks = ", ".join(str(rank) for rank, call in enumerate(calls) if call not in answered)
    return WorkerLostError(f"{who} {ranks} {HUNG.format(limit)}", f"{who} {ranks}")


def started(calls: Sequence[Any], *, limit: float) -> list[Any]:
    """Wait for the first answers of actors, which have no place yet where a cluster is full.

    Args:
        calls: What they were asked first.
        limit: How long [s] to wait.

    Raises:
        InputError: There was no place for one of them in time.
        WorkerLostError: A worker died.
    """
    try:
        return ray.get(list(calls), timeout=limit)
    except GetTimeoutError:
        waiting = len(calls) - len(ready(calls, count=len(calls), timeout=0.0))
        raise InputError(
            f"Ray: {waiting} of {len(calls)} workers did not start within {limit:.0f} s; free are {free('CPU'):g} CPUs "
            f"and {free('GPU'):g} GPUs: ask for fewer workers, or wait until others leave the cluster"
        ) from None
    except RayError as error:
        raise _cause(error, calls, "worker") from error


def ready(calls: Sequence[Any], *, count: int, timeout: float) -> list[Any]:
    """Wait until `count` of the calls have an answer or `timeout` [s] is over; return those that have one.

    What they answer stays where it is.
    """
    return cast("Any", ray).wait(list(calls), num_returns=count, timeout=timeout, fetch_local=False)[0]


def has_place(actor: Any) -> bool:
    """Whether an actor has a place in the cluster, and its process runs."""
    state: Any = importlib.import_module("ray._private.state")
    return state.actors(actor._actor_id.hex())["State"] == "ALIVE"


def free(kind: str) -> float:
    """Return how many ``CPU`` or ``GPU`` no worker of the cluster has taken."""
    return cast("dict[str, float]", ray.available_resources()).get(kind, 0.0)


def died(error: RayError) -> bool:
    """Whether it is the actor's own death; an actor that calls another passes the other's death on as its failure."""
    return isinstance(error, RayActorError) and not isinstance(error, RayTaskError)


def _cause(first: RayError, calls: Sequence[Any], who: str) -> Exception:
    """Return the error to raise for a failed call.

    When a worker dies, the others fail too, waiting for its gradient: the death is the cause, whichever came first.
    """
    ready(calls, count=len(calls), timeout=_DEATH_SECONDS)
    failures = [_failure(call) for call in calls]
    if any(isinstance(failure, RayActorError) for failure in (first, *failures)):
        # If an actor passes on another's death, the rank is that of nobody's.
        dead = [rank for rank, failure in enumerate(failures) if failure is not None and died(failure)]
        return WorkerLostError(f"a worker process died ({WHY})", f"{who} {dead[0]}" if dead else None)
    cause: object = getattr(first, "cause", None) if isinstance(first, RayTaskError) else None
    found = cause if isinstance(cause, Exception) else first
    if isinstance(found, ObjectLostError):
        return DataLostError("what a worker had made was lost with the node that kept it")
    return found


def _failure(call: Any) -> RayError | None:
    try:
        ray.get(call, timeout=0.0)
    except GetTimeoutError:
        return None
    except RayError as error:
        return error
    return None
