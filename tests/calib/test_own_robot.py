"""A robot of one's own is calibrated from its own facts: two joints, which its model holds in another order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.robots import Robot, RobotJoint, RobotParameter, get_robot
from sim2real_calib.calibrate import calibrate
from sim2real_calib.columns import columns_of
from sim2real_calib.log import read_log
from sim2real_calib.priors import other_candidates, priors_of
from sim2real_calib.record import hidden_plant, record, write_csv

SEED = 1
MODEL = """<mujoco><compiler angle="radian"/><option timestep="0.005" integrator="implicitfast"/>
<default><geom contype="0" conaffinity="0"/></default><worldbody>
  <body name="upper"><joint name="shoulder" axis="0 1 0" damping="0.1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="1.0"/>
    <body name="lower" pos="0 0 -0.3"><joint name="elbow" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.5"/></body></body>
{more}</worldbody><actuator>
  <general name="elbow" joint="elbow" gainprm="1" biastype="affine" biasprm="0 0 0"/>
  <general name="shoulder" joint="shoulder" gainprm="1" biastype="affine" biasprm="0 0 0"/>
</actuator></mujoco>"""


def damping(joint: str) -> RobotParameter:
    return RobotParameter(
        name=f"damping_{joint}",
        unit="N·m·s/rad",
        nominal=0.1,
        field=f"dof_damping/{joint}",
        meaning=f"Viscous friction of the {joint}.",
        plausible=(0.0, 0.6),
        typical=(0.15, 0.3),
        session_factor=1.0,
    )


def arm(folder: Path, more: str = "") -> Robot:
    """Return a robot whose joints are in the order elbow, shoulder: neither that of its model nor alphabetic."""
    mjcf = folder / "arm.xml"
    mjcf.write_text(MODEL.format(more=more))
    joints = tuple(
        RobotJoint(name=name, position_limits=None, velocity_limit=20.0, effort_limit=limit, default_position=start)
        for name, limit, start in (("elbow", 1.0, 0.2), ("shoulder", 4.0, -0.1))
    )
    return Robot(name="arm", mjcf=mjcf, joints=joints, parameters=(damping("elbow"), damping("shoulder")))


def test_an_arm_of_two_joints_is_recorded_and_fitted_like_the_pendulum(tmp_path: Path) -> None:
    robot = arm(tmp_path)
    logs = [tmp_path / f"take{take}.csv" for take in (0, 1)]
    for take, log in enumerate(logs):
        write_csv(log, record(robot, seed=SEED, take=take, duration=6.0))
    assert read_log(logs[0], ("elbow", "shoulder")).simulated
    result = calibrate(robot, logs[:1], tmp_path / "r.json", validate=logs[1:], num_threads=1)
    assert result.passed
    for name, value in hidden_plant(robot, SEED).values.items():
        found = result.parameter(name)
        assert found.identified, name
        assert found.low <= value <= found.high, name
    assert [each.name for each in result.candidates] == ["fitted", "datasheet"]
    covariance = result.randomization.covariance
    assert covariance is not None
    assert covariance.names == ("damping_elbow", "damping_shoulder")


def test_a_robot_that_moves_in_more_ways_than_it_logs_is_refused(tmp_path: Path) -> None:
    from sim2real.sim.mujoco import MujocoSim

    robot = arm(tmp_path, '<body name="ball"><freejoint/><geom size="0.1" mass="1"/></body>')
    with pytest.raises(InputError, match=r"robot arm: .* expected 2 degrees of freedom .* got 8 and 2; fix the base"):
        columns_of(MujocoSim(robot, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plausible": (0.2, 0.6)}, "plausible: expected finite bounds, the lower one first, around its nominal 0.1"),
        ({"plausible": (0.0, np.inf)}, "plausible: expected finite bounds"),
        ({"plausible": (0.1, 0.1)}, "plausible: expected finite bounds"),
        ({"typical": (0.0, 0.7)}, "typical: expected bounds within the plausible 0 to 0.6, got 0 to 0.7"),
        ({"session_factor": 0.5}, "session_factor: expected at least 1, got 0.5"),
    ],
)
def test_facts_that_do_not_hold_together_are_told(change: dict[str, object], message: str, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(damping("elbow"), **change)
    robot = msgspec.structs.replace(arm(tmp_path), parameters=(wrong,))
    with pytest.raises(InputError, match=f"robot arm: parameter damping_elbow: {message}"):
        priors_of(robot)


def test_what_is_published_is_compared_only_with_logs_of_the_real_robot() -> None:
    pendulum = get_robot("pendulum")
    assert [each.name for each in other_candidates(pendulum, real=True)] == ["datasheet", "published"]
    assert [each.name for each in other_candidates(pendulum, real=False)] == ["datasheet"]
