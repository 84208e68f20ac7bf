"""Where plant and edge meet: which endpoints are allowed, which of them need keys, and which are taken."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from typing import Final

import zmq

from sim2real.errors import WireError

__all__ = ["bind", "check_endpoint"]

_ALLOWED: Final = "allowed: ipc:///path/to/socket, tcp://host:port"
_LONGEST_PATH: Final = 107
"""The kernel's sockaddr_un holds 108 bytes, the last of which is 0."""


def check_endpoint(endpoint: str, *, has_keys: bool) -> None:
    """Check that `endpoint` is one of ours and, if others than this machine can reach it, that there are keys.

    Raises:
        WireError: Unknown transport, no port, a path that is too long, or an open endpoint without keys.
    """
    transport, separator, address = endpoint.partition("://")
    if not separator or not address or transport not in ("ipc", "tcp"):
        raise WireError(f"endpoint {endpoint!r}: expected ipc or tcp; {_ALLOWED}")
    if transport == "ipc":
        length = len(os.fsencode(address))
        if length > _LONGEST_PATH:
            raise WireError(
                f"endpoint {endpoint!r}: the path has {length} bytes, a socket's may have at most {_LONGEST_PATH}; "
                "choose a shorter one, e.g. below /tmp"
            )
        return
    host, separator, port = address.rpartition(":")
    if not separator or not host or not (port == "*" or (port.isdecimal() and int(port) < 65536)):
        raise WireError(f"endpoint {endpoint!r}: expected tcp://host:port with a port of 0 to 65535")
    if not has_keys and not _is_loopback(host):
        raise WireError(
            f"endpoint {endpoint!r}: other machines can reach it, so both sides need keys; make them with "
            "'sim2real keygen DIR', copy the public ones to the other side and pass the directory as keys, "
            "or stay on this machine with ipc:// or tcp://127.0.0.1:port"
        )


def bind(server: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind `server` and return the endpoint with its actual port.

    Raises:
        WireError: The endpoint is taken, or cannot be bound.
    """
    if endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@"):
        _check_path(endpoint)
    try:
        server.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(endpoint) from error
        raise WireError(f"endpoint {endpoint!r}: cannot be bound ({error.strerror}); {_ALLOWED}") from error
    return server.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def _check_path(endpoint: str) -> None:
    # libzmq removes whatever it finds at the path before it binds, a living plant's socket or any file included.
    path = endpoint.removeprefix("ipc://")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise WireError(f"endpoint {endpoint!r}: the path cannot be used ({error.strerror}); choose another") from error
    if not stat.S_ISSOCK(mode):
        raise WireError(f"endpoint {endpoint!r}: the path is a file that is not a socket; choose another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Refused: the process that made the socket is gone. Anything else, even a full backlog: somebody listens.
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise _taken(endpoint)


def _taken(endpoint: str) -> WireError:
    return WireError(
        f"endpoint {endpoint!r}: already in use by another process; stop that process, or choose another "
        "endpoint, e.g. tcp://127.0.0.1:* for any free port"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        # A wildcard, an interface or a name: where it leads is not known here.
        return False
