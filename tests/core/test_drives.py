"""Drives against their formulas: the PD law, the torque–speed line, friction, backlash, and all of them together."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.layout import EFFORT
from sim2real.robots.drives import IDEAL, PARAMETERS, DcMotor, Drive, Friction
from sim2real.sim.drives import DriveModel
from tests.core.drive_rig import LIMIT, NO_COMMAND, drives, friction, simulate

Array = npt.NDArray[np.float64]

MOTOR = DcMotor(stall_effort=30.0, no_load_velocity=10.0)
FRICTION = friction(0.4, 0.05, static=0.6, load=0.1)
EVERYTHING = Drive(motor=MOTOR, friction=FRICTION, backlash=0.02, rotor_inertia=0.01)

efforts = st.floats(-100.0, 100.0)
velocities = st.floats(-40.0, 40.0)


def run(model: DriveModel, command: Array, position: Array, velocity: Array) -> Array:
    out = np.empty_like(position)
    model.effort(command, position, velocity, out)
    return out


def push(model: DriveModel, effort: float, velocity: float = 0.0, position: float = 0.0) -> float:
    """One step of a model of one joint under an effort command."""
    command = np.zeros((1, 5, 1))
    command[0, EFFORT] = effort
    return float(run(model, command, np.full((1, 1), position), np.full((1, 1), velocity))[0, 0])


def random_inputs(seed: int, num_envs: int, num_joints: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    command = rng.normal(size=(num_envs, 5, num_joints)) * np.array([1.0, 1.0, 2.0, 30.0, 1.0])[:, None]
    return np.abs(command), 0.3 * rng.normal(size=(num_envs, num_joints)), 4 * rng.normal(size=(num_envs, num_joints))


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


# Friction


def sliding(part: Friction, velocity: float, effort: float) -> float:
    """Friction of a joint that has been moving at one velocity under one effort for long."""
    model = drives(Drive(friction=part, rotor_inertia=0.01), limit=1e6)
    out = [push(model, effort, velocity) for _ in range(40)]
    return effort - out[-1]


@given(
    st.floats(0.0, 2.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.01, 1.0),
    st.floats(0.0, 0.9),
    st.floats(0.1, 20.0),
    st.floats(-5.0, 5.0),
)
def test_sliding_friction_is_the_stribeck_curve(
    coulomb: float, viscous: float, excess: float, scale: float, load: float, velocity: float, effort: float
) -> None:
    part = friction(coulomb, viscous, coulomb + excess, scale, load)
    budget = coulomb + viscous * velocity + excess * math.exp(-((velocity / scale) ** 2)) + load * abs(effort)
    assert sliding(part, velocity, effort) == pytest.approx(budget, rel=1e-9, abs=1e-12)
    assert sliding(part, -velocity, effort) == pytest.approx(-budget, rel=1e-9, abs=1e-12)


def test_the_stribeck_curve_at_its_own_velocity() -> None:
    part = friction(1.0, 0.5, 2.0, 0.3)
    assert sliding(part, 0.3, 0.0) == pytest.approx(1.0 + 0.15 + 1.0 / math.e)
    assert sliding(part, 30.0, 0.0) == pytest.approx(1.0 + 15.0)


@pytest.mark.parametrize("dt", [0.002, 0.005])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_a_sliding_joint_stops_where_the_closed_form_says(dt: float, share: float) -> None:
    inertia, velocity = 0.05, 8.0
    part = Drive(friction=friction(1.5), rotor_inertia=share * inertia)
    record = simulate(part, lambda _: NO_COMMAND, 1.0, inertia=inertia, dt=dt, velocity=velocity)
    # Semi-implicit Euler advances by the velocity at the end of each step: half a step of the first velocity short.
    expected = velocity**2 * inertia / (2 * 1.5) - velocity * dt / 2
    rebound = 1.5 * dt**2 / (share * inertia)
    assert record.position[-1] == pytest.approx(expected, abs=rebound)
    assert abs(record.velocity[-1]) < 1e-6
    energy = record.velocity**2
    if share == 1.0:
        assert np.all(np.diff(energy) <= 1e-12), "friction drove the joint"


def test_constant_effort_against_friction_gives_a_constant_velocity() -> None:
    part = Drive(friction=friction(0.5, 0.2), rotor_inertia=0.01)
    record = simulate(part, lambda _: (0.0, 0.0, 1.5, 0.0, 0.0), 4.0)
    # M v' = τ − C − B v, time constant M/B = 0.25 s.
    assert record.velocity[-1] == pytest.approx((1.5 - 0.5) / 0.2, rel=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("load", [0.0, 0.4])
def test_a_resting_joint_breaks_away_at_the_static_effort(share: float, load: float) -> None:
    part = Drive(friction=friction(0.5, static=1.2, load=load), rotor_inertia=share * 0.05)
    record = simulate(part, lambda time: (0.0, 0.0, time, 0.0, 0.0), 3.0)
    breakaway = 1.2 / (1.0 - load)
    resting = record.time <= breakaway
    np.testing.assert_allclose(record.position[resting], 0.0, atol=1e-15)
    after = np.searchsorted(record.time, breakaway + 0.1)
    assert record.position[after] > 1e-3


def test_a_resting_joint_takes_any_effort_below_breakaway_without_a_trace() -> None:
    part = Drive(friction=friction(0.5, static=1.0), rotor_inertia=0.01)
    rng = np.random.default_rng(1)
    record = simulate(part, lambda _: (0.0, 0.0, rng.uniform(-1.0, 1.0), 0.0, 0.0), 2.0)
    np.testing.assert_allclose(record.position, 0.0, atol=1e-12)
    np.testing.assert_allclose(record.effort, 0.0, atol=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("dt", [0.002, 0.005])
def test_an_unknown_load_below_breakaway_is_held_and_does_not_creep(share: float, dt: float) -> None:
    inertia = 0.05
    part = Drive(friction=friction(1.0), rotor_inertia=share * inertia)
    deflection = 1.0 * dt**2 / (share * inertia)
    held = simulate(part, lambda _: NO_COMMAND, 5.0, inertia=inertia, dt=dt, load=lambda _: 0.5)
    assert np.abs(held.position).max() < 2.0 * deflection
    later = held.time > 1.0
    np.testing.assert_allclose(held.position[later], held.position[-1], atol=1e-9)
    assert held.effort[-1] == pytest.approx(-0.5, abs=1e-9)

    swung = simulate(
        part, lambda _: NO_COMMAND, 5.0, inertia=inertia, dt=dt, load=lambda time: 0.5 * math.sin(math.tau * time) ** 2
    )
    # At the end of each period the load is gone, and so is the deflection: Dahl's and LuGre's bristles would creep.
    periods = np.searchsorted(swung.time, np.arange(1.0, 5.0))
    np.testing.assert_allclose(swung.position[periods], swung.position[periods[0]], atol=1e-3 * deflection)


def test_coupled_joints_hold_an_arm_against_gravity_by_friction_alone() -> None:
    link = '<geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="{}"/>'
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option timestep="0.005" integrator="implicitfast"/><default><joint axis="0 1 0" armature="0.01"/>
        </default><worldbody><body><joint name="j0"/>{link.format(1.0)}<body pos="0.3 0 0"><joint name="j1"/>
        {link.format(0.5)}</body></body></worldbody>
        <actuator><motor joint="j0"/><motor joint="j1"/></actuator></mujoco>"""
    )
    data = mujoco.MjData(model)
    rubbing = Drive(friction=friction(5.0, static=6.0), rotor_inertia=0.01)
    drive_model = drives(rubbing, rubbing, dt=0.005)
    effort = np.zeros((1, 2))
    positions: list[Array] = []
    for _ in range(1000):
        drive_model.effort(np.zeros((1, 5, 2)), data.qpos[None], data.qvel[None], effort)
        data.ctrl[:] = effort[0]
        mujoco.mj_step(model, data)
        positions.append(data.qpos.copy())
    # Gravity's 3.7 and 0.7 N·m bend the bristles (I/dt² = 400 N·m/rad) and are held from then on.
    np.testing.assert_allclose(positions[500:], np.tile(positions[-1], (500, 1)), atol=1e-7)
    np.testing.assert_allclose(-effort[0], -data.qfrc_bias, rtol=1e-6)
    assert np.abs(positions[-1]).max() < 0.05


