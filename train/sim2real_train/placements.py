"""From a configuration to running workers: Ray, the roles, and the placement that puts them together."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from sim2real.errors import InputError
from sim2real_train.actors import answers, place
from sim2real_train.cluster import check_machine, local_cluster, remote_cluster
from sim2real_train.colocated import Colocated, Replica
from sim2real_train.config import TrainConfig
from sim2real_train.disaggregated import Disaggregated
from sim2real_train.environments import sizes_of
from sim2real_train.inference import InferenceServer
from sim2real_train.overlapped import Overlapped
from sim2real_train.placement import Placement
from sim2real_train.roles import LearnerWorker, SimWorker, behaviour_of, chunk_envs, chunks_per_update
from sim2real_train.split import Pools

__all__ = ["Machines", "check_placement", "placed"]

_SERVER_PATIENCE: Final = 0.002
"""How long [s] a request waits for others at the inference server."""
_WORKERS_PER_CPU: Final = 8
"""Of this machine; more of them would share its memory for nothing."""
_START_PATIENCE: Final = 120.0
"""How long [s] workers may take to start."""
_SPARE: Final = 64 * 1024 * 1024
"""Of the object store, for weights and checkpoints [bytes]."""


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's processes are; none of it changes what is learned."""

    num_threads: int = 1
    """Threads of each worker that step its simulation."""
    address: str | None = None
    """Ray cluster to join; None: one of our own on this machine."""
    max_workers: int = 0
    """Simulator workers that there may be once the cluster has grown; 0: as many as at the start."""
    hang_limit: float | None = None
    """Longest time [s] that a worker may take to collect or to learn; None: as `HangLimit` learns it."""
    patience: float = 0.0
    """How long [s] to wait for nodes that a cluster should have, beside the time that workers need to start."""


@contextmanager
def placed(config: TrainConfig, machines: Machines, *, dumps: Path) -> Generator[Placement]:
    """Start what the run needs, and end it when the block ends, however it ends.

    Args:
        config: The run.
        machines: Where its processes are.
        dumps: Folder for what led to diverged simulations.

    Raises:
        InputError: The cluster or this machine has not what it needs.
    """
    check_placement(config, machines)
    needs = _needs(config)
    if machines.address is None:
        gpus = sum(gpus for _, gpus in needs)
        cluster = local_cluster(len(needs), num_gpus=gpus, object_store_bytes=_store_bytes(config))
    else:
        cluster = remote_cluster(machines.address, needs, patience=machines.patience)
    with cluster as folder:
        placement = _build(config, machines, folder, dumps.absolute())
        try:
            yield placement
        finally:
            placement.close()


def check_placement(config: TrainConfig, machines: Machines) -> None:
    """Check what can be known of a placement before anything is started or written.

    Raises:
        InputError: Workers cannot share the environments; this machine has not what they need, or a cluster may not be
            asked for it.
    """
    _check_shares(config)
    if machines.address is None:
        _check_local(_needs(config))
    else:
        _check_remote(config)


def _check_local(needs: Sequence[tuple[int, int]]) -> None:
    """Check that the machine is not asked for what it could never give: more workers than CPUs are slow, and work."""
    cpus = len(os.sched_getaffinity(0))
    if len(needs) > _WORKERS_PER_CPU * cpus:
        raise InputError(
            f"this machine has {cpus} CPUs and {len(needs)} workers are asked for, more than {_WORKERS_PER_CPU} for "
            "each; give fewer --workers and --learners, or the --address of a cluster"
        )
    check_machine([(0, gpus) for _, gpus in needs])


def _needs(config: TrainConfig) -> list[tuple[int, int]]:
    """Return CPUs and GPUs of each worker."""
    where = config.placement
    learner = (1, _gpus_of_learner(config))
    if where.kind == "colocated":
        return [learner] * config.num_workers
    return [(1, 0)] * (config.num_workers + (where.inference == "server")) + [learner] * where.learners


def _gpus_of_learner(config: TrainConfig) -> int:
    return int(config.placement.device == "cuda")


def _store_bytes(config: TrainConfig) -> int:
    """Return what the object store needs: every worker's chunks, of which some wait and some are in use."""
    if config.placement.kind == "colocated":
        return 2 * _SPARE
    chunks = chunks_per_update(config) * (config.placement.max_staleness + 2)
    _, critic_observation_size, action_size = sizes_of(config)
    numbers = critic_observation_size + 2 * action_size + 2
    return 2 * _SPARE + 2 * chunks * 4 * numbers * chunk_envs(config) * (config.algorithm.num_steps + 1)


def _check_shares(config: TrainConfig) -> None:
    chunks = config.num_workers if config.placement.kind == "colocated" else chunks_per_update(config)
    if config.num_envs % chunks:
        raise InputError(
            f"--num-envs: expected a multiple of {chunks}, which the workers of both sides can share, got "
            f"{config.num_envs}"
        )


def _check_remote(config: TrainConfig) -> None:
    where = config.placement
    replicas = config.num_workers if where.kind == "colocated" else where.learners
    if replicas > 1:
        raise InputError(
            f"--address: expected one replica of the learner, got {replicas}: gradients travel over sockets that "
            "nobody authenticates, so that replicas stay on one machine; use --placement disaggregated --learners 1"
        )


def _build(config: TrainConfig, machines: Machines, folder: Path, dumps: Path) -> Placement:
    where = config.placement
    rendezvous = str(folder / f"peers-{uuid.uuid4().hex}")
    if where.kind == "colocated":

        def spawn_replica(rank: int, incarnation: int) -> tuple[Any, Any]:
            actor = place(Replica, num_cpus=1, num_gpus=_gpus_of_learner(config))
            return actor, actor.start.remote(config, rank, rendezvous, machines.num_threads, dumps)

        env_steps = config.num_envs * config.algorithm.num_steps
        return Colocated(
            spawn_replica,
            config.num_workers,
            env_steps=env_steps,
            patience=_START_PATIENCE + machines.patience,
            hang_limit=machines.hang_limit,
        )
    server = _inference_server(config) if where.inference == "server" else None

    def spawn_sim(rank: int, incarnation: int) -> tuple[Any, Any]:
        actor = place(SimWorker, num_cpus=1)
        return actor, actor.start.remote(config, rank, incarnation, machines.num_threads, dumps, server)

    def spawn_learner(rank: int, incarnation: int) -> tuple[Any, Any]:
        actor = place(LearnerWorker, num_cpus=1, num_gpus=_gpus_of_learner(config))
        return actor, actor.start.remote(config, rank, rendezvous, machines.num_threads)

    pools = Pools(
        sims=spawn_sim,
        learners=spawn_learner,
        num_sims=config.num_workers,
        num_learners=where.learners,
        chunks_per_update=chunks_per_update(config),
        patience=_START_PATIENCE + machines.patience,
        hang_limit=machines.hang_limit,
    )
    if where.kind == "overlapped":
        return Overlapped(pools)
    return Disaggregated(pools, max_staleness=where.max_staleness, max_sims=machines.max_workers, server=server)


def _inference_server(config: TrainConfig) -> Any:
    actor = place(InferenceServer, num_cpus=1, at_once=1000)
    answers([actor.start.remote(lambda: behaviour_of(config), config.num_envs, _SERVER_PATIENCE, 1)])
    return actor
