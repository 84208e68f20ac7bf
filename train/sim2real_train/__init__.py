"""Datacenter: trainers that run simulators and learners side by side, and the export of what they learned."""
