"""MuJoCo Warp's functions take dataclasses of Warp arrays, which carry no shapes: all of it is `Any` here."""

from typing import Any

def __getattr__(name: str) -> Any: ...
