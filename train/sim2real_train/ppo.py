"""Proximal policy optimisation with a clipped objective and a Gaussian policy.

Source: Schulman et al., "Proximal policy optimization algorithms" (2017), eq. 7 and 9; the learning rate that follows
the KL divergence: Rudin et al., "Learning to walk in minutes" (2021), here once per iteration, because the estimate of
one small minibatch is too noisy to steer by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt
import torch

from sim2real_train.models import ActorCritic
from sim2real_train.rollout import Batch, Rollout

__all__ = [
    "Learner",
    "Loss",
    "PpoConfig",
    "Update",
    "adapt_learning_rate",
    "gaussian_kl",
    "gaussian_log_prob",
    "ppo_loss",
]


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a rollout is learned from."""

    num_steps: int = 32
    """Control steps per environment and iteration, T."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int = 4
    """Gradient steps per pass."""
    discount: float = 0.98
    """γ."""
    gae_lambda: float = 0.95
    """λ."""
    clip: float = 0.2
    """ε: how far the probability of an action may move before the objective is flat."""
    value_coefficient: float = 1.0
    entropy_coefficient: float = 0.01
    max_grad_norm: float = 1.0
    learning_rate: float = 1e-3
    """Of the first iteration."""
    learning_rate_bounds: tuple[float, float] = (1e-5, 2e-3)
    desired_kl: float = 0.01
    """KL divergence of one iteration that the learning rate is steered to, and twice which ends it."""


class Loss(NamedTuple):
    """The parts of the loss of one minibatch; scalars."""

    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor
    """KL divergence of the new policy from the one that acted; carries no gradient."""
    clipped: torch.Tensor
    """Share of samples whose objective is flat; carries no gradient."""


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What one iteration's learning was like: means over its last pass."""

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    """Of the new policy from the one that acted; where it went too far, the divergence that ended the iteration."""
    clip_fraction: float
    grad_norm: float
    action_std: float
    """Mean standard deviation of the exploration noise after the update."""
    minibatches: int
    """Gradient steps that were taken, before the policy had moved far enough or the passes were over."""


def gaussian_log_prob(actions: torch.Tensor, means: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return log N(actions; means, std²) summed over the action, shape [...] from [..., A]."""
    # log p = Σ −½ ((a − µ) / σ)² − log σ − ½ log 2π
    scaled = (actions - means) * torch.exp(-log_std)
    return (-0.5 * scaled.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def gaussian_kl(
    old_means: torch.Tensor, old_log_std: torch.Tensor, means: torch.Tensor, log_std: torch.Tensor
) -> torch.Tensor:
    """Return KL(old ‖ new) of diagonal Gaussians, shape [...] from [..., A]."""
    # KL = Σ log(σ / σ₀) + (σ₀² + (µ₀ − µ)²) / 2σ² − ½
    spread = torch.exp(2.0 * old_log_std) + (old_means - means).square()
    return (log_std - old_log_std + 0.5 * spread * torch.exp(-2.0 * log_std) - 0.5).sum(-1)


def ppo_loss(model: ActorCritic, batch: Batch, behaviour_log_std: torch.Tensor, config: PpoConfig) -> Loss:
    """Return the loss of a minibatch whose advantages are already normalised."""
    means = model.actor.unroll(batch.observations, batch.state, batch.episode_start)
    # ratio = π(a|s) / π_behaviour(a|s)
    ratio = torch.exp(gaussian_log_prob(batch.actions, means, model.log_std) - batch.behaviour_log_probs)
    # L_policy = −E[min(ratio A, clip(ratio, 1 ± ε) A)]
    bounded = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy = -torch.minimum(ratio * batch.advantages, bounded * batch.advantages).mean()
    # L_value = ½ E[(V − target)²]
    value = 0.5 * (model.value(batch.critic_observations) - batch.targets).square().mean()
    # H = Σ log σ + ½ log 2πe
    entropy = (model.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()
    total = policy + config.value_coefficient * value - config.entropy_coefficient * entropy
    with torch.no_grad():
        kl = gaussian_kl(batch.behaviour_means, behaviour_log_std, means, model.log_std).mean()
        clipped = ((ratio - 1.0).abs() > config.clip).float().mean()
    return Loss(total, policy, value, entropy, kl, clipped)


def adapt_learning_rate(learning_rate: float, kl: float, config: PpoConfig) -> float:
    """Return the next iteration's learning rate: lower after a divergence twice the desired one, higher below half."""
    low, high = config.learning_rate_bounds
    if kl > 2.0 * config.desired_kl:
        return max(learning_rate / 1.5, low)
    if kl < 0.5 * config.desired_kl:
        return min(learning_rate * 1.5, high)
    return learning_rate


class Learner:
    """Steps the model's parameters along the gradient that `average` makes equal on all workers.

    Args:
        model: What is trained, in place.
        config: How.
        average: Replaces a flat vector by its mean over all workers, in place.
    """

    def __init__(self, model: ActorCritic, config: PpoConfig, average: Callable[[torch.Tensor], None]) -> None:
        self.model = model
        self.config = config
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        self._average = average

    def learn(self, rollout: Rollout, learning_rate: float, generator: torch.Generator) -> Update:
        """Learn from `rollout`, whose advantages are already normalised.

        Ends early where the policy has moved twice as far as desired: one iteration that goes too far can undo what
        many have learned.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        behaviour_log_std = self.model.log_std.detach().clone()
        taken: list[list[torch.Tensor]] = []
        too_far: float | None = None
        for batch in self._passes(rollout, generator):
            loss = ppo_loss(self.model, batch, behaviour_log_std, self.config)
            gradient, kl = self._averaged_gradient(loss)
            if float(kl) > 2.0 * self.config.desired_kl:
                too_far = float(kl)
                break
            grad_norm = self._step(gradient)
            taken.append([loss.policy, loss.value, loss.entropy, kl, loss.clipped, grad_norm])
        last = taken[-self.config.minibatches :]
        means = [float(torch.stack(column).detach().mean()) for column in zip(*last, strict=True)]
        return Update(
            policy_loss=means[0],
            value_loss=means[1],
            entropy=means[2],
            # Of what was taken, the first minibatch alone has 0: after one step that went too far, the rate would rise.
            kl=means[3] if too_far is None else too_far,
            clip_fraction=means[4],
            grad_norm=means[5],
            action_std=float(self.model.log_std.detach().exp().mean()),
            minibatches=len(taken),
        )

    def _passes(self, rollout: Rollout, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the minibatches of every pass."""
        for _ in range(self.config.epochs):
            yield from rollout.minibatches(self.config.minibatches, generator)

    def _averaged_gradient(self, loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient and the KL divergence, both as means over all workers, who thus decide alike."""
        gradients = torch.autograd.grad(loss.total, list(self.model.parameters()))
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.kl.reshape(1)])
        self._average(flat)
        return flat[:-1], flat[-1]

    def _step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Take one optimiser step along a flat gradient; return its norm before it was clipped."""
        norm = gradient.square().sum().sqrt()
        clipped = gradient * torch.clamp(self.config.max_grad_norm / (norm + 1e-6), max=1.0)
        parameters = list(self.model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, torch.split(clipped, sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimizer.step()
        return norm

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimiser's state, by name of parameter and of moment."""
        return {
            f"{name}/{key}": tensor.numpy().copy()
            for name, parameter in self.model.named_parameters()
            for key, tensor in self.optimizer.state[parameter].items()
        }

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `state` returned."""
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                key: torch.tensor(arrays[f"{name}/{key}"]) for key in ("step", "exp_avg", "exp_avg_sq")
            }
