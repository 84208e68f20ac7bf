"""Friction and backlash against their formulas, closed forms and joints simulated by MuJoCo."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.layout import EFFORT
from sim2real.robots.drives import IDEAL, Drive, Friction
from tests.core.drive_rig import FRICTION, MOTOR, NO_COMMAND, drives, friction, push, random_inputs, run, simulate

Array = npt.NDArray[np.float64]


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
