"""Soft actor-critic in its massively parallel form: large batches, between short rollouts of many environments.

Source: Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), eq. 5, 9 and 18; large batches, n-step
returns, and critics that learn a distribution: Seo et al., "FastTD3" (2025), and "Learning sim-to-real humanoid
locomotion in 15 minutes" (2025); that distribution: Bellemare et al., "A distributional perspective on reinforcement
learning" (2017).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt
import torch
from torch.nn import functional

from sim2real.errors import InputError
from sim2real_train.algorithm import Algorithm, Average
from sim2real_train.behaviour import SquashedBehaviour
from sim2real_train.descent import Descent
from sim2real_train.device import set_apart
from sim2real_train.limits import Count, Discount, Finite, Positive, Small, Steps, Width
from sim2real_train.models import ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.replay_buffer import ReplayBuffer, Transitions, transitions_of
from sim2real_train.rollout import Rollout
from sim2real_train.sac_model import SacModel

__all__ = ["SacConfig", "SacLearner", "project", "squashed_log_prob"]


class SacConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="algo", tag="sac"):
    """How a replay buffer is filled and learned from."""

    num_steps: Steps = 16
    """Control steps per environment and iteration, T."""
    updates: Count = 24
    """Gradient steps of the critics per iteration."""
    actor_every: Count = 2
    """Of how many of them one is also one of the actor and of the temperature."""
    batch_size: Count = 512
    """Transitions per gradient step and replica."""
    n_steps: Count = 8
    """Steps of which the rewards are summed before a critic is asked, at most: a rollout's end cuts them short."""
    discount: Discount = 0.97
    """γ: worth of a reward one control step later, as a share of the same reward now."""
    learning_rate: Small = 1e-3
    """Step size of the optimisers of actor, critics and temperature."""
    max_grad_norm: Positive = 10.0
    """Of actor and critics, each."""
    polyak: Small = 0.02
    """How far the target critics follow the critics in one gradient step."""
    pessimistic: bool = False
    """Whether the lower of the two critics counts; otherwise their mean."""
    atoms: Width = 51
    """Returns that the critics learn the distribution over; 1: they learn the expected return by its squared error."""
    value_range: tuple[Finite, Finite] = (-2.0, 2.0)
    """Smallest and largest of those, with rewards scaled by 1 − γ: about the lowest and the highest reward of a step,
    entropy's worth included. What is beyond cannot be told apart; the figure `q_at_ends` says how much that is."""
    initial_alpha: Positive = 3e-4
    """Temperature at the start: what a nat of entropy is worth."""
    target_entropy: Finite = -1.0
    """Entropy [nat] per element of the action that the temperature is steered to; uniform actions have log 2."""
    buffer_size: Count = 262_144
    """Transitions that each replica's replay buffer holds; the oldest make place."""
    learning_starts: Count = 8192
    """Transitions in it without which nothing is learned, after a resume too unless `checkpoint_buffer`."""
    checkpoint_buffer: bool = False
    """Whether checkpoints hold the replay buffer, which makes resuming exact, and them large. Otherwise a resumed run
    first fills it anew with what the learned policy does."""

    def check(self, model: ModelConfig) -> None:
        """Check what no field says alone.

        Raises:
            InputError: Learning would never start, the returns have no order, or the actor is to have a memory.
        """
        if self.learning_starts > self.buffer_size:
            raise InputError(
                f"algorithm.learning_starts: expected at most algorithm.buffer_size ({self.buffer_size}), got "
                f"{self.learning_starts}"
            )
        low, high = self.value_range
        if self.atoms > 1 and not low < high:
            raise InputError(f"algorithm.value_range: expected low < high, got {self.value_range}")
        if model.recurrent != "none" or model.recurrent_critic:
            raise InputError(
                "model.recurrent: SAC learns from single steps in any order, which gives a memory nothing to learn "
                f"from; expected none, got {model.recurrent}: choose none, or PPO"
            )


