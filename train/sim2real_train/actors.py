"""Answers of Ray actors: which failure is the cause, and waits that end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from sim2real.errors import InputError
from sim2real_train.cluster import is_private_without_gpus
from sim2real_train.watch import WHY, WorkerLostError

__all__ = ["NEVER_AGAIN", "answers", "died", "free", "place", "ready", "started"]

NEVER_AGAIN: Final[dict[str, Any]] = {"max_restarts": 0, "max_task_retries": 0}
"""Options of every actor: Ray would run its constructor again without its state, and repeat what killed it."""


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


def answers(calls: Sequence[Any]) -> list[Any]:
    """Wait for all answers.

    Raises:
        WorkerLostError: A worker died.
    """
    try:
        return ray.get(list(calls))
    except RayError as error:
        raise _cause(error, calls) from error


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
        raise _cause(error, calls) from error


def ready(calls: Sequence[Any], *, count: int, timeout: float) -> list[Any]:
    """Wait until `count` of the calls have an answer or `timeout` [s] is over; return those that have one.

    What they answer stays where it is.
    """
    return cast("Any", ray).wait(list(calls), num_returns=count, timeout=timeout, fetch_local=False)[0]


def free(kind: str) -> float:
    """Return how many ``CPU`` or ``GPU`` no worker of the cluster has taken."""
    return cast("dict[str, float]", ray.available_resources()).get(kind, 0.0)


def died(error: RayError) -> bool:
    """Whether it is the actor's own death; an actor that calls another passes the other's death on as its failure."""
    return isinstance(error, RayActorError) and not isinstance(error, RayTaskError)


def _cause(first: RayError, calls: Sequence[Any]) -> Exception:
    """Return the error to raise for a failed call.

    When a worker dies, the others fail too, waiting for its gradient: the death is the cause, whichever came first.
    """
    failures = [first, *(failure for call in calls if (failure := _failure(call)) is not None)]
    if any(isinstance(failure, RayActorError) for failure in failures):
        return WorkerLostError(f"a worker process died ({WHY})")
    cause: object = getattr(first, "cause", None) if isinstance(first, RayTaskError) else None
    return cause if isinstance(cause, Exception) else first


def _failure(call: Any) -> RayError | None:
    try:
        ray.get(call)
    except RayError as error:
        return error
    return None
