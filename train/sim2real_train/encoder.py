"""A convolutional encoder of one term of the observation: over its history, or over the grid that it is."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.observation import ObservationBuilder
from sim2real_train.limits import Width

__all__ = ["ConvConfig", "ConvEncoder", "term_columns"]


class ConvConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Convolutions over one term of the observation, without padding."""

    term: str
    """Name of the term in the contract."""
    grid: tuple[Width, Width] | None = None
    """Rows and columns of a term that is a grid, row by row; its frames are then the channels of 2-D convolutions.
    None: 1-D convolutions over the term's history, its elements being the channels."""
    channels: Annotated[tuple[Width, ...], msgspec.Meta(min_length=1)] = (16, 16)
    """Channels that each layer puts out."""
    kernel: Width = 3
    """Length of the kernels, in frames or cells of the grid."""
    stride: Width = 1
    """Step of the kernels, likewise."""


def term_columns(contract: PolicyContract, name: str) -> npt.NDArray[np.intp]:
    """Return where a term lies in the observation vector: column of each element of each frame, (history, width).

    Frames are in the contract's order (`Observation.history_order`).

    Raises:
        InputError: There is no such term.
    """
    size = contract.model.observation_size
    # Taken apart like any observation. A float32 holds every column below 2²⁴ exactly.
    terms = ObservationBuilder(contract, 1).split(np.arange(size, dtype=np.float32)[None])
    if name not in terms:
        raise InputError(f"encoder: the observation has no term {name!r}; allowed: {', '.join(terms)}")
    return terms[name][0].astype(np.intp)


class ConvEncoder(nn.Module):
    """Replaces the columns of one term by features of it: [..., O] to [..., output_size], what is left in front.

    Args:
        config: The convolutions.
        activation: What follows each of them.
        input_size: O.
        columns: Where the term lies, shape (history, width); see `term_columns`.

    Attributes:
        output_size: Width of what it puts out.
        shape: Channels and extent of the term, as the first convolution sees it.
        term: Columns of the term in that order, flat.
        rest: Columns of all else.
        layers: Convolutions with activations.

    Raises:
        InputError: The convolutions do not fit the term.
    """

    term: torch.Tensor
    rest: torch.Tensor

    def __init__(
        self, config: ConvConfig, activation: type[nn.Module], input_size: int, columns: npt.NDArray[np.intp]
    ) -> None:
        super().__init__()
        history, width = columns.shape
        self.shape = (width, history) if config.grid is None else (history, *config.grid)
        if config.grid is not None and math.prod(config.grid) != width:
            raise InputError(f"encoder: term {config.term!r} has {width} elements, which are no grid {config.grid}")
        ordered = columns.T if config.grid is None else columns
        # Not persistent: they follow from the contract, and are no weights.
        self.register_buffer("term", torch.from_numpy(ordered.flatten()), persistent=False)
        self.register_buffer("rest", torch.from_numpy(np.setdiff1d(np.arange(input_size), ordered)), persistent=False)
        self.layers = nn.Sequential()
        self.num_features = math.prod(self._add_layers(config, activation))
        self.output_size = len(self.rest) + self.num_features

    def _add_layers(self, config: ConvConfig, activation: type[nn.Module]) -> tuple[int, ...]:
        """Append the layers; return the shape of what they put out."""
        convolution = nn.Conv1d if config.grid is None else nn.Conv2d
        inputs, *extent = self.shape
        for outputs in config.channels:
            if min(extent) < config.kernel:
                raise InputError(
                    f"encoder: the kernel of {config.kernel} is longer than what is left of term {config.term!r} in "
                    f"layer {len(self.layers) // 2 + 1}: {' × '.join(map(str, extent))}; give a shorter kernel, a "
                    "smaller stride or fewer layers"
                )
            layer = convolution(inputs, outputs, config.kernel, config.stride)
            nn.init.orthogonal_(layer.weight, 2.0**0.5)
            nn.init.zeros_(layer.get_parameter("bias"))
            self.layers.extend([layer, activation()])
            inputs, extent = outputs, [(length - config.kernel) // config.stride + 1 for length in extent]
        return inputs, *extent

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return what is left of the observation, followed by the features, shape [..., output_size]."""
        leading = observation.shape[:-1]
        term = observation.index_select(-1, self.term).reshape(-1, *self.shape)
        features = self.layers(term).reshape(*leading, self.num_features)
        if not len(self.rest):
            return features
        return torch.cat((observation.index_select(-1, self.rest), features), dim=-1)
