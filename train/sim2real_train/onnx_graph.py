"""An actor as an ONNX graph, built node by node.

Nothing is traced: the file holds the operators below and the weights, is the same for the same weights, and carries no
trace of the machine that wrote it. That it computes what the actor computes is not assumed but proved, over sequences
(`sim2real_train.parity`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real.contract import PolicyContract, encode_contract
from sim2real.errors import InputError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real_train.encoder import ConvEncoder
from sim2real_train.memory import GruCell, LstmCell, RecurrentCell
from sim2real_train.models import Actor, ObservationNormalizer

__all__ = ["IR_VERSION", "OPSET", "actor_to_onnx"]

OPSET: Final = 19
"""The first with everything that 8-bit quantization needs, and no later: older engines on robots read it."""
IR_VERSION: Final = 9


def actor_to_onnx(actor: Actor, contract: PolicyContract) -> bytes:
    """Return the ONNX file of `actor`: float32, batch 1, tensors named by the contract, the contract in its metadata.

    Raises:
        InputError: The actor has a layer that is not known here.
    """
    import onnx
    from onnx import TensorProto, helper

    model = contract.model
    graph = _Graph()
    features = graph.add_module(model.observation_name, actor.normalizer)
    if actor.encoder is not None:
        features = graph.add_encoder(features, actor.encoder)
    if actor.memory is not None:
        states = [state.input_name for state in model.recurrent]
        next_states = [state.output_name for state in model.recurrent]
        graph.add_cell(features, states, actor.memory, next_states)
        features = next_states[0]
    graph.add_module(features, actor.network, output=model.action_name)

    def described(name: str, shape: tuple[int, ...]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            contract.identity.task,
            inputs=[
                described(model.observation_name, (1, model.observation_size)),
                *(described(state.input_name, state.shape) for state in model.recurrent),
            ],
            outputs=[
                described(model.action_name, (1, model.action_size)),
                *(described(state.output_name, state.shape) for state in model.recurrent),
            ],
            initializer=graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="sim2real",
        producer_version=contract.identity.toolkit_version,
    )
    helper.set_model_props(proto, {CONTRACT_METADATA_KEY: encode_contract(contract).decode()})
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString(deterministic=True)


class _Graph:
    """Nodes and weights in the order of computation; a value is known by its name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add_module(self, value: str, module: nn.Module, output: str | None = None) -> str:
        """Append `module` applied to `value`; return the name of the result, `output` if given."""
        if isinstance(module, nn.Sequential):
            layers = list(module)
            for layer in layers[:-1]:
                value = self.add_module(value, layer)
            return self.add_module(value, layers[-1], output)
        if isinstance(module, nn.Linear):
            return self._linear(value, module, output)
        if isinstance(module, nn.ELU):
            return self._node("Elu", value, output=output, alpha=module.alpha)
        if isinstance(module, nn.Tanh):
            return self._node("Tanh", value, output=output)
        if isinstance(module, nn.ReLU):
            return self._node("Relu", value, output=output)
        if isinstance(module, nn.SiLU):
            return self._node("Mul", value, self._node("Sigmoid", value), output=output)
        if isinstance(module, nn.Hardtanh):
            bounds = (self._weight(torch.tensor(float(bound))) for bound in (module.min_val, module.max_val))
            return self._node("Clip", value, *bounds, output=output)
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            return self._convolution(value, module)
        if isinstance(module, ObservationNormalizer):
            return self._normalizer(value, module)
        raise _unknown(module)

    def add_encoder(self, value: str, encoder: ConvEncoder) -> str:
        """Append `encoder` applied to `value`; return the name of the result."""
        term = self._node("Gather", value, self._weight(encoder.term), axis=1)
        features = self.add_module(self._reshaped(term, (1, *encoder.shape)), encoder.layers)
        features = self._reshaped(features, (1, encoder.num_features))
        if not len(encoder.rest):
            return features
        rest = self._node("Gather", value, self._weight(encoder.rest), axis=1)
        return self._node("Concat", rest, features, axis=1)

    def add_cell(self, value: str, states: Sequence[str], cell: RecurrentCell, outputs: Sequence[str]) -> None:
        """Append one step of `cell`, whose next states get the names `outputs`.

        Raises:
            InputError: The cell is not known here.
        """
        if isinstance(cell, GruCell):
            self._gru(value, states, cell, outputs)
        elif isinstance(cell, LstmCell):
            self._lstm(value, states, cell, outputs)
        else:
            raise _unknown(cell)

    def _gru(self, value: str, states: Sequence[str], cell: GruCell, outputs: Sequence[str]) -> None:
        """Formula: `GruCell`."""
        (state,), (output,) = states, outputs
        input_reset, input_update, input_new = self._split(self._linear(value, cell.input), 3)
        hidden_reset, hidden_update, hidden_new = self._split(self._linear(state, cell.hidden), 3)
        reset = self._node("Sigmoid", self._node("Add", input_reset, hidden_reset))
        update = self._node("Sigmoid", self._node("Add", input_update, hidden_update))
        new = self._node("Tanh", self._node("Add", input_new, self._node("Mul", reset, hidden_new)))
        self._node("Add", new, self._node("Mul", update, self._node("Sub", state, new)), output=output)

    def _lstm(self, value: str, states: Sequence[str], cell: LstmCell, outputs: Sequence[str]) -> None:
        """Formula: `LstmCell`."""
        (hidden, past), (next_hidden, next_cell) = states, outputs
        products = self._node("Add", self._linear(value, cell.input), self._linear(hidden, cell.hidden))
        write, keep, new, show = self._split(products, 4)
        kept = self._node("Mul", self._node("Sigmoid", keep), past)
        written = self._node("Mul", self._node("Sigmoid", write), self._node("Tanh", new))
        self._node("Add", kept, written, output=next_cell)
        self._node("Mul", self._node("Sigmoid", show), self._node("Tanh", next_cell), output=next_hidden)

    def _normalizer(self, value: str, module: ObservationNormalizer) -> str:
        centred = self._node("Sub", value, self._weight(module.mean))
        scaled = self._node("Mul", centred, self._weight(module.inverse_std))
        if math.isinf(module.limit):
            return scaled
        limit = torch.tensor(module.limit)
        return self._node("Clip", scaled, self._weight(-limit), self._weight(limit))

    def _linear(self, value: str, layer: nn.Linear, output: str | None = None) -> str:
        return self._node("Gemm", value, self._weight(layer.weight), self._weight(layer.bias), output=output, transB=1)

    def _convolution(self, value: str, layer: nn.Conv1d | nn.Conv2d) -> str:
        weight, bias = self._weight(layer.weight), self._weight(layer.get_parameter("bias"))
        return self._node("Conv", value, weight, bias, kernel_shape=layer.kernel_size, strides=layer.stride)

    def _reshaped(self, value: str, shape: tuple[int, ...]) -> str:
        return self._node("Reshape", value, self._weight(torch.tensor(shape)))

    def _split(self, value: str, count: int) -> list[str]:
        from onnx import helper

        parts = [f"{value}_{part}" for part in range(count)]
        self.nodes.append(helper.make_node("Split", [value], parts, axis=1, num_outputs=count))
        return parts

    def _node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = output or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def _weight(self, tensor: torch.Tensor) -> str:
        from onnx import numpy_helper

        name = f"weight_{len(self.weights)}"
        array: npt.NDArray[np.float32 | np.int64] = tensor.detach().numpy()
        if array.dtype == np.float32:
            # Subnormal numbers slow a CPU down a hundred times, and engines differ in whether they take them for 0.
            array = np.where(np.abs(array) < np.finfo(np.float32).tiny, np.float32(0.0), array)
        self.weights.append(numpy_helper.from_array(array, name))
        return name


def _unknown(layer: nn.Module) -> InputError:
    return InputError(f"export: no ONNX form is known for the layer {type(layer).__name__}; add it to onnx_graph.py")
