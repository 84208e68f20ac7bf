"""A bundle's ONNX policy in many environments at once."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from sim2real.contract import Model
from sim2real_calib.products import batched, runnable

__all__ = ["OnnxBatch"]

Array = npt.NDArray[np.float32]


class OnnxBatch:
    """The policy of an ONNX file, all environments in one call of ONNX Runtime.

    Args:
        onnx_file: As `sim2real export` or `sim2real quantize` writes it.
        names: The contract's model.
        watched: Values within the graph that `act` keeps too.

    Attributes:
        values: What `watched` were in the last call, by name, the environments along the first axis.
    """

    def __init__(self, onnx_file: bytes, names: Model, *, watched: tuple[str, ...] = ()) -> None:
        self._file = runnable(onnx_file)
        self._names = names
        self._watched = watched
        self._inputs = [names.observation_name, *(state.input_name for state in names.recurrent)]
        self._outputs = [names.action_name, *(state.output_name for state in names.recurrent), *watched]
        self.values: dict[str, Array] = {}

    def reset(self, num_envs: int) -> None:
        """Begin an episode in `num_envs` environments."""
        # ONNX Runtime reads it when it is loaded: without it, it leaves files of its own in the home folder.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            batched(self._file, num_envs, outputs=self._watched),
            options,
            providers=["CPUExecutionProvider"],
            # It knows no FP8, and fails on a clip before a quantization.
            disabled_optimizers=["ClipQuantRewrite"],
        )
        self._states: list[Array] = [
            np.full((num_envs, *state.shape[1:]), state.initial_value, np.float32) for state in self._names.recurrent
        ]

    def restart(self, rows: npt.NDArray[np.bool_]) -> None:
        """Begin an episode in some of the environments, shape (N,)."""
        for state, values in zip(self._names.recurrent, self._states, strict=True):
            values[rows] = state.initial_value

    def act(self, observation: Array) -> Array:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        inputs = dict(zip(self._inputs, [observation, *self._states], strict=True))
        action, *others = self._session.run(self._outputs, inputs)
        count = len(self._states)
        # Written to by `restart`, which what the runtime returns need not bear.
        self._states = [state.copy() for state in others[:count]]
        self.values = dict(zip(self._watched, others[count:], strict=True))
        return action
