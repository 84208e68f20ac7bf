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
        seed: Seeds this replica's draws.

    Attributes:
        model: All weights; checkpoints have them by these names.
        behaviour: What acts while experience is collected; shares the model's weights.
        version: How many updates the weights have seen.
        moments: Of all observations so far.
    """

    behaviour: Behaviour

    def __init__(self, model: nn.Module, observation_size: int, seed: int) -> None:
        self.model = model
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
        return figures

    def publish(self, observations: Moments) -> None:
        """Take the observations of all workers into the normaliser, for the next rollout."""
        self.moments = self.moments.merged(observations)
        self.set_moments(self.moments)

    def state(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Return copies of all that replicas share: the weights, and what learning goes on with."""
        weights = {name: tensor.numpy().copy() for name, tensor in self.model.state_dict().items()}
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
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def _array(value: object) -> npt.NDArray[Any]:
    return np.array(value)
