"""Films without a screen, of a robot in its scene; and the same for a dump. About 12 s."""

from __future__ import annotations

import math
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import mujoco
import numpy as np
import numpy.typing as npt
import psutil
import pytest

from sim2real.errors import InputError
from sim2real.robots import get_robot
from sim2real.sim.scene import EMPTY
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.dump import StateRing
from sim2real_hil.play import PlayArgs, run_play  # pyright: ignore[reportPrivateUsage]
from sim2real_hil.replay import ReplayArgs, run_replay
from sim2real_hil.scenery import IMAGE_SIZE, Scenery
from sim2real_hil.video import Renderer, Video
from tests.hil.conftest import Process

TASK = get_task("pendulum-swingup")
Array = npt.NDArray[np.float64]


def frames_of(path: Path) -> npt.NDArray[np.uint8]:
    """Decode a film: shape (frames, height, width, 3)."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-f", "rawvideo"]
    done = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, timeout=60, check=True)
    width, height = IMAGE_SIZE
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.usefixtures("gl")
def test_a_film_of_one_second_has_fifty_frames_that_show_the_robot_move(tmp_path: Path) -> None:
    path = tmp_path / "films" / "out.mp4"
    outcome = run_play(PlayArgs(task="pendulum-swingup", video=path, seconds=1.0, seed=3))
    frames = frames_of(path)
    assert len(frames) == 50
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (50, 1.0)
    assert np.ptp(frames[0]) > 100
    assert np.abs(frames[25].astype(int) - frames[0]).max() > 100
    assert [each.name for each in path.parent.iterdir()] == ["out.mp4"]
    assert outcome.result.control_steps == 100
    assert outcome.result.seconds == pytest.approx(1.0)
    assert set(outcome.result.reward_terms) == set(TASK.rewards)
    assert str(path) in outcome.summary


@pytest.mark.usefixtures("gl")
def test_the_camera_follows_a_robot_that_walks_away() -> None:
    task = get_task("go2-velocity-flat")
    scenery = Scenery(task.robot, task.scene)
    with Renderer(scenery) as renderer:
        qpos = scenery.data.qpos.copy()
        qpos[2] = task.robot.base_height
        scenery.pose(qpos)
        here = renderer.draw().astype(int)
        # As far as the tiles of the ground repeat: the picture is the same exactly if the camera came along.
        qpos[:2] += (20.0, -30.0)
        scenery.pose(qpos)
        there = renderer.draw().astype(int)
        qpos[2] += 0.1
        scenery.pose(qpos)
        higher = renderer.draw().astype(int)
    assert np.mean(np.abs(there - here) > 8) < 0.02
    assert np.mean(np.abs(higher - here) > 8) > 0.02


@pytest.mark.parametrize(("rate", "frames"), [(30, 30), (50, 50), (100, 50), (125, 125 / 3), (500, 50)])
def test_a_film_has_fifty_frames_a_second_at_most(tmp_path: Path, rate: float, frames: float) -> None:
    video = Video(tmp_path / "out.mp4", Scenery(TASK.robot, TASK.scene), 1.0 / rate)
    assert video.rate == pytest.approx(frames)


def test_a_pose_that_is_no_number_leaves_the_robot_where_it_was() -> None:
    scenery = Scenery(TASK.robot, TASK.scene)
    scenery.pose(np.array([0.7]))
    scenery.pose(np.array([np.nan]))
    assert scenery.data.qpos[0] == 0.7


def test_the_terrain_that_is_seen_is_the_one_that_is_walked_on() -> None:
    """A patch of it goes along with the robot; rays from above meet it where the scene has its ground."""
    task = get_task("go2-velocity-rough")
    terrain = task.scene.terrain
    assert terrain is not None
    scenery = Scenery(task.robot, task.scene)
    ground = mujoco.mj_name2id(scenery.model, mujoco.mjtObj.mjOBJ_GEOM, "ground")
    rng = np.random.default_rng(0)
    patches: set[int] = set()
    for _ in range(50):
        # At samples of the field, where a mesh of triangles and a bilinear surface agree; its edges included.
        spots = [
            np.linspace(-0.5 * extent, 0.5 * extent, samples)[rng.integers(1, samples - 1)]
            for extent, samples in zip(terrain.size, terrain.heights.shape[::-1], strict=True)
        ]
        qpos = scenery.data.qpos.copy()
        qpos[:2] = spots
        scenery.pose(qpos)
        patches.add(scenery.patches)
        start = np.array([*spots, 10.0])
        distance = mujoco.mj_rayHfield(scenery.model, scenery.data, ground, start, np.array([0.0, 0.0, -1.0]), None)
        expected = task.scene.ground_height(*(np.array([spot]) for spot in spots))
        assert 10.0 - distance == pytest.approx(expected[0], abs=1e-4)
    assert len(patches) > 20


@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize("polite", [signal.SIGINT, signal.SIGTERM])
def test_half_a_film_is_none(command: Callable[..., Process], tmp_path: Path, polite: signal.Signals) -> None:
    run = command("play", "pendulum-swingup", "--video", "out.mp4", "--seconds", "3600")
    run.until(r"play: +\d+%\D+[1-9]\d+/")
    (encoder,) = psutil.Process(run.popen.pid).children()
    assert any(path.name.endswith(".partial") for path in tmp_path.iterdir())
    run.popen.send_signal(polite)
    code, _, told = run.end(20)
    assert code == 2
    assert told.startswith("interrupted: ")
    assert list(tmp_path.iterdir()) == []
    assert not psutil.pid_exists(encoder.pid)


@pytest.mark.usefixtures("gl")
def test_an_encoder_that_ends_early_is_told_in_one_line(tmp_path: Path) -> None:
    scenery = Scenery(TASK.robot, TASK.scene)

    others = psutil.Process().children()

    def film() -> None:
        with Video(tmp_path / "out.mp4", scenery, 0.02) as video:
            (encoder,) = set(psutil.Process().children()).difference(others)
            encoder.kill()
            for _ in range(50):
                video.show(np.array([0.1]))

    with pytest.raises(InputError, match="--video: ffmpeg ended early"):
        film()
    assert list(tmp_path.iterdir()) == []


def test_without_a_display_the_other_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(InputError, match=r"no display .*--video out\.mp4 .*--web 8080"):
        run_play(PlayArgs(task="pendulum-swingup"))


def test_a_display_that_is_not_there_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":4321")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(InputError, match=r"the display takes no window .*--video out\.mp4 or --web 8080"):
        run_play(PlayArgs(task="pendulum-swingup"))


def test_without_anything_that_draws_the_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUJOCO_GL", "")
    found: dict[str, str] = {}
    monkeypatch.setattr("ctypes.util.find_library", found.get)
    with pytest.raises(InputError, match=r"neither libEGL nor libOSMesa.*apt install libegl1"):
        run_play(PlayArgs(task="pendulum-swingup", video=tmp_path / "out.mp4", seconds=0.1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (PlayArgs(task="pendulum-swingup", video=Path("x.mp4"), seconds=0.0), "--seconds: expected a number > 0"),
        (PlayArgs(task="pendulum-swingup", video=Path("x.mp4"), num_envs=0), "--num-envs: expected an integer from 1"),
        (PlayArgs(task="pendulum-swingup", video=Path("/"), seconds=1.0), "--video /: expected the path of a file"),
        (PlayArgs(task="pendulum-swingup", web=80), "--web: expected a port from 1024"),
        (PlayArgs(task="pendulum-swingup", web=8080, seed=-1), "--seed"),
        (PlayArgs(task="pendulum-swingup", web=8080, command=("vx=1",)), "the task has no operator inputs"),
        (PlayArgs(task="go2-velocity-flat", web=8080, command=("vx=1",)), "expected one of forward, left, turn"),
        (PlayArgs(task="go2-velocity-flat", web=8080, command=("forward",)), "expected NAME=NUMBER, e.g. forward=0.5"),
        (PlayArgs(task="go2-velocity-flat", web=8080, command=("forward=99",)), "--command forward: expected a number"),
        (PlayArgs(task="go2-velocity-flat", web=8080, command=("turn=nan",)), "--command turn: expected a number"),
    ],
)
def test_what_cannot_be_played_is_refused(args: PlayArgs, told: str) -> None:
    with pytest.raises(InputError, match=told):
        run_play(args)


def diverge(folder: Path) -> Path:
    env = TaskEnv(TASK, 2, seed=1, dump_folder=folder)
    ring = env._ring  # pyright: ignore[reportPrivateUsage]
    assert isinstance(ring, StateRing)
    for step in range(20):
        if step == 19:
            env.plant.sim.qvel[1] = np.inf
            ring.written(np.array([1]))
        env.step(np.full((2, 1), 0.2, np.float32))
    (path,) = folder.iterdir()
    return path


@pytest.mark.usefixtures("gl")
def test_a_replay_tells_where_and_shows_it(tmp_path: Path) -> None:
    path = diverge(tmp_path / "dumps")
    outcome = run_replay(ReplayArgs(dump=path, video=tmp_path / "out.mp4"))
    assert outcome.passed
    result = outcome.result
    assert (result.steps, result.exact_steps, result.diverged_in, result.episode_step) == (20, 20, 19, 19)
    assert "becomes unstable in the same control step" in outcome.summary
    assert "20 of 20 states bit for bit as recorded" in outcome.summary
    # Poses before each of 20 control steps at 100 Hz, and after the last.
    assert len(frames_of(tmp_path / "out.mp4")) == 11


def test_a_replay_of_something_else_leaves_nothing(command: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "diverged-0.npz").write_bytes(b"PK\x03\x04 and no more")
    code, stdout, told = command("replay", "diverged-0.npz", "--video", "out.mp4").end(60)
    assert (code, stdout) == (2, "")
    assert told.startswith("error: dump diverged-0.npz: truncated")
    assert not (tmp_path / "out.mp4").exists()


def test_all_that_a_fixed_robot_reaches_is_in_the_picture() -> None:
    """A pendulum that stands up must not leave the frame that was chosen while it hung."""
    scenery = Scenery(get_robot("pendulum"), EMPTY)
    camera = mujoco.MjvCamera()
    scenery.aim(camera)
    seen = camera.distance * math.tan(math.radians(0.5 * float(scenery.model.vis.global_.fovy)))
    for angle in np.linspace(-np.pi, np.pi, 9):
        scenery.pose(np.array([angle]))
        tip = scenery.data.geom_xpos[:, 2]
        assert np.abs(tip - camera.lookat[2]).max() < seen
