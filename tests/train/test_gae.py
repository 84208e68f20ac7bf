from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.gae import gae

NO = torch.zeros(6, 1, dtype=torch.bool)


def test_constant_reward_without_critic_gives_the_geometric_sum() -> None:
    """With λ = 1 and V = 0, A_t = Σ γ^k r: a closed form."""
    rewards, zero = torch.ones(6, 1), torch.zeros(6, 1)
    advantages, targets = gae(rewards, zero, zero, NO, NO, discount=0.9, gae_lambda=1.0)
    expected = [(1.0 - 0.9 ** (6 - t)) / (1.0 - 0.9) for t in range(6)]
    assert advantages[:, 0].tolist() == pytest.approx(expected)
    assert torch.equal(targets, advantages)


def test_lambda_zero_gives_the_one_step_error() -> None:
    values = torch.arange(6.0)[:, None]
    advantages, targets = gae(torch.ones(6, 1), values, values + 1.0, NO, NO, discount=0.5, gae_lambda=0.0)
    assert advantages[:, 0].tolist() == pytest.approx([1.0 + 0.5 * (t + 1.0) - t for t in range(6)])
    assert targets[:, 0].tolist() == pytest.approx([1.0 + 0.5 * (t + 1.0) for t in range(6)])


def test_a_perfect_critic_leaves_no_advantage() -> None:
    """V = r / (1 − γ) is exact for a constant reward for ever, a cut by the time limit included."""
    values = torch.full((6, 1), 1.0 / (1.0 - 0.9))
    truncated = NO.clone()
    truncated[2] = True
    advantages, _ = gae(torch.ones(6, 1), values, values, NO, truncated, discount=0.9, gae_lambda=0.95)
    assert advantages.abs().max() < 1e-5


def test_failure_has_no_value_after_it_and_a_time_limit_has() -> None:
    next_values = torch.full((1, 2), 10.0)
    terminated, truncated = torch.tensor([[True, False]]), torch.tensor([[False, True]])
    advantages, _ = gae(
        torch.ones(1, 2), torch.zeros(1, 2), next_values, terminated, truncated, discount=0.9, gae_lambda=0.95
    )
    assert advantages[0].tolist() == pytest.approx([1.0, 10.0])


def naive(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, terminated: np.ndarray, done: np.ndarray
) -> np.ndarray:
    """Equation 16 as a double sum over each episode's remaining steps, in float64."""
    discount, gae_lambda = 0.97, 0.9
    steps, envs = rewards.shape
    advantages = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            weight = 1.0
            for step in range(start, steps):
                following = 0.0 if terminated[step, env] else next_values[step, env]
                advantages[start, env] += weight * (rewards[step, env] + discount * following - values[step, env])
                if done[step, env]:
                    break
                weight *= discount * gae_lambda
    return advantages


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 12), envs=st.integers(1, 4))
def test_equals_the_double_sum(seed: int, steps: int, envs: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, steps, envs))
    terminated = rng.random((steps, envs)) < 0.2
    truncated = (rng.random((steps, envs)) < 0.2) & ~terminated
    advantages, targets = gae(
        torch.from_numpy(rewards),
        torch.from_numpy(values),
        torch.from_numpy(next_values),
        torch.from_numpy(terminated),
        torch.from_numpy(truncated),
        discount=0.97,
        gae_lambda=0.9,
    )
    expected = naive(rewards, values, next_values, terminated, terminated | truncated)
    np.testing.assert_allclose(advantages.numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(targets.numpy(), expected + values, rtol=1e-12, atol=1e-12)
