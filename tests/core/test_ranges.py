"""Ranges of any parameter: where they act, relative to what, and that no name is ever passed over in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium
import msgspec
import mujoco
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile, no_ranges, sample
from sim2real.robots import Robot, RobotJoint, RobotParameter, get_robot
from sim2real.robots.drives import Drive, Friction
from sim2real.sim.inertia import apply_inertia, nominal_inertia, perturbed
from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.plant import Plant
from sim2real.sim.ranges import Randomizer
from sim2real.sim.scene import FLAT
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.base import unpublished
from sim2real.tasks.ranges import check_robot, with_own_ranges

# The box's inertia lies along its joint's frame, through its origin: MuJoCo leaves all products out for such a body,
# until they are there.
MODEL = """<mujoco><option integrator="implicitfast"/><worldbody>
  <body name="arm" pos="0 0 1"><joint name="hinge" axis="0 1 0" damping="0.3"/>
    <inertial pos="{pos}" quat="{quat}" mass="{mass}" diaginertia="{moments}"/>
    <geom name="left" type="sphere" size="0.05" friction="0.8 0.005 0.0001" contype="0" conaffinity="0"/>
    <geom name="right" type="sphere" size="0.05" friction="0.6 0.005 0.0001" contype="0" conaffinity="0"/></body>
  <body name="box" pos="1 0 1"><freejoint/>
    <inertial pos="{pos}" quat="{quat}" mass="{mass}" diaginertia="{moments}"/></body>
