"""The deterministic policy on batches of raw observations: from a network, or from a bundle's ONNX file."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import torch

from sim2real.contract import Model
from sim2real_train.models import Actor

__all__ = ["OnnxPolicy", "TorchPolicy"]


class TorchPolicy:
    """The policy of an actor."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._state: tuple[torch.Tensor, ...] = ()

    @property
    def state(self) -> tuple[npt.NDArray[np.float32], ...]:
        """Recurrent state of each environment, shape (N, H); empty without memory."""
        return tuple(tensor.numpy() for tensor in self._state)

    def reset(self, num_envs: int) -> None:
        """Begin an episode in `num_envs` environments."""
        self._state = self._actor.initial_state(num_envs)

    @torch.no_grad()
    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        action, *state = self._actor(torch.from_numpy(observation), *self._state)
        self._state = tuple(state)
        return action.numpy()


class OnnxPolicy:
    """The policy of an ONNX file, on plain ONNX Runtime: no buffer or loop of the robot's runtime takes part.

    Exported policies have a batch of one, so each environment is a call of its own.
    """

    def __init__(self, onnx: bytes, names: Model) -> None:
        # ONNX Runtime reads it when it is loaded: without it, it leaves files of its own in the home folder.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        self._names = names
        self._inputs = [names.observation_name, *(state.input_name for state in names.recurrent)]
        self._outputs = [names.action_name, *(state.output_name for state in names.recurrent)]
        self._states: list[list[npt.NDArray[np.float32]]] = []

    @property
    def state(self) -> tuple[npt.NDArray[np.float32], ...]:
        """Recurrent state of each environment, shape (N, H); empty without memory."""
        return tuple(np.concatenate(tensors) for tensors in zip(*self._states, strict=True))

    def reset(self, num_envs: int) -> None:
        """Begin an episode in `num_envs` environments."""
        self._states = [
            [np.full(state.shape, state.initial_value, np.float32) for state in self._names.recurrent]
            for _ in range(num_envs)
        ]

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        actions = np.empty((len(observation), self._names.action_size), np.float32)
        for row, states in enumerate(self._states):
            inputs = dict(zip(self._inputs, [observation[row : row + 1], *states], strict=True))
            action, *states[:] = self._session.run(self._outputs, inputs)
            actions[row] = action[0]
        return actions
