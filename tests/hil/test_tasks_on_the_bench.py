"""Every kind of robot on the bench: from a checkpoint to the same bits over the wire, from a pose it can stand in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim2real.bundle import read_bundle
from sim2real.layout import KD, KP, POSITION
from sim2real.sim.plant import Plant
from sim2real.tasks import get_task, task_names
from sim2real.tasks.base import FETCHED, unpublished
from sim2real.tasks.motion import Motion, MotionState
from sim2real.wire import Status
from sim2real_hil.commands import HilRunArgs, run_hil
from sim2real_hil.plant_server import Start, make_plant
from sim2real_hil.trajectory import compare, read_trajectory
from tests.hil.untrained import random_policy

TASKS = tuple(name for name in task_names() if name not in FETCHED)
LEGGED = [name for name in TASKS if name.startswith("go2")]


@pytest.mark.parametrize("task", ["go2-velocity-flat", "acrobot-swingup"])
def test_a_policy_s_way_from_a_checkpoint_to_the_wire(task: str, tmp_path: Path) -> None:
    path = random_policy(task, tmp_path)
    out = tmp_path / "out"
    outcome = run_hil(HilRunArgs(bundle=path, ticks=250, transport="ipc", start="rest", out=out))
    assert outcome.passed, outcome.summary
    over_wire, reference = (read_trajectory(out / f"trajectory-{name}.npz") for name in ("ipc", "in-process"))
    assert compare(over_wire, reference) == ""
    assert len(reference) == 250
    assert reference.status[0] == Status.RUN
    assert reference.qvel.std() > 1e-3, "a plant that rests proves nothing"
    contract = read_bundle(path).contract
    page = (out / "report.html").read_text()
    assert all(name in page for name in contract.joint_names)
    passive = [index for index, joint in enumerate(contract.joints) if joint.command_mode == "passive"]
    driving = reference.status == Status.RUN
    assert driving.sum() >= 200, "from a pose it cannot stand in the supervisor would soon take over"
    assert not reference.command[driving][:, :, passive].any()


def robot_of(plant: Plant, task_name: str) -> Motion:
    task = get_task(task_name)
    return Motion(MotionState(task.contract(unpublished(task)), plant.sim, np.zeros((1, 3))))


@pytest.mark.parametrize("name", TASKS)
def test_at_rest_a_robot_is_in_its_default_pose(name: str) -> None:
    task = get_task(name)
    contract = task.contract(unpublished(task))
    plant = make_plant(contract, start="rest", seed=0)
    motion = robot_of(plant, name)
    assert motion.joint_pos[0].tolist() == [joint.default_position for joint in contract.joints]
    assert not plant.sim.qvel.any()
    if task.robot.base == "floating":
        assert motion.base_quat[0].tolist() == [1.0, 0.0, 0.0, 0.0]
        assert motion.base_height[0] == pytest.approx(task.robot.base_height, abs=1e-6)
    again = make_plant(contract, start="rest", seed=0)
    assert np.array_equal(again.sim.qpos, plant.sim.qpos)


@pytest.mark.parametrize("name", LEGGED)
@pytest.mark.parametrize("start", ["rest", "random"])
def test_a_legged_robot_begins_on_its_feet_and_stays_there(name: str, start: Start) -> None:
    """Held in its pose for two seconds: in the model's zero pose, or inside a hill, it would not stay upright."""
    task = get_task(name)
    contract = task.contract(unpublished(task))
    plant = make_plant(contract, start=start, seed=3)
    motion = robot_of(plant, name)
    assert motion.base_height[0] == pytest.approx(task.robot.base_height, abs=1e-6)
    # Centres of spheres of 22 mm; joints that are off by 0.15 rad put one some millimetres into the ground.
    above = motion.feet_pos[0, :, 2] - motion.ground_height(*motion.feet_pos[0, :, :2].T)
    np.testing.assert_allclose(above, 0.022, atol=0.001 if start == "rest" else 0.05)
    command = np.zeros((1, 5, 12))
    command[:, POSITION] = [joint.default_position for joint in contract.joints]
    command[:, KP] = [joint.kp for joint in contract.joints]
    command[:, KD] = [joint.kd for joint in contract.joints]
    for _ in range(100):
        plant.step(command)
        motion.renew()
        assert not task.terminations["fallen"](motion)[0]
    assert motion.feet_contact.all()
    assert motion.base_height[0] > 0.8 * task.robot.base_height
