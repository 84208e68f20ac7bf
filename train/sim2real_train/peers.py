"""Replicas of the learner that average their gradients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Final

import torch
from torch import distributed

from sim2real_train.algorithm import Average

__all__ = ["join_peers"]

_PEER_TIMEOUT: Final = timedelta(seconds=120)
"""How long a replica waits for the others' gradients; a peer that died is noticed at once."""


def join_peers(rank: int, count: int, rendezvous: str) -> Average:
    """Wait for the other replicas; return what replaces a vector by its mean over all of them.

    Args:
        rank: Which of the replicas this process is, from 0.
        count: Number of replicas.
        rendezvous: File that all of them see and that was not there before.
    """
    if count == 1:
        return _keep
    # Loopback: the peers are on this machine, and nobody else may listen in or join.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count, timeout=_PEER_TIMEOUT
    )
    return _average


def _keep(vector: torch.Tensor) -> None:
    """One replica's is the mean already."""


def _average(vector: torch.Tensor) -> None:
    distributed.all_reduce(vector)
    vector /= distributed.get_world_size()