def squashed_log_prob(raw: torch.Tensor, means: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return the log-density of the action tanh(raw), raw ~ N(means, exp(log_std)²), shape [...] from [..., A]."""
    # log π = Σ log N(u; µ, σ²) − log(1 − tanh² u),  log(1 − tanh² u) = 2 (log 2 − u − log(1 + e^−2u))
    scaled = (raw - means) * torch.exp(-log_std)
    gaussian = -0.5 * scaled.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    return (gaussian - 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))).sum(-1)


def project(probabilities: torch.Tensor, returns: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Return a distribution over other returns as one over the support; Bellemare et al. (2017), eq. 7.

    Each probability is shared by the two neighbours of its return, so that the mean stays; beyond the ends of the
    support, the end has it all.

    Args:
        probabilities: Shape [..., K].
        returns: What they are of, shape [..., K].
        support: Evenly spaced, ascending, shape [K].
    """
    low, high, last = support[0], support[-1], len(support) - 1
    place = ((returns - low) * (last / (high - low))).clamp(0.0, last)
    below = place.floor().clamp(max=last - 1)
    share = place - below
    index = below.long()
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(-1, index, probabilities * (1.0 - share))
    return projected.scatter_add_(-1, index + 1, probabilities * share)


class Drawn(NamedTuple):
    """Actions of the present policy, through which gradients flow."""

    actions: torch.Tensor
    """Shape [N, A]."""
    log_probs: torch.Tensor
    """Shape [N]."""


class SacLearner(Algorithm):
    """Fills a replay buffer, and learns actor, critics and temperature from batches of it.

    Checkpoints are without the buffer, unless the configuration asks for it.

    Args:
        model: What is trained, in place.
        config: How.
        average: Replaces a flat vector by its mean over all replicas, in place.
        observation_size: Width Oc of what the critics see.
        seed: Seeds batches and noise.
        device: Where it learns and has its buffer, apart from what acts; None: on the CPU, with the weights that act.

    Attributes:
        buffer: What this replica has collected.

    Raises:
        InputError: The buffer cannot hold what learning asks for, or the support of the distribution is empty.
    """

    def __init__(
        self,
        model: SacModel,
        config: SacConfig,
        average: Average,
        *,
        observation_size: int,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(model, observation_size, seed, device)
        acting = set_apart(model, device)
        self.sac_model = model
        self.behaviour = SquashedBehaviour(acting.actor, acting.log_std)
        self._squashed = SquashedBehaviour(model.actor, model.log_std)
        self.config = config
        self.buffer = ReplayBuffer(config.buffer_size, observation_size, model.actor.action_size, self.device)
        self.support = torch.linspace(*config.value_range, config.atoms).to(self.device)
        self._average = average
        rate, norm = config.learning_rate, config.max_grad_norm
        self._critics = Descent(model.critics.named_parameters("critics"), rate, average, max_grad_norm=norm)
        policy = [*model.actor.named_parameters("actor"), *model.log_std.named_parameters("log_std")]
        self._policy = Descent(policy, rate, average, max_grad_norm=norm)
        self._temperature = Descent([("log_alpha", model.log_alpha)], rate, average)

    @property
    def _descents(self) -> tuple[Descent, ...]:
        return self._critics, self._policy, self._temperature

    def set_moments(self, moments: Moments) -> None:
        """Normalise observations by `moments` from now on, those in the buffer too."""
        self.sac_model.set_moments(moments)

    def score(self, rollouts: Sequence[Rollout]) -> Moments:
        """Copy rollouts into the buffer; return the moments of no advantages."""
        config = self.config
        for rollout in rollouts:
            # Scaled by 1 − γ, a return is an average of rewards: of their order of magnitude, whatever the horizon.
            scale = 1.0 - config.discount
            self.buffer.insert(
                transitions_of(
                    rollout.to(self.device), n_steps=config.n_steps, discount=config.discount, reward_scale=scale
                )
            )
        return Moments.none(1)

    def update(self, advantages: Moments) -> dict[str, float]:
        """Take gradient steps with batches of the buffer, once all replicas' have enough; there are no advantages."""
        figures = {"buffer_fill": self.buffer.size / self.buffer.capacity}
        if not self._all_can_learn():
            return figures
        taken: list[dict[str, torch.Tensor]] = []
        for step in range(self.config.updates):
            batch = self.buffer.sample(self.config.batch_size, self.generator)
            of_step = self._learn_critics(batch)
            if step % self.config.actor_every == 0:
                of_step |= self._learn_policy(batch.observations)
            self.sac_model.follow(self.config.polyak)
            taken.append(of_step)
        for name in taken[0]:
            figures[name] = float(torch.stack([each[name] for each in taken if name in each]).mean())
        return figures

    def _all_can_learn(self) -> bool:
        """Whether every replica's buffer has enough; they decide alike, for each waits for the others' gradients."""
        ready = torch.tensor([float(self.buffer.size >= self.config.learning_starts)], device=self.device)
        self._average(ready)
        return bool(ready[0] == 1.0)

    def _learn_critics(self, batch: Transitions) -> dict[str, torch.Tensor]:
        targets = self.critic_targets(batch)
        logits = self.sac_model.critics(batch.observations, batch.actions)
        loss = self.critic_loss(logits, targets)
        norm = self._critics.step(loss)
        values = self.values(logits.detach())
        figures = {
            "critic_loss": loss.detach(),
            "critic_grad_norm": norm,
            "q_mean": values.mean(),
            "q_gap": (values[0] - values[1]).abs().mean(),
        }
        if self.config.atoms > 1:
            # Much of it: the value_range is too narrow, and what is beyond it cannot be told apart.
            figures["q_at_ends"] = (targets[:, 0] + targets[:, -1]).mean()
        return figures

    def _learn_policy(self, observations: torch.Tensor) -> dict[str, torch.Tensor]:
        drawn = self.draw(observations)
        loss = self.actor_loss(observations, drawn)
        norm = self._policy.step(loss)
        entropy = -drawn.log_probs.detach().mean()
        self._temperature.step(self.temperature_loss(entropy))
        return {
            "actor_loss": loss.detach(),
            "actor_grad_norm": norm,
            "entropy": entropy,
            "alpha": self.sac_model.log_alpha.detach().exp(),
        }

    def draw(self, observations: torch.Tensor) -> Drawn:
        """Draw actions of the present policy for raw observations of the critics, shape [N, Oc]."""
        means, log_std = self._squashed.distribution(observations[:, : self.behaviour.observation_size])
        noise = torch.randn(means.shape, generator=self.generator, dtype=means.dtype).to(self.device)
        raw = means + log_std.exp() * noise
        return Drawn(torch.tanh(raw), squashed_log_prob(raw, means, log_std))

    def values(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the expected returns, shape [...], of the critics' outputs, shape [..., K]."""
        return logits[..., 0] if self.config.atoms == 1 else torch.softmax(logits, dim=-1) @ self.support

    @torch.no_grad()
    def critic_targets(self, batch: Transitions) -> torch.Tensor:
        """Return what the critics should say of a batch: expected returns, shape [N, 1], or distributions, [N, K]."""
        drawn = self.draw(batch.following)
        logits = self.sac_model.targets(batch.following, drawn.actions)
        # y = R + γ^m (Q_target(s', a') − α log π(a'|s')),  a' ~ π
        bonus = -self.sac_model.log_alpha.exp() * drawn.log_probs
        returns, discounts = batch.returns[:, None], batch.discounts[:, None]
        if self.config.atoms == 1:
            following = self._of_twins(logits)
            return returns + discounts * (following + bonus[:, None])
        probabilities = self._of_twins(torch.softmax(logits, dim=-1))
        return project(probabilities, returns + discounts * (self.support + bonus[:, None]), self.support)

    def _of_twins(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the mean of both critics' values or probabilities, or the lower one's; [N, K] from [2, N, K]."""
        if not self.config.pessimistic:
            return outputs.mean(dim=0)
        values = outputs[..., 0] if self.config.atoms == 1 else outputs @ self.support
        return torch.where((values[0] <= values[1])[:, None], outputs[0], outputs[1])

    def critic_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of both critics' outputs, shape [2, N, K], by `critic_targets`: a scalar."""
        if self.config.atoms == 1:
            # L = Σ_twins ½ E[(Q − y)²]
            return 0.5 * (logits - targets).square().mean(dim=(1, 2)).sum()
        # L = −Σ_twins E[Σ_k y_k log p_k]
        return -(targets * torch.log_softmax(logits, dim=-1)).sum(dim=-1).mean(dim=1).sum()

    def actor_loss(self, observations: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """Return the loss of actions drawn for raw observations of the critics, shape [N, Oc]: a scalar."""
        values = self.values(self.sac_model.critics(observations, drawn.actions))
        value = values.amin(dim=0) if self.config.pessimistic else values.mean(dim=0)
        # L = E[α log π(a|s) − Q(s, a)],  a ~ π
        return (self.sac_model.log_alpha.detach().exp() * drawn.log_probs - value).mean()

    def temperature_loss(self, entropy: torch.Tensor) -> torch.Tensor:
        """Return the loss of the temperature, lower where it moves an entropy, a scalar, to its target."""
        # L = α (H − H_target); in log α, so that α stays positive
        target = self.config.target_entropy * self.actor.action_size
        return self.sac_model.log_alpha.exp() * (entropy - target)

    def replica_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what this replica's next updates depend on and no other's; the buffer only if so configured."""
        buffer = self.buffer.state() if self.config.checkpoint_buffer else {}
        return super().replica_state() | {f"buffer/{name}": array for name, array in buffer.items()}

    def load_replica_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `replica_state` returned: exactly, or with an empty buffer."""
        super().load_replica_state(arrays)
        self.buffer.clear()
        if self.config.checkpoint_buffer:
            prefix = "buffer/"
            buffer = {name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)}
            self.buffer.load_state(buffer)

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimisers' moments, by name of parameter and of moment."""
        return {name: array for descent in self._descents for name, array in descent.state().items()}

    def load_optimizer_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `optimizer_state` returned."""
        for descent in self._descents:
            descent.load_state(arrays)
