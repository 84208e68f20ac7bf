"""Memories: recurrent cells in plain matrix products, which every exporter and engine computes alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

import torch
from torch import nn

__all__ = ["CELLS", "GruCell", "LstmCell", "RecurrentCell", "run_sequence"]


class RecurrentCell(nn.Module, ABC):
    """One step of a memory.

    Attributes:
        size: Width H of each state tensor.
        input: Products with the inputs, one block of H rows for each gate.
        hidden: Products with what the step before put out, likewise.
    """

    num_gates: ClassVar[int]
    state_names: ClassVar[tuple[str, ...]]
    """Name of each state tensor; the first one is what the cell puts out."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.input = nn.Linear(input_size, self.num_gates * size)
        self.hidden = nn.Linear(size, self.num_gates * size)
        bound = size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @abstractmethod
    def forward(self, inputs: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the next state, each [B, H], from inputs, shape [B, I], and state, each [B, H]."""
        ...


class GruCell(RecurrentCell):
    """One step of a gated recurrent unit.

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder" (2014), in the form of
    `torch.nn.GRUCell` (reset gate applied after the hidden product), whose weights have the same layout.
    """

    num_gates = 3
    state_names = ("state",)

    def forward(self, inputs: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the next state, each [B, H], from inputs, shape [B, I], and state, each [B, H]."""
        (past,) = state
        input_reset, input_update, input_new = self.input(inputs).chunk(3, dim=-1)
        hidden_reset, hidden_update, hidden_new = self.hidden(past).chunk(3, dim=-1)
        # r = σ(Wr x + Ur h);  z = σ(Wz x + Uz h);  n = tanh(Wn x + r ⊙ Un h);  h' = n + z ⊙ (h − n)
        reset = torch.sigmoid(input_reset + hidden_reset)
        update = torch.sigmoid(input_update + hidden_update)
        new = torch.tanh(input_new + reset * hidden_new)
        return (new + update * (past - new),)


class LstmCell(RecurrentCell):
    """One step of a long short-term memory with a forget gate.

    Source: Gers et al., "Learning to forget" (2000), in the form of `torch.nn.LSTMCell` (gates in the order input,
    forget, new, output), whose weights have the same layout.
    """

    num_gates = 4
    state_names = ("hidden", "cell")

    def forward(self, inputs: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the next state, each [B, H], from inputs, shape [B, I], and state, each [B, H]."""
        past, cell = state
        write, keep, new, show = (self.input(inputs) + self.hidden(past)).chunk(4, dim=-1)
        # i = σ(Wi x + Ui h);  f, o likewise;  g = tanh(Wg x + Ug h);  c' = f ⊙ c + i ⊙ g;  h' = o ⊙ tanh(c')
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(new)
        return torch.sigmoid(show) * torch.tanh(cell), cell


CELLS: Final[Mapping[str, type[RecurrentCell]]] = {"gru": GruCell, "lstm": LstmCell}
"""Every memory by its name in the configuration."""


def run_sequence(
    cell: RecurrentCell, inputs: torch.Tensor, state: tuple[torch.Tensor, ...], episode_start: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the state after each of T steps, each [T, B, H].

    Step by step, with masks: on episodes cut apart and padded, the fused kernels of `torch.gru` and `torch.lstm` are
    no faster forward and backward (24 steps of 64 to 1,024 environments on a CPU), and have more rows to compute.

    Args:
        cell: The memory.
        inputs: Shape [T, B, I].
        state: State before step 0, each [B, H].
        episode_start: Where the state is zero before the step, shape [T, B], bool.
    """
    states: list[tuple[torch.Tensor, ...]] = []
    for features, starts in zip(inputs, episode_start[..., None], strict=True):
        # Filled, not multiplied: what a diverged episode left behind may not be a number.
        state = cell(features, *(tensor.masked_fill(starts, 0.0) for tensor in state))
        states.append(state)
    return tuple(torch.stack(tensors) for tensors in zip(*states, strict=True))
