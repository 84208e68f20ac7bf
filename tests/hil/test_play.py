"""Watching a simulation: films, a page, who drives and what is told of it. About 20 s."""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import msgspec
import mujoco
import numpy as np
import numpy.typing as npt
import psutil
import pytest

from sim2real.bundle import Bundle
from sim2real.contract import PolicyContract
from sim2real.errors import ContractError, InputError
from sim2real.robots import get_robot
from sim2real.sim.engines import make_sim
from sim2real.sim.plant import Plant
from sim2real.sim.scene import EMPTY, FLAT
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.dump import StateRing
from sim2real.tasks.goal import success
from sim2real.tasks.motion import Flags, Motion
from sim2real_edge.engine import load_engine
from sim2real_hil import web
from sim2real_hil.driving import EdgeDriver, check_fits
from sim2real_hil.inprocess import make_controller, run_in_process
from sim2real_hil.play import PlayArgs, _Counts, run_play  # pyright: ignore[reportPrivateUsage]
from sim2real_hil.replay import ReplayArgs, run_replay
from sim2real_hil.scenery import IMAGE_SIZE, Scenery
from sim2real_hil.video import Renderer, Video
from tests.edge import policies
from tests.hil.conftest import Process

TASK = get_task("pendulum-swingup")
Array = npt.NDArray[np.float64]


@pytest.fixture(scope="session")
def gl() -> None:
    """Something that draws without a screen."""
    try:
        with Renderer(Scenery(TASK.robot, TASK.scene)):
            pass
    except InputError as error:
        pytest.skip(f"nothing draws here: {error}")


def frames_of(path: Path) -> npt.NDArray[np.uint8]:
    """Decode a film: shape (frames, height, width, 3)."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-f", "rawvideo"]
    done = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, timeout=60, check=True)
    width, height = IMAGE_SIZE
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


# --- films -------------------------------------------------------------------------------------------------------


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

    def film() -> None:
        with Video(tmp_path / "out.mp4", scenery, 0.02) as video:
            (encoder,) = psutil.Process().children()
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


# --- who drives --------------------------------------------------------------------------------------------------


def test_a_bundle_drives_as_in_the_lockstep_reference(bundle: Bundle) -> None:
    """The environment's plant under the edge's controller, bit for bit as the bench's."""
    env = TaskEnv(TASK, 1, seed=5, noise=False)
    driver = EdgeDriver(bundle, env, "onnxruntime-cpu")
    plant = Plant(env.contract, make_sim(env.contract, 1))
    plant.sim.qpos[:], plant.sim.qvel[:] = env.plant.sim.qpos, env.plant.sim.qvel
    plant.sim.refresh()
    signals: list[Array] = []
    for _ in range(200):
        signals.append(env.observer.signals[0].copy())
        env.step(driver.act())
    reference = run_in_process(
        plant, make_controller(bundle, "onnxruntime-cpu"), bundle, ticks=200, progress=lambda: None
    )
    np.testing.assert_array_equal(np.array(signals), reference.signals)
    assert driver.findings() == {}
    assert driver.policy == bundle.contract.identity.checkpoint_sha256


def test_the_policy_sees_what_the_environment_says_it_sees(bundle: Bundle) -> None:
    env = TaskEnv(TASK, 3, seed=5)
    driver = EdgeDriver(bundle, env, "onnxruntime-cpu")
    network = load_engine("onnxruntime-cpu", bundle)
    for _ in range(30):
        action = driver.act().copy()
        for index in range(3):
            network.observation[0] = env.observation[index]
            network.run()
            np.testing.assert_array_equal(action[index], network.action[0])
        env.step(action)


def test_the_supervisor_stands_in_between_until_the_episode_ends(bundle: Bundle) -> None:
    env = TaskEnv(TASK, 2, seed=5, noise=False)
    driver = EdgeDriver(bundle, env, "onnxruntime-cpu")
    env.plant.sim.qvel[1] = 40.0
    env.plant.sense(env.observer.signals)
    driver.act()
    assert driver.findings() == {"velocity_limit": 1}
    result = env.step(driver.act())
    assert result.terminated.tolist() == [False, True]
    driver.begin(result.done_ids)
    driver.act()
    assert driver.findings() == {"velocity_limit": 2}


def with_history(_: PolicyContract) -> PolicyContract:
    return policies.recurrent_contract()


def of_a_quadruped(_: PolicyContract) -> PolicyContract:
    return policies.quadruped_contract()


def renamed(contract: PolicyContract) -> PolicyContract:
    terms = contract.observation.terms
    changed = (msgspec.structs.replace(terms[0], name="angle"), *terms[1:])
    return msgspec.structs.replace(contract, observation=msgspec.structs.replace(contract.observation, terms=changed))


