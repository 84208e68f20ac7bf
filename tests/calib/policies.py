"""Small exported policies of every kind that is quantised; weights and normaliser are not the first ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import nn

from sim2real.bundle import write_bundle
from sim2real.contract import Model, PolicyContract
from sim2real.golden import MIN_GOLDEN_STEPS
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from sim2real_calib.batch_policy import OnnxBatch
from sim2real_calib.products import Product, products_of
from sim2real_train.encoder import ConvConfig
from sim2real_train.golden_run import record_golden
from sim2real_train.models import Actor, ModelConfig, encoder_columns
from sim2real_train.onnx_graph import actor_to_onnx

KINDS = {
    "mlp": ModelConfig(hidden=(24, 16)),
    "cnn": ModelConfig(hidden=(16,), activation="silu", encoder=ConvConfig(term="position", channels=(8, 4), kernel=2)),
    "gru": ModelConfig(hidden=(16,), recurrent="gru", recurrent_size=12),
    "lstm": ModelConfig(hidden=(16,), activation="tanh", recurrent="lstm", recurrent_size=12),
}


@dataclass(frozen=True, eq=False)
class Exported:
    """A float32 policy."""

    contract: PolicyContract
    onnx: bytes

    @property
    def names(self) -> Model:
        return self.contract.model

    @property
    def products(self) -> tuple[Product, ...]:
        return products_of(onnx.load_model_from_string(self.onnx))

    def observations(self, rows: int, seed: int = 0) -> npt.NDArray[np.float32]:
        """Some within what the normaliser lets through and some beyond, shape (rows, O)."""
        return 2.0 * np.random.default_rng(seed).standard_normal((rows, self.names.observation_size), np.float32)

    def write(self, path: Path) -> Path:
        """Write its bundle."""
        task = get_task(self.contract.identity.task)
        policy = OnnxBatch(self.onnx, self.names)
        golden = record_golden(policy, task, self.contract, steps=MIN_GOLDEN_STEPS)
        write_bundle(path, contract=self.contract, models={"float32": self.onnx}, golden=golden, created_by="tests")
        return path


@functools.cache
def exported(kind: str, *, seed: int = 0, task_name: str | None = None, gain: float = 50.0) -> Exported:
    """One of `KINDS`, by default for the pendulum, or for the arm if it has an encoder, whose term has a history.

    By the `gain` what comes out is larger than where training begins: not lost beside what rounding does.
    """
    config = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        actor, contract = _begun(config, task_name or ("pendulum-swingup" if config.encoder is None else "so101-reach"))
        with torch.no_grad():
            actor.last_layer.weight.mul_(gain)
            for name, parameter in actor.named_parameters():
                if "bias" in name:
                    parameter.normal_(0.0, 0.1)
            actor.normalizer.mean.normal_(0.0, 0.1)
            actor.normalizer.inverse_std.uniform_(0.5, 2.0)
    return _exported(actor, contract)


def pumping(*, loud_unit: float = 0.0, loud_input: float = 0.0) -> Exported:
    """A pendulum that is pushed the way it swings, by two of 16 hidden units, and what makes that hard in few bits.

    Args:
        loud_unit: Value of a third unit, which nothing listens to: beside it those two are lost.
        loud_input: Weight of an input that is always 0: beside it the velocity's weight is lost.
    """
    actor, contract = _begun(ModelConfig(hidden=(16,), activation="relu"), "pendulum-swingup")
    first = next(layer for layer in actor.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
        actor.normalizer.inverse_std[3] = 0.0
        # Observations: sine, cosine, velocity in 10 rad/s, last action.
        first.weight[0, 2], first.weight[1, 2] = 0.3, -0.3
        first.weight[:2, 3] = loud_input
        first.weight[2, 1], first.bias[2] = 0.01 * loud_unit, loud_unit
        actor.last_layer.weight[0, :2] = torch.tensor([1.0, -1.0])
    return _exported(actor, contract)


def _begun(config: ModelConfig, task_name: str) -> tuple[Actor, PolicyContract]:
    task = get_task(task_name)
    contract = task.contract(unpublished(task))
    size = contract.model.observation_size
    actor = Actor(config, size, contract.model.action_size, encoder_columns(config, contract))
    return actor, msgspec.structs.replace(contract, model=actor.contract_model(contract.model))


def _exported(actor: Actor, contract: PolicyContract) -> Exported:
    actor.requires_grad_(False)
    return Exported(contract, actor_to_onnx(actor, contract))
