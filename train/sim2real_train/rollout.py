"""What T steps of B environments leave behind, how it travels, and how it is cut into minibatches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Rollout", "Samples", "Sequences"]

_Batch = TypeVar("_Batch", bound="Sequences")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Steps to learn from, shape [T, B, ...]; minibatches of them without memory [M, ...], with it [T, b, ...].

    Fields that are tuples hold recurrent state before the first step, each [B, H].
    """

    episode_start: torch.Tensor
    """Where the recurrent state is reset before the step, shape [...], bool."""
    state: tuple[torch.Tensor, ...]
    """Recurrent state of the actor before the first step, shape [B, H]; empty without memory."""

    @staticmethod
    def joined(parts: Sequence[_Batch]) -> _Batch:
        """Return the steps of several rollouts of equal length, side by side."""
        if len(parts) == 1:
            return parts[0]
        tensors = {name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in parts[0]._tensors()}
        states = {
            name: tuple(torch.cat(each) for each in zip(*(getattr(part, name) for part in parts), strict=True))
            for name in parts[0]._states()
        }
        return replace(parts[0], **tensors, **states)

    def minibatches(self: _Batch, count: int, generator: torch.Generator, *, passes: int = 1) -> Iterator[_Batch]:
        """Yield every step once a pass, in `count` random minibatches of equal size.

        With memory they are whole sequences of some of the environments, so that the state can be carried through them.
        """
        tensors, states = self._tensors(), self._states()
        packed = torch.cat([tensor.reshape(*tensor.shape[:2], -1) for tensor in tensors.values()], dim=-1)
        rows = 1 if any(states.values()) else 0
        if rows == 0:
            packed = packed.flatten(0, 1)
        for _ in range(passes):
            # One gather of one matrix of all columns; all else are views of it.
            order = torch.randperm(packed.shape[rows], generator=generator).to(packed.device)
            shuffled = _unpacked(packed.index_select(rows, order), tensors)
            parts = zip(*(tensor.chunk(count, dim=rows) for tensor in shuffled.values()), strict=True)
            for chosen, part in zip(order.chunk(count), parts, strict=True):
                initial = {name: tuple(each[chosen] for each in state) for name, state in states.items()}
                yield replace(self, **initial, **dict(zip(shuffled, part, strict=True)))

    def _tensors(self) -> dict[str, torch.Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def _states(self) -> dict[str, tuple[torch.Tensor, ...]]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, tuple)}


