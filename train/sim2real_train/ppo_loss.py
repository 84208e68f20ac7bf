"""The loss of proximal policy optimisation, and its gradient: by autograd, or in closed form for small networks.

Source: Schulman et al., "Proximal policy optimization algorithms" (2017), eq. 7 and 9.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sim2real_train.flat import FlatParameters
from sim2real_train.mlp import Mlp
from sim2real_train.models import ActorCritic
from sim2real_train.reflection import Reflection
from sim2real_train.rollout import Samples

if TYPE_CHECKING:
    from sim2real_train.ppo import PpoConfig

__all__ = ["Figures", "Gradient", "Loss", "gaussian_kl", "gaussian_log_prob", "gradient_for", "ppo_loss"]

_LOG_2_PI = math.log(2.0 * math.pi)


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
    symmetry: torch.Tensor
    """Mean square distance between actions and what the actor does in the mirror; 0 where it is not asked for."""


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


def ppo_loss(
    model: ActorCritic,
    batch: Samples,
    proximal_log_std: torch.Tensor,
    config: PpoConfig,
    mirror: Reflection | None = None,
) -> Loss:
    """Return the loss of a minibatch whose advantages are already normalised.

    Args:
        model: Actor and critic.
        batch: The minibatch.
        proximal_log_std: Of the proximal policy, shape [A].
        config: How it is learned from.
        mirror: Turns actions to their images; None: symmetry is not asked for.
    """
    means = model.actor.unroll(batch.observations, batch.state, batch.episode_start)
    # r = π(a|s) / π_proximal(a|s)
    ratio = torch.exp(gaussian_log_prob(batch.actions, means, model.log_std) - batch.log_probs)
    # L_policy = −E[w min(r A, clip(r, 1 ± ε) A)]
    bounded = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy = -(batch.weights * torch.minimum(ratio * batch.advantages, bounded * batch.advantages)).mean()
    # L_value = ½ E[(V − target)²]
    values = model.critic.unroll(batch.critic_observations, batch.critic_state, batch.episode_start)
    errors = (values - batch.targets).square()
    if config.value_clip is not None:
        # L_value = ½ E[max((V − target)², (V_old + clip(V − V_old, ±c) − target)²)]
        near = batch.values + (values - batch.values).clamp(-config.value_clip, config.value_clip)
        errors = torch.maximum(errors, (near - batch.targets).square())
    value = 0.5 * errors.mean()
    # H = Σ log σ + ½ log 2πe
    entropy = (model.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()
    # L_symmetry = E‖π(mirror s) − mirror π(s)‖²
    symmetry = means.new_zeros(())
    if mirror is not None:
        images = model.actor.unroll(batch.mirrored, batch.state, batch.episode_start)
        symmetry = (images - mirror(means)).square().sum(-1).mean()
    total = (
        policy
        + config.value_coefficient * value
        - config.entropy_coefficient * entropy
        + config.symmetry_coefficient * symmetry
    )
    with torch.no_grad():
        kl = gaussian_kl(batch.means, proximal_log_std, means, model.log_std).mean()
        clipped = ((ratio - 1.0).abs() > config.clip).float().mean()
    return Loss(total, policy, value, entropy, kl, clipped, symmetry)


class Figures(NamedTuple):
    """The parts of the loss of one minibatch, as numbers; see `Loss`."""

    policy: float
    value: float
    entropy: float
    kl: float
    clipped: float
    symmetry: float


class Gradient(Protocol):
    """Sets the gradient of the loss."""

    def prepared(self, samples: Samples) -> Samples:
        """Return all samples of an update with what is the same in all of its passes computed in advance."""
        ...

    def __call__(self, batch: Samples, proximal_log_std: torch.Tensor) -> Figures:
        """Set the gradient to that of a minibatch of prepared samples; return what `ppo_loss` does."""
        ...


def gradient_for(
    model: ActorCritic,
    flat: FlatParameters,
    config: PpoConfig,
    mirror: Reflection | None = None,
    *,
    in_torch: bool = False,
) -> Gradient:
    """Return the faster way to the gradient of `ppo_loss`: in closed form without memory and encoder.

    That is NumPy's, so that with `in_torch` it is autograd for all.
    """
    if model.actor.is_perceptron and model.critic.is_perceptron and not in_torch:
        return _ClosedForm(model, flat, config, mirror)
    return _Autograd(model, flat, config, mirror)


class _Autograd(Gradient):
    """The gradient of `ppo_loss` for any network."""

    def __init__(self, model: ActorCritic, flat: FlatParameters, config: PpoConfig, mirror: Reflection | None) -> None:
        self._model, self._flat, self._config, self._mirror = model, flat, config, mirror

    def prepared(self, samples: Samples) -> Samples:
        """Return the samples as they are."""
        return samples

    def __call__(self, batch: Samples, proximal_log_std: torch.Tensor) -> Figures:
        """Set the gradient to that of a minibatch."""
        loss = ppo_loss(self._model, batch, proximal_log_std, self._config, self._mirror)
        self._flat.differentiate(loss.total)
        return Figures(*torch.stack(loss[1:]).detach().tolist())


class _ClosedForm(Gradient):
    """The same of multilayer perceptrons: the chain rule written out, without a graph."""

    def __init__(self, model: ActorCritic, flat: FlatParameters, config: PpoConfig, mirror: Reflection | None) -> None:
        self._normalizers = (model.critic.normalizer, model.actor.normalizer)
        self._actor = Mlp(model.actor.network, flat)
        self._critic = Mlp(model.critic.network, flat)
        self._log_std: npt.NDArray[Any] = model.log_std.detach().numpy()
        self._log_std_gradient: npt.NDArray[Any] = flat.gradient_of(model.log_std).numpy()
        self._config = config
        self._mirror = mirror

    def prepared(self, samples: Samples) -> Samples:
        """Return the samples with observations that are normalised; actor and critic do it with the same constants."""
        of_critic, of_actor = self._normalizers
        seen = of_critic(samples.critic_observations)
        if self._mirror is None:
            return replace(samples, critic_observations=seen)
        return replace(samples, critic_observations=seen, mirrored=of_actor(samples.mirrored))

    def __call__(self, batch: Samples, proximal_log_std: torch.Tensor) -> Figures:
        """Set the gradient to that of a minibatch of normalised samples."""
        symmetry = 0.0
        if self._mirror is None:
            means = self._actor.forward(batch.observations)
            errors, policy, kl, clipped = self._policy(batch, means, proximal_log_std.numpy())
        else:
            outputs = self._actor.forward(torch.cat((batch.observations, batch.mirrored)))
            means, images = np.split(outputs, 2)
            of_policy, policy, kl, clipped = self._policy(batch, means, proximal_log_std.numpy())
            errors, symmetry = self._symmetry(of_policy, images - self._mirror.of_array(means))
        self._actor.backward(errors)
        value = self._value(batch)
        entropy = float(self._log_std.sum()) + 0.5 * len(self._log_std) * (_LOG_2_PI + 1.0)
        return Figures(policy, value, entropy, kl, clipped, symmetry)

    def _policy(
        self, batch: Samples, means: npt.NDArray[Any], old_log_std: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], float, float, float]:
        """Set the deviation's gradient; return that of the means, the loss, the KL divergence, the share clipped."""
        config, count, log_std = self._config, len(batch.actions), self._log_std
        advantages, weights = batch.advantages.numpy(), batch.weights.numpy()
        inverse_std = np.exp(-log_std)
        # log π = −½ Σ z² − Σ log σ − ½ A log 2π  with  z = (a − µ) / σ
        scaled = (batch.actions.numpy() - means) * inverse_std
        constant = float(log_std.sum()) + 0.5 * len(log_std) * _LOG_2_PI
        ratio = np.exp(-0.5 * np.einsum("ij,ij->i", scaled, scaled) - constant - batch.log_probs.numpy())
        gain, bounded = ratio * advantages, ratio.clip(1.0 - config.clip, 1.0 + config.clip) * advantages
        loss = -float(np.dot(weights, np.minimum(gain, bounded))) / count
        distance = means - batch.means.numpy()
        kl = _mean_kl(np.einsum("ij,ij->j", distance, distance) / count, old_log_std, log_std)
        clipped = np.count_nonzero(np.abs(ratio - 1.0) > config.clip) / count
        # ∂L / ∂log π = −w r A / n where the objective is not flat
        slope = gain * weights
        slope *= gain <= bounded
        slope *= -1.0 / count
        # ∂log π / ∂log σ = z² − 1;  ∂log π / ∂µ = z / σ
        errors = slope[:, None] * scaled
        np.einsum("ij,ij->j", errors, scaled, out=self._log_std_gradient)
        self._log_std_gradient -= slope.sum() + config.entropy_coefficient
        errors *= inverse_std
        return errors, loss, kl, clipped

    def _symmetry(self, of_policy: npt.NDArray[Any], distance: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], float]:
        """Return the gradient of all outputs, [2 M, A], from the means' and from π(mirror s) − mirror π(s), [M, A]."""
        assert self._mirror is not None
        slope = distance * (2.0 * self._config.symmetry_coefficient / len(distance))
        # A mirror is its own transpose.
        errors = np.concatenate((of_policy - self._mirror.of_array(slope), slope))
        return errors, float(np.einsum("ij,ij->", distance, distance)) / len(distance)

    def _value(self, batch: Samples) -> float:
        """Set the critic's gradient; return its loss."""
        config, targets = self._config, batch.targets.numpy()
        values = self._critic.forward(batch.critic_observations)[:, 0]
        errors = values - targets
        slopes = errors * (config.value_coefficient / len(errors))
        if config.value_clip is not None:
            old, limit = batch.values.numpy(), config.value_clip
            moved, distances = values - old, np.abs(errors)
            near = np.abs(old + moved.clip(-limit, limit) - targets)
            # Where the clipped value is the worse one, the objective is flat.
            slopes *= (np.abs(moved) <= limit) | (near <= distances)
            errors = np.maximum(near, distances)
        loss = 0.5 * float(np.dot(errors, errors)) / len(errors)
        self._critic.backward(slopes[:, None])
        return loss


def _mean_kl(square_distance: npt.NDArray[Any], old_log_std: npt.NDArray[Any], log_std: npt.NDArray[Any]) -> float:
    """Return `gaussian_kl` of mean square distances of the means, shape [A]: it is linear in them."""
    spread = np.exp(2.0 * old_log_std) + square_distance
    return float((log_std - old_log_std + 0.5 * spread * np.exp(-2.0 * log_std) - 0.5).sum())
