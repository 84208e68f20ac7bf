"""Engines by name."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from sim2real.errors import InputError
from sim2real.robots import get_robot
from sim2real.sim.engines import ENGINES, make_sim
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import FLAT
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished


def test_an_unknown_engine_is_told_the_known_ones() -> None:
    task = get_task("pendulum-swingup")
    wrong = cast("Any", "mujocco")
    with pytest.raises(
        InputError, match="engine 'mujocco': unknown; allowed: mujoco, mujoco_warp, newton; did you mean"
    ):
        make_sim(task.contract(unpublished(task)), 1, engine=wrong)
    assert ENGINES[0] == "mujoco"


def test_step_limits_and_scene_are_those_asked_for() -> None:
    task = get_task("pendulum-swingup")
    contract = task.contract(unpublished(task))
    joint = msgspec.structs.replace(contract.joints[0], effort_limit=1.25)
    timing = msgspec.structs.replace(contract.timing, physics_step_ns=1_000_000)
    contract = msgspec.structs.replace(contract, joints=(joint,), timing=timing)
    renamed = msgspec.structs.replace(get_robot("pendulum"), name="another")
    sim = make_sim(contract, 3, robot=renamed, scene=FLAT, num_threads=2)
    assert isinstance(sim, MujocoSim)
    assert (sim.robot.name, sim.num_envs, sim.dt, sim.scene) == ("another", 3, 0.001, FLAT)
    assert sim.model.actuator_forcerange.tolist() == [[-1.25, 1.25]]
    assert sim.model.geom("ground").id >= 0
    assert sim.batch.nthread == 2