</worldbody></mujoco>"""
FRICTION = Friction(coulomb=0.2, viscous=0.1, static=0.3, stribeck_velocity=0.1, load=0.0)


def robot(folder: Path, **values: Any) -> Robot:
    """Return a driven arm and a free box of the same inertia."""
    given = {"pos": "0 0 0", "quat": "1 0 0 0", "mass": "2.0", "moments": "0.02 0.03 0.04"} | values
    folder.mkdir(exist_ok=True)
    mjcf = folder / "two.xml"
    mjcf.write_text(MODEL.format(**given))
    joint = RobotJoint(
        name="hinge",
        position_limits=None,
        velocity_limit=10.0,
        effort_limit=5.0,
        default_position=0.0,
        drive=Drive(friction=FRICTION, rotor_inertia=0.001),
    )
    both = RobotParameter(
        name="grip",
        unit="1",
        nominal=0.7,
        field=("geom_friction/left[0]", "geom_friction/right[0]"),
        meaning="Sliding friction of both spheres.",
        plausible=(0.1, 2.0),
        typical=(0.5, 1.0),
        session_factor=1.0,
    )
    return Robot(name="two", mjcf=mjcf, joints=(joint,), parameters=(both,))


def drawn(
    name: str,
    low: float,
    high: float,
    operation: Literal["set", "scale", "add"] = "set",
    distribution: Literal["fixed", "uniform"] = "uniform",
) -> ParameterRange:
    return ParameterRange(
        name=name,
        unit="1",
        nominal=low,
        low=low,
        high=high,
        operation=operation,
        distribution=distribution,
        identified=False,
        how="for a test",
        delays="command" if name == COMMAND_DELAY else None,
    )


def file(*parameters: ParameterRange) -> RandomizationFile:
    return RandomizationFile(
        schema_version=2,
        robot="two",
        toolkit_version="0",
        parameters=parameters,
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )


def test_a_draw_is_set_multiplied_or_added_at_each_place(tmp_path: Path) -> None:
    sim = MujocoSim(robot(tmp_path), 4)
    content = file(
        drawn("dof_damping/hinge", 0.1, 0.2),
        drawn("grip", 0.5, 1.5, "scale"),
        drawn("opt.gravity[2]", -1.0, 1.0, "add"),
    )
    rows = np.array([1, 3])
    done = Randomizer(content, sim).draw(np.random.default_rng(0), rows)
    draws = sample(content, np.random.default_rng(0), 2)
    assert list(done) == ["dof_damping/hinge", "geom_friction/left[0]", "geom_friction/right[0]", "opt.gravity[2]"]
    model = {name.removeprefix("model."): values for name, values in sim.snapshot().items()}
    np.testing.assert_array_equal(model["dof_damping"][rows, 0], draws["dof_damping/hinge"])
    np.testing.assert_array_equal(model["geom_friction"][rows, 0, 0], 0.8 * draws["grip"])
    np.testing.assert_array_equal(model["geom_friction"][rows, 1, 0], 0.6 * draws["grip"])
    np.testing.assert_array_equal(model["opt.gravity"][rows, 2], -9.81 + draws["opt.gravity[2]"])
    others = [0, 2]
    np.testing.assert_array_equal(model["dof_damping"][others, 0], 0.3)
    np.testing.assert_array_equal(model["opt.gravity"][others, 2], -9.81)


def test_relative_draws_do_not_pile_up(tmp_path: Path) -> None:
    sim = MujocoSim(robot(tmp_path), 1)
    randomizer = Randomizer(file(drawn("body_mass/arm", 1.5, 1.5, "scale", "fixed")), sim)
    for _ in range(3):
        randomizer.draw(np.random.default_rng(0), np.arange(1))
        assert sim.snapshot()["model.body_mass"][0, 1] == 3.0


def test_what_was_set_can_be_set_again_elsewhere(tmp_path: Path) -> None:
    own = robot(tmp_path)
    content = file(
        drawn("grip", 0.5, 1.5),
        drawn("dof_damping/hinge", 0.5, 2.0, "scale"),
        drawn("inertia/box", -0.2, 0.2, "add"),
    )
    sim, other = MujocoSim(own, 2), MujocoSim(own, 2)
    done = Randomizer(content, sim).draw(np.random.default_rng(0), np.arange(2))
    for name, values in done.items():
        other.randomize(name, values)
    np.testing.assert_array_equal(swing(sim), swing(other))


def swing(sim: MujocoSim) -> np.ndarray:
    sim.qvel[:] = np.linspace(-2.0, 2.0, sim.qvel.shape[1])
    sim.step(200)
    return sim.qpos.copy()


def test_a_drawn_inertia_moves_like_a_model_compiled_with_it(tmp_path: Path) -> None:
    """Also of a body that MuJoCo holds for simple, whose products of inertia it would leave out."""
    sim = MujocoSim(robot(tmp_path / "nominal"), 2)
    coordinates = np.random.default_rng(3).uniform(-0.4, 0.4, (1, 10))
    inertia = nominal_inertia(sim.nominal, "box")
    apply_inertia(
        sim, {"arm": inertia, "box": inertia}, {"arm": coordinates, "box": coordinates}, np.array([1], np.intp)
    )
    new = perturbed(inertia, coordinates)

    def text(values: np.ndarray) -> str:
        return " ".join(repr(value) for value in values.tolist())

    compiled = robot(
        tmp_path / "compiled",
        pos=text(new.com[0]),
        quat=text(new.quat[0]),
        mass=text(new.mass),
        moments=text(new.principal[0]),
    )
    moved, expected = swing(sim), swing(MujocoSim(compiled, 1))
    np.testing.assert_allclose(moved[1], expected[0], atol=1e-9)
    assert np.abs(moved[1] - moved[0]).max() > 0.01
    np.testing.assert_array_equal(moved[0], swing(MujocoSim(robot(tmp_path / "nominal"), 1))[0])


def test_an_inertia_is_drawn_as_a_whole_or_by_its_coordinates(tmp_path: Path) -> None:
    sim = MujocoSim(robot(tmp_path), 3)
    rows = np.arange(3)
    content = file(drawn("inertia/box", -0.2, 0.2, "add"))
    Randomizer(content, sim).draw(np.random.default_rng(0), rows)
    whole = sample(content, np.random.default_rng(0), 3)
    assert list(whole) == [f"inertia/box[{index}]" for index in range(10)]
    mass = sim.snapshot()["model.body_mass"][:, 2]
    np.testing.assert_allclose(mass, 2.0 * np.exp(2.0 * whole["inertia/box[0]"]), rtol=1e-12)
    content = file(drawn("inertia/box[7]", -0.2, 0.2, "add"))
    Randomizer(content, sim).draw(np.random.default_rng(0), rows)
    single = sample(content, np.random.default_rng(0), 3)
    model = {name.removeprefix("model."): values for name, values in sim.snapshot().items()}
    np.testing.assert_allclose(model["body_mass"][:, 2], 2.0, rtol=1e-12)
    extent = np.sqrt((0.045 - 0.02) / 2.0)
    np.testing.assert_allclose(model["body_ipos"][:, 2, 0], extent * single["inertia/box[7]"], rtol=1e-12)


def test_delays_go_to_the_plant() -> None:
    task = get_task("pendulum-swingup")
    contract = task.contract(unpublished(task))
    delay, mass = drawn(COMMAND_DELAY, 0.01, 0.02), drawn("mass", 0.6, 0.8)
    content = msgspec.structs.replace(file(delay, mass), robot="pendulum")
    plant, by_hand = (Plant(contract, MujocoSim(task.robot, 3)) for _ in range(2))
    rows = np.array([0, 2])
    draws = Randomizer(content, plant.sim, plant).draw(np.random.default_rng(0), rows)
    for name in (COMMAND_DELAY, "mass"):
        by_hand.randomize(name, draws[name], rows)
    expected = by_hand.snapshot()
    for name, values in plant.snapshot().items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_an_environment_takes_relative_draws_for_what_they_are() -> None:
    task = get_task("pendulum-swingup")
    half = msgspec.structs.replace(file(drawn("mass", 0.5, 0.5, "scale", "fixed")), robot="pendulum")
    env = TaskEnv(task, 2, seed=0, randomization=half)
    np.testing.assert_array_equal(env.plant.sim.snapshot()["model.body_mass"][:, 1], 0.5 * 0.6755)


def test_gymnasiums_users_get_no_physics_that_cannot_be() -> None:
    mass = msgspec.structs.replace(drawn("mass", 0.0, 1.0), unit="kg")
    weightless = msgspec.structs.replace(file(mass), robot="pendulum")
    with pytest.raises(InputError, match=r"mass: expected a range > 0, got low 0\.0"):
        gymnasium.make_vec("sim2real.tasks.gym_env:sim2real/PendulumSwingup-v0", num_envs=2, randomization=weightless)


NOTHING = [
    ("gripp", "allowed: grip, command_delay, observation_delay; did you mean 'grip'?"),
    ("comand_delay", "did you mean 'command_delay'?"),
    ("body_mas/arm", "no physical field 'body_mas' in a model; did you mean 'body_mass'"),
    ("body_mass/arms", "no body named 'arms' in the model; did you mean 'arm'"),
    ("dof_damping/hing", "no joint named 'hing' in the model; did you mean 'hinge'"),
    ("geom_friction/left", r"give an index from \[0\] to \[2\]"),
    ("geom_friction/left[3]", r"give an index from \[0\] to \[2\]"),
    ("body_mass/arm[0]", "it is one number; leave the index out"),
    ("opt.gravty[2]", "did you mean 'opt.gravity'"),
    ("opt.gravity[3]", r"give an index from \[0\] to \[2\]"),
    ("body_mass/arm*", r"no body named 'arm\*'"),
    ("inertia/bix", "no body named 'bix' in the model; did you mean 'box'"),
    ("inertia/box[10]", "with k from 0 to 9"),
    ("inertia/", "expected inertia/body"),
    ("drive.friction.coulom/hinge", "no drive has 'friction.coulom'; did you mean 'friction.coulomb'"),
    ("drive.friction.coulomb/hing", "robot two has no joint 'hing'; did you mean 'hinge'"),
    ("drive.motor.stall_effort/hinge", "the drive of joint hinge has no motor"),
]


@pytest.mark.parametrize(("name", "message"), NOTHING)
def test_a_name_that_matches_nothing_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    """mjlab#971: a typo in a parameter's name, and training goes on without that parameter."""
    operation = "add" if name.startswith("inertia/") else "set"
    content = file(drawn(name, 0.01, 0.02, operation))
    own = robot(tmp_path)
    with pytest.raises(InputError, match=message):
        check_robot(content, own)
    with pytest.raises(InputError, match=message):
        Randomizer(content, MujocoSim(own, 1))


