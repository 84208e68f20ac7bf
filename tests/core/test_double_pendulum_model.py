"""Closed forms of the double pendulum against MuJoCo's model of it."""

from __future__ import annotations

import itertools

import mujoco
import numpy as np
import pytest

from sim2real.robots.double_pendulum import ROBOT
from sim2real.tasks import get_task
from sim2real.tasks.double_pendulum_model import NOMINAL

UPRIGHT = np.array([np.pi, 0.0])


@pytest.fixture(name="model")
def fixture_model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ROBOT.mjcf))


def test_energy_is_mujocos_but_for_zero_and_unit(model: mujoco.MjModel) -> None:
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    data = mujoco.MjData(model)

    def total(qpos: np.ndarray, qvel: np.ndarray) -> float:
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_forward(model, data)
        return float(data.energy.sum())

    rest = np.zeros(2)
    hanging, upright = total(rest, rest), total(UPRIGHT, rest)
    rng = np.random.default_rng(0)
    qpos, qvel = rng.uniform(-4.0, 4.0, (20, 2)), rng.normal(0.0, 5.0, (20, 2))
    expected = [(total(*state) - hanging) / (upright - hanging) for state in zip(qpos, qvel, strict=True)]
    np.testing.assert_allclose(NOMINAL.energy(qpos, qvel), expected, rtol=1e-9, atol=1e-9)


def derivative(model: mujoco.MjModel, driven: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B about upright by finite differences of MuJoCo's accelerations."""
    data = mujoco.MjData(model)

    def acceleration(x: np.ndarray, torque: float) -> np.ndarray:
        data.qpos[:], data.qvel[:], data.ctrl[:] = UPRIGHT + x[:2], x[2:], 0.0
        data.ctrl[driven] = torque
        mujoco.mj_forward(model, data)
        return data.qacc.copy()

    slopes = [(acceleration(step, 0.0) - acceleration(-step, 0.0)) / 2e-5 for step in 1e-5 * np.eye(4)]
    a = np.vstack((np.eye(2, 4, 2), np.array(slopes).T))
    b = np.zeros((4, 1))
    b[2:, 0] = (acceleration(np.zeros(4), 1e-3) - acceleration(np.zeros(4), -1e-3)) / 2e-3
    return a, b


@pytest.mark.parametrize("driven", [0, 1])
def test_the_linear_model_is_mujocos_derivative_at_upright(model: mujoco.MjModel, driven: int) -> None:
    a, b = NOMINAL.linearised(driven)
    expected_a, expected_b = derivative(model, driven)
    np.testing.assert_allclose(a, expected_a, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(b, expected_b, rtol=1e-6)


@pytest.mark.parametrize("driven", [0, 1])
def test_the_cost_to_stand_is_what_the_best_regulator_pays(driven: int) -> None:
    """P solves the Riccati equation, and the regulator made from it is stable: then xᵀ P x is its cost."""
    a, b = NOMINAL.linearised(driven)
    cost = NOMINAL.cost_to_stand(driven)
    residual = a.T @ cost + cost @ a - cost @ b @ b.T @ cost + np.diag([1.0, 1.0, 0.1, 0.1])
    assert np.abs(residual).max() < 1e-6 * np.abs(cost).max()
    assert np.linalg.eigvalsh(cost).min() > 0.0
    assert np.linalg.eigvals(a - b @ b.T @ cost).real.max() < 0.0
    assert np.linalg.eigvals(a).real.max() == pytest.approx(9.35, abs=0.01)


@pytest.mark.parametrize(("driven", "spread", "stands"), [(0, 0.05, True), (1, 0.05, True), (1, 0.07, False)])
def test_the_regulator_of_the_nominal_arm_holds_up_all_that_training_draws(
    model: mujoco.MjModel, driven: int, spread: float, stands: bool
) -> None:
    """At the corners of the masses' ranges; were they wider, an acrobot with a heavy lower link would fall."""
    gains = NOMINAL.linearised(driven)[1].T @ NOMINAL.cost_to_stand(driven)
    nominal = model.body_mass.copy()
    fastest: list[float] = []
    for scale in itertools.product((1.0 - spread, 1.0 + spread), repeat=2):
        model.body_mass[1:] = nominal[1:] * scale
        a, b = derivative(model, driven)
        fastest.append(np.linalg.eigvals(a - b @ gains).real.max())
    assert (max(fastest) < 0.0) == stands


def test_masses_are_drawn_from_what_a_regulator_copes_with() -> None:
    for name in ("acrobot-swingup", "pendubot-swingup"):
        ranges = {each.name: each for each in get_task(name).ranges}
        for link in ("upper_mass", "lower_mass"):
            nominal = ROBOT.parameter(link).nominal
            assert ranges[link].low == pytest.approx(0.95 * nominal)
            assert ranges[link].high == pytest.approx(1.05 * nominal)
