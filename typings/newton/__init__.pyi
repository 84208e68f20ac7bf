"""Newton's models hold Warp arrays, which carry no shapes, and what importers add by name: all of it is `Any` here."""

from typing import Any

def __getattr__(name: str) -> Any: ...