def test_what_a_simulation_alone_has_not_is_an_error(tmp_path: Path) -> None:
    sim = MujocoSim(robot(tmp_path), 1)
    for name in (COMMAND_DELAY, "drive.friction.coulomb/hinge", "sensor.noise/joint_pos"):
        with pytest.raises(InputError):
            Randomizer(file(drawn(name, 0.01, 0.02)), sim)


def test_the_ground_is_there_only_in_a_scene(tmp_path: Path) -> None:
    own, content = robot(tmp_path), file(drawn("geom_friction/ground[0]", 0.5, 1.0))
    check_robot(content, own, FLAT)
    with pytest.raises(InputError, match="no geom named 'ground'"):
        check_robot(content, own)


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ("grip", "geom_friction/left[0]", r"geom_friction/left\[0\]"),
        ("inertia/box", "body_mass/box", "body_mass/box"),
        ("body_ipos/box[1]", "inertia/box[3]", r"body_ipos/box\[1\]"),
        ("inertia/box", "inertia/box[3]", r"inertia/box\[3\]"),
    ],
)
def test_two_that_act_at_one_place_are_refused(tmp_path: Path, first: str, second: str, place: str) -> None:
    both = (drawn(name, 0.1, 0.2, "add" if name.startswith("inertia") else "set") for name in (first, second))
    with pytest.raises(InputError, match=f"both act on {place}; keep one of them"):
        check_robot(file(*both), robot(tmp_path))


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (drawn("body_mass/arm", -2.0, 1.0, "add"), r"expected a range > 0, got low 0\.0 \(-2\.0 to 1\.0, add to"),
        (drawn("body_mass/arm", 0.0, 1.0, "scale"), r"expected a range > 0, got low 0\.0 \(0\.0 to 1\.0, scale to"),
        (drawn("dof_damping/hinge", -0.5, 0.1, "add"), r"expected a range within 0 to 1e\+06, got -0\.2 to 0\.4"),
        (drawn("geom_friction/left[1]", -0.1, 0.1), r"expected a range within 0 to 1e\+06, got -0\.1 to 0\.1"),
        (drawn("grip", -1.0, 1.0, "scale"), r"grip: expected a range within 0 to 1e\+06, got -0\.8 to 0\.8"),
        (drawn("body_ipos/arm[0]", 0.0, 1e7), r"expected a range within -1e\+06 to 1e\+06"),
        (drawn("body_iquat/arm[0]", 0.0, 1.0), "an attitude has no range of single numbers"),
        (drawn("inertia/arm", -2.0, 1.0, "add"), "expected a range within -1 to 1, got -2.0 to 1.0"),
        (drawn("inertia/arm", 0.5, 1.0, "scale"), "operation: expected add for inertia/arm, got scale"),
        (drawn("body_inertia/arm[2]", 0.5, 1.3, "scale"), r"one exceeds the sum of the others; take inertia/arm"),
        (
            drawn("drive.friction.coulomb/hinge", -2.0, 1.0, "scale"),
            r"drive.friction.coulomb: expected finite and >= 0",
        ),
        (drawn(COMMAND_DELAY, 0.0, 0.05, "add"), "operation: expected set for command_delay, got add"),
        (drawn("sensor.noise/joint_pos", 0.0, 0.05, "scale"), "operation: expected set, got scale"),
    ],
)
def test_values_that_the_robot_cannot_have_are_refused(tmp_path: Path, parameter: ParameterRange, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_robot(file(parameter), robot(tmp_path))


def test_values_that_the_robot_can_have_pass(tmp_path: Path) -> None:
    own = robot(tmp_path)
    turned = msgspec.structs.replace(
        own.parameters[0], name="turned", field=tuple(f"body_inertia/arm[{axis}]" for axis in range(3))
    )
    check_robot(
        file(
            drawn("turned", 0.5, 2.0, "scale"),  # all moments together: any factor leaves a body a body
            drawn("body_inertia/box[2]", 0.5, 1.2, "scale"),
            drawn("opt.gravity[0]", -0.5, 0.5),
            drawn("drive.friction.static/hinge", 0.5, 1.5, "scale"),
            drawn("drive.effort_limit/hinge", 0.8, 1.0, "scale"),
            drawn("body_gravcomp/box", -0.1, 0.1, "add"),
            drawn(COMMAND_DELAY, 0.0, 0.02),
        ),
        msgspec.structs.replace(own, parameters=(*own.parameters, turned)),
    )


def test_the_model_of_the_tests_has_a_simple_body(tmp_path: Path) -> None:
    """What the comparison with a compiled model is for: plain MuJoCo does hold the box for simple."""
    model = mujoco.MjModel.from_xml_path(str(robot(tmp_path).mjcf))
    assert model.body_simple[mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, "box")]


