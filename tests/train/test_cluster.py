from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sim2real_train
from sim2real.errors import InputError
from sim2real_train import cluster
from sim2real_train.actors import answers, place
from sim2real_train.cluster import check_fits, check_machine, local_cluster, remote_cluster, spilled_bytes

HEAD = {"Alive": True, "Resources": {"CPU": 4.0}}
WITH_GPUS = {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 2.0}}
DEAD = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}


def test_what_a_cluster_lacks_is_named() -> None:
    check_fits([(1, 0)] * 4 + [(1, 1)] * 2, [HEAD, WITH_GPUS, DEAD])
    with pytest.raises(InputError, match=r"the cluster has 6 CPUs and 9 are needed, 3 more: ask for fewer"):
        check_fits([(1, 0)] * 9, [HEAD, WITH_GPUS, DEAD])
    with pytest.raises(InputError, match=r"the cluster has 2 GPUs and 3 are needed, 1 more"):
        check_fits([(1, 1)] * 3, [HEAD, WITH_GPUS])
    # Enough in all, but on no node for one worker.
    with pytest.raises(InputError, match=r"the cluster has no node with 5 CPUs and 0 GPUs"):
        check_fits([(5, 0)], [HEAD, WITH_GPUS])
    half = {"Alive": True, "Resources": {"CPU": 0.5}}
    with pytest.raises(InputError, match=r"the cluster has no node with 1 CPUs and 0 GPUs"):
        check_fits([(4, 0), (2, 1), (1, 0)], [HEAD, WITH_GPUS, half, half])


def test_this_machine_is_asked_for_no_more_than_it_has() -> None:
    check_machine([(1, 0)])
    with pytest.raises(InputError, match=r"this machine has \d+ CPUs and 4096 are needed"):
        check_machine([(1, 0)] * 4096)


@pytest.mark.parametrize("address", ["", "here", "host:", ":6379", "ray://host:10001", "http://host:80/", "host:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="--address: expected HOST:PORT or auto"), remote_cluster(address, []):
        pass


def test_where_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(InputError, match=r"nobody answers at 127\.0\.0\.1:1 "), remote_cluster("127.0.0.1:1", []):
        pass


def test_what_listens_and_is_no_cluster_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=r"is no Ray cluster that answers within 4 s"), remote_cluster(address, []):
            pass


class Looks:
    """Tells what a worker sees."""

    def look(self) -> dict[str, str]:
        import sim2real_train.chunks

        return {
            "file": str(sim2real_train.chunks.__file__),
            "gpus": str(os.environ.get("CUDA_VISIBLE_DEVICES")),
            "nice": str(os.nice(0)),
        }


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    """What a worker sees that was started in a user's folder, and the user's home."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("project")
    for name in ("train", "edge", "utils", "sim2real", "sim2real_train", "numpy"):
        (folder / f"{name}.py").write_text("raise AssertionError('the user\\'s file was imported')\n")
    with contextlib.ExitStack() as opened:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("HOME", str(home))
            opened.enter_context(local_cluster(2))
            worker = place(Looks, num_cpus=2)
            seen = answers([worker.look.remote()])[0]
        yield seen, home


def test_workers_find_the_library_in_a_folder_with_the_users_own_files(looked: tuple[dict[str, str], Path]) -> None:
    """Case 25."""
    seen, _ = looked
    assert Path(seen["file"]).parent == Path(str(sim2real_train.__file__)).parent


def test_workers_see_no_gpu_and_give_way_to_nobody(looked: tuple[dict[str, str], Path]) -> None:
    seen, _ = looked
    assert (seen["gpus"], seen["nice"]) == ("", str(os.nice(0)))
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_local_run_leaves_the_home_folder_alone(looked: tuple[dict[str, str], Path]) -> None:
    _, home = looked
    assert list(home.iterdir()) == []
    assert os.environ.get("RAY_AUTH_MODE") is None


def test_what_does_not_fit_into_the_store_is_counted(looked: tuple[dict[str, str], Path]) -> None:
    import ray  # not before sim2real_train

    assert spilled_bytes() == 0
    kept = [ray.put(np.ones(40 * 2**20, np.uint8)) for _ in range(5)]
    deadline = time.monotonic() + 60.0
    while spilled_bytes() == 0:
        assert time.monotonic() < deadline
    assert len(kept) == 5


JOIN = """
import sys
from sim2real.errors import InputError
from sim2real_train.actors import answers
from sim2real_train.cluster import remote_cluster
from sim2real_train.sleepers import Naps, sleeping_sims
with remote_cluster("{address}", [(1, 0)] * 3):
    import ray
    print(ray.cluster_resources()["CPU"], file=sys.__stdout__)
    sim, started = sleeping_sims(Naps())(0, 0)
    answers([started])
try:
    with remote_cluster("{address}", [(1, 0)] * 4):
        pass
except InputError as error:
    print(str(error).partition(":")[0])
"""

HEAD_NODE = """
import sys
from sim2real_train import cluster
with cluster.local_cluster(3):
    import ray
    print(ray.get_runtime_context().gcs_address, cluster._TOKEN, flush=True, file=sys.__stdout__)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_cluster_is_joined_and_left_as_it_was() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HEAD_NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as head:
        assert head.stdout is not None
        address, token = head.stdout.readline().split()
        script = JOIN.format(address=address)
        environment = os.environ | {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"}
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.split("\n")[:2] == ["3.0", "the cluster has 3 CPUs and 4 are needed, 1 more"]
        head.communicate("")
