"""The bench's side of a connection: the socket, the edge's process, and the end of both."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Sequence
from typing import Final

from sim2real.bundle import Bundle
from sim2real.clock import NS_PER_S, now_ns
from sim2real.errors import Sim2RealError, WireError
from sim2real.wire_messages import Mode, make_hello
from sim2real.wire_plant import PlantSocket
from sim2real_hil.child import Child, child

__all__ = ["connected", "farewell"]

_CONNECT_NS: Final = 60 * NS_PER_S
"""Time for the edge to start, load its engine and replay the golden vectors on a busy machine."""
_SLICE_NS: Final = NS_PER_S
_EDGE_PATIENCE_S: Final = "1"
"""Silence of this process after which the edge ends: should it be killed, no edge stays behind for longer than that."""


@contextlib.contextmanager
def connected(
    bundle: Bundle, *, mode: Mode, where: str, edge_words: Sequence[str]
) -> Generator[tuple[PlantSocket, Child]]:
    """Yield a plant's socket and the edge that is connected to it, as a process of its own; end both afterwards.

    Args:
        bundle: What the edge runs.
        mode: Of the run.
        where: ``ipc``, ``tcp`` or an endpoint.
        edge_words: More arguments of ``sim2real edge run``.

    Raises:
        WireError: The endpoint cannot be used, or the edge did not connect.
        ChildError: The edge could not start; the message is its own.
    """
    with contextlib.ExitStack() as stack:
        endpoint = where
        if where == "ipc":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sim2real-"))
            endpoint = f"ipc://{folder}/plant.ipc"
        elif where == "tcp":
            endpoint = "tcp://127.0.0.1:*"
        socket = stack.enter_context(PlantSocket(endpoint, hello=make_hello(bundle.contract, mode=mode)))
        words = ["edge", "run", str(bundle.path), "--connect", socket.endpoint, "--mode", mode]
        edge = stack.enter_context(child([*words, "--peer-timeout", _EDGE_PATIENCE_S, *edge_words]))
        _accept(socket, edge)
        stack.enter_context(farewell(socket))
        yield socket, edge


@contextlib.contextmanager
def farewell(socket: PlantSocket) -> Generator[None]:
    """Tell the edge when the block ends by an error or by Ctrl-C, so that it need not find out by itself."""
    try:
        yield
    except (Sim2RealError, KeyboardInterrupt):
        socket.bye("the plant was stopped")
        raise


def _accept(socket: PlantSocket, edge: Child) -> None:
    """Wait for the edge for as long as its process lives."""
    deadline = now_ns() + _CONNECT_NS
    while (error := _refused(socket, min(_SLICE_NS, max(0, deadline - now_ns())))) is not None:
        edge.check()
        if now_ns() >= deadline:
            raise error


def _refused(socket: PlantSocket, timeout_ns: int) -> WireError | None:
    try:
        socket.accept(timeout_ns)
    except WireError as error:
        return error
    return None