def _unpacked(packed: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the columns of `packed`, shape [..., K], as tensors of the trailing axes and types of `like`."""
    widths = [tensor.shape[2:].numel() for tensor in like.values()]
    parts = {
        name: part.reshape(*part.shape[:-1], *tensor.shape[2:])
        for (name, tensor), part in zip(like.items(), torch.split(packed, widths, dim=-1), strict=True)
    }
    return {name: part != 0.0 if like[name].dtype == torch.bool else part for name, part in parts.items()}


@dataclass(frozen=True, eq=False)
class Samples(Sequences):
    """Scored steps to learn from.

    The proximal policy is the one from which an update may not go far: the one before it. It need not be the one that
    acted.
    """

    critic_observations: torch.Tensor
    """What the critic sees, shape [..., Oc]."""
    observation_size: int
    """How much of it the actor sees: its first O numbers."""
    actions: torch.Tensor
    """Actions that were taken, shape [..., A]."""
    means: torch.Tensor
    """Means of the proximal policy, shape [..., A]."""
    log_probs: torch.Tensor
    """Log-probability of the actions under it, shape [...]."""
    advantages: torch.Tensor
    """Shape [...]."""
    targets: torch.Tensor
    """What the value should be, shape [...]."""
    values: torch.Tensor
    """What it was before the update, shape [...]."""
    weights: torch.Tensor
    """How much a sample counts: its probability under the proximal policy over that under the one that acted; [...]."""
    critic_state: tuple[torch.Tensor, ...]
    """Recurrent state of the critic before the first step, shape [B, H]; empty without memory."""
    mirrored: torch.Tensor
    """What the actor would see in a mirror, shape [..., O]; [..., 0] where nobody looks."""

    @property
    def observations(self) -> torch.Tensor:
        """What the actor sees, shape [..., O]."""
        return self.critic_observations[..., : self.observation_size]


class Rollout:
    """Storage of one iteration, allocated once. First index: step; second: environment.

    Attributes:
        observations: Raw observations, shape [T + 1, B, O]; the last one is where the next rollout goes on.
        critic_observations: What the critic sees, shape [T + 1, B, Oc]; the observations where it sees nothing else.
        actions: Shape [T, B, A].
        means: Means of the actions' distribution, shape [T, B, A].
        log_std: Logarithm of its standard deviation, the same for all, shape [A].
        rewards: Shape [T, B].
        terminated: The episode ended by itself in this step, shape [T, B], bool.
        truncated: The episode was cut off after this step, shape [T, B], bool.
        episode_start: The step is the first of its episode, shape [T + 1, B], bool.
        state: Recurrent state before the first step, shape [B, H]; empty without memory.
        final_observations: Of ended episodes the steps, environments and what the critic saw last, in parts.
        version: Of the weights that acted: how many updates they had seen.
        source: Rank and incarnation of the collector: one source's rollouts follow each other without a gap.
    """

    def __init__(
        self, num_steps: int, num_envs: int, observation_size: int, critic_observation_size: int, action_size: int
    ) -> None:
        self.critic_observations = torch.zeros(num_steps + 1, num_envs, critic_observation_size)
        # The critic's observation begins with the policy's.
        self.observations = self.critic_observations[..., :observation_size]
        self.actions = torch.zeros(num_steps, num_envs, action_size)
        self.means = torch.zeros(num_steps, num_envs, action_size)
        self.log_std = torch.zeros(action_size)
        self.rewards = torch.zeros(num_steps, num_envs)
        self.terminated = torch.zeros(num_steps, num_envs, dtype=torch.bool)
        self.truncated = torch.zeros(num_steps, num_envs, dtype=torch.bool)
        self.episode_start = torch.zeros(num_steps + 1, num_envs, dtype=torch.bool)
        self.state: tuple[torch.Tensor, ...] = ()
        self.final_observations: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.version = 0
        self.source: tuple[int, int] = (0, 0)

    def begin(self, state: tuple[torch.Tensor, ...]) -> None:
        """Start a new rollout where the last one ended, with the recurrent state before its first step."""
        self.critic_observations[0] = self.critic_observations[-1]
        self.episode_start[0] = self.episode_start[-1]
        self.state = tuple(tensor.clone() for tensor in state)
        self.final_observations.clear()

    def to(self, device: torch.device) -> Rollout:
        """Return it on a device; where it is there already, with the same memory."""
        moved = copy.copy(self)
        for name in _ARRAYS:
            setattr(moved, name, getattr(self, name).to(device))
        moved.state = tuple(tensor.to(device) for tensor in self.state)
        steps, env_ids, seen = self.finals()
        moved.final_observations = [(steps.to(device), env_ids.to(device), seen.to(device))]
        return moved

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all of it as arrays, for another process; they are views of this rollout."""
        arrays = {name: getattr(self, name).numpy() for name in _ARRAYS}
        arrays |= {f"state/{index}": tensor.numpy() for index, tensor in enumerate(self.state)}
        arrays |= {f"final/{name}": tensor.numpy() for name, tensor in zip(_FINAL, self.finals(), strict=True)}
        arrays["facts"] = np.array([self.observations.shape[-1], self.version, *self.source], np.int64)
        return arrays

    @staticmethod
    def of(arrays: Mapping[str, npt.NDArray[Any]]) -> Rollout:
        """Return the rollout that `arrays` came from, with copies of them: shared memory is not ours to keep."""
        num_steps, num_envs, action_size = arrays["actions"].shape
        observation_size, version, *source = arrays["facts"].tolist()
        critic_observation_size = arrays["critic_observations"].shape[-1]
        rollout = Rollout(num_steps, num_envs, observation_size, critic_observation_size, action_size)
        for name in _ARRAYS:
            getattr(rollout, name)[:] = torch.tensor(arrays[name])
        rollout.state = tuple(
            torch.tensor(arrays[f"state/{index}"]) for index in range(sum(name.startswith("state/") for name in arrays))
        )
        steps, env_ids, seen = (torch.tensor(arrays[f"final/{name}"]) for name in _FINAL)
        rollout.final_observations = [(steps, env_ids, seen)]
        rollout.version = version
        rollout.source = (source[0], source[1])
        return rollout

    def finals(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return steps, shape [n], environments, shape [n], and last observations, shape [n, Oc], of ended episodes."""
        if not self.final_observations:
            nobody = torch.zeros(0, dtype=torch.int64)
            return nobody, nobody, self.critic_observations[0, :0]
        steps, env_ids, seen = zip(*self.final_observations, strict=True)
        return torch.cat(steps), torch.cat(env_ids), torch.cat(seen)


_ARRAYS: Final = (
    *("critic_observations", "actions", "means", "log_std", "rewards"),
    *("terminated", "truncated", "episode_start"),
)
_FINAL: Final = ("steps", "env_ids", "observations")
