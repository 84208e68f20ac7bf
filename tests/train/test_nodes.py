"""A cluster of two real nodes, each a Ray of its own on this machine, of which one is killed. About 60 s."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from sim2real_train.checkpoint import read_checkpoint
from tests.train.builders import TASK, children_named
from tests.train.processes import PATIENCE, SIM2REAL, ended_at_last, read_until, told, wait_for_iteration

pytestmark = pytest.mark.slow

RAY = str(Path(sys.executable).with_name("ray"))


class Cluster:
    """Nodes with loopback addresses of their own, of which the first is the head."""

    def __init__(self, opened: ExitStack, folder: str, home: Path) -> None:
        self._opened = opened
        self._folder = folder
        self._hosts = iter(f"127.0.0.{number}" for number in range(2, 100))
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray thinks that machines which listen on loopback alone have no cluster.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "HOME": str(home),
        }
        self.address = ""

    def start(self, *, cpus: int) -> psutil.Process:
        """Start one more node."""
        host = next(self._hosts)
        words = [f"--address={self.address}"]
        if not self.address:
            with socket.create_server((host, 0)) as server:
                port = server.getsockname()[1]
            self.address = f"{host}:{port}"
            words = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self._folder}"]
        node = (f"--node-ip-address={host}", f"--num-cpus={cpus}", "--object-store-memory=80000000", "--block")
        process = subprocess.Popen(
            [RAY, "start", *node, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )
        self._opened.callback(_end, process)
        assert process.stdout is not None
        seen = b""
        while b"Ray runtime started" not in seen:
            chunk = os.read(process.stdout.fileno(), 4096)
            assert chunk, seen.decode()
            seen += chunk
        return psutil.Process(process.pid)


def _end(process: subprocess.Popen[bytes]) -> None:
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in family:
        if each.is_running():
            each.kill()
    process.communicate(timeout=PATIENCE)
    psutil.wait_procs(family, timeout=PATIENCE)


def kill(node: psutil.Process) -> None:
    """Take a node from its cluster, as a machine that lost its power."""
    (raylet,) = [child for child in node.children(recursive=True) if child.name() == "raylet"]
    raylet.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    home = tmp_path / "home"
    home.mkdir()
    # The names of sockets must be short.
    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        ExitStack() as opened,
    ):
        yield Cluster(opened, folder, home)
    assert list(home.iterdir()) == []


@contextmanager
def training(cluster: Cluster, out: Path, *words: str) -> Generator[subprocess.Popen[bytes]]:
    size = ("--num-envs=96", "--num-steps=64", "--hidden=16", "--iterations=1000000", "--save-every=2")
    with ended_at_last(
        subprocess.Popen(
            [SIM2REAL, "train", TASK, f"--out={out}", f"--address={cluster.address}", *size, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=cluster.environment,
            start_new_session=True,
        )
    ) as process:
        yield process


def wait_for_simulators(process: subprocess.Popen[bytes], node: psutil.Process, number: int) -> int:
    """Wait for an iteration, and on until there are simulators on a node; return the number of the iteration then."""
    wait_for_iteration(process, number)
    while not children_named("ray::SimWorker", of=node.pid):
        number += 1
        wait_for_iteration(process, number)
    return number


def interrupted(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert told(stderr, "train")[-1].startswith("error: interrupted; the checkpoint of iteration")


def test_a_run_outlives_a_node_of_its_simulators(cluster: Cluster, tmp_path: Path) -> None:
    """Case 24, of a whole node: three simulators and a learner, of which either node can hold two."""
    cluster.start(cpus=2)
    second = cluster.start(cpus=2)
    out = tmp_path / "run"
    with training(cluster, out, "--placement=disaggregated", "--workers=3") as process:
        number = wait_for_simulators(process, second, 4)
        assert not children_named("ray::LearnerWorker", of=second.pid)
        kill(second)
        read_until(process, lambda seen: b"was replaced; the run goes on" in seen)
        third = cluster.start(cpus=2)
        number = wait_for_simulators(process, third, number)
        wait_for_iteration(process, number + 10)
        interrupted(process)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(1, len(lines) + 1))
    stages = [line["stages"] for line in lines]
    assert stages[-1]["replaced_workers"] >= 1.0
    assert max(each["staleness_max"] for each in stages) <= 1.0
    # Each update learned from as many chunks as it should.
    assert {sum(each.get(f"staleness_{age}", 0.0) for age in (0, 1)) for each in stages} == {3.0}


STAND_INS = """
import json, sys
from sim2real_train.cluster import remote_cluster
from sim2real_train.disaggregated import Disaggregated
from sim2real_train.moments import merge
from sim2real_train.sleepers import Naps, sleeping_learners, sleeping_sims
from sim2real_train.split import Pools

def iterate(placement, updates):
    for _ in range(updates):
        collected = placement.collect()
        placement.learn(merge(placement.score()))
        placement.publish(merge(each.observations for each in collected))

naps = Naps(simulate=0.02, evaluate=1.0, num_bytes=1_000_000)
pools = Pools(
    sims=sleeping_sims(naps), learners=sleeping_learners(naps), num_sims=3, num_learners=1, chunks_per_update=3
)
with remote_cluster(sys.argv[1], [(1, 0)] * 4):
    placement = Disaggregated(pools, max_staleness=2)
    iterate(placement, 3)
    placement.evaluate(1, 0)  # chunks are collected meanwhile, as many as may wait
    print(placement.admission.waiting, flush=True, file=sys.__stdout__)
    sys.stdin.readline()
    iterate(placement, 8)
    (fed,) = [state.arrays["fed"].tolist() for state in placement.states() if "fed" in state.arrays]
    counts = (placement.pool.replaced, placement.admission.lost, placement.admission.refused)
    print(json.dumps((fed, counts)), file=sys.__stdout__)
    placement.close()
"""


def test_chunks_that_go_with_their_node_are_collected_again_and_none_is_learned_twice(cluster: Cluster) -> None:
    cluster.start(cpus=2)
    second = cluster.start(cpus=2)
    with ended_at_last(
        subprocess.Popen(
            [sys.executable, "-c", STAND_INS, cluster.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=cluster.environment,
            start_new_session=True,
        )
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 9
        kill(second)
        cluster.start(cpus=2)
        stdout, stderr = process.communicate(b"\n", timeout=PATIENCE)
        assert process.returncode == 0, stderr.decode()
    fed, (replaced, lost, refused) = json.loads(stdout)
    assert len(fed) == 33
    assert len({tuple(ticket) for _, _, *ticket in fed}) == 33
    assert all(0 <= version - of_weights <= 2 for version, of_weights, *_ in fed)
    assert replaced >= 1
    # Those that waited there, of which the learner had not been given any.
    assert lost >= 2
    assert refused == 0


def test_a_run_whose_node_is_lost_goes_on_from_its_checkpoint_once_there_is_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start(cpus=0)
    second = cluster.start(cpus=1)
    out = tmp_path / "run"
    with training(cluster, out, "--restarts=1") as process:
        wait_for_iteration(process, 4)
        kill(second)
        read_until(process, lambda seen: b"going on from iteration" in seen)
        before = read_checkpoint(out / "checkpoint").state.iteration
        cluster.start(cpus=1)
        wait_for_iteration(process, before + 4)
        interrupted(process)
    assert read_checkpoint(out / "checkpoint").state.iteration > before
