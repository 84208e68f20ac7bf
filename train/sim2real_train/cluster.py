"""Ray: a private instance on this machine, quiet and reachable from nowhere else, or a cluster that runs already."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import ray

from sim2real.errors import InputError
from sim2real_train.scratch import scratch_folder
from sim2real_train.watch import watched

__all__ = [
    "check_fits",
    "check_machine",
    "environment_set",
    "is_private_without_gpus",
    "local_cluster",
    "remote_cluster",
    "spilled_bytes",
]

OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024
"""Enough where workers keep their rollouts, so that only metrics and checkpoints travel."""
CONNECT_SECONDS: Final = 5.0
"""How long a cluster may take to accept a connection."""
JOIN_SECONDS: Final = 30.0
"""How long it may take to admit a driver, the start of a Python included."""
_NODES_SECONDS: Final = 1.0
"""How often a cluster is asked which nodes it has."""
_LOOPBACK: Final = "127.0.0.1"
_TOKEN: Final = secrets.token_hex(32)
"""Who may talk to private instances: this process and its workers. Ray reads it once in a process, hence one."""
_ENVIRONMENT: Final[dict[str, str | None]] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it Ray warns that a later version will treat workers without a GPU differently.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers are what people wait for; Ray gives way to whatever else the machine does (nice 15).
    "RAY_worker_niceness": "0",
}
_PRIVATE: Final[dict[str, str | None]] = _ENVIRONMENT | {
    # Without a token Ray makes one and writes it to ~/.ray; without a mode it decides for tokens, and sets the mode.
    "RAY_AUTH_TOKEN": _TOKEN,
    "RAY_AUTH_MODE": None,
}


@contextlib.contextmanager
def local_cluster(num_cpus: int, *, num_gpus: int = 0, object_store_bytes: int = OBJECT_STORE_BYTES) -> Generator[Path]:
    """Start Ray for workers that take `num_cpus` together; yield a folder that all of them see.

    Args:
        num_cpus: CPUs that the workers may take; whether the machine has as many is `check_machine`'s matter.
        num_gpus: GPUs that they may take.
        object_store_bytes: Memory for what travels between workers; what does not fit goes to the disk
            (`spilled_bytes`).

    Raises:
        InputError: This process uses Ray already, or imported it in a way that makes it listen to the network.
        WorkerLostError: A process of Ray's own died; the block was interrupted.
    """
    # Whoever takes no GPU sees none: Ray leaves all of them visible to its workers (ray-project/ray#54868).
    environment = _PRIVATE if num_gpus else _PRIVATE | {"CUDA_VISIBLE_DEVICES": ""}
    with _session() as folder:
        _init(
            environment,
            folder,
            # A new instance, also where RAY_ADDRESS or a running cluster would offer another.
            address="local",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            include_dashboard=False,
            object_store_memory=object_store_bytes,
            _node_ip_address=_LOOPBACK,
            _temp_dir=str(folder / "ray"),
        )
        (node,) = cast("list[dict[str, str]]", ray.nodes())
        if (address := node["NodeManagerAddress"]) != _LOOPBACK:
            raise InputError(f"Ray: expected to listen on {_LOOPBACK}, got {address}; import sim2real_train before ray")
        with watched():
            yield folder


@contextlib.contextmanager
def remote_cluster(address: str, workers: Sequence[tuple[int, int]], *, patience: float = 0.0) -> Generator[Path]:
    """Join a cluster; yield a folder of this machine. At the end the workers are gone and the cluster stays.

    Args:
        address: Where its head node listens, ``HOST:PORT`` as `ray start --head` prints it, or ``auto`` for the one
            that runs on this machine.
        workers: CPUs and GPUs of each worker.
        patience: How long [s] to wait until the cluster has what they need, as one does whose node is replaced.

    Raises:
        InputError: No cluster answers there, it is of another version, or it has not what the workers need.
    """
    _probe(address)
    with _session() as folder:
        _init(_ENVIRONMENT, folder, address=address)
        _wait_until_fits(workers, patience)
        yield folder


def _wait_until_fits(workers: Sequence[tuple[int, int]], patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not _is_whole(workers):
        time.sleep(_NODES_SECONDS)
    check_fits(workers, cast("list[dict[str, Any]]", ray.nodes()))


def _is_whole(workers: Sequence[tuple[int, int]]) -> bool:
    """Whether the cluster has what the workers need, and none of its nodes is dead without its knowing.

    That takes it half a minute, in which it starts workers there, which are lost at once.
    """
    nodes = [node for node in cast("list[dict[str, Any]]", ray.nodes()) if node["Alive"]]
    try:
        check_fits(workers, nodes)
        for node in nodes:
            where = (node["NodeManagerAddress"], node["NodeManagerPort"])
            socket.create_connection(where, timeout=CONNECT_SECONDS).close()
    except (InputError, OSError):
        return False
    return True


def check_machine(workers: Sequence[tuple[int, int]]) -> None:
    """Check that this machine has what workers need, given as CPUs and GPUs of each.

    Raises:
        InputError: It has not; the message says what is missing.
    """
    resources: dict[str, float] = {"CPU": float(len(os.sched_getaffinity(0)))}
    if needed := sum(gpus for _, gpus in workers):
        resources["GPU"] = float(_gpus_for(needed))
    check_fits(workers, [{"Alive": True, "Resources": resources}], "this machine")


def _gpus_for(needed: int) -> int:
    """Return how many GPUs this machine has.

    Raises:
        InputError: Fewer than are needed.
    """
    import torch

    from sim2real_train.device import why_no_gpu

    there = torch.cuda.device_count()
    if there < needed:
        asked = f"this machine has {there} GPUs and {needed} {'is' if needed == 1 else 'are'} asked for"
        raise InputError(f"{asked}: " + ("give fewer --learners or --workers" if there else why_no_gpu()))
    return there


def check_fits(
    workers: Sequence[tuple[int, int]], nodes: Sequence[Mapping[str, Any]], what: str = "the cluster"
) -> None:
    """Check that there is a place for each worker if nobody else takes one.

    Args:
        workers: CPUs and GPUs of each.
        nodes: As `ray.nodes` tells of them.
        what: How the message names them.

    Raises:
        InputError: There is not; the message says what is missing.
    """
    free = [dict(cast("Mapping[str, float]", node["Resources"])) for node in nodes if node["Alive"]]
    for kind, needed in (("CPU", sum(cpus for cpus, _ in workers)), ("GPU", sum(gpus for _, gpus in workers))):
        there = sum(resources.get(kind, 0.0) for resources in free)
        if needed > there:
            raise InputError(
                f"{what} has {there:g} {kind}s and {needed} are needed, {needed - there:g} more: ask for fewer or "
                f"smaller workers, or for {what} with more of them"
            )
    # The largest first, each on the first node with a place: what this cannot place, Ray's own scheduler hardly can.
    for cpus, gpus in sorted(workers, key=lambda worker: (worker[1], worker[0]), reverse=True):
        for resources in free:
            if resources.get("CPU", 0.0) >= cpus and resources.get("GPU", 0.0) >= gpus:
                resources["CPU"] = resources.get("CPU", 0.0) - cpus
                resources["GPU"] = resources.get("GPU", 0.0) - gpus
                break
        else:
            raise InputError(
                f"{what} has no node with {cpus} CPUs and {gpus} GPUs for a worker, once the larger workers have their "
                "places: ask for fewer or smaller workers"
            )


def is_private_without_gpus() -> bool:
    """Whether the instance that this process uses was started by `local_cluster`, for CPUs alone."""
    (first, *others) = cast("list[dict[str, Any]]", ray.nodes())
    return not others and first["NodeManagerAddress"] == _LOOPBACK and "GPU" not in first["Resources"]


def spilled_bytes() -> int | None:
    """Return how many bytes of the object stores' content went to the disks since the cluster began.

    None: a node does not answer; the cluster may not know yet that it is dead.
    """
    # Ray shows it on its dashboard only, which we do not start.
    internal: Any = importlib.import_module("ray._private.internal_api")
    state: Any = importlib.import_module("ray._private.state")
    rpc_error: type[Exception] = importlib.import_module("grpc").RpcError
    own = ray.get_runtime_context().get_node_id()
    # The one beside us asks the others.
    (node,) = [each for each in cast("list[dict[str, Any]]", ray.nodes()) if each["NodeID"] == own]
    where = (node["NodeManagerAddress"], node["NodeManagerPort"])
    try:
        reply = internal.get_memory_info_reply(state.state, *where, timeout_seconds=CONNECT_SECONDS)
    except rpc_error:
        return None
    return int(reply.store_stats.spilled_bytes_total)


@contextlib.contextmanager
def _session() -> Generator[Path]:
    """Make a folder, and leave Ray at the end."""
    if ray.is_initialized():
        raise InputError("Ray: expected a process that does not use it yet; call ray.shutdown() before training")
    with (
        scratch_folder() as folder,
        # Ray prints what it has to say of workers that died to stdout, which belongs to the command's result.
        contextlib.redirect_stdout(sys.stderr),
    ):
        try:
            yield folder
        finally:
            ray.shutdown()


def _init(environment: Mapping[str, str | None], folder: Path, **options: Any) -> None:
    with environment_set(environment), _working_directory(folder), _sigterm_handler_kept():
        ray.init(**options, configure_logging=True, logging_level=logging.ERROR, log_to_driver=False)


def _probe(address: str) -> None:
    """Join and leave the cluster in another process: where none answers, Ray waits for two minutes and kills its own.

    Raises:
        InputError: It cannot be joined.
    """
    if address != "auto":
        host, separator, port = address.rpartition(":")
        if not separator or not host or "/" in host or not port.isdecimal():
            raise InputError(f"--address: expected HOST:PORT or auto, got {address!r}; `ray start --head` prints it")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"--address: nobody answers at {address} ({error}); give HOST:PORT of a head node that runs"
            ) from error
    with tempfile.TemporaryDirectory(prefix="s2r-", dir="/tmp") as folder, environment_set(_ENVIRONMENT):
        try:
            subprocess.run(
                [sys.executable, "-c", "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)", address],
                cwd=folder,
                timeout=JOIN_SECONDS,
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"--address: what listens at {address} is no Ray cluster that answers within {JOIN_SECONDS:.0f} s"
            ) from None
        except subprocess.CalledProcessError as error:
            reason = cast("str", error.stderr).strip().rpartition("\n")[2]
            raise InputError(
                f"--address: cannot join {address} ({reason}); it must run the same versions of Ray "
                f"({ray.__version__}) and Python"
            ) from None


@contextlib.contextmanager
def environment_set(variables: Mapping[str, str | None]) -> Generator[None]:
    """Have variables of the environment set, or taken out of it (None), until the block ends."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
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
