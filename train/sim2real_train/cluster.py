"""A private Ray instance on this machine: quiet, reachable from nowhere else, gone when the block ends."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Final, cast

import ray

from sim2real.errors import InputError

__all__ = ["local_cluster"]

_OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024
"""Workers keep their rollouts; only metrics and checkpoints travel."""
_LOOPBACK: Final = "127.0.0.1"
_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it Ray warns that a later version will treat workers without a GPU differently.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextlib.contextmanager
def local_cluster(num_workers: int) -> Generator[Path]:
    """Start Ray for `num_workers` actors of one CPU each; yield a folder that all of them see.

    Raises:
        InputError: This process uses Ray already, or imported it in a way that makes it listen to the network.
    """
    if ray.is_initialized():
        raise InputError("Ray: expected a process that does not use it yet; call ray.shutdown() before training")
    with (
        # Unix sockets lie in the folder, and their paths may have 107 characters: not below a long TMPDIR.
        tempfile.TemporaryDirectory(prefix="s2r-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        # Ray prints what it has to say of workers that died to stdout, which belongs to the command's result.
        contextlib.redirect_stdout(sys.stderr),
    ):
        try:
            _start(num_workers, Path(folder))
            yield Path(folder)
        finally:
            ray.shutdown()


def _start(num_workers: int, folder: Path) -> None:
    with _environment(), _working_directory(folder), _sigterm_handler_kept():
        ray.init(
            # A new instance, also where RAY_ADDRESS or a running cluster would offer another.
            address="local",
            num_cpus=num_workers,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _node_ip_address=_LOOPBACK,
            _temp_dir=str(folder / "ray"),
            configure_logging=True,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    (node,) = cast("list[dict[str, str]]", ray.nodes())
    if (address := node["NodeManagerAddress"]) != _LOOPBACK:
        raise InputError(f"Ray: expected to listen on {_LOOPBACK}, got {address}; import sim2real_train before ray")


@contextlib.contextmanager
def _environment() -> Generator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _working_directory(folder: Path) -> Generator[None]:
    """Ray puts the driver's working directory at the front of every worker's `sys.path`.

    A user's own `train.py` or `sim2real.py` there would be imported in place of the library (ray-project/ray#17518), so
    Ray starts in an empty folder.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _sigterm_handler_kept() -> Generator[None]:
    """Ray makes SIGTERM end the process at once; who was in charge of it before stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
