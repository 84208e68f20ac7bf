"""Small exported policies of every kind that is quantised; weights and normaliser are not the first ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import torch

from sim2real.contract import Model, PolicyContract
from sim2real.tasks import get_task
from sim2real.tasks.base import unpublished
from sim2real_calib.products import Product, products_of
from sim2real_train.encoder import ConvConfig
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


@functools.cache
def exported(kind: str, *, seed: int = 0, task_name: str | None = None, gain: float = 50.0) -> Exported:
    """One of `KINDS`, by default for the pendulum, or for the arm if it has an encoder, whose term has a history.

    By the `gain` what comes out is larger than where training begins: not lost beside what rounding does.
    """
    config = KINDS[kind]
    task = get_task(task_name or ("pendulum-swingup" if config.encoder is None else "so101-reach"))
    contract = task.contract(unpublished(task))
    size = contract.model.observation_size
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        actor = Actor(config, size, contract.model.action_size, encoder_columns(config, contract))
        with torch.no_grad():
            actor.last_layer.weight.mul_(gain)
            for name, parameter in actor.named_parameters():
                if "bias" in name:
                    parameter.normal_(0.0, 0.1)
            actor.normalizer.mean.normal_(0.0, 0.1)
            actor.normalizer.inverse_std.uniform_(0.5, 2.0)
    contract = msgspec.structs.replace(contract, model=actor.contract_model(contract.model))
    return Exported(contract, actor_to_onnx(actor.requires_grad_(False), contract))
