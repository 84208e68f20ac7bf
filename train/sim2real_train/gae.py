"""Advantages and value targets over a rollout of T steps in B environments, of the policy that acted or of another."""

from __future__ import annotations

import torch

__all__ = ["gae", "vtrace"]


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    *,
    discount: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and value targets, both of shape [T, B].

    The two ways in which an episode ends differ in the value that follows: after a failure there is none, after the
    time limit it is that of the episode's last observation. No advantage flows across either.

    Source: Schulman et al., "High-dimensional continuous control using generalized advantage estimation" (2016),
    eq. 16; time limits: Pardo et al., "Time limits in reinforcement learning" (2018).

    Args:
        rewards: Rewards, shape [T, B].
        values: V(s_t), shape [T, B].
        next_values: V of the observation that step t led to, before any reset, shape [T, B].
        terminated: The episode failed or ended in step t, shape [T, B], bool.
        truncated: The episode was cut off after step t, shape [T, B], bool.
        discount: γ.
        gae_lambda: λ.
    """
    # δ_t = r_t + γ V(s_{t+1}) − V(s_t)
    deltas = rewards + discount * next_values * ~terminated - values
    # A_t = δ_t + γ λ A_{t+1}
    decay = discount * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    advantages = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        following = deltas[step] + decay[step] * following
        advantages[step] = following
    return advantages, advantages + values


def vtrace(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    ratios: torch.Tensor,
    *,
    discount: float,
    gae_lambda: float,
    limit: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and value targets of a policy that is not the one that acted, both of shape [T, B].

    Where it is, and the limit is 1 or more, they are those of `gae`. The advantages are of the actions that were taken,
    without their importance weight: that is the loss's.

    Source: Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures"
    (2018), eq. 1, with λ as in remark 2.

    Args:
        rewards: Rewards, shape [T, B].
        values: V(s_t), shape [T, B].
        next_values: V of the observation that step t led to, before any reset, shape [T, B].
        terminated: The episode failed or ended in step t, shape [T, B], bool.
        truncated: The episode was cut off after step t, shape [T, B], bool.
        ratios: π(a_t|s_t) / µ(a_t|s_t), where µ acted, shape [T, B].
        discount: γ.
        gae_lambda: λ.
        limit: ρ̄ and c̄, above which ratios do not count: what bounds the variance, and moves the values towards µ's.
    """
    bounded = ratios.clamp(max=limit)
    # δ_t = r_t + γ V(s_{t+1}) − V(s_t)
    deltas = rewards + discount * next_values * ~terminated - values
    decay = discount * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    advantages = torch.empty_like(rewards)
    targets = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        # A_t = δ_t + γ λ (v_{t+1} − V(s_{t+1}));  v_t − V(s_t) = ρ_t A_t, because c_t = λ ρ_t where both limits are one
        advantages[step] = deltas[step] + decay[step] * following
        following = bounded[step] * advantages[step]
        targets[step] = following + values[step]
    return advantages, targets
