"""What every algorithm is to the controller: scores rollouts, learns from them, and says what acts next."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real_train.behaviour import Behaviour
from sim2real_train.chunks import WarmStart
from sim2real_train.device import CPU, array_of
from sim2real_train.models import Actor
from sim2real_train.moments import Moments
from sim2real_train.rollout import Rollout

__all__ = ["Algorithm", "Average"]

Average = Callable[[torch.Tensor], None]
"""Replaces a flat vector by its mean over all learners, in place."""
_MOMENTS = ("count", "mean", "squares")


class Algorithm(ABC):
    """A learner: a model, an optimiser and the normaliser's moments. Replicas given equal means stay equal.

    Args:
        model: What is learned.
        observation_size: Width Oc of what the critic sees, which begins with the observations.
        seed: Seeds this replica's draws, which are the CPU's whatever the device.
        device: Where it learns, apart from what acts; None: on the CPU, and both have the same weights.

    Attributes:
        model: All weights; checkpoints have them by these names.
        device: Where the model is, and all that is learned from.
        is_apart: Whether what acts is a copy, brought up to date after each change.
        behaviour: What acts while experience is collected, on the CPU.
        version: How many updates the weights have seen.
        moments: Of all observations so far.
    """

    behaviour: Behaviour

    def __init__(self, model: nn.Module, observation_size: int, seed: int, device: torch.device | None = None) -> None:
        self.model = model
        self.device = device or CPU
        self.is_apart = device is not None
        self.version = 0
        self.moments = Moments.none(observation_size)
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def actor(self) -> Actor:
        """What is exported in the end."""
        return self.behaviour.actor

    @abstractmethod
    def score(self, rollouts: Sequence[Rollout]) -> Moments:
        """Take in rollouts of equal length; return the moments of their advantages (of none, where there are none)."""

    @abstractmethod
    def update(self, advantages: Moments) -> dict[str, float]:
        """Learn from what was scored, advantages normalised by the moments of all learners'; return figures to log."""

    @abstractmethod
    def set_moments(self, moments: Moments) -> None:
        """Normalise observations by `moments` from now on."""

    @abstractmethod
    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what `update` depends on beside weights, moments and draws."""

    @abstractmethod
    def load_optimizer_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `optimizer_state` returned."""

    def learn(self, advantages: Moments) -> dict[str, float]:
        """Learn from what was scored; the weights are of the next version then."""
        figures = self.update(advantages)
        self.version += 1
        self._renew()
        return figures

    def publish(self, observations: Moments) -> None:
        """Take the observations of all workers into the normaliser, for the next rollout."""
        self.moments = self.moments.merged(observations)
        self.set_moments(self.moments)
        self._renew()

    @torch.no_grad()
    def _renew(self) -> None:
        """Let the newest weights be those that act, where they are apart."""
        if self.is_apart:
            newest = self.model.state_dict()
            for name, tensor in self.behaviour.weights().items():
                tensor.copy_(newest[name])

    def state(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Return copies of all that replicas share: the weights, and what learning goes on with."""
        weights = {name: array_of(tensor) for name, tensor in self.model.state_dict().items()}
        learner = {f"observations/{name}": _array(getattr(self.moments, name)) for name in _MOMENTS}
        learner["version"] = _array(self.version)
        return {"weights": weights, "learner": learner | self.optimizer_state()}

    def load_state(self, state: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> None:
        """Go on exactly from what `state` returned."""
        self.model.load_state_dict({name: torch.tensor(array) for name, array in state["weights"].items()})
        learner = state["learner"]
        count, mean, squares = (learner[f"observations/{name}"] for name in _MOMENTS)
        self.moments = Moments(float(count), mean.copy(), squares.copy())
        self.version = int(learner["version"])
        self.load_optimizer_state(learner)
        self._renew()

    def begin_with(self, warm: WarmStart) -> None:
        """Take the weights and the normalisers' moments of another run, and leave all else as it is."""
        own = self.state()
        self.load_state({"weights": own["weights"] | warm.weights, "learner": own["learner"] | warm.normalisers})
        # A critic that begins anew normalises as the policy does, from the first iteration on.
        self.set_moments(self.moments)
        self._renew()

    def replica_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what this replica's next updates depend on and no other's."""
        return {"order": self.generator.get_state().numpy()}

    def load_replica_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on exactly from what `replica_state` returned."""
        self.generator.set_state(torch.tensor(arrays["order"]))

    def weights_sha256(self) -> str:
        """Return a digest of all weights, for comparison with other replicas'."""
        digest = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            digest.update(array_of(tensor).tobytes())
        return digest.hexdigest()


def _array(value: object) -> npt.NDArray[Any]:
    return np.array(value)
