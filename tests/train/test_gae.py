from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.gae import gae, vtrace

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


def naive_vtrace(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    done: np.ndarray,
    ratios: np.ndarray,
    limit: float,
) -> np.ndarray:
    """Equation 1 as a sum over each episode's remaining steps with the product of all c before, in float64."""
    discount, gae_lambda = 0.97, 0.9
    steps, envs = rewards.shape
    targets = values.copy()
    for env in range(envs):
        for start in range(steps):
            for step in range(start, steps):
                product = np.prod([gae_lambda * min(limit, ratios[i, env]) for i in range(start, step)])
                following = 0.0 if terminated[step, env] else next_values[step, env]
                delta = min(limit, ratios[step, env]) * (rewards[step, env] + discount * following - values[step, env])
                targets[start, env] += discount ** (step - start) * product * delta
                if done[step, env]:
                    break
    return targets


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    envs=st.integers(1, 4),
    limit=st.sampled_from([0.5, 1.0, 3.0]),
    stale=st.booleans(),
)
def test_vtrace_equals_its_sum_and_gae_where_the_policy_is_the_one_that_acted(
    seed: int, steps: int, envs: int, limit: float, stale: bool
) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, steps, envs))
    ratios = np.exp(rng.normal(size=(steps, envs))) if stale else np.ones((steps, envs))
    terminated = rng.random((steps, envs)) < 0.2
    truncated = (rng.random((steps, envs)) < 0.2) & ~terminated
    tensors = tuple(torch.from_numpy(each) for each in (rewards, values, next_values))
    ends = (torch.from_numpy(terminated), torch.from_numpy(truncated))
    arguments = (tensors[0], tensors[1], tensors[2], *ends)
    advantages, targets = vtrace(*arguments, torch.from_numpy(ratios), discount=0.97, gae_lambda=0.9, limit=limit)
    done = terminated | truncated
    expected = naive_vtrace(rewards, values, next_values, terminated, done, ratios, limit)
    np.testing.assert_allclose(targets.numpy(), expected, rtol=1e-12, atol=1e-12)
    # Of the action alone: what would be gained if it were taken for certain.
    np.testing.assert_allclose(advantages.numpy() * np.minimum(ratios, limit), expected - values, rtol=1e-9, atol=1e-12)
    if not stale and limit >= 1.0:
        for mine, other in zip((advantages, targets), gae(*arguments, discount=0.97, gae_lambda=0.9), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
