"""Batched simulators: one small protocol, several engines; and the contract's view of a simulated robot."""

from __future__ import annotations

from sim2real.sim.base import BatchedSim, Snapshot
from sim2real.sim.plant import Plant

__all__ = ["BatchedSim", "Plant", "Snapshot"]
