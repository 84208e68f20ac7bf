"""Proximal policy optimisation with a clipped objective and a Gaussian policy.

Source: Schulman et al., "Proximal policy optimization algorithms" (2017), eq. 7 and 9; the learning rate that follows
the KL divergence: Rudin et al., "Learning to walk in minutes" (2021), here once per iteration, because the estimate of
one small minibatch is too noisy to steer by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from sim2real_train.algorithm import Algorithm, Average
from sim2real_train.behaviour import GaussianBehaviour
from sim2real_train.gae import gae
from sim2real_train.models import ActorCritic
from sim2real_train.moments import Moments
from sim2real_train.rollout import Rollout, Samples

__all__ = [
    "Loss",
    "PpoConfig",
    "PpoLearner",
    "adapt_learning_rate",
    "gaussian_kl",
    "gaussian_log_prob",
    "ppo_loss",
]


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="algo", tag="ppo"):
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
    weight_limit: float = 2.0
    """Samples whose weight (see `Samples.weights`) is more than this do not count."""
    value_coefficient: float = 1.0
    """Weight of the value's loss."""
    entropy_coefficient: float = 0.01
    """Weight of the policy's entropy."""
    max_grad_norm: float = 1.0
    """Length that gradients are cut to."""
    learning_rate: float = 1e-3
    """Of the first iteration."""
    learning_rate_bounds: tuple[float, float] = (1e-5, 2e-3)
    """Between which it follows the policy's change."""
    desired_kl: float = 0.01
    """KL divergence of one iteration that the learning rate is steered to, and twice which ends it."""


class Loss(NamedTuple):
    """The parts of the loss of one minibatch; scalars."""

    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor
    """KL divergence of the new policy from the proximal one; carries no gradient."""
    clipped: torch.Tensor
    """Share of samples whose objective is flat; carries no gradient."""


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