def test_a_tasks_own_range_gives_way_where_a_file_sets_the_same_place() -> None:
    """By whatever name: the robot's own, a place, or a body's whole inertia."""
    task = get_task("go2-velocity-flat")
    whole = with_own_ranges(None, task)
    assert whole is not None
    assert whole.parameters == task.ranges

    def names(name: str, operation: str) -> list[str]:
        one = msgspec.structs.replace(
            task.ranges[0], name=name, operation=operation, nominal=0.5, low=0.4, high=0.6, unit=""
        )
        merged = with_own_ranges(msgspec.structs.replace(no_ranges("go2"), parameters=(one,)), task)
        assert merged is not None
        check_robot(merged, task.robot, task.scene)
        return [each.name for each in merged.parameters]

    own = [each.name for each in task.ranges]
    assert set(own) - set(names("geom_friction/FL_foot[0]", "set")) == {"foot_friction"}
    assert set(own) - set(names("dof_damping/FL_hip_joint", "set")) == {"hip_damping"}
    assert set(own) - set(names("opt.viscosity", "set")) == set()
    assert set(own) - set(names("inertia/base", "add")) == {"base_mass", "base_com_x", "base_com_y"}


def test_a_range_in_another_unit_is_refused() -> None:
    mass = get_task("go2-velocity-flat").ranges[0]
    grams = msgspec.structs.replace(no_ranges("go2"), parameters=(msgspec.structs.replace(mass, unit="g"),))
    with pytest.raises(InputError, match=r"parameters\[0\] base_mass: unit: expected 'kg', the robot's own, got 'g'"):
        check_robot(grams, get_robot("go2"))


