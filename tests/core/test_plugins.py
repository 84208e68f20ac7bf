"""A package of one's own adds robots and tasks without a line changed here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim2real.errors import InputError
from sim2real.robots import get_robot, robot_names

CODE = """
import msgspec
from sim2real.robots.pendulum import ROBOT as PENDULUM
ROBOT = msgspec.structs.replace(PENDULUM, name="long-pendulum")
NOT_A_ROBOT = 3
from sim2real.tasks.pendulum_swingup import TASK as SWINGUP
TASK = msgspec.structs.replace(SWINGUP, name="my-swingup", rebuild=None)
"""


def package(folder: Path, entry_points: str) -> Path:
    """Lay out an installed distribution: its module and the metadata that pip would write."""
    folder.mkdir()
    (folder / "my_robots.py").write_text(CODE)
    info = folder / "my_robots-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-robots\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def ask(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_a_robot_of_an_installed_package_is_found(tmp_path: Path) -> None:
    folder = package(tmp_path / "site", "[sim2real.robots]\nlong-pendulum = my_robots:ROBOT\n")
    done = ask(
        folder,
        "from sim2real.robots import *; print(robot_names(), get_robot('long-pendulum').name)",
    )
    assert done.stdout.endswith(", 'long-pendulum') long-pendulum\n"), done.stderr


def test_a_task_that_does_not_say_how_is_for_its_robot_alone(tmp_path: Path) -> None:
    folder = package(tmp_path / "site", "[sim2real.tasks]\nmy-swingup = my_robots:TASK\n")
    done = ask(
        folder,
        "from sim2real.tasks import get_task\n"
        "from sim2real.errors import InputError\n"
        "print(get_task('my-swingup', 'pendulum').name)\n"
        "try:\n    get_task('my-swingup', 'go2')\nexcept InputError as error:\n    print(error)\n",
    )
    assert done.stdout == "my-swingup\ntask my-swingup: is for robot pendulum alone; leave out --robot\n", done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("long-pendulum = my_robots:NOT_A_ROBOT", "expected a sim2real.robots.Robot, got int"),
        ("long-pendulum = my_robots:NONE", "my_robots:NONE cannot be loaded"),
        ("long-pendulum = nowhere:ROBOT", "nowhere:ROBOT cannot be loaded"),
        ("pendulum = my_robots:ROBOT", "given by both sim2real.robots.pendulum:ROBOT and my_robots:ROBOT"),
    ],
)
def test_what_is_wrong_with_a_package_is_one_clear_line(tmp_path: Path, line: str, message: str) -> None:
    folder = package(tmp_path / "site", f"[sim2real.robots]\n{line}\n")
    done = ask(
        folder,
        "from sim2real.robots import *\n"
        "from sim2real.errors import InputError\n"
        "try:\n    get_robot('long-pendulum')\nexcept InputError as error:\n    print(error)\n",
    )
    assert message in done.stdout, done.stderr


def test_unknown_robot_says_what_there_is() -> None:
    with pytest.raises(InputError, match=r"unknown; allowed: pendulum, double_pendulum, .*; did you mean 'pendulum'"):
        get_robot("pendulumm")
    assert robot_names() == ("pendulum", "double_pendulum", "so101", "go2")
