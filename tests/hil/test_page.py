"""The page in the browser."""

from __future__ import annotations

import signal
import socket
import urllib.request
from collections.abc import Callable

import mujoco
import numpy as np
import psutil
import pytest

from sim2real.errors import InputError
from sim2real.sim.scene import FLAT
from sim2real.tasks import get_task
from sim2real_hil import web
from sim2real_hil.scenery import Scenery
from tests.edge import policies
from tests.hil.conftest import Process


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def go2() -> Scenery:
    return Scenery(get_task("go2-velocity-flat").robot, FLAT)


def test_a_page_is_served_to_this_machine_and_no_other(port: int, go2: Scenery) -> None:
    commands = policies.quadruped_contract().commands
    with web.Web(port, go2, commands, np.zeros(3), lambda index, value: None) as page:
        assert page.address == f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(page.address, timeout=10) as answer:
            assert b"<html" in answer.read().lower()
        listening = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert {each.laddr.ip for each in listening if each.laddr.port == port} == {"127.0.0.1"}
        page.show(go2.data.qpos.copy())


def test_ctrl_c_ends_a_page_with_what_came_of_it(command: Callable[..., Process], port: int) -> None:
    run = command("play", "go2-velocity-flat", "--web", str(port), "--num-envs", "2")
    run.until(rf"play: the robot is at http://127\.0\.0\.1:{port}; Ctrl-C ends")
    run.until(r"[1-9]\d+step")
    run.popen.send_signal(signal.SIGINT)
    code, stdout, _ = run.end(20)
    assert code == 0
    assert stdout.startswith("go2-velocity-flat, robot go2, engine mujoco, zero actions: ")


def test_a_port_that_is_taken_is_told_so(go2: Scenery) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--web: port {port} is taken"):
            web.Web(port, go2, (), np.zeros(0), lambda index, value: None)


SHAPES = """
<mujoco><worldbody>
  <geom name="sphere" type="sphere" size="0.3"/>
  <geom name="capsule" type="capsule" size="0.2 0.4"/>
  <geom name="cylinder" type="cylinder" size="0.2 0.4"/>
  <geom name="ellipsoid" type="ellipsoid" size="0.1 0.2 0.3"/>
  <geom name="box" type="box" size="0.1 0.2 0.3"/>
</worldbody></mujoco>
"""


@pytest.mark.parametrize(
    ("name", "volume"),
    [
        ("sphere", 4 / 3 * np.pi * 0.3**3),
        ("capsule", 4 / 3 * np.pi * 0.2**3 + np.pi * 0.2**2 * 0.8),
        ("cylinder", np.pi * 0.2**2 * 0.8),
        ("ellipsoid", 4 / 3 * np.pi * 0.1 * 0.2 * 0.3),
        ("box", 8 * 0.1 * 0.2 * 0.3),
    ],
)
def test_a_mesh_encloses_its_geom_and_faces_outwards(name: str, volume: float) -> None:
    """The divergence theorem over the triangles: a hole, or one that faces inwards, changes the sum."""
    model = mujoco.MjModel.from_xml_string(SHAPES)
    vertices, faces = web.geom_mesh(model, mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name))
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    enclosed = np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6.0
    # 24 segments: a circle's area is short by 1.1 %, a sphere's volume by twice that.
    assert volume * 0.95 < enclosed <= volume * (1.0 + 1e-9)
    np.testing.assert_allclose(np.cross(b - a, c - a).sum(axis=0), 0.0, atol=1e-12)
