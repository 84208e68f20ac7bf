"""Soft actor-critic: transitions of rollouts, the replay buffer, squashed actions and distributions of returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from sim2real_train.replay_buffer import ReplayBuffer, Transitions, transitions_of
from sim2real_train.rollout import Rollout
from sim2real_train.sac import project, squashed_log_prob


def random_rollout(generator: torch.Generator, num_steps: int, num_envs: int, ends: float) -> Rollout:
    """Every observation is unlike the others; episodes end in a share `ends` of the steps, in either way or in both."""
    rollout = Rollout(num_steps, num_envs, 1, 1, 1)
    rollout.critic_observations[:, :, 0] = torch.arange((num_steps + 1) * num_envs).reshape(-1, num_envs)
    rollout.actions[:, :, 0] = rollout.critic_observations[:-1, :, 0] + 0.5
    rollout.rewards.normal_(generator=generator)
    rollout.terminated = torch.rand(num_steps, num_envs, generator=generator) < ends
    rollout.truncated = torch.rand(num_steps, num_envs, generator=generator) < ends
    for step in range(num_steps):
        (env_ids,) = torch.nonzero(rollout.terminated[step] | rollout.truncated[step], as_tuple=True)
        if len(env_ids):
            seen = -rollout.critic_observations[step, env_ids] - 1.0
            rollout.final_observations.append((torch.full_like(env_ids, step), env_ids, seen))
    return rollout


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    n_steps=st.integers(1, 6),
    ends=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_transitions_equal_a_direct_sum(seed: int, shape: tuple[int, int], n_steps: int, ends: float) -> None:
    discount, scale = 0.9, 0.1
    rollout = random_rollout(torch.Generator().manual_seed(seed), *shape, ends)
    made = transitions_of(rollout, n_steps=n_steps, discount=discount, reward_scale=scale)
    row = 0
    for step in range(shape[0]):
        for env_id in range(shape[1]):
            total, step_after = 0.0, step
            while True:
                total += scale * discount ** (step_after - step) * float(rollout.rewards[step_after, env_id])
                terminated = bool(rollout.terminated[step_after, env_id])
                done = terminated or bool(rollout.truncated[step_after, env_id])
                step_after += 1
                if done or step_after == shape[0] or step_after - step == n_steps:
                    break
            # An episode's last observation is not where the rollout goes on: that is the next one's first.
            before = float(rollout.observations[step_after - 1, env_id, 0])
            following = -before - 1.0 if done else float(rollout.observations[step_after, env_id, 0])
            assert made.observations[row].item() == rollout.observations[step, env_id].item()
            assert made.actions[row].item() == rollout.actions[step, env_id].item()
            assert made.returns[row].item() == pytest.approx(total, abs=1e-6)
            assert made.discounts[row].item() == pytest.approx(0.0 if terminated else discount ** (step_after - step))
            assert made.following[row].item() == following
            row += 1
    assert row == len(made.returns)


def numbered(first: int, count: int) -> Transitions:
    """Transitions that say in each of their parts which they are."""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    wide = numbers[:, None]
    return Transitions(observations=wide, actions=wide + 0.25, returns=numbers, discounts=-numbers, following=wide + 1)


@given(capacity=st.integers(1, 9), counts=st.lists(st.integers(0, 12), max_size=6), seed=st.integers(0, 2**32 - 1))
def test_the_buffer_holds_copies_of_the_newest_and_draws_from_them(capacity: int, counts: list[int], seed: int) -> None:
    buffer = ReplayBuffer(capacity, 1, 1)
    total = 0
    for count in counts:
        inserted = numbered(total, count)
        buffer.insert(inserted)
        inserted.returns.zero_()
        total += count
    expected = torch.arange(total, dtype=torch.float32)[-capacity:]
    assert buffer.size == len(expected)
    assert torch.equal(buffer.content().returns, expected)
    if not total:
        return
    drawn = buffer.sample(50, torch.Generator().manual_seed(seed))
    assert torch.isin(drawn.returns, expected).all()
    for part, offset in ((drawn.observations, 0.0), (drawn.actions, 0.25), (drawn.following, 1.0)):
        assert torch.equal(part[:, 0], drawn.returns + offset)
    assert torch.equal(drawn.discounts, -drawn.returns)

    again = ReplayBuffer(capacity, 1, 1)
    again.load_state(buffer.state())
    for each in (buffer, again):
        each.insert(numbered(total, 3))
    assert torch.equal(again.content().following, buffer.content().following)
    same = again.sample(50, torch.Generator().manual_seed(seed))
    assert torch.equal(same.returns, buffer.sample(50, torch.Generator().manual_seed(seed)).returns)


def squashed(means: torch.Tensor, log_std: torch.Tensor) -> Any:
    """Without a type: torch's distributions are typed in part."""
    return TransformedDistribution(Independent(Normal(means, log_std.exp()), 1), [TanhTransform()])


@given(seed=st.integers(0, 2**32 - 1))
def test_log_prob_is_that_of_torch_distributions(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    raw, means, log_std = torch.randn(3, 5, 2, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(
        squashed_log_prob(raw, means, log_std), squashed(means, log_std).log_prob(torch.tanh(raw)), rtol=1e-9, atol=1e-9
    )


def test_log_prob_stays_finite_where_tanh_is_one() -> None:
    raw = torch.tensor([[60.0], [-60.0]], requires_grad=True)
    log_prob = squashed_log_prob(raw, torch.zeros(2, 1), torch.zeros(1))
    # log(1 − tanh² u) → log 4 − 2 |u|
    torch.testing.assert_close(
        log_prob.detach(), torch.full((2,), -0.5 * 3600.0 - 0.9189385 - 1.3862944 + 120.0), rtol=1e-6, atol=0.0
    )
    assert torch.isfinite(torch.autograd.grad(log_prob.sum(), raw)[0]).all()


@given(seed=st.integers(0, 2**32 - 1), atoms=st.integers(2, 12), spread=st.sampled_from([0.0, 0.5, 3.0]))
def test_projection_equals_the_papers_sum_and_keeps_the_mean(seed: int, atoms: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(-1.0, 2.0, atoms, dtype=torch.float64)
    probabilities = torch.softmax(torch.randn(3, atoms, dtype=torch.float64, generator=generator), dim=-1)
    returns = support + spread * torch.randn(3, 1, dtype=torch.float64, generator=generator)
    projected = project(probabilities, returns, support)
    step = float(support[1] - support[0])
    # Σ_j clip(1 − |clip(Tz_j) − z_i| / Δz, 0, 1) p_j
    shares = (1.0 - (returns.clamp(-1.0, 2.0)[:, None, :] - support[:, None]).abs() / step).clamp(0.0, 1.0)
    torch.testing.assert_close(projected, (shares * probabilities[:, None, :]).sum(-1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(projected @ support, (probabilities * returns.clamp(-1.0, 2.0)).sum(-1))