@pytest.mark.parametrize("rotor", [0.05, 0.01, 0.001])
def test_friction_does_not_undo_the_damping_of_a_control_loop(rotor: float) -> None:
    part = Drive(friction=friction(1.0, static=1.0), rotor_inertia=rotor)
    record = simulate(part, lambda _: (1.0, 0.0, 0.0, 100.0, 2.0), 4.0, dt=0.005)
    assert np.abs(record.velocity[record.time > 3.0]).max() < 1e-3
    # Held within the band in which the spring of the loop does not overcome friction.
    assert abs(record.position[-1] - 1.0) <= 1.0 / 100.0 + 1e-9


@given(st.integers(0, 2**32 - 1))
def test_friction_is_never_more_than_its_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = drives(Drive(friction=FRICTION, rotor_inertia=0.01), limit=1e6)
    for _ in range(20):
        effort, velocity = rng.normal() * 10 ** rng.uniform(-3, 2), rng.normal() * 10 ** rng.uniform(-4, 2)
        budget = 0.4 + 0.05 * abs(velocity) + 0.2 * math.exp(-((velocity / 0.1) ** 2)) + 0.1 * abs(effort)
        assert abs(effort - push(model, effort, velocity)) <= budget * (1 + 1e-12) + 1e-12 * abs(effort)


