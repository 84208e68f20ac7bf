"""Which endpoints may be used, who may use them, and what a taken one says. About 3 s."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq

from sim2real.curve import CurveKeys, write_keys
from sim2real.errors import WireError
from sim2real.wire_edge import EdgeSocket
from sim2real.wire_plant import PlantSocket
from tests.core.wire_peers import HELLO, SHORT_NS, WAIT_NS, command_array, send, state_array

LOOPBACK = "tcp://127.0.0.1:*"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    write_keys(folder)
    return folder


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]", "192.0.2.7", "eth0", "robot.local"])
def test_what_others_can_reach_needs_keys_on_both_sides(host: str) -> None:
    for socket in (PlantSocket, EdgeSocket):
        with pytest.raises(WireError, match="both sides need keys; make them with 'sim2real keygen DIR'"):
            socket(f"tcp://{host}:5555", hello=HELLO)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("127.0.0.1:5555", "expected ipc or tcp"),
        ("udp://127.0.0.1:5555", "expected ipc or tcp"),
        ("inproc://here", "expected ipc or tcp"),
        ("ipc://", "expected ipc or tcp"),
        ("tcp://127.0.0.1", "expected tcp://host:port"),
        ("tcp://127.0.0.1:http", "expected tcp://host:port"),
        ("tcp://127.0.0.1:65536", "port of 0 to 65535"),
        ("ipc:///tmp/" + "x" * 103, "the path has 108 bytes, a socket's may have at most 107"),
        ("ipc:///tmp/" + "ü" * 60, "the path has 125 bytes"),
    ],
)
def test_a_malformed_endpoint_says_what_is_allowed(endpoint: str, message: str) -> None:
    for socket in (PlantSocket, EdgeSocket):
        with pytest.raises(WireError, match=message) as caught:
            socket(endpoint, hello=HELLO)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("endpoint", [LOOPBACK, "tcp://localhost:*", "tcp://127.8.8.8:*", "tcp://[::1]:*"])
def test_this_machine_needs_no_keys_and_the_port_is_told(endpoint: str) -> None:
    with PlantSocket(endpoint, hello=HELLO) as plant, ThreadPoolExecutor(1) as pool:
        assert plant.endpoint.rpartition(":")[2].isdecimal()
        accepted = pool.submit(plant.accept, WAIT_NS)
        with EdgeSocket(plant.endpoint, hello=HELLO) as edge:
            edge.connect(WAIT_NS)
        accepted.result()


def test_a_path_may_have_107_bytes(tmp_path: Path) -> None:
    folder = Path("/tmp")
    path = str(folder / f"s2r-{os.getpid()}-")
    path += "x" * (107 - len(path))
    try:
        with PlantSocket(f"ipc://{path}", hello=HELLO) as plant:
            assert Path(path).is_socket()
            assert plant.endpoint == f"ipc://{path}"
    finally:
        Path(path).unlink(missing_ok=True)


def test_a_busy_endpoint_is_left_to_who_has_it(tmp_path: Path) -> None:
    for endpoint in (f"ipc://{tmp_path}/wire", LOOPBACK):
        with PlantSocket(endpoint, hello=HELLO) as first, ThreadPoolExecutor(1) as pool:
            with pytest.raises(WireError, match="already in use by another process; stop that process, or choose"):
                PlantSocket(first.endpoint, hello=HELLO)
            accepted = pool.submit(first.accept, WAIT_NS)
            with EdgeSocket(first.endpoint, hello=HELLO) as edge:
                edge.connect(WAIT_NS)
            accepted.result()


def test_the_socket_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "wire"
    bind = (
        f"import zmq, signal; s = zmq.Context().socket(zmq.ROUTER); s.bind('ipc://{path}');"
        "print('bound', flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", bind], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"bound\n"
        with pytest.raises(WireError, match="already in use"):
            PlantSocket(f"ipc://{path}", hello=HELLO)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert path.is_socket()
    with PlantSocket(f"ipc://{path}", hello=HELLO):
        pass


def test_a_file_that_is_no_socket_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("weeks of work")
    with pytest.raises(WireError, match="the path is a file that is not a socket; choose another"):
        PlantSocket(f"ipc://{path}", hello=HELLO)
    assert path.read_text() == "weeks of work"
    for impossible in (path / "wire", tmp_path / "nowhere" / "wire"):
        with pytest.raises(WireError, match=r"cannot be (used|bound)"):
            PlantSocket(f"ipc://{impossible}", hello=HELLO)


def test_an_address_of_another_machine_cannot_be_bound(keys: Path) -> None:
    with pytest.raises(WireError, match="cannot be bound"):
        PlantSocket("tcp://192.0.2.7:5555", hello=HELLO, keys=CurveKeys.load(keys, "plant"))


def test_with_keys_that_fit_a_session_is_made(keys: Path) -> None:
    with PlantSocket("tcp://0.0.0.0:*", hello=HELLO, keys=CurveKeys.load(keys, "plant")) as plant:
        port = plant.endpoint.rpartition(":")[2]
        with (
            ThreadPoolExecutor(1) as pool,
            EdgeSocket(f"tcp://127.0.0.1:{port}", hello=HELLO, keys=CurveKeys.load(keys, "edge")) as edge,
        ):
            accepted = pool.submit(plant.accept, WAIT_NS)
            edge.connect(WAIT_NS)
            accepted.result()
            assert send(plant, 0)
            assert edge.receive_state(state_array(), WAIT_NS) is not None


def test_without_keys_that_fit_there_is_nothing_to_be_had(keys: Path, tmp_path: Path) -> None:
    write_keys(tmp_path)
    mine, theirs = CurveKeys.load(keys, "edge"), CurveKeys.load(tmp_path, "edge")
    # Knows which plant it talks to, but the plant does not know it; and the other way round.
    untrusted = CurveKeys(public=theirs.public, secret=theirs.secret, peers=mine.peers)
    deceived = CurveKeys(public=mine.public, secret=mine.secret, peers=theirs.peers)
    with PlantSocket(LOOPBACK, hello=HELLO, keys=CurveKeys.load(keys, "plant")) as plant:
        for wrong in (None, untrusted, deceived):
            with (
                EdgeSocket(plant.endpoint, hello=HELLO, keys=wrong) as edge,
                pytest.raises(WireError, match="with keys that fit"),
            ):
                edge.connect(SHORT_NS)
        assert plant.receive_command(command_array(), 0) is None
        assert plant.drops.total == 0


def test_a_plant_without_keys_does_not_answer_an_edge_with_them(keys: Path) -> None:
    with (
        PlantSocket(LOOPBACK, hello=HELLO) as plant,
        EdgeSocket(plant.endpoint, hello=HELLO, keys=CurveKeys.load(keys, "edge")) as edge,
        pytest.raises(WireError, match="with keys that fit"),
    ):
        edge.connect(SHORT_NS)


def test_secrets_are_for_their_owner(tmp_path: Path) -> None:
    write_keys(tmp_path)
    for role in ("plant", "edge"):
        assert stat.S_IMODE((tmp_path / f"{role}.secret").stat().st_mode) == 0o600
        public = (tmp_path / f"{role}.public").read_bytes().strip()
        assert zmq.curve_public((tmp_path / f"{role}.secret").read_bytes().strip()) == public
    for mode in (0o640, 0o604):
        (tmp_path / "edge.secret").chmod(mode)
        with pytest.raises(WireError, match=f"its mode is {mode:04o}; run: chmod 600 .*edge.secret"):
            CurveKeys.load(tmp_path, "edge")


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    write_keys(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "plant.public").unlink()
    with pytest.raises(WireError, match=r"holds plant\.secret, edge\.secret, edge\.public already"):
        write_keys(tmp_path)
    del before["plant.public"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    write_keys(tmp_path)
    for content in (b"", b"short", b"x" * 41, b"\xff" * 40, b"~" * 40):
        (tmp_path / "plant.public").write_bytes(content)
        with pytest.raises(WireError, match=r"plant\.public: expected a key of 40 Z85 characters"):
            CurveKeys.load(tmp_path, "edge")
    (tmp_path / "plant.public").unlink()
    with pytest.raises(WireError, match=r"plant\.public: cannot be read \(No such file.* make keys with"):
        CurveKeys.load(tmp_path, "edge")
    (tmp_path / "edge.public").unlink()
    with pytest.raises(WireError, match="no public key of an edge"):
        CurveKeys.load(tmp_path, "plant")


def test_a_plant_may_trust_several_edges(tmp_path: Path) -> None:
    write_keys(tmp_path)
    other = zmq.curve_keypair()[0]
    (tmp_path / "edge-2.public").write_bytes(other + b"\n")
    assert set(CurveKeys.load(tmp_path, "plant").peers) == {other, CurveKeys.load(tmp_path, "edge").public}
