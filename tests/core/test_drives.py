"""Drives: the PD law, the torque–speed line, all parts together, randomization, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.layout import EFFORT
from sim2real.robots.drives import IDEAL, PARAMETERS, DcMotor, Drive, Friction
from tests.core.drive_rig import (
    EVERYTHING,
    FRICTION,
    LIMIT,
    MOTOR,
    drives,
    friction,
    push,
    random_inputs,
    run,
    simulate,
)

Array = npt.NDArray[np.float64]

efforts = st.floats(-100.0, 100.0)
velocities = st.floats(-40.0, 40.0)


# PD law


@given(st.integers(0, 2**32 - 1))
def test_the_pd_law_is_exact(seed: int) -> None:
    command, position, velocity = random_inputs(seed, 3, 2)
    model = drives(IDEAL, IDEAL, num_envs=3, limit=1e6)
    p, v, effort, kp, kd = np.moveaxis(command, 1, 0)
    np.testing.assert_array_equal(
        run(model, command, position, velocity), kp * (p - position) + kd * (v - velocity) + effort
    )


def test_a_joint_without_parts_among_joints_with_all_of_them_is_ideal_to_the_last_bit() -> None:
    mixed, ideal = drives(EVERYTHING, IDEAL, num_envs=16), drives(IDEAL, IDEAL, num_envs=16)
    assert ideal.ideal
    assert not mixed.ideal
    for seed in range(20):
        inputs = random_inputs(seed, 16, 2)
        np.testing.assert_array_equal(run(mixed, *inputs)[:, 1], run(ideal, *inputs)[:, 1])


# Torque–speed line


def reference_motor(effort: float, velocity: float, limit: float) -> float:
    upper = min(max(MOTOR.stall_effort * (1 - velocity / MOTOR.no_load_velocity), -limit), limit)
    lower = min(max(-MOTOR.stall_effort * (1 + velocity / MOTOR.no_load_velocity), -limit), limit)
    return min(max(effort, lower), upper)


@given(efforts, velocities)
def test_the_motor_follows_its_line(effort: float, velocity: float) -> None:
    out = push(drives(Drive(motor=MOTOR)), effort, velocity)
    assert out == pytest.approx(reference_motor(effort, velocity, LIMIT), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_the_four_quadrants(direction: float) -> None:
    at = 5.0 * direction
    full = 100.0 * direction
    assert push(drives(Drive(motor=MOTOR)), full, 0.0) == LIMIT * direction
    assert push(drives(Drive(motor=MOTOR), limit=50.0), full, 0.0) == MOTOR.stall_effort * direction
    # Driving at half the no-load velocity leaves half the stall effort; braking keeps the whole limit.
    assert push(drives(Drive(motor=MOTOR)), full, at) == pytest.approx(15.0 * direction)
    assert push(drives(Drive(motor=MOTOR)), -full, at) == -LIMIT * direction
    # At no load nothing is left, and beyond it the back-EMF brakes, never beyond the effort limit.
    assert push(drives(Drive(motor=MOTOR)), full, 10.0 * direction) == pytest.approx(0.0, abs=1e-12)
    assert push(drives(Drive(motor=MOTOR)), full, 12.0 * direction) == pytest.approx(-6.0 * direction)
    assert push(drives(Drive(motor=MOTOR)), full, 1e3 * direction) == -LIMIT * direction


def test_a_motor_on_a_free_joint_runs_up_to_its_no_load_velocity() -> None:
    record = simulate(Drive(motor=MOTOR), lambda _: (0.0, 0.0, 100.0, 0.0, 0.0), 1.0)
    # From where the line cuts in (v1) on, the velocity follows v0 − (v0 − v1) exp(−t S / (M v0)).
    v1 = MOTOR.no_load_velocity * (1 - LIMIT / MOTOR.stall_effort)
    after = record.time - v1 * 0.05 / LIMIT
    expected = 10.0 - (10.0 - v1) * np.exp(-after * MOTOR.stall_effort / (0.05 * MOTOR.no_load_velocity))
    late = after > 0.01
    # Explicit Euler at dt over a time constant of 1/60 s: within λ² t dt / 2 e^(−λ t) of the exponential.
    np.testing.assert_allclose(record.velocity[late], expected[late], atol=10.0 * 60.0 * 0.002 / 2 / math.e)
    assert record.velocity[-1] == pytest.approx(10.0, abs=1e-6)


# All together


@pytest.mark.parametrize("dt", [0.002, 0.005])
@pytest.mark.parametrize("part", [EVERYTHING, Drive(friction=FRICTION, backlash=0.05, rotor_inertia=0.002)])
def test_a_stiff_loop_through_friction_and_play_stays_bounded_and_settles(dt: float, part: Drive) -> None:
    def command(time: float) -> tuple[float, float, float, float, float]:
        return (0.5 if time < 3.0 and math.sin(8.0 * time) > 0 else 0.0, 0.0, 0.0, 100.0, 2.0)

    record = simulate(part, command, 5.0, dt=dt)
    assert np.abs(record.position).max() < 1.0
    assert np.abs(record.velocity).max() < 20.0
    end = record.time > 4.5
    assert np.abs(record.position[end]).max() < part.backlash / 2 + 0.6 / 100.0 + 1e-3
    # What rattles in the gap does so slowly: it is through once in a tenth of a second at most.
    assert np.abs(record.velocity[end]).max() < part.backlash / 0.1


def test_one_environment_that_is_not_finite_leaves_the_others_alone() -> None:
    sick, well = drives(EVERYTHING, EVERYTHING, num_envs=4), drives(EVERYTHING, EVERYTHING, num_envs=4)
    for seed in range(30):
        command, position, velocity = random_inputs(seed, 4, 2)
        expected = run(well, command, position, velocity)
        if seed > 5:
            position[1], velocity[1] = np.nan, [np.inf, 1e200]
        out = run(sick, command, position, velocity)
        np.testing.assert_array_equal(out[[0, 2, 3]], expected[[0, 2, 3]])
    sick.reset(np.array([1]))
    well.reset(np.array([1]))
    for seed in range(30, 40):
        inputs = random_inputs(seed, 4, 2)
        np.testing.assert_array_equal(run(sick, *inputs), run(well, *inputs))


def test_an_episode_begins_as_the_first_did() -> None:
    used, new = drives(EVERYTHING, num_envs=3), drives(EVERYTHING, num_envs=3)
    for seed in range(10):
        run(used, *random_inputs(seed, 3, 1))
    used.reset()
    for seed in range(10, 20):
        inputs = random_inputs(seed, 3, 1)
        np.testing.assert_array_equal(run(used, *inputs), run(new, *inputs))


def test_a_snapshot_continues_exactly() -> None:
    model = drives(EVERYTHING, IDEAL, EVERYTHING, num_envs=5)
    model.randomize("friction.coulomb", "j2", np.linspace(0.1, 0.5, 5))
    for seed in range(7):
        run(model, *random_inputs(seed, 5, 3))
    model.reset(np.array([3]))
    saved = model.snapshot()
    assert all(len(values) == 5 and values.dtype == np.float64 for values in saved.values())

    def go_on() -> list[Array]:
        return [run(model, *random_inputs(seed, 5, 3)) for seed in range(7, 20)]

    first = go_on()
    model.randomize("friction.coulomb", "j2", np.full(5, 3.0))
    model.randomize("rotor_inertia", "j0", np.full(5, 0.1))
    model.restore(saved)
    np.testing.assert_array_equal(go_on(), first)


def test_what_the_motor_gives_is_reported_before_friction() -> None:
    model = drives(Drive(motor=MOTOR, friction=FRICTION, rotor_inertia=0.01))
    live = model.motor_effort
    assert push(model, 0.3) == pytest.approx(0.0, abs=1e-15)
    assert live[0, 0] == 0.3
    push(model, 50.0, velocity=8.0)
    assert live[0, 0] == pytest.approx(6.0)


# Randomization


def altered(field: str) -> tuple[float, Callable[[float], Drive]]:
    """Another value of a parameter, and the drive that has it from the start."""
    part, _, name = field.partition(".")
    if part == "motor":
        values = {"stall_effort": MOTOR.stall_effort, "no_load_velocity": MOTOR.no_load_velocity}
        return 7.0, lambda value: Drive(
            motor=DcMotor(**(values | {name: value})), friction=FRICTION, backlash=0.02, rotor_inertia=0.01
        )
    if part == "friction":
        kept = {key: getattr(FRICTION, key) for key in ("coulomb", "viscous", "static", "stribeck_velocity", "load")}
        return 0.55, lambda value: Drive(
            motor=MOTOR, friction=Friction(**(kept | {name: value})), backlash=0.02, rotor_inertia=0.01
        )
    if part == "backlash":
        return 0.05, lambda value: Drive(motor=MOTOR, friction=FRICTION, backlash=value, rotor_inertia=0.01)
    return 0.03, lambda value: Drive(motor=MOTOR, friction=FRICTION, backlash=0.02, rotor_inertia=value)


@pytest.mark.parametrize("field", [name for name in PARAMETERS if not name.startswith(("network", "effort_limit"))])
def test_a_randomized_parameter_is_as_if_built_with_it_and_touches_nothing_else(field: str) -> None:
    value, build = altered(field)
    model = drives(EVERYTHING, EVERYTHING, num_envs=4)
    model.randomize(field, "j1", np.full(2, value), np.array([0, 2]))
    plain, other = drives(EVERYTHING, EVERYTHING, num_envs=4), drives(EVERYTHING, build(value), num_envs=4)
    changed = False
    for seed in range(30):
        inputs = random_inputs(seed, 4, 2)
        out, untouched, wanted = run(model, *inputs), run(plain, *inputs), run(other, *inputs)
        np.testing.assert_array_equal(out[[1, 3]], untouched[[1, 3]])
        np.testing.assert_array_equal(out[[0, 2]], wanted[[0, 2]])
        changed |= bool(np.any(out != untouched))
    assert changed


def test_the_effort_limit_of_one_environment_is_its_own() -> None:
    model = drives(Drive(motor=MOTOR), num_envs=2)
    model.randomize("effort_limit", "j0", np.array([3.0]), np.array([1]))
    command = np.zeros((2, 5, 1))
    command[:, EFFORT] = 100.0
    zeros = np.zeros((2, 1))
    np.testing.assert_array_equal(run(model, command, zeros, zeros), [[LIMIT], [3.0]])
    np.testing.assert_array_equal(run(model, -command, zeros, zeros), [[-LIMIT], [-3.0]])


@pytest.mark.parametrize(
    ("field", "name", "values", "sentence"),
    [
        (
            "motor.stall_efort",
            "j0",
            [1.0],
            "drive.motor.stall_efort/j0: unknown parameter; did you mean 'motor.stall_ef",
        ),
        ("friction.coulomb", "j9", [1.0], "drive.friction.coulomb/j9: unknown joint; allowed: j0, j1"),
        ("friction.coulomb", "j0j", [1.0], "drive.friction.coulomb/j0j: unknown joint; did you mean 'j0'"),
        ("friction.coulomb", "j1", [1.0], "not a part of the joint's drive; joints that have it: j0"),
        ("network.effort_scale", "j0", [1.0], "not a part of the joint's drive; joints that have it: none"),
        ("friction.coulomb", "j0", [1.0, 2.0], "expected values of shape (1,), got (2,)"),
        ("friction.coulomb", "j0", [-1.0], "drive.friction.coulomb: expected finite and >= 0, got -1.0"),
        ("friction.load", "j0", [1.0], "drive.friction.load: expected finite and >= 0 and < 1, got 1.0"),
        ("motor.stall_effort", "j0", [math.nan], "drive.motor.stall_effort: expected finite and > 0, got nan"),
    ],
)
def test_what_cannot_be_randomized_is_told_and_changes_nothing(
    field: str, name: str, values: list[float], sentence: str
) -> None:
    model = drives(EVERYTHING, Drive(motor=MOTOR))
    before = model.snapshot()
    with pytest.raises(InputError) as told:
        model.randomize(field, name, np.array(values))
    assert sentence in str(told.value)
    for key, array in model.snapshot().items():
        np.testing.assert_array_equal(array, before[key])


def test_an_ideal_model_has_nothing_to_randomize_because_the_engine_computes_it() -> None:
    with pytest.raises(InputError, match="not a part of the joint's drive"):
        drives(IDEAL).randomize("effort_limit", "j0", np.ones(1))


# Data


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: DcMotor(stall_effort=0.0, no_load_velocity=1.0), "drive.motor.stall_effort: expected finite and > 0"),
        (lambda: friction(1.0, static=0.5), "drive.friction.static: expected at least coulomb (1.0 N·m), got 0.5"),
        (lambda: friction(1.0, load=1.0), "drive.friction.load"),
        (lambda: friction(1.0, viscous=math.inf), "drive.friction.viscous"),
        (lambda: Drive(friction=friction(1.0)), "drive.rotor_inertia: friction and backlash need it, got none"),
        (lambda: Drive(backlash=0.1), "drive.rotor_inertia: friction and backlash need it, got none"),
        (lambda: Drive(backlash=-0.1, rotor_inertia=1.0), "drive.backlash: expected finite and >= 0, got -0.1"),
    ],
)
def test_a_drive_that_cannot_be_is_refused(build: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as told:
        build()
    assert sentence in str(told.value)


def test_drives_without_networks_do_not_load_onnxruntime() -> None:
    code = "import sys, sim2real.sim.drives; sys.exit('onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
