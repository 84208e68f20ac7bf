"""Distillation: a student that acts on what a robot measures learns what a teacher, who may see more, would do there.

Source: Ross, Gordon, Bagnell, "A reduction of imitation learning and structured prediction to no-regret online
learning" (2011), DAgger: the teacher labels the states that the student's own actions lead to. Here with gradient steps
on the newest rollouts in place of a fit to all of them, as in Rudin et al., "Learning to walk in minutes" (2021), and
its successors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from sim2real.errors import InputError
from sim2real_train.algorithm import Algorithm, Average
from sim2real_train.behaviour import Acted, Behaviour
from sim2real_train.descent import Descent
from sim2real_train.device import CPU, array_of, set_apart
from sim2real_train.limits import Count, Positive, Share, Small, Steps
from sim2real_train.models import Actor, ModelConfig
from sim2real_train.moments import Moments
from sim2real_train.rollout import Rollout, Sequences

__all__ = ["DistillConfig", "DistillLearner", "Lessons", "Student", "TeacherRef", "imitation_loss"]


class TeacherRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which policy teaches; `sim2real_train.teacher.teacher_at` makes one."""

    checkpoint: str
    """Absolute path of its checkpoint folder; every worker reads it."""
    weights_sha256: str
    """Of its weights: a run goes on with the same teacher or not at all."""


class DistillConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="algo", tag="distill"
):
    """How a teacher is imitated."""

    teacher: TeacherRef
    """Who is imitated."""
    num_steps: Steps = 24
    """Control steps per environment and iteration, T: gradients flow back through so many at most."""
    epochs: Count = 4
    """Passes over the rollouts."""
    minibatches: Count = 4
    """Gradient steps per pass and rollout."""
    rollouts: Count = 1
    """How many of the newest rollouts each iteration learns from."""
    loss: Literal["mse", "huber"] = "mse"
    """Of the difference from the teacher's action: its square, or Huber's, which outliers pull at less."""
    huber_delta: Positive = 0.1
    """Difference, in units of the action, from which on Huber's loss is linear."""
    learning_rate: Small = 1e-3
    """Step size of the optimiser in every iteration."""
    max_grad_norm: Positive = 1.0
    """Length that gradients are cut to."""
    noise_std: Small = 0.05
    """Standard deviation of the noise on the actions while experience is collected, in units of the action."""
    teacher_share: Share = 1.0
    """β: the share of the environments where the teacher acts, in the first iteration; it falls to 0 linearly."""
    teacher_share_updates: Count = 20
    """Iterations until β is 0."""

    def check(self, model: ModelConfig) -> None:
        """Check what no field says alone.

        Raises:
            InputError: The student is to see what no robot measures, or has a critic's memory and no critic.
        """
        if model.privileged:
            raise InputError("model.privileged: a student acts on what a robot measures; the teacher may be privileged")
        if model.recurrent_critic:
            raise InputError("model.recurrent_critic: a student has no critic; leave it out")

    def share(self, version: int) -> float:
        """Return β for weights that have seen `version` updates."""
        return self.teacher_share * max(0.0, 1.0 - version / self.teacher_share_updates)


class Student(nn.Module):
    """What is learned, and how often the teacher acts for it.

    Args:
        config: Shape of the network.
        observation_size: O.
        action_size: A.
        teacher_share: β at the start.
        columns: Where the term of the encoder lies; see `encoder_columns`.

    Raises:
        InputError: It is to be privileged.
    """

    teacher_share: torch.Tensor

    def __init__(
        self,
        config: ModelConfig,
        observation_size: int,
        action_size: int,
        *,
        teacher_share: float,
        columns: npt.NDArray[np.intp] | None = None,
    ) -> None:
        super().__init__()
        self.actor = Actor(config, observation_size, action_size, columns)
        # Among the weights, so that whoever acts with them acts with the β that belongs to them.
        self.register_buffer("teacher_share", torch.tensor(teacher_share))


