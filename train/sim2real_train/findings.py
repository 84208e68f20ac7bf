"""What an exported policy does not use, or was not shown: none of it is wrong, and all of it is worth knowing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import msgspec
import numpy as np
from torch import nn

from sim2real.contract import PolicyContract
from sim2real.golden import Golden
from sim2real.layout import observation_names
from sim2real_train.models import Actor

__all__ = ["Findings", "findings_of"]

_CONSTANT: Final = 1e-7
"""Standard deviation below which a number of the observation did not move."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, by name."""

    constant_inputs: tuple[str, ...]
    """Numbers of the observation that did not move in the golden run."""
    dead_channels: dict[str, int]
    """Layer to how many of its outputs have no weights, if any."""
    subnormal_weights: int
    """Weights so small that they were written as 0."""

    def lines(self) -> list[str]:
        """Return a line for each kind that there is."""
        told: list[str] = []
        if self.constant_inputs:
            told.append(f"inputs that did not move in the golden run: {', '.join(self.constant_inputs)}")
        if self.dead_channels:
            rows = (f"{count} of {layer}" for layer, count in self.dead_channels.items())
            told.append(f"dead channels (no weights): {', '.join(rows)}")
        if self.subnormal_weights:
            told.append(f"subnormal weights, written as 0: {self.subnormal_weights}")
        return told


def findings_of(actor: Actor, contract: PolicyContract, golden: Golden) -> Findings:
    """Look at a policy and at the run that proves it."""
    names = observation_names(contract)
    still = np.flatnonzero(golden.observations.std(axis=0) < _CONSTANT)
    dead: dict[str, int] = {}
    subnormal = 0
    named = cast("Iterator[tuple[str, nn.Module]]", actor.named_modules())
    for name, module in named:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            weight = np.abs(module.weight.detach().numpy())
            count = int((weight.reshape(len(weight), -1).max(axis=1) == 0.0).sum())
            if count:
                dead[name] = count
            subnormal += int(((weight > 0.0) & (weight < np.finfo(np.float32).tiny)).sum())
    return Findings(
        constant_inputs=tuple(names[index] for index in still), dead_channels=dead, subnormal_weights=subnormal
    )
