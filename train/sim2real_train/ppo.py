"""Proximal policy optimisation with a clipped objective and a Gaussian policy.

Source: Schulman et al., "Proximal policy optimization algorithms" (2017), eq. 7 and 9; the learning rate that follows
the KL divergence: Rudin et al., "Learning to walk in minutes" (2021), here once per iteration, because the estimate of
one small minibatch is too noisy to steer by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from sim2real.errors import InputError
from sim2real_train.algorithm import Algorithm, Average
from sim2real_train.behaviour import GaussianBehaviour
from sim2real_train.device import array_of, set_apart
from sim2real_train.flat import FlatParameters
from sim2real_train.gae import gae, vtrace
from sim2real_train.limits import Coefficient, Count, Discount, Positive, Share, Small, Steps
from sim2real_train.models import ActorCritic, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.ppo_loss import gaussian_log_prob, gradient_for
from sim2real_train.reflection import Reflections
from sim2real_train.rollout import Rollout, Samples
from sim2real_train.value_normalizer import ValueNormalizer

__all__ = ["PpoConfig", "PpoLearner", "adapt_learning_rate"]


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="algo", tag="ppo"):
    """How a rollout is learned from."""

    num_steps: Steps = 32
    """Control steps per environment and iteration, T."""
    epochs: Count = 5
    """Passes over each rollout."""
    minibatches: Count = 4
    """Gradient steps per pass."""
    discount: Discount = 0.98
    """γ: worth of a reward one control step later, as a share of the same reward now."""
    gae_lambda: Share = 0.95
    """λ: 0 believes the critic's values, 1 the rewards that followed."""
    clip: Positive = 0.2
    """ε: how far the probability of an action may move before the objective is flat."""
    weight_limit: Positive = 2.0
    """How many times as likely as under the older weights that acted an action may be now; a sample beyond does not
    count."""
    advantage: Literal["gae", "vtrace"] = "gae"
    """How advantages and value targets are estimated; vtrace corrects for the policy that acted where it is older."""
    vtrace_limit: Positive = 1.0
    """ρ̄ and c̄ of vtrace: weights above it do not count."""
    value_clip: Positive | None = None
    """How far a value may move before its loss is flat; of normalised values if they are; None: as far as it likes."""
    normalize_values: bool = False
    """Whether the critic learns values in units of the standard deviation of all targets so far, less their mean."""
    value_coefficient: Coefficient = 1.0
    """Weight of the value's loss."""
    entropy_coefficient: Share = 0.01
    """Weight of the policy's entropy."""
    symmetry: Literal["none", "augment", "loss"] = "none"
    """What is made of the task's mirror, if it has one: augment learns from the images of all samples too, loss adds
    the square distance between what the actor does in the mirror and the image of what it does."""
    symmetry_coefficient: Coefficient = 1.0
    """Weight of that distance."""
    max_grad_norm: Positive = 1.0
    """Length that gradients are cut to."""
    learning_rate: Small = 1e-3
    """Step size of the optimiser in the first iteration; later ones follow `desired_kl`."""
    learning_rate_bounds: tuple[Small, Small] = (1e-5, 2e-3)
    """Least and largest of the later ones."""
    desired_kl: Small = 0.01
    """KL divergence of one iteration that the learning rate is steered to, and twice which ends it."""

    def check(self, model: ModelConfig) -> None:
        """Check what no field says alone.

        Raises:
            InputError: The bounds of the learning rate are in the wrong order, or the critic is to have a memory and
                the actor none.
        """
        low, high = self.learning_rate_bounds
        if not low <= high:
            raise InputError(f"algorithm.learning_rate_bounds: expected low <= high, got {self.learning_rate_bounds}")
        if model.recurrent_critic and model.recurrent == "none":
            raise InputError(
                "model.recurrent_critic: the critic's memory is of the actor's kind; choose model.recurrent gru or lstm"
            )


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
        mirror: Images of observations and actions, if symmetry is asked for.
        device: Where it learns, apart from what acts; None: on the CPU, with the very weights that act.

    Attributes:
        learning_rate: Of the next update.
        samples: What the next update learns from.
        values: How the critic's outputs become values.
    """

    def __init__(
        self,
        model: ActorCritic,
        config: PpoConfig,
        average: Average,
        *,
        observation_size: int,
        seed: int,
        mirror: Reflections | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(model, observation_size, seed, device)
        acting = set_apart(model, device)
        # First of all: parameters move.
        self._flat = FlatParameters(model, epsilon=1e-5, in_torch=self.is_apart)
        self.actor_critic = model
        self.behaviour = GaussianBehaviour(acting.actor, acting.log_std)
        self.config = config
        self.learning_rate = config.learning_rate
        self.samples: Samples | None = None
        # By source of the rollouts.
        self._critic_states: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
        self._average = average
        self.values = ValueNormalizer(model.critic)
        self._mirror = mirror = mirror and mirror.to(self.device)
        action_mirror = mirror.action if mirror and config.symmetry == "loss" else None
        self._gradient = gradient_for(model, self._flat, config, action_mirror, in_torch=self.is_apart)

    def set_moments(self, moments: Moments) -> None:
        """Normalise observations by `moments` from now on."""
        self.actor_critic.set_moments(moments)

    @torch.no_grad()
    def score(self, rollouts: Sequence[Rollout]) -> Moments:
        """Compute advantages and value targets; return the moments of both."""
        samples = self.samples = Samples.joined([self._scored(rollout.to(self.device)) for rollout in rollouts])
        return Moments.of(torch.stack((samples.advantages, samples.targets), dim=-1).cpu().numpy())

    def _scored(self, rollout: Rollout) -> Samples:
        config = self.config
        critic_state = self._critic_state(rollout)
        values, states = self.actor_critic.critic.unroll_states(
            rollout.critic_observations, critic_state, rollout.episode_start
        )
        steps, env_ids, seen = rollout.finals()
        final_values = self.actor_critic.value(seen, *(state[steps, env_ids] for state in states))
        self._critic_states[rollout.source] = tuple(state[-2] for state in states)
        values = self.values.restored(values)
        next_values = values[1:].clone()
        next_values[steps, env_ids] = self.values.restored(final_values)
        means, log_probs, ratios = self._proximal(rollout)
        # Scaled by 1 − γ, a return is an average of rewards: of their order of magnitude, whatever the horizon.
        rewards = rollout.rewards * (1.0 - config.discount)
        seen_values = (rewards, values[:-1], next_values, rollout.terminated, rollout.truncated)
        horizon = {"discount": config.discount, "gae_lambda": config.gae_lambda}
        if config.advantage == "vtrace":
            advantages, targets = vtrace(*seen_values, ratios, **horizon, limit=config.vtrace_limit)
        else:
            advantages, targets = gae(*seen_values, **horizon)
        return Samples(
            critic_observations=rollout.critic_observations[:-1],
            observation_size=self.actor_critic.actor.observation_size,
            actions=rollout.actions,
            means=means,
            log_probs=log_probs,
            advantages=advantages,
            targets=targets,
            values=values[:-1],
            weights=ratios * (ratios <= config.weight_limit),
            episode_start=rollout.episode_start[:-1],
            state=rollout.state,
            critic_state=critic_state,
            mirrored=log_probs.new_empty(*log_probs.shape, 0),
        )

    def _seen_by_actor(self, rollout: Rollout) -> torch.Tensor:
        """Return what the actor reads, shape [T, B, ...]: the observation, or all if it is privileged."""
        return rollout.critic_observations[:-1, :, : self.actor_critic.actor.observation_size]

    def _critic_state(self, rollout: Rollout) -> tuple[torch.Tensor, ...]:
        """Return the critic's state before a rollout: after the one before it of the same environments, if any."""
        nothing = self.actor_critic.critic_state(rollout.actions.shape[1])
        return self._critic_states.get(rollout.source, nothing)

    def _proximal(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the proximal policy's means and log-probabilities, and its ratios to the policy that acted.

        Where the newest weights acted, they are the proximal policy. Older ones are corrected for: decoupled PPO,
        Hilton et al., "Batch size-invariance for policy optimization" (2022), eq. 5.
        """
        behaviour = gaussian_log_prob(rollout.actions, rollout.means, rollout.log_std)
        if rollout.version == self.version:
            return rollout.means, behaviour, torch.ones_like(behaviour)
        log_std = self._log_std()
        means = self.actor_critic.actor.unroll(self._seen_by_actor(rollout), rollout.state, rollout.episode_start[:-1])
        proximal = gaussian_log_prob(rollout.actions, means, log_std)
        # w = π_proximal / π_behaviour
        return means, proximal, torch.exp(proximal - behaviour)

    def update(self, advantages: Moments) -> dict[str, float]:
        """Learn from the samples, advantages normalised by the moments of all replicas', which `score` returned.

        Ends early where the policy has moved twice as far as desired: one iteration that goes too far can undo what
        many have learned. The learning rate follows how far it moved.
        """
        assert self.samples is not None
        config = self.config
        samples = self._reflected(self._normalized(self.samples, advantages))
        proximal_log_std = self._log_std().clone()
        taken: list[tuple[float, ...]] = []
        kl = 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # of a policy that diverges, which its figures show
            for batch in self._minibatches(samples):
                figures = self._gradient(batch, proximal_log_std)
                kl = self._averaged(figures.kl)
                if kl > 2.0 * config.desired_kl:
                    break
                norm = self._flat.step(self.learning_rate, config.max_grad_norm)
                taken.append((*figures._replace(kl=kl), norm))
        return self._logged(taken, kl)

    def _normalized(self, samples: Samples, moments: Moments) -> Samples:
        """Return the samples with normalised advantages, and with values and targets as the critic learns them."""
        mean, std = float(moments.mean[0]), float(moments.std[0])
        samples = replace(samples, advantages=(samples.advantages - mean) / (std + 1e-8))
        if not self.config.normalize_values:
            return samples
        self.values.take(moments.last(1))
        return replace(
            samples, values=self.values.normalized(samples.values), targets=self.values.normalized(samples.targets)
        )

    @torch.no_grad()
    def _reflected(self, samples: Samples) -> Samples:
        """Return the samples with what symmetry asks for: their images beside them, or what is seen in the mirror.

        In the mirror, the proximal policy is what it is there, so that all ratios begin at 1. What acted there is the
        mirrored policy: images are weighted by how much more or less probable the proximal one makes them, as with
        older weights (`_proximal`). Without that, once the noise is small, images that it would never act like pull it
        to and fro, and it forgets how to walk.

        Source: Mittal et al., "Symmetry considerations for learning task symmetric robot policies" (2024).
        """
        if self._mirror is None or self.config.symmetry == "none":
            return samples
        seen = self._mirror.critic_observation(samples.critic_observations)
        observations = seen[..., : samples.observation_size]
        if self.config.symmetry == "loss":
            return replace(samples, mirrored=observations)
        actions = self._mirror.action(samples.actions)
        means = self.actor_critic.actor.unroll(observations, (), samples.episode_start)
        log_probs = gaussian_log_prob(actions, means, self._log_std())
        weights = samples.weights * torch.exp(log_probs - samples.log_probs)
        image = replace(
            samples,
            critic_observations=seen,
            actions=actions,
            means=means,
            log_probs=log_probs,
            weights=weights * (weights <= self.config.weight_limit),
            values=self.actor_critic.critic.unroll(seen, (), samples.episode_start),
        )
        return Samples.joined([samples, image])

    def _log_std(self) -> torch.Tensor:
        """Return the logarithm of the deviation that is learned, shape [A]; live."""
        return self.actor_critic.log_std.detach()

    def _minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Yield the minibatches of every pass."""
        config = self.config
        return self._gradient.prepared(samples).minibatches(config.minibatches, self.generator, passes=config.epochs)

    def _averaged(self, kl: float) -> float:
        """Make gradient and KL divergence the means over all replicas, who thus decide alike; return the latter."""
        self._flat.extra[0] = kl
        self._average(self._flat.buffer)
        return float(self._flat.extra[0])

    def _logged(self, taken: Sequence[tuple[float, ...]], kl: float) -> dict[str, float]:
        """Return the means of the last pass's minibatches, and set the next learning rate.

        Args:
            taken: `Figures` and the gradient's norm of each minibatch.
            kl: Divergence at the last minibatch, whether it was taken or ended the update.
        """
        names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "symmetry_loss", "grad_norm")
        means = np.array(taken[-self.config.minibatches :]).mean(axis=0).tolist()
        figures: dict[str, float] = dict(zip(names, means, strict=True))
        if self.config.symmetry != "loss":
            del figures["symmetry_loss"]
        # Of what was taken, the first minibatch alone has 0: after one step that went too far, the rate would rise.
        figures["kl"] = max(figures["kl"], kl) if kl > 2.0 * self.config.desired_kl else figures["kl"]
        figures["action_std"] = float(self._log_std().exp().mean())
        figures["minibatches"] = float(len(taken))
        figures["learning_rate"] = self.learning_rate
        self.learning_rate = adapt_learning_rate(self.learning_rate, figures["kl"], self.config)
        return figures

    def replica_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what this replica's next updates depend on and no other's: draws, and the critic's states."""
        arrays = super().replica_state()
        for (rank, incarnation), state in self._critic_states.items():
            for index, tensor in enumerate(state):
                arrays[f"critic/{rank}/{incarnation}/{index}"] = array_of(tensor)
        return arrays

    def load_replica_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `replica_state` returned."""
        super().load_replica_state(arrays)
        self._critic_states.clear()
        for name in sorted(name for name in arrays if name.startswith("critic/")):
            _, rank, incarnation, _ = name.split("/")
            source = int(rank), int(incarnation)
            before = self._critic_states.get(source, ())
            self._critic_states[source] = (*before, torch.tensor(arrays[name], device=self.device))

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimiser's moments by name of parameter and of moment, the values' moments, the learning rate."""
        return self._flat.state() | self.values.state() | {"learning_rate": np.array(self.learning_rate)}

    def load_optimizer_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `optimizer_state` returned."""
        self.learning_rate = float(arrays["learning_rate"])
        self._flat.load_state(arrays)
        self.values.load_state(arrays)
