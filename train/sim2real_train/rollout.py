"""What T steps of B environments leave behind, and how it is cut into minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

__all__ = ["Batch", "Rollout"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples to learn from. Without memory they are shuffled steps, shape [M, ...]; with it, sequences [T, b, ...]."""

    observations: torch.Tensor
    """Raw observations, shape [..., O]."""
    critic_observations: torch.Tensor
    """What the critic sees, raw, shape [..., Oc]."""
    actions: torch.Tensor
    """Actions that were taken, shape [..., A]."""
    behaviour_means: torch.Tensor
    """Means of the distribution they were drawn from, shape [..., A]."""
    behaviour_log_probs: torch.Tensor
    """Their log-probability under it, shape [...]."""
    advantages: torch.Tensor
    """Shape [...]."""
    targets: torch.Tensor
    """What the value should be, shape [...]."""
    episode_start: torch.Tensor
    """Where the recurrent state is reset before the step, shape [...], bool."""
    state: tuple[torch.Tensor, ...]
    """Recurrent state before the first step, shape [b, H]; empty without memory."""


class Rollout:
    """Storage of one iteration, allocated once. First index: step; second: environment.

    Attributes:
        observations: Raw observations, shape [T + 1, B, O]; the last one is where the next rollout goes on.
        critic_observations: What the critic sees, shape [T + 1, B, Oc]; the observations where it sees nothing else.
        actions: Shape [T, B, A].
        means: Means of the actions' distribution, shape [T, B, A].
        rewards: Shape [T, B].
        terminated: The episode ended by itself in this step, shape [T, B], bool.
        truncated: The episode was cut off after this step, shape [T, B], bool.
        episode_start: The step is the first of its episode, shape [T + 1, B], bool.
        final_observations: For each ended episode its step, environment and what the critic saw last.
    """

    def __init__(
        self, num_steps: int, num_envs: int, observation_size: int, critic_observation_size: int, action_size: int
    ) -> None:
        self.critic_observations = torch.zeros(num_steps + 1, num_envs, critic_observation_size)
        # The critic's observation begins with the policy's.
        self.observations = self.critic_observations[..., :observation_size]
        self.actions = torch.zeros(num_steps, num_envs, action_size)
        self.means = torch.zeros(num_steps, num_envs, action_size)
        self.rewards = torch.zeros(num_steps, num_envs)
        self.terminated = torch.zeros(num_steps, num_envs, dtype=torch.bool)
        self.truncated = torch.zeros(num_steps, num_envs, dtype=torch.bool)
        self.episode_start = torch.zeros(num_steps + 1, num_envs, dtype=torch.bool)
        self.log_probs = torch.zeros(num_steps, num_envs)
        self.advantages = torch.zeros(num_steps, num_envs)
        self.targets = torch.zeros(num_steps, num_envs)
        self.state: tuple[torch.Tensor, ...] = ()
        self.final_observations: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def begin(self, state: tuple[torch.Tensor, ...]) -> None:
        """Start a new rollout where the last one ended, with the recurrent state before its first step."""
        self.critic_observations[0] = self.critic_observations[-1]
        self.episode_start[0] = self.episode_start[-1]
        self.state = state
        self.final_observations.clear()

    def minibatches(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield every sample once, in `count` random minibatches of equal size."""
        if self.state:
            yield from self._sequences(count, generator)
            return
        flat = [tensor.flatten(0, 1) for tensor in self._tensors()]
        order = torch.randperm(len(flat[0]), generator=generator)
        for rows in order.chunk(count):
            yield Batch(*(tensor[rows] for tensor in flat), state=())

    def _sequences(self, count: int, generator: torch.Generator) -> Iterator[Batch]:
        """Whole sequences of some of the environments, so that the state can be carried through them."""
        order = torch.randperm(self.rewards.shape[1], generator=generator)
        for columns in order.chunk(count):
            state = tuple(tensor[columns] for tensor in self.state)
            yield Batch(*(tensor[:, columns] for tensor in self._tensors()), state=state)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return (
            self.observations[:-1],
            self.critic_observations[:-1],
            self.actions,
            self.means,
            self.log_probs,
            self.advantages,
            self.targets,
            self.episode_start[:-1],
        )
