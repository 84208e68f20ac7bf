"""Closed forms of the double pendulum against MuJoCo's model of it."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from sim2real.robots.double_pendulum import ROBOT
from sim2real.tasks import get_task
from sim2real.tasks.double_pendulum_model import cost_to_stand, energy, linearised

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
    np.testing.assert_allclose(energy(qpos, qvel), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("driven", [0, 1])
def test_the_linear_model_is_mujocos_derivative_at_upright(model: mujoco.MjModel, driven: int) -> None:
    data = mujoco.MjData(model)

    def acceleration(x: np.ndarray, torque: float) -> np.ndarray:
        data.qpos[:], data.qvel[:], data.ctrl[:] = UPRIGHT + x[:2], x[2:], 0.0
        data.ctrl[driven] = torque
        mujoco.mj_forward(model, data)
        return data.qacc.copy()

    a, b = linearised(driven)
    for column, step in zip(a.T, 1e-5 * np.eye(4), strict=True):
        slope = (acceleration(step, 0.0) - acceleration(-step, 0.0)) / 2e-5
        np.testing.assert_allclose(column[2:], slope, rtol=1e-5, atol=1e-5)
    slope = (acceleration(np.zeros(4), 1e-3) - acceleration(np.zeros(4), -1e-3)) / 2e-3
    np.testing.assert_allclose(b[2:, 0], slope, rtol=1e-6)


@pytest.mark.parametrize("driven", [0, 1])
def test_the_cost_to_stand_is_what_the_best_regulator_pays(driven: int) -> None:
    """P solves the Riccati equation, and the regulator made from it is stable: then xᵀ P x is its cost."""
    a, b = linearised(driven)
    cost = cost_to_stand(driven)
    residual = a.T @ cost + cost @ a - cost @ b @ b.T @ cost + np.diag([1.0, 1.0, 0.1, 0.1])
    assert np.abs(residual).max() < 1e-6 * np.abs(cost).max()
    assert np.linalg.eigvalsh(cost).min() > 0.0
    assert np.linalg.eigvals(a - b @ b.T @ cost).real.max() < 0.0
    assert np.linalg.eigvals(a).real.max() == pytest.approx(9.35, abs=0.01)


@pytest.mark.parametrize("name", ["acrobot-swingup", "pendubot-swingup"])
def test_starts_hang_stand_and_are_anywhere(name: str) -> None:
    qpos, qvel = get_task(name).start(np.random.default_rng(0), 4000)
    standing = np.abs(np.abs(qpos[:, 0]) - np.pi) + np.abs(qpos[:, 1]) < 0.5
    hanging = np.abs(qpos).sum(axis=1) < 0.5
    slow = np.abs(qvel).max(axis=1) < 1.0
    assert (standing & slow).mean() == pytest.approx(0.4, abs=0.05)
    assert (hanging & slow).mean() == pytest.approx(0.3, abs=0.05)
    assert np.abs(qvel).max() < 20.0