@pytest.mark.parametrize(
    ("parameters", "crosses"),
    [
        ((drawn("jnt_range/hinge[0]", -1.0, 0.5), drawn("jnt_range/hinge[1]", 0.6, 1.0)), False),
        ((drawn("jnt_range/hinge[0]", -1.0, 0.7), drawn("jnt_range/hinge[1]", 0.6, 1.0)), True),
        ((drawn("jnt_range/hinge[0]", -1.0, 0.1),), True),  # the model's own upper end is 0
        ((drawn("jnt_range/hinge[1]", -0.1, 0.1),), True),
        ((drawn("jnt_range/hinge[1]", 0.5, 2.0, "add"),), False),
    ],
)
def test_a_joints_range_that_may_end_below_its_beginning_is_refused(
    tmp_path: Path, parameters: tuple[ParameterRange, ...], crosses: bool
) -> None:
    made = robot(tmp_path)
    if not crosses:
        check_robot(file(*parameters), made)
        return
    with pytest.raises(InputError, match="jnt_range/hinge: the lower end may be up to"):
        check_robot(file(*parameters), made)


@pytest.mark.parametrize(
    "parameter",
    [drawn("opt.impratio", 0.0, 2.0), drawn("opt.tolerance", -1.0, 0.0), drawn("geom_size/left[0]", -1.0, 1.0)],
)
def test_numbers_that_no_physics_has_are_refused_before_anything_is_simulated(
    tmp_path: Path, parameter: ParameterRange
) -> None:
    with pytest.raises(InputError, match=r"expected a range (> 0, got|within 0 to)"):
        check_robot(file(parameter), robot(tmp_path))