# Backlash


def test_a_slow_sine_gives_the_hysteresis_loop_of_play() -> None:
    gap, amplitude = 0.04, 0.3
    part = Drive(backlash=gap, rotor_inertia=0.005)
    record = simulate(
        part,
        lambda time: (amplitude * math.sin(math.pi * time), 0.0, 0.0, 300.0, 3.0),
        6.0,
        dt=0.001,
        inertia=0.01,
        frictionloss=0.3,
    )
    motor, link = record.motor_position, record.position
    assert np.all(np.abs(motor - link) <= gap / 2 + 1e-12)
    # The play operator (Krasnoselskii, Pokrovskii 1989): the link rests until a flank of the rotor pushes it.
    play = np.empty_like(motor)
    play[0] = link[0]
    for step in range(1, len(motor)):
        play[step] = min(max(play[step - 1], motor[step] - gap / 2), motor[step] + gap / 2)
    np.testing.assert_allclose(link, play, atol=0.05 * gap)
    # Lost motion: forth and back through the same motor position, the link is a whole gap apart.
    settled = record.time > 2.0
    rising = settled & (np.abs(motor) < 2e-3) & (np.gradient(motor) > 0)
    falling = settled & (np.abs(motor) < 2e-3) & (np.gradient(motor) < 0)
    assert link[falling].mean() - link[rising].mean() == pytest.approx(gap, rel=0.02)
    assert np.ptp(motor[settled]) - np.ptp(link[settled]) == pytest.approx(gap, rel=0.02)


def test_nothing_reaches_the_link_while_the_rotor_crosses_the_gap_and_its_momentum_when_it_lands() -> None:
    dt, rotor, effort, gap = 0.001, 0.01, 0.5, 0.02
    model = drives(Drive(backlash=gap, rotor_inertia=rotor), dt=dt)
    out = [push(model, effort) for _ in range(40)]
    # From amid the gap: h = u t² / (2 I) with semi-implicit Euler, I p = u dt² n (n + 1) / 2.
    steps = next(n for n in range(40) if effort * dt**2 * n * (n + 1) / 2 / rotor >= gap / 2)
    np.testing.assert_array_equal(out[:steps], 0.0)
    assert out[steps] == pytest.approx(effort + effort * steps, rel=1e-9)
    np.testing.assert_array_equal(out[steps + 1 :], effort)
    # Nothing is lost on the way: the link has had the impulse of the motor.
    assert sum(out) == pytest.approx(40 * effort)


def test_a_flank_pushes_and_never_pulls() -> None:
    model = drives(Drive(backlash=0.02, rotor_inertia=0.01))
    while push(model, 1.0) == 0.0:
        pass
    assert push(model, 1.0) == 1.0
    assert push(model, -1e-3) == 0.0
    # A link that runs into a resting rotor is stopped by what the rotor weighs, not by the motor.
    model = drives(Drive(backlash=0.02, rotor_inertia=0.01))
    assert push(model, 0.0, velocity=0.0, position=0.0) == 0.0
    assert push(model, 0.0, velocity=2.0, position=0.02) == pytest.approx(0.01 * (0.0 - 2.0) / 0.002)


def test_encoders_follow_the_rotor_and_a_new_episode_starts_amid_the_gap() -> None:
    model = drives(Drive(backlash=0.02, rotor_inertia=0.01), IDEAL, num_envs=2)
    command, link = np.zeros((2, 5, 2)), np.full((2, 2), 0.3)
    command[:, EFFORT] = 1.0
    for _ in range(30):
        run(model, command, link, np.zeros((2, 2)))
    model.reset(np.array([1]))
    position, velocity = link.copy(), np.full((2, 2), 0.7)
    model.read_encoders(position, velocity)
    np.testing.assert_allclose(position, [[0.31, 0.3], [0.3, 0.3]], rtol=1e-15)
    np.testing.assert_array_equal(velocity, 0.7)


def test_a_gap_of_nothing_changes_nothing() -> None:
    with_gap = drives(Drive(motor=MOTOR, friction=FRICTION, backlash=0.01, rotor_inertia=0.01), num_envs=8)
    with_gap.randomize("backlash", "j0", np.zeros(8))
    without = drives(Drive(motor=MOTOR, friction=FRICTION, rotor_inertia=0.01), num_envs=8)
    for seed in range(20):
        inputs = random_inputs(seed, 8, 1)
        np.testing.assert_array_equal(run(with_gap, *inputs), run(without, *inputs))


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