def rescaled(contract: PolicyContract) -> PolicyContract:
    terms = contract.observation.terms
    changed = (*terms[:2], msgspec.structs.replace(terms[2], scale=(0.2,)), *terms[3:])
    return msgspec.structs.replace(contract, observation=msgspec.structs.replace(contract.observation, terms=changed))


def reordered(contract: PolicyContract) -> PolicyContract:
    terms = contract.observation.terms
    return msgspec.structs.replace(
        contract, observation=msgspec.structs.replace(contract.observation, terms=(terms[1], terms[0], *terms[2:]))
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (rescaled, r"contract\.observation\.terms\[velocity\]\.scale: the policy has \(0\.2,\), the task \(0\.1,\)"),
        (renamed, r"contract\.observation\.terms\[sin_angle\]\.name: the policy has none"),
        (reordered, r"contract\.observation\.terms\[cos_angle\]\S+: the policy has it where the task has"),
        (with_history, r"history_length: the policy has 3, the task 1"),
        (of_a_quadruped, r"contract\.identity\.robot: the policy drives '"),
    ],
)
def test_a_policy_for_something_else_is_refused_with_the_place(
    change: Callable[[PolicyContract], PolicyContract], told: str
) -> None:
    contract = policies.pendulum_contract()
    with pytest.raises(ContractError, match=told):
        check_fits(change(contract), contract)


def test_another_identity_budget_or_envelope_is_no_difference() -> None:
    contract = policies.pendulum_contract()
    other = msgspec.structs.replace(
        contract,
        identity=msgspec.structs.replace(contract.identity, checkpoint_sha256="1" * 64, toolkit_version="9"),
        safety=msgspec.structs.replace(contract.safety, recover_after=99),
    )
    check_fits(other, contract)


# --- what is told ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gl")
def test_a_wish_of_the_operator_is_held_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Array] = []

    def look(env: TaskEnv, action: npt.NDArray[np.float32]) -> object:
        seen.append(env.observer.commands.copy())
        return step(env, action)

    step = TaskEnv.step
    monkeypatch.setattr(TaskEnv, "step", look)
    args = PlayArgs(
        task="go2-velocity-flat", video=tmp_path / "out.mp4", seconds=0.2, num_envs=8, command=("forward=0.25",)
    )
    run_play(args)
    commands = np.array(seen)
    assert len(commands) == 10
    assert (commands[:, :, 0] == 0.25).all()
    assert np.ptp(commands[:, :, 2]) > 0.0


def is_slow(motion: Motion) -> Flags:
    return np.abs(motion.joint_vel[:, 0]) < 4.0


def always(motion: Motion) -> Flags:
    return np.ones(len(motion.joint_vel), np.bool_)


def test_episodes_are_judged_as_the_trainer_judges_them() -> None:
    """`sim2real.tasks.goal.success` over whole episodes that were recorded."""
    num_envs, steps = 64, 150
    goal = msgspec.structs.replace(TASK.goal, holds=is_slow, after=0.8, share=0.6)
    task = msgspec.structs.replace(TASK, goal=goal)
    counts = _Counts(task, num_envs)
    env = TaskEnv(counts.watched, num_envs, seed=2, episode_length=1.5)
    reference = TaskEnv(task, num_envs, seed=2, episode_length=1e3)
    held: list[npt.NDArray[np.bool_]] = []
    alive = np.ones(num_envs, np.bool_)
    action = np.zeros((num_envs, 1), np.float32)
    for _ in range(steps):
        counts.add(env.step(action), env.control_period)
        result = reference.step(action)
        held.append(goal.holds(reference.motion))
        alive &= ~result.terminated
        if not alive.all():
            pytest.fail("an episode ended early: choose another seed")
    assert counts.episodes == num_envs
    assert counts.falls == 0
    expected = success(goal, np.array(held), env.control_period)
    assert 0 < expected.sum() < num_envs
    assert counts.successes == expected.sum()


def test_an_episode_that_ends_early_is_a_fall_and_no_success() -> None:
    goal = msgspec.structs.replace(TASK.goal, holds=always, after=0.0)
    counts = _Counts(msgspec.structs.replace(TASK, goal=goal), 2)
    env = TaskEnv(counts.watched, 2, seed=0, episode_length=0.1)
    env.plant.sim.qvel[0] = 30.0
    for _ in range(10):
        counts.add(env.step(np.zeros((2, 1), np.float32)), env.control_period)
    assert (counts.episodes, counts.falls, counts.successes) == (2, 1, 1)


# --- the page ----------------------------------------------------------------------------------------------------


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


# --- replay ------------------------------------------------------------------------------------------------------


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