class _MixedBehaviour(Behaviour):
    """The student, with noise; in a share β of the environments, drawn anew for each rollout, the teacher.

    The state is the student's, followed by the teacher's: its memory goes along whoever acts.
    """

    def __init__(self, student: Student, teacher: Actor, noise_std: float) -> None:
        self.actor = student.actor
        self._teacher = teacher
        self._share = student.teacher_share
        self._log_std = torch.full((teacher.action_size,), noise_std).log()

    @property
    def observation_size(self) -> int:
        """How much it reads of what the critic sees."""
        return max(self.actor.observation_size, self._teacher.observation_size)

    def initial_state(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the state at the start of episodes, each [B, H]."""
        return self.actor.initial_state(batch) + self._teacher.initial_state(batch)

    def parted(self, state: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Return the student's part of a state, and the teacher's."""
        count = len(self.actor.initial_state(1))
        return state[:count], state[count:]

    def noise(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Draw the noise of a whole rollout and, last, for each environment a number that β is compared with.

        Returns:
            Shape [T, B, A + 1].
        """
        noise = torch.randn(shape, generator=generator) * self._log_std.exp()
        lots = torch.rand(shape[1], 1, generator=generator).expand(shape[0], -1, -1)
        return torch.cat((noise, lots), dim=-1)

    def act(self, observations: torch.Tensor, state: tuple[torch.Tensor, ...], noise: torch.Tensor) -> Acted:
        """Act on what teacher and student read, shape [B, observation_size], with noise, shape [B, A + 1]."""
        of_student, of_teacher = self.parted(state)
        means, *following = self.actor(observations[:, : self.actor.observation_size], *of_student)
        if of_teacher or self._share > 0.0:
            taught, *remembered = self._teacher(observations[:, : self._teacher.observation_size], *of_teacher)
            means = torch.where(noise[:, -1:] < self._share, taught, means)
            following += remembered
        return Acted(means + noise[:, :-1], means, tuple(following))

    def log_std(self) -> torch.Tensor:
        """Return the logarithm of the noise's standard deviation, shape [A]."""
        return self._log_std

    def weights(self) -> dict[str, torch.Tensor]:
        """Return what it acts with, but the teacher: the student's tensors and β; live."""
        weights = {f"actor.{name}": tensor for name, tensor in self.actor.state_dict().items()}
        return weights | {"teacher_share": self._share}


@dataclass(frozen=True, eq=False)
class Lessons(Sequences):
    """What the student saw, and what the teacher would have done."""

    observations: torch.Tensor
    """Raw observations of the student, shape [..., O]."""
    labels: torch.Tensor
    """The teacher's actions, shape [..., A]."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all of it as arrays."""
        arrays = {name: array_of(getattr(self, name)) for name in ("episode_start", "observations", "labels")}
        return arrays | {f"state/{index}": array_of(tensor) for index, tensor in enumerate(self.state)}

    @staticmethod
    def of(arrays: Mapping[str, npt.NDArray[Any]], device: torch.device = CPU) -> Lessons:
        """Return the lessons that `arrays` came from, with copies of them, on a device."""
        on_device = {name: torch.tensor(array, device=device) for name, array in arrays.items()}
        return Lessons(
            episode_start=on_device["episode_start"],
            state=tuple(on_device[name] for name in sorted(on_device) if name.startswith("state/")),
            observations=on_device["observations"],
            labels=on_device["labels"],
        )


def imitation_loss(actor: Actor, batch: Lessons, config: DistillConfig) -> torch.Tensor:
    """Return the mean loss of all elements of all actions of a minibatch; a scalar."""
    actions = actor.unroll(batch.observations, batch.state, batch.episode_start)
    if config.loss == "huber":
        return functional.huber_loss(actions, batch.labels, delta=config.huber_delta)
    return functional.mse_loss(actions, batch.labels)


class DistillLearner(Algorithm):
    """Steps the student towards the teacher's actions, along a gradient that `average` makes equal on all replicas.

    Args:
        model: The student, trained in place.
        teacher: Who is imitated; it has its own normaliser, and may read all that a critic sees.
        config: How.
        average: Replaces a flat vector by its mean over all replicas, in place.
        observation_size: Width of what the critic sees.
        seed: Seeds the order of the lessons.
        device: Where it learns, apart from what acts; None: on the CPU, with the very weights that act.

    Attributes:
        lessons: What the next update learns from, by rollout; the oldest first.

    Raises:
        InputError: A number of the configuration is out of its range.
    """

    def __init__(
        self,
        model: Student,
        teacher: Actor,
        config: DistillConfig,
        average: Average,
        *,
        observation_size: int,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(model, observation_size, seed, device)
        self.student = model
        self.teacher = teacher
        self.config = config
        acting, acting_teacher = set_apart(model, device), set_apart(teacher, device)
        self.behaviour = self._mixed = _MixedBehaviour(acting, acting_teacher, config.noise_std)
        self._descent = Descent(
            model.named_parameters(), config.learning_rate, average, max_grad_norm=config.max_grad_norm
        )
        self.lessons: list[Lessons] = []
        self._teacher_error = 0.0

    def set_moments(self, moments: Moments) -> None:
        """Normalise the student's observations by `moments` from now on."""
        normalizer = self.student.actor.normalizer
        normalizer.set_moments(moments.first(len(normalizer.mean)))

    @torch.no_grad()
    def score(self, rollouts: Sequence[Rollout]) -> Moments:
        """Let the teacher say what it would have done; there are no advantages."""
        newest = Lessons.joined([self._taught(rollout.to(self.device)) for rollout in rollouts])
        actions = self.student.actor.unroll(newest.observations, newest.state, newest.episode_start)
        self._teacher_error = float((actions - newest.labels).square().mean().sqrt())
        self.lessons.append(newest)
        return Moments.none(1)

    def _taught(self, rollout: Rollout) -> Lessons:
        of_student, of_teacher = self._mixed.parted(rollout.state)
        episode_start = rollout.episode_start[:-1]
        seen = rollout.critic_observations[:-1]
        # Copies: the rollout is overwritten by the next one.
        return Lessons(
            episode_start=episode_start.clone(),
            state=of_student,
            observations=seen[..., : self.actor.observation_size].clone(),
            labels=self.teacher.unroll(seen[..., : self.teacher.observation_size], of_teacher, episode_start),
        )

    def update(self, advantages: Moments) -> dict[str, float]:
        """Learn from the newest rollouts; advantages are not needed.

        Returns:
            ``imitation_loss`` and ``grad_norm``, means of the last pass; ``teacher_error``, the root of the mean square
            difference from the teacher on the newest rollouts before the update; ``teacher_share``, β of them.
        """
        figures = {"teacher_error": self._teacher_error, "teacher_share": float(self.student.teacher_share)}
        taken: list[list[torch.Tensor]] = []
        lessons = Lessons.joined(self.lessons)
        count = self.config.minibatches * len(self.lessons)
        for _ in range(self.config.epochs):
            taken.clear()
            for batch in lessons.minibatches(count, self.generator):
                loss = imitation_loss(self.student.actor, batch, self.config)
                norm = self._descent.step(loss)
                taken.append([loss.detach(), norm])
        for name, column in zip(("imitation_loss", "grad_norm"), zip(*taken, strict=True), strict=True):
            figures[name] = float(torch.stack(column).mean())
        self.student.teacher_share.fill_(self.config.share(self.version + 1))
        # What is left is learned from again, together with the next rollout.
        del self.lessons[: max(0, len(self.lessons) - (self.config.rollouts - 1))]
        return figures

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimiser's moments, by name of parameter and of moment."""
        return self._descent.state()

    def load_optimizer_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `optimizer_state` returned."""
        self._descent.load_state(arrays)

    def replica_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what this replica's next updates depend on and no other's: draws, and the lessons that are kept."""
        arrays = super().replica_state()
        for index, lessons in enumerate(self.lessons):
            arrays |= {f"lessons/{index}/{name}": array for name, array in lessons.arrays().items()}
        return arrays

    def load_replica_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `replica_state` returned."""
        super().load_replica_state(arrays)
        self.lessons = []
        while own := _below(f"lessons/{len(self.lessons)}/", arrays):
            self.lessons.append(Lessons.of(own, self.device))


def _below(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
