"""Learned actuators: one ONNX model for all joints that name it, on one thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.extras import missing
from sim2real.layout import EFFORT, POSITION
from sim2real.robots.drives import DriveNetwork
from sim2real.sim.drive_parts import spread

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["LearnedActuators"]

Array = npt.NDArray[np.float64]

_FLOAT32: Final = "tensor(float)"


class LearnedActuators:
    """The joints that share one model.

    After Hwangbo et al., "Learning agile and dynamic motor skills for legged robots", 2019: effort from what position
    error and velocity have been.

    Two sets of bound buffers take turns: the history of one step is copied, one place older, into the next one's.

    Args:
        networks: What each of the joints names; path and history are the same.
        joints: Indices of the joints among all J.
        num_envs: Number of environments N.

    Attributes:
        parameters: Live randomizable values, shape (N, len(joints)).
        state: Live state of the episode, shape (N, len(joints), 2 · history).

    Raises:
        InputError: The model cannot be loaded, or its tensors are not those that `DriveNetwork.path` describes.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, networks: Sequence[DriveNetwork], joints: Sequence[int], num_envs: int) -> None:
        self.joints = tuple(joints)
        self._columns = np.array(joints, np.intp)
        self._history = networks[0].history
        self._error_scale = spread([network.error_scale for network in networks], num_envs)
        self._velocity_scale = spread([network.velocity_scale for network in networks], num_envs)
        self._effort_scale = spread([network.effort_scale for network in networks], num_envs)
        self.parameters = {
            "network.error_scale": self._error_scale,
            "network.velocity_scale": self._velocity_scale,
            "network.effort_scale": self._effort_scale,
        }
        shape = (num_envs, len(joints), 2 * self._history)
        self._inputs = [np.zeros(shape, np.float32) for _ in range(2)]
        self._output = np.zeros((num_envs, len(joints)), np.float32)
        self._session = _open_session(networks[0], self._output.size)
        self._bindings = [self._bind(values) for values in self._inputs]
        self._turn = 0

    @property
    def state(self) -> dict[str, npt.NDArray[np.float32]]:
        """Live state of the episode."""
        return {"network.history": self._inputs[self._turn]}

    def apply(
        self,
        command: Array,
        position: Array,
        velocity: Array,
        first: npt.NDArray[np.bool_] | None,
        effort: Array,
    ) -> None:
        """Write the efforts of `joints` into `effort`, shape (N, J).

        Args:
            command: Command blocks, shape (N, 5, J).
            position: Of the rotors, shape (N, J).
            velocity: Of the rotors, shape (N, J).
            first: Mask of environments whose episode begins, shape (N,); None: nowhere.
            effort: Output; joints that are not ours are left as they are.
        """
        columns, past = self._columns, self._history
        older = self._inputs[self._turn]
        self._turn ^= 1
        newer = self._inputs[self._turn]
        newer[..., 1:past] = older[..., : past - 1]
        newer[..., past + 1 :] = older[..., past:-1]
        newer[..., 0] = (command[:, POSITION, columns] - position[:, columns]) * self._error_scale
        newer[..., past] = velocity[:, columns] * self._velocity_scale
        if first is not None:
            newer[first, :, 1:past] = newer[first, :, :1]
            newer[first, :, past + 1 :] = newer[first, :, past : past + 1]
        self._session.run_with_iobinding(self._bindings[self._turn])
        effort[:, columns] = self._output * self._effort_scale + command[:, EFFORT, columns]

    def _bind(self, values: npt.NDArray[np.float32]) -> ort.IOBinding:
        binding = self._session.io_binding()
        rows = self._output.size
        name = self._session.get_inputs()[0].name
        binding.bind_input(name, "cpu", 0, np.float32, (rows, 2 * self._history), values.ctypes.data)
        name = self._session.get_outputs()[0].name
        binding.bind_output(name, "cpu", 0, np.float32, (rows, 1), self._output.ctypes.data)
        return binding


def _open_session(network: DriveNetwork, rows: int) -> ort.InferenceSession:
    """Load a model with one thread, check its tensors and run it once on `rows` zeros."""
    # Without this an official build notes what runs here in the user's home folder; it counts at the first import.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime as ort
        from onnxruntime.capi import onnxruntime_pybind11_state as errors
    except ModuleNotFoundError as error:
        raise missing("onnxruntime", "edge") from error
    name = f"drive.network: {network.path}"
    if not network.path.is_file():
        raise InputError(f"{name}: expected an ONNX model, found no such file")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    refusals = (
        errors.EPFail,
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
        errors.RuntimeException,
        RuntimeError,
        ValueError,
    )
    try:
        session = ort.InferenceSession(str(network.path), options, providers=["CPUExecutionProvider"])
    except refusals as error:
        raise InputError(f"{name}: cannot be loaded by onnxruntime {ort.__version__}: {_one_line(error)}") from error
    _check_tensor(name, "input", session.get_inputs(), 2 * network.history, rows)
    _check_tensor(name, "output", session.get_outputs(), 1, rows)
    zeros = np.zeros((rows, 2 * network.history), np.float32)
    try:
        output = session.run(None, {session.get_inputs()[0].name: zeros})[0]
    except refusals as error:
        raise InputError(f"{name}: does not run on {rows} rows: {_one_line(error)}") from error
    if output.shape != (rows, 1) or not np.isfinite(output).all():
        raise InputError(
            f"{name}: for {rows} rows of zeros expected finite efforts of shape [{rows}, 1], "
            f"got shape {list(output.shape)} with {np.count_nonzero(~np.isfinite(output))} not finite"
        )
    return session


def _check_tensor(name: str, kind: str, tensors: Sequence[ort.NodeArg], width: int, rows: int) -> None:
    wanted = f"one {kind}, {_FLOAT32} of shape ['batch', {width}] with a free batch"
    came = ", ".join(f"{tensor.name!r}: {tensor.type} of shape {tensor.shape}" for tensor in tensors)
    good = len(tensors) == 1 and tensors[0].type == _FLOAT32 and _fits(tensors[0].shape, (rows, width))
    if not good:
        raise InputError(f"{name}: expected {wanted}, got {came or 'none'}; export it again or correct its history")


def _fits(declared: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    """Whether a declared shape, in which names and None are free dimensions, allows `shape`."""
    return len(declared) == len(shape) and all(
        size == wanted for size, wanted in zip(declared, shape, strict=True) if isinstance(size, int)
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
