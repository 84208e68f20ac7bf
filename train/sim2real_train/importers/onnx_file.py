"""A foreign ONNX file: does it fit, and the same graph with our contract in it and nothing else of its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim2real.contract import Model, PolicyContract, encode_contract
from sim2real.errors import InputError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real_train.policy import OnnxPolicy

__all__ = ["ForeignOnnx", "OnnxSource", "dressed", "read_onnx"]

_OPERATORS: Final = """
    Abs Add BatchNormalization Cast Clip Concat Constant ConstantOfShape Conv Div Elu Erf Exp Expand Flatten
    Gather Gelu Gemm GlobalAveragePool Greater HardSigmoid HardSwish Identity LayerNormalization LeakyRelu Less
    Log MatMul Max Min Mish Mul Neg Pow PRelu Reciprocal ReduceMean ReduceSum Relu Reshape Selu Shape Sigmoid
    Sign Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Transpose Unsqueeze
    Where
"""
"""Deterministic, without memory, control flow or anything outside the standard set."""
_FLOAT: Final = 1


@dataclass(frozen=True, eq=False)
class ForeignOnnx:
    """A file with one observation and one action, both float32 of batch 1."""

    content: bytes
    proto: Any
    metadata: dict[str, str]
    observation_name: str
    observation_size: int
    action_name: str
    action_size: int

    @property
    def model(self) -> Model:
        """What a contract says of its tensors; their names stay."""
        return Model(
            observation_name=self.observation_name,
            observation_size=self.observation_size,
            action_name=self.action_name,
            action_size=self.action_size,
            recurrent=(),
        )


def read_onnx(content: bytes, name: str) -> ForeignOnnx:
    """Read a file and check that a bundle can hold its graph.

    Raises:
        InputError: It is damaged, or does not fit; the message says what does not.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load_from_string(content)
        # The file's own bytes: a path would let it name files beside it.
        onnx.checker.check_model(content)
    except (DecodeError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise InputError(f"{name}: expected an ONNX file, got none or a damaged one: {told[:200]}") from error
    graph = proto.graph
    weights = {each.name for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in weights]
    _check_operators(proto, name)
    if len(inputs) != 1 or len(graph.output) != 1:
        told_inputs, told_outputs = (", ".join(each.name for each in part) or "none" for part in (inputs, graph.output))
        raise InputError(
            f"{name}: expected one input (the observation) and one output (the action), got inputs {told_inputs} "
            f"and outputs {told_outputs}; export the actor alone (state and motion clips have no place in it)"
        )
    (observation,), (action,) = inputs, graph.output
    metadata = {each.key: each.value for each in proto.metadata_props}
    if len(metadata) != len(proto.metadata_props):
        raise InputError(f"{name}: expected metadata keys that differ, got one twice; export it again")
    return ForeignOnnx(
        content=content,
        proto=proto,
        metadata=metadata,
        observation_name=observation.name,
        observation_size=_width(observation, name),
        action_name=action.name,
        action_size=_width(action, name),
    )


def dressed(source: ForeignOnnx, contract: PolicyContract) -> bytes:
    """Return the same graph with the contract in its metadata, for a batch of 1, without names and texts of its origin.

    Raises:
        InputError: Its operators do not work with a batch of 1.
    """
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    del proto.metadata_props[:]
    del proto.graph.value_info[:]
    proto.graph.name = contract.identity.task
    proto.producer_name, proto.producer_version = "sim2real", contract.identity.toolkit_version
    proto.domain, proto.model_version, proto.doc_string, proto.graph.doc_string = "", 0, "", ""
    del proto.graph.metadata_props[:]
    for part in (*proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    for node in proto.graph.node:
        node.name = ""
        for attribute in node.attribute:
            attribute.doc_string = ""
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in (source.observation_name, source.action_name):
            value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.helper.set_model_props(proto, {CONTRACT_METADATA_KEY: encode_contract(contract).decode()})
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        told = " ".join(str(error).split())
        raise InputError(f"source: its graph does not work with a batch of 1: {told[:200]}") from error
    return proto.SerializeToString(deterministic=True)


class OnnxSource:
    """The policy of the file as it came, on plain ONNX Runtime.

    Raises:
        InputError: ONNX Runtime does not take it, or what it puts out has another shape than it says.
    """

    def __init__(self, source: ForeignOnnx, name: str) -> None:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._errors = (
            state.Fail,
            state.InvalidArgument,
            state.InvalidGraph,
            state.NotImplemented,
            state.RuntimeException,
        )
        self._name = name
        self._size = source.action_size
        try:
            self._policy = OnnxPolicy(source.content, source.model)
        except (*self._errors, RuntimeError, ValueError) as error:
            raise self._refused(error) from error
        self.reset(1)
        self.act(np.zeros((1, source.observation_size), np.float32))

    def reset(self, num_envs: int) -> None:
        """Begin episodes; there is no state."""
        self._policy.reset(num_envs)

    def act(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the actions, shape (N, A), for raw observations, shape (N, O)."""
        try:
            return self._policy.act(observation)
        except (*self._errors, RuntimeError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> InputError:
        told = " ".join(str(error).split())
        return InputError(f"{self._name}: ONNX Runtime does not run it with a batch of 1: {told[:200]}")


def _check_operators(proto: Any, name: str) -> None:
    foreign = sorted(
        {f"{node.domain}::{node.op_type}" for node in proto.graph.node if node.domain not in ("", "ai.onnx")}
    )
    odd = sorted({node.op_type for node in proto.graph.node} - set(_OPERATORS.split()))
    if foreign or odd or proto.functions or proto.training_info:
        told = ", ".join(foreign or odd) or "functions of its own or training steps"
        raise InputError(
            f"{name}: expected a graph of standard operators without memory, chance or control flow, got {told}; "
            "export the deterministic actor alone"
        )
    if (
        any(each.data_location or each.external_data for each in proto.graph.initializer)
        or proto.graph.sparse_initializer
    ):
        raise InputError(f"{name}: expected its weights inside the file, got them in another; save it as one file")


def _width(value: Any, name: str) -> int:
    kind = value.type.tensor_type
    shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
    fits = (
        len(shape) == 2 and (shape[0] == 1 or isinstance(shape[0], str)) and isinstance(shape[1], int) and shape[1] > 0
    )
    if kind.elem_type != _FLOAT or not fits:
        raise InputError(
            f"{name}: {value.name}: expected float32 of shape (1, size) or (batch, size), got element "
            f"type {kind.elem_type} of shape {shape}"
        )
    return int(shape[1])