def ppo_loss(model: ActorCritic, batch: Samples, proximal_log_std: torch.Tensor, config: PpoConfig) -> Loss:
    """Return the loss of a minibatch whose advantages are already normalised."""
    means = model.actor.unroll(batch.observations, batch.state, batch.episode_start)
    # r = π(a|s) / π_proximal(a|s)
    ratio = torch.exp(gaussian_log_prob(batch.actions, means, model.log_std) - batch.log_probs)
    # L_policy = −E[w min(r A, clip(r, 1 ± ε) A)]
    bounded = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy = -(batch.weights * torch.minimum(ratio * batch.advantages, bounded * batch.advantages)).mean()
    # L_value = ½ E[(V − target)²]
    values = model.critic.unroll(batch.critic_observations, batch.critic_state, batch.episode_start)
    value = 0.5 * (values - batch.targets).square().mean()
    # H = Σ log σ + ½ log 2πe
    entropy = (model.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()
    total = policy + config.value_coefficient * value - config.entropy_coefficient * entropy
    with torch.no_grad():
        kl = gaussian_kl(batch.means, proximal_log_std, means, model.log_std).mean()
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


class PpoLearner(Algorithm):
    """Steps the model's parameters along the gradient that `average` makes equal on all replicas.

    Args:
        model: What is trained, in place.
        config: How.
        average: Replaces a flat vector by its mean over all replicas, in place.
        observation_size: Width of what the critic sees.
        seed: Seeds the order of the samples.

    Attributes:
        learning_rate: Of the next update.
        samples: What the next update learns from.
    """

    def __init__(
        self, model: ActorCritic, config: PpoConfig, average: Average, *, observation_size: int, seed: int
    ) -> None:
        super().__init__(model, observation_size, seed)
        self.actor_critic = model
        self.behaviour = GaussianBehaviour(model.actor, model.log_std)
        self.config = config
        self.learning_rate = config.learning_rate
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        self.samples: Samples | None = None
        # By source of the rollouts.
        self._critic_states: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
        self._average = average

    def set_moments(self, moments: Moments) -> None:
        """Normalise observations by `moments` from now on."""
        self.actor_critic.set_moments(moments)

    @torch.no_grad()
    def score(self, rollouts: Sequence[Rollout]) -> Moments:
        """Compute advantages and value targets; return the moments of the advantages."""
        self.samples = Samples.joined([self._scored(rollout) for rollout in rollouts])
        return Moments.of(self.samples.advantages[..., None].numpy())

    def _scored(self, rollout: Rollout) -> Samples:
        config = self.config
        critic_state = self._critic_state(rollout)
        values, states = self.actor_critic.critic.unroll_states(
            rollout.critic_observations, critic_state, rollout.episode_start
        )
        next_values = values[1:].clone()
        steps, env_ids, seen = rollout.finals()
        next_values[steps, env_ids] = self.actor_critic.value(seen, *(state[steps, env_ids] for state in states))
        self._critic_states[rollout.source] = tuple(state[-2] for state in states)
        # Scaled by 1 − γ, a return is an average of rewards: of their order of magnitude, whatever the horizon.
        advantages, targets = gae(
            rollout.rewards * (1.0 - config.discount),
            values[:-1],
            next_values,
            rollout.terminated,
            rollout.truncated,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        means, log_probs, weights = self._proximal(rollout)
        return Samples(
            observations=self._seen_by_actor(rollout),
            critic_observations=rollout.critic_observations[:-1],
            actions=rollout.actions,
            means=means,
            log_probs=log_probs,
            advantages=advantages,
            targets=targets,
            values=values[:-1],
            weights=weights,
            episode_start=rollout.episode_start[:-1],
            state=rollout.state,
            critic_state=critic_state,
        )

    def _seen_by_actor(self, rollout: Rollout) -> torch.Tensor:
        """Return what the actor reads, shape [T, B, ...]: the observation, or all if it is privileged."""
        return rollout.critic_observations[:-1, :, : self.actor.observation_size]

    def _critic_state(self, rollout: Rollout) -> tuple[torch.Tensor, ...]:
        """Return the critic's state before a rollout: after the one before it of the same environments, if any."""
        nothing = self.actor_critic.critic_state(rollout.actions.shape[1])
        return self._critic_states.get(rollout.source, nothing)

    def _proximal(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the proximal policy's means and log-probabilities, and the samples' weights.

        Where the newest weights acted, they are the proximal policy. Older ones are corrected for: decoupled PPO,
        Hilton et al., "Batch size-invariance for policy optimization" (2022), eq. 5.
        """
        behaviour = gaussian_log_prob(rollout.actions, rollout.means, rollout.log_std)
        if rollout.version == self.version:
            return rollout.means, behaviour, torch.ones_like(behaviour)
        log_std = self.behaviour.log_std()
        means = self.actor.unroll(self._seen_by_actor(rollout), rollout.state, rollout.episode_start[:-1])
        proximal = gaussian_log_prob(rollout.actions, means, log_std)
        # w = π_proximal / π_behaviour
        weights = torch.exp(proximal - behaviour)
        return means, proximal, weights * (weights <= self.config.weight_limit)

    def update(self, advantages: Moments) -> dict[str, float]:
        """Learn from the samples, advantages normalised by the moments of all replicas'.

        Ends early where the policy has moved twice as far as desired: one iteration that goes too far can undo what
        many have learned. The learning rate follows how far it moved.
        """
        assert self.samples is not None
        mean, std = float(advantages.mean[0]), float(advantages.std[0])
        samples = replace(self.samples, advantages=(self.samples.advantages - mean) / (std + 1e-8))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        proximal_log_std = self.behaviour.log_std().clone()
        taken: list[list[torch.Tensor]] = []
        too_far: float | None = None
        for batch in self._passes(samples):
            loss = ppo_loss(self.actor_critic, batch, proximal_log_std, self.config)
            gradient, kl = self._averaged_gradient(loss)
            if float(kl) > 2.0 * self.config.desired_kl:
                too_far = float(kl)
                break
            grad_norm = self._step(gradient)
            taken.append([loss.policy, loss.value, loss.entropy, kl, loss.clipped, grad_norm])
        names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")
        last = taken[-self.config.minibatches :]
        means = [float(torch.stack(column).detach().mean()) for column in zip(*last, strict=True)]
        figures: dict[str, float] = dict(zip(names, means, strict=True))
        # Of what was taken, the first minibatch alone has 0: after one step that went too far, the rate would rise.
        figures["kl"] = means[3] if too_far is None else too_far
        figures["action_std"] = float(self.behaviour.log_std().exp().mean())
        figures["minibatches"] = float(len(taken))
        figures["learning_rate"] = self.learning_rate
        self.learning_rate = adapt_learning_rate(self.learning_rate, figures["kl"], self.config)
        return figures

    def _passes(self, samples: Samples) -> Iterator[Samples]:
        """Yield the minibatches of every pass."""
        for _ in range(self.config.epochs):
            yield from samples.minibatches(self.config.minibatches, self.generator)

    def _averaged_gradient(self, loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient and the KL divergence, both as means over all replicas, who thus decide alike."""
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

    def replica_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what this replica's next updates depend on and no other's: draws, and the critic's states."""
        arrays = super().replica_state()
        for (rank, incarnation), state in self._critic_states.items():
            for index, tensor in enumerate(state):
                arrays[f"critic/{rank}/{incarnation}/{index}"] = tensor.numpy().copy()
        return arrays

    def load_replica_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `replica_state` returned."""
        super().load_replica_state(arrays)
        self._critic_states.clear()
        for name in sorted(name for name in arrays if name.startswith("critic/")):
            _, rank, incarnation, _ = name.split("/")
            source = int(rank), int(incarnation)
            before = self._critic_states.get(source, ())
            self._critic_states[source] = (*before, torch.tensor(arrays[name]))

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimiser's moments, by name of parameter and of moment, and the learning rate."""
        arrays = {
            f"{name}/{key}": tensor.numpy().copy()
            for name, parameter in self.model.named_parameters()
            for key, tensor in self.optimizer.state[parameter].items()
        }
        return arrays | {"learning_rate": np.array(self.learning_rate)}

    def load_optimizer_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `optimizer_state` returned."""
        self.learning_rate = float(arrays["learning_rate"])
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                key: torch.tensor(arrays[f"{name}/{key}"]) for key in ("step", "exp_avg", "exp_avg_sq")
            }
