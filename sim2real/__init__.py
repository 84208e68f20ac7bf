"""The core that the datacenter, the bench and the robot share: the policy contract and all that enforces it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
