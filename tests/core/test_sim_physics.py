"""The `mujoco` engine against closed forms, with tolerances that follow from the integrator and the contact model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sim2real.sim.mujoco import MujocoSim
from sim2real.sim.scene import Scene
from tests.core.sim_robots import WALKER, robot

GRAVITY = 9.81
UPPER, LOWER, INERTIA = 0.8, 0.5, 1e-3  # masses [kg], and of both links the moment of inertia [kg·m²]
LENGTH, UPPER_COM, LOWER_COM = 0.5, 0.5, 0.4  # [m]

DOUBLE_PENDULUM = f"""
<mujoco><option integrator="{{}}"/><worldbody>
  <body><joint name="shoulder" axis="0 1 0"/>
    <inertial pos="0 0 {-UPPER_COM}" mass="{UPPER}" diaginertia="{INERTIA} {INERTIA} {INERTIA}"/>
    <body pos="0 0 {-LENGTH}"><joint name="elbow" axis="0 1 0"/>
      <inertial pos="0 0 {-LOWER_COM}" mass="{LOWER}" diaginertia="{INERTIA} {INERTIA} {INERTIA}"/>
    </body>
  </body>
</worldbody></mujoco>"""

BLOCK = """
<mujoco><option cone="elliptic" integrator="implicitfast"/><worldbody>
  <body name="block" pos="0 0 0.1">
    <joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1" damping="{}"/>
    <geom name="block" type="box" size="0.2 0.2 0.1" mass="2" friction="0 0 0"/>
  </body>
</worldbody></mujoco>"""


def energy(qpos: npt.NDArray[np.float64], qvel: npt.NDArray[np.float64]) -> float:
    """Kinetic and potential energy [J] of the double pendulum, in its absolute angles a and b."""
    a, b = qpos[0, 0], qpos[0].sum()
    va, vb = qvel[0, 0], qvel[0].sum()
    upper = (UPPER_COM * va) ** 2
    lower = (LENGTH * va) ** 2 + (LOWER_COM * vb) ** 2 + 2.0 * LENGTH * LOWER_COM * va * vb * np.cos(a - b)
    kinetic = 0.5 * (UPPER * upper + LOWER * lower + INERTIA * (va**2 + vb**2))
    height = UPPER * UPPER_COM * np.cos(a) + LOWER * (LENGTH * np.cos(a) + LOWER_COM * np.cos(b))
    return float(kinetic - GRAVITY * height)


@pytest.mark.parametrize(("integrator", "order"), [("Euler", 1), ("implicitfast", 1), ("RK4", 4)])
def test_energy_drifts_with_the_order_of_the_integrator(tmp_path: Path, integrator: str, order: int) -> None:
    """The largest error of the energy in 1 s of a wild double pendulum falls by 2^order as the step is halved."""
    made = robot(tmp_path, DOUBLE_PENDULUM.format(integrator), "shoulder", "elbow")
    errors: list[float] = []
    for dt in (4e-3, 2e-3, 1e-3):
        sim = MujocoSim(made, 1, dt=dt)
        sim.qpos[:] = [[1.5, 0.7]]
        start, worst = energy(sim.qpos, sim.qvel), 0.0
        for _ in range(round(1.0 / dt)):
            sim.step()
            worst = max(worst, abs(energy(sim.qpos, sim.qvel) - start))
        errors.append(worst)
    observed = np.log2(np.divide(errors[:-1], errors[1:]))
    # What is left of higher terms at these steps: a few percent.
    np.testing.assert_allclose(observed, order, rtol=0.05)


@pytest.mark.parametrize("friction", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("speed", [1.0, 3.0])
@pytest.mark.parametrize("dt", [2e-3, 1e-3])
def test_stopping_distance_of_a_sliding_block(tmp_path: Path, friction: float, speed: float, dt: float) -> None:
    """v² / 2 μ g, less v dt / 2 of semi-implicit Euler, plus what MuJoCo's soft friction slides on.

    Friction is Coulomb's above the speed μ g / b, and below it a damper that stops with the rate b = 2 / (dmax τ) of
    the default solref τ = 0.02 s and solimp dmax = 0.95: μ g / 2 b² further than Coulomb's. The impedance, which is
    not quite 1, leaves that uncertain by as much.
    """
    made = robot(tmp_path, BLOCK.format(0.0), "x", "z")
    sim = MujocoSim(made, 1, scene=Scene(ground=True, terrain=None, friction=friction), dt=dt)
    sim.step(round(0.5 / dt))
    begin = float(sim.qpos[0, 0])
    sim.qvel[0, 0] = speed
    sim.step(round(1.5 * speed / (friction * GRAVITY) / dt))
    soft = friction * GRAVITY / (2.0 * (2.0 / (0.95 * 0.02)) ** 2)
    expected = speed**2 / (2.0 * friction * GRAVITY) - 0.5 * speed * dt + soft
    assert float(sim.qpos[0, 0]) - begin == pytest.approx(expected, abs=soft)
    assert abs(float(sim.qvel[0, 0])) < 1e-3


def test_terminal_velocity_under_damping(tmp_path: Path) -> None:
    """m v' = −m g − c v tends to −m g / c; implicit in the damping: v ← (v − g dt) / (1 + c dt / m) at each step."""
    mass, damping, dt = 2.0, 5.0, 0.002
    sim = MujocoSim(robot(tmp_path, BLOCK.format(damping), "x", "z"), 1, dt=dt)
    decay = 1.0 / (1.0 + damping * dt / mass)
    terminal = -mass * GRAVITY / damping
    for steps in (1, 100, 400, 5000):
        sim.reset()
        sim.step(steps)
        assert float(sim.qvel[0, 1]) == pytest.approx(terminal * (1.0 - decay**steps), rel=1e-9)
    assert float(sim.qvel[0, 1]) == pytest.approx(terminal, rel=1e-9)
    # After one time constant m / c the continuous law has reached 1 − 1/e; the integrator is first order.
    sim.reset()
    sim.step(round(mass / damping / dt))
    assert float(sim.qvel[0, 1]) == pytest.approx(terminal * (1.0 - np.exp(-1.0)), rel=damping * dt / mass)


def test_a_floating_base_moves_in_world_axes_and_turns_in_its_own(tmp_path: Path) -> None:
    """Upside down (half a turn about y) and weightless: v is the world's; ω about its own z turns it by −ω t there."""
    sim = MujocoSim(robot(tmp_path, WALKER, "left", "right", base="floating"), 1)
    sim.randomize("opt.gravity[2]", np.zeros(1))
    # Own z is a principal axis through the centre of mass of the whole walker: the motion is uniform.
    sim.qpos[0, :7] = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    sim.qvel[0, :6] = [0.3, -0.2, 0.1, 0.0, 0.0, 0.8]
    sim.step(100)
    time = 100 * sim.dt
    np.testing.assert_allclose(sim.qpos[0, :3], [0.3 * time, -0.2 * time, 1.0 + 0.1 * time], atol=1e-9)
    half = 0.5 * 0.8 * time
    # q = q_y(π) q_z(ω t): wxyz of (0, 0, 1, 0)(cos, 0, 0, sin).
    np.testing.assert_allclose(sim.qpos[0, 3:7], [0.0, np.sin(half), np.cos(half), 0.0], atol=1e-9)
