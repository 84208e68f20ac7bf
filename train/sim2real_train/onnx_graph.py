"""An actor as an ONNX graph, built node by node.

Nothing is traced: the file holds the operators below and the weights, is the same for the same weights, and carries no
trace of the machine that wrote it. That it computes what the actor computes is not assumed but proved, over sequences
(`sim2real_train.parity`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real.contract import PolicyContract, encode_contract
from sim2real.errors import InputError
from sim2real.onnx_metadata import CONTRACT_METADATA_KEY
from sim2real_train.models import Actor, GruCell, ObservationNormalizer

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
    if actor.memory is not None:
        (state,) = model.recurrent
        features = graph.add_gru(features, state.input_name, actor.memory, output=state.output_name)
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
        if isinstance(module, ObservationNormalizer):
            return self._normalizer(value, module)
        raise InputError(
            f"export: no ONNX form is known for the layer {type(module).__name__}; add it to onnx_graph.py"
        )

    def add_gru(self, value: str, state: str, cell: GruCell, output: str) -> str:
        """Append one step of `cell`; return the name of the next state, which is `output`. Formula: `GruCell`."""
        input_reset, input_update, input_new = self._thirds(self._linear(value, cell.input))
        hidden_reset, hidden_update, hidden_new = self._thirds(self._linear(state, cell.hidden))
        reset = self._node("Sigmoid", self._node("Add", input_reset, hidden_reset))
        update = self._node("Sigmoid", self._node("Add", input_update, hidden_update))
        new = self._node("Tanh", self._node("Add", input_new, self._node("Mul", reset, hidden_new)))
        return self._node("Add", new, self._node("Mul", update, self._node("Sub", state, new)), output=output)

    def _normalizer(self, value: str, module: ObservationNormalizer) -> str:
        centred = self._node("Sub", value, self._weight(module.mean))
        scaled = self._node("Mul", centred, self._weight(module.inverse_std))
        limit = torch.tensor(module.limit)
        return self._node("Clip", scaled, self._weight(-limit), self._weight(limit))

    def _linear(self, value: str, layer: nn.Linear, output: str | None = None) -> str:
        return self._node("Gemm", value, self._weight(layer.weight), self._weight(layer.bias), output=output, transB=1)

    def _thirds(self, value: str) -> tuple[str, str, str]:
        from onnx import helper

        first, second, third = (f"{value}_{part}" for part in range(3))
        self.nodes.append(helper.make_node("Split", [value], [first, second, third], axis=1, num_outputs=3))
        return first, second, third

    def _node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = output or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def _weight(self, tensor: torch.Tensor) -> str:
        from onnx import numpy_helper

        name = f"weight_{len(self.weights)}"
        array: npt.NDArray[np.float32] = tensor.detach().numpy()
        self.weights.append(numpy_helper.from_array(array, name))
        return name
