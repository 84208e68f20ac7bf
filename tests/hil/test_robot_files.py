"""A policy of a robot out of a file drives what it was trained for, wherever the file is now, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sim2real.errors import ContractError, InputError, WireError
from sim2real.robots import get_robot
from sim2real_hil.commands import HilRunArgs, PlantArgs, run_hil, run_plant
from sim2real_hil.play import PlayArgs, run_play
from sim2real_train.commands import EvaluateArgs, run_evaluate
from tests.hil.untrained import random_policy


@pytest.fixture(name="mjcf")
def fixture_mjcf(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "mine.xml"
    path.parent.mkdir()
    path.write_bytes(get_robot("pendulum").mjcf.read_bytes())
    return path


@pytest.fixture(name="policy")
def fixture_policy(tmp_path: Path, mjcf: Path) -> Path:
    return random_policy("pendulum-swingup", tmp_path, robot=get_robot(str(mjcf)).name)


def change(mjcf: Path) -> None:
    text = mjcf.read_text()
    assert 'mass="0.6755"' in text
    mjcf.write_text(text.replace('mass="0.6755"', 'mass="0.9"'))


def bench(policy: Path, robot: str | None) -> None:
    out = policy.parent / "out"
    assert run_hil(HilRunArgs(bundle=policy, ticks=20, transport="ipc", out=out, robot=robot)).passed


def serve(policy: Path, robot: str | None) -> None:
    """Ends for want of an edge, once the plant is built."""
    with pytest.raises(WireError, match="no edge"):
        run_plant(PlantArgs(bundle=policy, bind=f"ipc://{policy.parent}/plant", wait=0.01, robot=robot))


def play(policy: Path, robot: str | None) -> None:
    args = PlayArgs(task="pendulum-swingup", policy=policy, robot=robot, seconds=0.1, video=policy.parent / "play.mp4")
    run_play(args)


def evaluate(policy: Path, robot: str | None) -> None:
    run_evaluate(EvaluateArgs(policy=policy, starts=2, robot=robot))


Use = Callable[[Path, str | None], None]
USES = pytest.mark.parametrize("use", [bench, serve, play, evaluate])


@USES
def test_where_it_was_and_where_it_is_now(use: Use, policy: Path, mjcf: Path) -> None:
    use(policy, None)
    shutil.move(mjcf.parent, mjcf.parent.with_name("there"))
    with pytest.raises(InputError, match=r"there is no .*mine\.xml any more; .* by --robot where it is now"):
        use(policy, None)
    use(policy, str(mjcf.parent.with_name("there") / "mine.xml"))


@USES
def test_a_changed_file_is_another_robot(use: Use, policy: Path, mjcf: Path) -> None:
    change(mjcf)
    with pytest.raises(InputError, match=r"changed since; restore it, or train anew"):
        use(policy, None)
    with pytest.raises((InputError, ContractError), match=r"the policy drives,? .*mine\.xml#"):
        use(policy, str(mjcf))
