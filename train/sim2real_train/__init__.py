"""Datacenter: trainers that run simulators and learners side by side, and the export of what they learned."""

from __future__ import annotations

import os

# Ray reads this when it is imported. With it, as by default on Windows and macOS, Ray listens on loopback only;
# without, on every interface, where anyone who reaches the machine could run code (`cluster.py` checks it).
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
