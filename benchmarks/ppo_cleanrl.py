"""PPO over EnvPool in the manner of CleanRL's `ppo_continuous_action.py`: one script of plain PyTorch, nothing fused.

What that script does for each step and each minibatch is done here, by the same kind of operations: normalised and
clipped observations and rewards, `Normal` distributions, advantages normalised per minibatch, both losses clipped,
figures of the update read out. Left out, in its favour, are its TensorBoard and its prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ppo_envpool import make_cheetahs
from ppo_settings import (
    CLIP,
    DISCOUNT,
    EPOCHS,
    GAE_LAMBDA,
    HIDDEN,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    MINIBATCHES,
    NUM_ENVS,
    NUM_STEPS,
    SAMPLES,
    VALUE_WEIGHT,
    Learn,
)
from torch import nn
from torch.distributions import Normal

__all__ = ["trainer"]

Array = npt.NDArray[np.float64]


@contextlib.contextmanager
def trainer() -> Generator[Learn]:
    """Give what learns for so many iterations."""
    torch.manual_seed(0)
    run = Run(NormalizedCheetahs())

    def learn(iterations: int) -> None:
        for _ in range(iterations):
            run.collect()
            run.update(*run.score())

    yield learn


class RunningMoments:
    """Mean and variance of all rows seen, as Gymnasium's wrappers keep them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4

    def update(self, rows: Array) -> None:
        """Take in `rows`, shape (N, ...)."""
        mean, var, count = rows.mean(axis=0), rows.var(axis=0), len(rows)
        delta, total = mean - self.mean, self.count + count
        squares = self.var * self.count + var * count + np.square(delta) * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.var = squares / total
        self.count = total


class NormalizedCheetahs:
    """EnvPool's environments behind what Gymnasium's wrappers do for a vector of them."""

    def __init__(self) -> None:
        self.envs = make_cheetahs()
        self.observation_size = int(self.envs.observation_space.shape[0])
        self.action_size = int(self.envs.action_space.shape[0])
        self.observations = RunningMoments((self.observation_size,))
        self.returns = RunningMoments(())
        self.discounted = np.zeros(NUM_ENVS)
        self.episode_returns = np.zeros(NUM_ENVS)

    def reset(self) -> Array:
        """Begin anew; return the observations."""
        return self._normalized(self.envs.reset()[0])

    def step(self, action: npt.NDArray[np.float32]) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        """Return observations and rewards, both normalised and clipped, and where episodes ended."""
        clipped = np.clip(action, -1.0, 1.0).astype(self.envs.action_space.dtype)
        observation, reward, terminated, truncated, _ = self.envs.step(clipped)
        done = np.logical_or(terminated, truncated)
        self.episode_returns = (self.episode_returns + reward) * (1 - done)
        self.discounted = self.discounted * DISCOUNT * (1 - terminated) + reward
        self.returns.update(self.discounted)
        reward = np.clip(reward / np.sqrt(self.returns.var + 1e-8), -10, 10)
        return self._normalized(observation), reward, done

    def _normalized(self, observation: Array) -> Array:
        self.observations.update(observation)
        scaled = (observation - self.observations.mean) / np.sqrt(self.observations.var + 1e-8)
        return np.clip(scaled, -10, 10)


