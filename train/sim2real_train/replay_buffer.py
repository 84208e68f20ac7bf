"""Experience that is learned from more than once: n-step transitions of rollouts, in a buffer of bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy.typing as npt
import torch

from sim2real_train.device import CPU, array_of
from sim2real_train.rollout import Rollout

__all__ = ["ReplayBuffer", "Transitions", "transitions_of"]


@dataclass(frozen=True, eq=False)
class Transitions:
    """N transitions over up to n control steps each; they own their memory."""

    observations: torch.Tensor
    """What the critic sees before the first step, raw, shape [N, Oc]; it begins with the policy's observation."""
    actions: torch.Tensor
    """Action of the first step, shape [N, A]."""
    returns: torch.Tensor
    """Discounted sum of the rewards of all its steps, shape [N]."""
    discounts: torch.Tensor
    """What the value of what follows counts: γ to the number of steps, 0 where the episode terminated, shape [N]."""
    following: torch.Tensor
    """What the critic sees after the last step, raw, before any reset, shape [N, Oc]."""

    def rows(self, index: torch.Tensor | slice) -> Transitions:
        """Return copies of some of them by index; views of a slice."""
        return Transitions(**{name: getattr(self, name)[index] for name in _FIELDS})


_FIELDS: Final = tuple(field.name for field in fields(Transitions))


def transitions_of(rollout: Rollout, *, n_steps: int, discount: float, reward_scale: float) -> Transitions:
    """Return one transition for each step of a rollout, step by step; copies.

    A transition ends after `n_steps` steps, or earlier with the episode or with the rollout, whichever is first: what
    follows in another rollout is not asked for, which may have been lost. After a time limit, the value of the
    episode's last observation counts; after a termination, none.

    Args:
        rollout: T steps of B environments.
        n_steps: n, from 1.
        discount: γ.
        reward_scale: What rewards are multiplied by.
    """
    num_steps, num_envs = rollout.rewards.shape
    done = rollout.terminated | rollout.truncated
    following = rollout.critic_observations[1:].clone()
    steps, env_ids, seen = rollout.finals()
    following[steps, env_ids] = seen
    # R = Σ_{k<m} γ^k r_{t+k}, m ≤ n steps until the transition ends
    returns = torch.zeros_like(rollout.rewards)
    lengths = torch.zeros_like(done, dtype=torch.int64)
    going = torch.ones_like(done)
    for k in range(min(n_steps, num_steps)):
        begun = slice(0, num_steps - k)
        returns[begun] += going[begun] * (reward_scale * discount**k) * rollout.rewards[k:]
        lengths[begun] += going[begun]
        going[begun] &= ~done[k:]
    last = torch.arange(num_steps, device=done.device)[:, None] + lengths - 1
    columns = torch.arange(num_envs, device=done.device).expand_as(last)
    discounts = discount**lengths * ~rollout.terminated[last, columns]
    return Transitions(
        observations=rollout.critic_observations[:-1].flatten(0, 1).clone(),
        actions=rollout.actions.flatten(0, 1).clone(),
        returns=returns.flatten(),
        discounts=discounts.flatten(),
        following=following[last, columns].flatten(0, 1),
    )


class ReplayBuffer:
    """The newest transitions, at most as many as it holds.

    It takes ``4 capacity (2 Oc + A + 2)`` bytes, which on the CPU the operating system gives as they are first written
    to.

    Args:
        capacity: How many transitions it holds.
        observation_size: Width Oc of what the critic sees.
        action_size: A.
        device: Where it holds them.

    Attributes:
        size: How many there are.
    """

    def __init__(self, capacity: int, observation_size: int, action_size: int, device: torch.device = CPU) -> None:
        self._device = device
        self.capacity = capacity
        self.size = 0
        self._next = 0
        self._rows = Transitions(
            observations=torch.empty(capacity, observation_size, device=device),
            actions=torch.empty(capacity, action_size, device=device),
            returns=torch.empty(capacity, device=device),
            discounts=torch.empty(capacity, device=device),
            following=torch.empty(capacity, observation_size, device=device),
        )

    def insert(self, transitions: Transitions) -> None:
        """Copy transitions in, in place of the oldest; of more than fit, the last."""
        newest = transitions.rows(slice(-self.capacity, None))
        count = len(newest.returns)
        places = (self._next + torch.arange(count, device=self._device)) % self.capacity
        for name in _FIELDS:
            getattr(self._rows, name)[places] = getattr(newest, name)
        self._next = (self._next + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def sample(self, count: int, generator: torch.Generator) -> Transitions:
        """Draw transitions, each as probable as the other, and independently: one may come twice."""
        return self._rows.rows(torch.randint(self.size, (count,), generator=generator).to(self._device))

    def content(self) -> Transitions:
        """Return copies of all transitions, the oldest first."""
        places = self._next - self.size + torch.arange(self.size, device=self._device)
        return self._rows.rows(places % self.capacity)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all transitions; `load_state` gives the same draws."""
        return {name: array_of(getattr(self._rows, name)[: self.size]) for name in _FIELDS} | {
            "next": torch.tensor(self._next).numpy()
        }

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `state` returned."""
        self.size = len(arrays["returns"])
        self._next = int(arrays["next"])
        for name in _FIELDS:
            getattr(self._rows, name)[: self.size].copy_(torch.tensor(arrays[name]))

    def clear(self) -> None:
        """Forget everything."""
        self.size = self._next = 0
