"""The mujoco_warp engine on a CPU: its twins on the host, its limits, and what it shares with the mujoco engine."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sim2real.arguments import EngineName
from sim2real.errors import InputError, MissingExtraError
from sim2real.layout import EFFORT, KD, KP, POSITION
from sim2real.sim.base import BatchedSim
from sim2real.sim.engines import make_sim
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import EMPTY, FLAT, Scene
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from tests.core.sim_robots import WALKER, robot, walker

pytest.importorskip("mujoco_warp")
from sim2real.sim.mujoco_warp import MujocoWarpSim

Array = npt.NDArray[np.float64]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def warp_sim(folder: Path, num_envs: int = 3, *, scene: Scene = FLAT, **options: int | bool) -> MujocoWarpSim:
    sim = MujocoWarpSim(walker(folder), num_envs, scene=scene, device="cpu", **options)  # pyright: ignore[reportArgumentType] int or bool as the option has it
    stand(sim)
    return sim


def stand(sim: BatchedSim) -> None:
    """Put the walker on its feet, a little higher and bent a little more in each environment."""
    command = np.zeros((sim.num_envs, 5, 2))
    command[:, POSITION, 0], command[:, KP], command[:, KD] = 0.1, 15.0, 0.8
    sim.reset()
    sim.qpos[:, 2] = 0.285 + 0.005 * np.arange(sim.num_envs)
    sim.set_command(command)


def test_a_gpu_that_is_not_there_is_one_clear_error(folder: Path) -> None:
    import warp

    if warp.is_cuda_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=r"^device 'cuda:0': unknown; allowed here: cpu; Warp finds no NVIDIA GPU"):
        MujocoWarpSim(walker(folder), 1, device="cuda:0")


@pytest.mark.parametrize(
    ("engine", "package", "extra"), [("mujoco_warp", "mujoco_warp", "warp"), ("newton", "newton", "newton")]
)
def test_without_the_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, engine: EngineName, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    task = get_task("pendulum-swingup")
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed: .*pip install 'sim2real\[{extra}\]'"):
        make_sim(task.contract(unpublished(task)), 1, engine=engine)


def test_arrays_on_the_host_are_the_state(folder: Path) -> None:
    """A free fall from what was written: v = v0 − g t and, by semi-implicit Euler, z = z0 + v0 t − g t (t + dt) / 2."""
    sim = warp_sim(folder, scene=EMPTY)
    qpos, qvel, ctrl = sim.qpos, sim.qvel, sim.ctrl
    qpos[:, 2], qvel[:, 2] = [1.0, 2.0, 3.0], [0.0, 0.5, -0.5]
    sim.set_command(np.zeros((3, 5, 2)))
    sim.step(40)
    time = 40 * sim.dt
    np.testing.assert_allclose(qvel[:, 2], np.array([0.0, 0.5, -0.5]) - 9.81 * time, atol=1e-4)
    fallen = 9.81 * time * (time + sim.dt) / 2.0
    np.testing.assert_allclose(
        qpos[:, 2], np.array([1.0, 2.0, 3.0]) + np.array([0.0, 0.5, -0.5]) * time - fallen, atol=1e-4
    )
    assert sim.qpos is qpos
    assert sim.qvel is qvel
    assert sim.ctrl is ctrl


def test_torch_shares_the_memory_of_the_device(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    sim = warp_sim(folder, scene=EMPTY)
    view = sim.torch_view("qpos")
    assert view.shape == (3, sim.model.nq)
    assert view.dtype == torch.float32
    view[1, 0] = 7.0  # through the view
    sim.qpos[2, 1] = -5.0  # on the host, at the same time
    sim.step(1)
    assert sim.qpos[:, 0] == pytest.approx([0.0, 7.0, 0.0], abs=1e-3)
    assert sim.qpos[2, 1] == pytest.approx(-5.0, abs=1e-3)
    np.testing.assert_array_equal(view.numpy(), sim.qpos.astype(np.float32))
    before = view.data_ptr()
    sim.randomize("payload", np.full(3, 5.0))
    sim.step(1)
    assert sim.torch_view("qpos").data_ptr() == before
    with pytest.raises(InputError, match="torch_view\\('nonsense'\\): expected 'command' or a field"):
        sim.torch_view("nonsense")


def test_a_trainer_commands_through_torch_without_the_host(folder: Path) -> None:
    pytest.importorskip("torch")
    command = np.zeros((3, 5, 2))
    command[:, EFFORT] = [[0.1, -0.2], [0.3, 0.4], [-0.5, 0.6]]
    by_host, by_torch = warp_sim(folder, scene=EMPTY), warp_sim(folder, scene=EMPTY, host=False)
    by_host.set_command(command)
    by_torch.torch_view("command").numpy()[:] = command
    by_torch.hold_command(by_torch.command)
    seen = by_torch.qvel.copy()
    for sim in (by_host, by_torch):
        sim.step(10)
    assert np.array_equal(by_torch.qvel, seen)  # the host is told when it asks
    by_torch.refresh()
    assert np.array_equal(by_torch.qpos, by_host.qpos)
    assert np.array_equal(by_torch.qvel, by_host.qvel)


def test_contacts_that_find_no_room_are_told(folder: Path) -> None:
    sim = warp_sim(folder, nconmax=1)
    with pytest.raises(
        InputError, match=r"^mujoco_warp: nconmax: \d+ contacts in 3 environments, \d+ more .*set nconmax to"
    ):
        sim.step(100)


def test_the_room_that_is_asked_for_is_enough(folder: Path) -> None:
    sim = warp_sim(folder, njmax=3)
    with pytest.raises(
        InputError, match=r"njmax: an environment has (\d+) constraint rows, .*set njmax to at least \1"
    ) as told:
        sim.step(100)
    needed = int(str(told.value).rpartition(" ")[2])
    roomy = warp_sim(folder, njmax=needed)
    roomy.step(20)
    reference = warp_sim(folder)
    reference.step(20)
    np.testing.assert_allclose(roomy.qpos, reference.qpos, atol=1e-6)


@pytest.mark.parametrize("limit", ["nconmax", "njmax"])
def test_no_room_at_all_is_refused(folder: Path, limit: str) -> None:
    with pytest.raises(InputError, match=f"{limit}: expected at least 1, got 0"):
        MujocoWarpSim(walker(folder), 1, device="cpu", **{limit: 0})  # pyright: ignore[reportArgumentType] an int


def test_an_environment_that_diverges_stays_alone_and_visible(folder: Path) -> None:
    sim, reference = warp_sim(folder), warp_sim(folder)
    sim.step(20)
    reference.step(20)
    sim.qpos[1, 7] = np.nan
    sim.step(30)
    reference.step(30)
    assert np.isfinite(sim.qpos).all(axis=1).tolist() == [True, False, True]
    for env in (0, 2):
        assert sim.qpos[env].tobytes() == reference.qpos[env].tobytes()
    sim.reset(np.array([1]))
    sim.qpos[1, 2] = 0.3
    sim.step(30)
    assert np.isfinite(sim.qpos).all()


def test_the_same_run_gives_the_same_bytes(folder: Path) -> None:
    runs = list[bytes]()
    for _ in range(2):
        sim = warp_sim(folder, 5)
        rng = np.random.default_rng(3)
        sim.qvel[:] = rng.normal(size=sim.qvel.shape)
        sim.randomize("payload", rng.uniform(3.0, 5.0, 5))
        sim.step(60)
        runs.append(sim.qpos.tobytes() + sim.feet_force.tobytes())
    assert runs[0] == runs[1]


def test_a_snapshot_continues_exactly_here_and_elsewhere(folder: Path) -> None:
    sim = warp_sim(folder)
    sim.randomize("foot_friction", np.array([0.2]), np.array([1]))
    sim.randomize("payload", np.array([3.0, 4.0, 5.0]))
    sim.step(30)
    snapshot = sim.snapshot()
    sim.step(30)
    expected = sim.qpos.tobytes() + sim.qvel.tobytes()
    sim.randomize("dof_armature/left", np.full(3, 0.5))
    sim.randomize("payload", np.full(3, 8.0))
    sim.step(5)
    for again in (sim, warp_sim(folder)):
        again.restore(snapshot)
        again.step(30)
        assert again.qpos.tobytes() + again.qvel.tobytes() == expected


PARAMETERS = {
    "payload": np.array([2.0, 4.0, 6.0]),
    "foot_friction": np.array([0.8, 0.5, 0.05]),
    "body_ipos/trunk[0]": np.array([-0.03, 0.0, 0.03]),
    "body_inertia/left_leg[1]": np.array([0.001, 0.002, 0.004]),
    "dof_frictionloss/left": np.array([0.0, 0.2, 0.5]),
    "dof_damping/right": np.array([0.0, 0.2, 1.0]),
    "dof_armature/right": np.array([0.0, 0.01, 0.05]),
    "geom_size/left_foot[0]": np.array([0.02, 0.03, 0.035]),
    "geom_solref/right_foot[0]": np.array([0.02, 0.03, 0.05]),
    "jnt_stiffness/left": np.array([0.0, 1.0, 3.0]),
    "opt.gravity[0]": np.array([0.0, 0.5, -0.5]),
    "opt.viscosity": np.array([0.0, 1.0, 5.0]),
}


@pytest.mark.parametrize("param", PARAMETERS)
def test_a_parameter_acts_as_in_mujoco(folder: Path, param: str) -> None:
    ours, reference = warp_sim(folder), MujocoSim(walker(folder), 3, scene=FLAT)
    stand(reference)
    plain = warp_sim(folder)
    for sim in (ours, reference):
        sim.randomize(param, PARAMETERS[param][1:], np.array([1, 2]))
        sim.qvel[:, :3] = 0.3
    plain.qvel[:, :3] = 0.3
    for sim in (ours, reference, plain):
        sim.step(40)
    np.testing.assert_allclose(ours.qpos, reference.qpos, atol=1e-4)
    assert np.abs(ours.qpos[2] - plain.qpos[2]).max() > 2e-4  # it did act
    np.testing.assert_allclose(ours.qpos[0], plain.qpos[0], atol=1e-6)  # and on no other environment


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("pay_load", "parameter 'pay_load' of robot tiny: unknown"),
        ("geom_friction/left_fot[0]", "no geom named 'left_fot' in the model; did you mean 'left_foot'"),
        ("actuator_armature/left", "actuator_armature: mujoco_warp cannot change it; use dof_armature"),
        ("opt.impratio", "opt.impratio: mujoco_warp has one value of it for all environments; use the engine mujoco"),
        ("dof_damping/left", "expected finite values, got nan"),
    ],
)
def test_what_cannot_be_set_is_told(folder: Path, param: str, message: str) -> None:
    sim = warp_sim(folder, 1)
    with pytest.raises(InputError, match=message):
        sim.randomize(param, np.array([np.nan if "dof" in param else 1.0]))


def test_sensors_sites_and_feet_are_mujocos(folder: Path) -> None:
    ours, reference = warp_sim(folder), MujocoSim(walker(folder), 3, scene=FLAT)
    stand(reference)
    for sim in (ours, reference):
        sim.sensor("left_pos")
        sim.refresh()
    live = [sim.sensor(name) for sim in (ours, reference) for name in ("left_pos", "base_lin_acc")]
    sites = [sim.site_pos("imu") for sim in (ours, reference)]
    for sim in (ours, reference):
        sim.step(30)
    np.testing.assert_allclose(live[0], live[2], atol=1e-5)
    np.testing.assert_allclose(live[0], ours.joint_pos[:, :1], atol=1e-6)  # current
    np.testing.assert_allclose(live[1], live[3], atol=5e-3)
    np.testing.assert_allclose(sites[0], sites[1], atol=1e-5)
    np.testing.assert_allclose(ours.feet_pos, reference.feet_pos, atol=1e-5)
    np.testing.assert_allclose(ours.feet_force, reference.feet_force, rtol=1e-3, atol=1e-2)
    assert not live[0].flags.writeable
    with pytest.raises(InputError, match="no sensor named 'gyro'"):
        ours.sensor("gyro")
    with pytest.raises(InputError, match="no site named 'tip'"):
        ours.site_pos("tip")


def test_refresh_of_some_leaves_the_others_and_the_state(folder: Path) -> None:
    sim, reference = warp_sim(folder), warp_sim(folder)
    for each in (sim, reference):
        each.step(20)
    efforts, feet = sim.joint_effort, sim.feet_pos
    sim.qpos[1, 2] += 1.0
    sim.refresh(np.array([1]))
    assert sim.feet_pos[1, 0, 2] == pytest.approx(feet[1, 0, 2] + 1.0, abs=0.01)
    assert sim.feet_force[1].tolist() == [0.0, 0.0]
    for env in (0, 2):
        assert sim.joint_effort[env].tobytes() == efforts[env].tobytes()
        assert sim.feet_pos[env].tobytes() == feet[env].tobytes()
    sim.qpos[1, 2] -= 1.0
    for each in (sim, reference):
        each.step(20)
    assert sim.qpos[[0, 2]].tobytes() == reference.qpos[[0, 2]].tobytes()


def test_reset_of_some_leaves_the_others(folder: Path) -> None:
    sim, reference = warp_sim(folder), warp_sim(folder)
    for each in (sim, reference):
        each.step(20)
    sim.reset(np.array([0]))
    assert np.array_equal(sim.qpos[0], sim.model.qpos0.astype(np.float32))
    assert not sim.qvel[0].any()
    for each in (sim, reference):
        each.step(20)
    assert sim.qpos[1:].tobytes() == reference.qpos[1:].tobytes()


def test_a_command_to_some_leaves_the_others(folder: Path) -> None:
    sim, reference = warp_sim(folder, scene=EMPTY), warp_sim(folder, scene=EMPTY)
    command = np.zeros((1, 5, 2))
    command[:, EFFORT] = 1.5
    sim.set_command(command, np.array([1]))
    for each in (sim, reference):
        each.step(5)
    np.testing.assert_allclose(sim.joint_effort[1], 1.5, atol=1e-6)
    assert sim.qpos[[0, 2]].tobytes() == reference.qpos[[0, 2]].tobytes()


def test_a_model_beyond_mujoco_warp_is_refused_by_name(folder: Path) -> None:
    sleepy = WALKER.replace("<option ", '<option sleep_tolerance="0.01" ').replace(
        'integrator="implicitfast"/>', 'integrator="implicitfast"><flag sleep="enable"/></option>'
    )
    with pytest.raises(InputError, match=r"robot tiny: .*robot.xml: not for the engine mujoco_warp: bodies that sleep"):
        MujocoWarpSim(robot(folder, sleepy, "left", "right", base="floating"), 1)
