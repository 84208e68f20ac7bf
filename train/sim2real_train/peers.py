"""Replicas of the learner that average their gradients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Final

import torch
from torch import distributed

from sim2real_train.algorithm import Average
from sim2real_train.watch import WorkerLostError

__all__ = ["join_peers"]

_PEER_TIMEOUT: Final = timedelta(seconds=120)
"""How long a replica waits for the others' gradients; a peer that died is noticed at once."""


def join_peers(rank: int, count: int, rendezvous: str, device: torch.device | None = None) -> Average:
    """Wait for the other replicas; return what replaces a vector by its mean over all of them.

    Args:
        rank: Which of the replicas this process is, from 0.
        count: Number of replicas.
        rendezvous: File that all of them see and that was not there before.
        device: Where the vectors are: each replica's own GPU, or the CPU.
    """
    if count == 1:
        return _keep
    # Loopback: the peers are on this machine, and nobody else may listen in or join.
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    on_gpu = device is not None and device.type == "cuda"
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=count,
        timeout=_PEER_TIMEOUT,
        # Without it, NCCL would guess the GPU from the rank, and each process sees but one.
        device_id=device if on_gpu else None,
    )
    return _average


def _keep(vector: torch.Tensor) -> None:
    """One replica's is the mean already."""


def _average(vector: torch.Tensor) -> None:
    try:
        distributed.all_reduce(vector)
    except RuntimeError as error:
        # A peer that died tells of it itself; one that is stopped never does.
        raise WorkerLostError(f"a replica of the learner waited for the others in vain ({error})") from error
    vector /= distributed.get_world_size()