def layer(inputs: int, outputs: int, std: float = 2.0**0.5) -> nn.Linear:
    """A linear layer of orthogonal weights."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.constant_(linear.bias, 0.0)
    return linear


class Agent(nn.Module):
    """Actor and critic."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        first, second = HIDDEN
        self.critic = nn.Sequential(
            layer(observation_size, first), nn.Tanh(), layer(first, second), nn.Tanh(), layer(second, 1, std=1.0)
        )
        self.actor_mean = nn.Sequential(
            layer(observation_size, first),
            nn.Tanh(),
            layer(first, second),
            nn.Tanh(),
            layer(second, action_size, std=0.01),
        )
        self.actor_log_std = nn.Parameter(torch.zeros(1, action_size))

    def act(self, observation: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Return actions (drawn, unless given), their log-probabilities, entropies and values."""
        mean = self.actor_mean(observation)
        std = torch.exp(self.actor_log_std.expand_as(mean))
        distribution: Any = Normal(mean, std)
        taken: torch.Tensor = distribution.sample() if action is None else action
        return taken, distribution.log_prob(taken).sum(1), distribution.entropy().sum(1), self.critic(observation)


class Run:
    """Storage of one iteration, and the three things that an iteration does."""

    def __init__(self, envs: NormalizedCheetahs) -> None:
        self.envs = envs
        self.agent = Agent(envs.observation_size, envs.action_size)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
        self.obs = torch.zeros(NUM_STEPS, NUM_ENVS, envs.observation_size)
        self.actions = torch.zeros(NUM_STEPS, NUM_ENVS, envs.action_size)
        self.log_probs = torch.zeros(NUM_STEPS, NUM_ENVS)
        self.rewards = torch.zeros(NUM_STEPS, NUM_ENVS)
        self.dones = torch.zeros(NUM_STEPS, NUM_ENVS)
        self.values = torch.zeros(NUM_STEPS, NUM_ENVS)
        self.next_obs = torch.Tensor(envs.reset())
        self.next_done = torch.zeros(NUM_ENVS)
        self.rng = np.random.default_rng(0)

    def collect(self) -> None:
        """Act."""
        for step in range(NUM_STEPS):
            self.obs[step] = self.next_obs
            self.dones[step] = self.next_done
            with torch.no_grad():
                action, log_prob, _, value = self.agent.act(self.next_obs)
                self.values[step] = value.flatten()
            self.actions[step] = action
            self.log_probs[step] = log_prob
            next_obs, reward, done = self.envs.step(action.cpu().numpy())
            self.rewards[step] = torch.tensor(reward).view(-1)
            self.next_obs, self.next_done = torch.Tensor(next_obs), torch.Tensor(done)

    @torch.no_grad()
    def score(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return advantages and returns."""
        next_value = self.agent.critic(self.next_obs).reshape(1, -1)
        advantages = torch.zeros_like(self.rewards)
        last: torch.Tensor | float = 0.0
        for step in reversed(range(NUM_STEPS)):
            if step == NUM_STEPS - 1:
                goes_on = 1.0 - self.next_done
                following = next_value
            else:
                goes_on = 1.0 - self.dones[step + 1]
                following = self.values[step + 1]
            delta = self.rewards[step] + DISCOUNT * following * goes_on - self.values[step]
            advantages[step] = last = delta + DISCOUNT * GAE_LAMBDA * goes_on * last
        return advantages, advantages + self.values

    def update(self, advantages: torch.Tensor, returns: torch.Tensor) -> dict[str, float]:
        """Learn; return the figures that one would log."""
        obs = self.obs.reshape(SAMPLES, -1)
        actions = self.actions.reshape(SAMPLES, -1)
        flat = [tensor.reshape(-1) for tensor in (self.log_probs, advantages, returns, self.values)]
        order = np.arange(SAMPLES)
        clip_fractions: list[float] = []
        figures: dict[str, torch.Tensor] = {}
        size = SAMPLES // MINIBATCHES
        for _ in range(EPOCHS):
            self.rng.shuffle(order)
            for start in range(0, SAMPLES, size):
                rows = order[start : start + size]
                loss, figures, clip_fraction = self.loss(obs[rows], actions[rows], *(tensor[rows] for tensor in flat))
                clip_fractions.append(clip_fraction)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_GRAD_NORM)
                self.optimizer.step()
        return {name: value.item() for name, value in figures.items()} | {"clipped": float(np.mean(clip_fractions))}

    def loss(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
        old_values: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], float]:
        """Return the loss of a minibatch, its parts, and the share of samples whose objective is flat."""
        _, log_probs, entropy, values = self.agent.act(obs, actions)
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        with torch.no_grad():
            old_kl = (-log_ratio).mean()
            kl = ((ratio - 1) - log_ratio).mean()
            clip_fraction = ((ratio - 1.0).abs() > CLIP).float().mean().item()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
        values = values.view(-1)
        bounded = old_values + torch.clamp(values - old_values, -CLIP, CLIP)
        value = 0.5 * torch.max((values - returns) ** 2, (bounded - returns) ** 2).mean()
        entropy_loss = entropy.mean()
        total = policy - 0.0 * entropy_loss + value * (2.0 * VALUE_WEIGHT)
        figures = {"policy": policy, "value": value, "entropy": entropy_loss, "kl": kl, "old_kl": old_kl}
        return total, figures, clip_fraction
