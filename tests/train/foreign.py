"""Policies as other trainers write them, small and with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from sim2real.bundle import Bundle, read_bundle
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from sim2real_train.import_command import ImportArgs
from sim2real_train.importing import ImportResult, import_policy
from sim2real_train.policy import OnnxPolicy

TASK = "go2-velocity-flat"
CONTRACT = get_task(TASK).contract(unpublished(get_task(TASK)))
OBS, ACT = CONTRACT.model.observation_size, CONTRACT.model.action_size
JOINTS = CONTRACT.joint_names


def perceptron(
    inputs: int = OBS, outputs: int = ACT, activation: type[nn.Module] = nn.ELU, seed: int = 0
) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 24), activation(), nn.Linear(24, 16), activation(), nn.Linear(16, outputs))


def under(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": value for name, value in state.items()}


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def imported(source: Path, out: Path, **options: Any) -> tuple[ImportResult, Bundle]:
    """The result of an import that passes, and the bundle that it wrote."""
    result = import_policy(ImportArgs(source=source, out=out, **options))
    assert result.passed, result.parity
    assert all(each.steps >= 200 and each.error <= 1e-5 for each in result.parity)
    return result, read_bundle(out)


def answers(bundle: Bundle, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    policy = OnnxPolicy(bundle.models["float32"], bundle.contract.model)
    policy.reset(len(observations))
    return policy.act(observations)


def observations(count: int = 200, size: int = OBS, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, 2.0, (count, size)).astype(np.float32)


def onnx_file(
    path: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    inputs: int = OBS,
    outputs: int = ACT,
    batch: int | str = "batch",
    extra: tuple[onnx.NodeProto, ...] = (),
    more_inputs: tuple[str, ...] = (),
) -> Path:
    """A perceptron as others export it: a dynamic batch, node names and doc strings, metadata."""
    net = perceptron(inputs, outputs)
    nodes, value = list(extra), "obs"
    weights: list[TensorProto] = []
    for index, layer in enumerate(net):
        name = "actions" if index == len(net) - 1 else f"v{index}"
        if isinstance(layer, nn.Linear):
            parts = [f"w{index}", f"b{index}"]
            arrays = (layer.weight.detach().numpy(), layer.bias.detach().numpy())
            weights += [numpy_helper.from_array(array, part) for array, part in zip(arrays, parts, strict=True)]
            nodes.append(helper.make_node("Gemm", [value, *parts], [name], name=f"/home/me/{index}", transB=1))
        else:
            nodes.append(helper.make_node("Elu", [value], [name], doc_string="at /home/me/train.py"))
        value = name
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [
            helper.make_tensor_value_info("obs", floats, [batch, inputs]),
            *(helper.make_tensor_value_info(name, floats, [1, 1]) for name in more_inputs),
        ],
        [helper.make_tensor_value_info("actions", floats, [batch, outputs])],
        initializer=weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pytorch")
    helper.set_model_props(model, dict(metadata or {}))
    onnx.save(model, path)
    return path
