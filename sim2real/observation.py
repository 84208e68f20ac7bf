"""From measurements to the observation vector: one implementation for trainer, plant and robot.

The same code runs with N = 4096 rows in the trainer and N = 1 on the robot, and row i of a batch equals, bit for bit,
what a builder of one row gives for the same measurements.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim2real.contract import ObservationTerm, PolicyContract
from sim2real.errors import ContractError
from sim2real.layout import SignalLayout
from sim2real.signals import SIGNALS

__all__ = ["ObservationBuilder"]

_FUNCTIONS: Final = {"sin": np.sin, "cos": np.cos}
_QUATERNION_ORDER: Final = {"wxyz": (0, 1, 2, 3), "xyzw": (1, 2, 3, 0)}


class ObservationBuilder:
    """Builds observations from live input arrays; nothing is allocated by `update`.

    Write the newest measurements into `signals`, `commands` and `last_action`, then call `reset` (first observation of
    an episode) or `update` (every later one) and read `observation`.

    Attributes:
        signals: Measurement vectors in `SignalLayout` order, robot-side axes, shape (N, S), float64.
        commands: Operator inputs in contract order, shape (N, C), float64.
        last_action: The policy's previous output, shape (N, A), float64; 0 at the start of an episode.
        observation: Shape (N, O), float32.
    """

    def __init__(self, contract: PolicyContract, num_envs: int) -> None:
        self.layout = SignalLayout(contract)
        num_signals, num_commands = self.layout.size, len(contract.commands)
        self._sources = np.zeros((num_envs, num_signals + num_commands + contract.model.action_size))
        self.signals = self._sources[:, :num_signals]
        self.commands = self._sources[:, num_signals : num_signals + num_commands]
        self.last_action = self._sources[:, num_signals + num_commands :]
        self.commands[:] = [command.initial for command in contract.commands]

        self._terms = contract.observation.terms
        self._widths = tuple(len(term.scale) for term in self._terms)
        self._starts = tuple(int(start) for start in np.cumsum((0, *self._widths))[:-1])
        self._compile_frame(contract)
        self._compile_history(contract, num_envs)
        # Without a past, the observation is the frame itself.
        self._is_frame = np.array_equal(self._gather, [range(len(self._pick))])
        self.observation: npt.NDArray[np.float32] = (
            self._flat_history if self._is_frame else np.zeros((num_envs, self._gather.shape[1]), np.float32)
        )

    def _compile_frame(self, contract: PolicyContract) -> None:
        """Flatten all terms into one gather and a few whole-vector operations."""
        terms = self._terms
        signs = {joint.name: float(joint.axis_sign) for joint in contract.joints}
        self._pick = np.array([i for term in terms for i in self._source_indices(contract, term)], np.intp)
        sign = [signs[name] if _on_robot_axes(term) else 1.0 for term in terms for name in _elements(term)]
        self._sign = np.array(sign)
        self._turns = bool(np.any(self._sign != 1.0))
        self._offset = np.array([value for term in terms for value in term.offset])
        self._scale = np.array([value for term in terms for value in term.scale])
        self._frame = np.zeros((len(self._sources), len(self._pick)))
        columns = [slice(start, start + width) for start, width in zip(self._starts, self._widths, strict=True)]
        placed = list(zip(terms, columns, strict=True))
        self._curved = [(_FUNCTIONS[term.function], where) for term, where in placed if term.function != "identity"]
        self._clipped = [(term.clip, where) for term, where in placed if term.clip is not None]

    def _source_indices(self, contract: PolicyContract, term: ObservationTerm) -> list[int]:
        """Columns of `_sources` that a term reads, in the term's own order."""
        commands_start = self.layout.size
        actions_start = commands_start + len(contract.commands)
        if term.source == "command":
            return list(range(commands_start, actions_start))
        if term.source == "last_action":
            return [actions_start + contract.action.joints.index(name) for name in term.joints]
        start = self.layout.slices[term.source].start
        if SIGNALS[term.source].per_joint:
            return [start + contract.joint_names.index(name) for name in term.joints]
        if term.quaternion is not None:
            return [start + i for i in _QUATERNION_ORDER[term.quaternion]]
        return [start + i for i in range(SIGNALS[term.source].width)]

    def _compile_history(self, contract: PolicyContract, num_envs: int) -> None:
        """Lay out the ring of past frames and, for each of its phases, where every observation element lies."""
        observation = contract.observation
        depth = max((term.history_length - 1) * term.history_stride for term in self._terms) + 1
        width = len(self._pick)
        blocks: list[tuple[int, int, int]] = []  # (term, age in control steps, position in the history)
        for index, term in enumerate(self._terms):
            ages = [position * term.history_stride for position in range(term.history_length)]
            if observation.history_order == "oldest_first":
                ages.reverse()
            blocks += [(index, age, position) for position, age in enumerate(ages)]
        if observation.layout == "frame_major":
            blocks.sort(key=lambda block: (block[2], block[0]))
        phases = [
            [
                ((phase - age) % depth) * width + self._starts[index] + element
                for index, age, _ in blocks
                for element in range(self._widths[index])
            ]
            for phase in range(depth)
        ]
        self._blocks = blocks
        self._gather = np.array(phases, np.intp)
        self._phase = 0
        self._history = np.zeros((num_envs, depth, width), np.float32)
        self._flat_history = self._history.reshape(num_envs, depth * width)
        self._fill_first = observation.startup_fill == "first"

    def reset(self, env_ids: npt.NDArray[np.intp] | None = None) -> npt.NDArray[np.float32]:
        """Start an episode in rows `env_ids` (None: all) from the live inputs; return `observation`.

        The history before the first frame is filled as the contract says. Other rows do not change.
        """
        rows = slice(None) if env_ids is None else env_ids
        sources = self._sources[rows]
        frame = np.empty((len(sources), len(self._pick)))
        self._assemble(sources, frame)
        if self._fill_first:
            self._history[rows] = frame[:, None, :]
        else:
            self._history[rows] = 0.0
            self._history[rows, self._phase] = frame
        if not self._is_frame:
            self.observation[rows] = self._flat_history[rows][:, self._gather[self._phase]]
        return self.observation

    def update(self) -> npt.NDArray[np.float32]:
        """Append the live inputs as the newest frame of every row; return `observation`."""
        self._assemble(self._sources, self._frame)
        self._phase = (self._phase + 1) % len(self._gather)
        self._history[:, self._phase] = self._frame
        if not self._is_frame:
            np.take(self._flat_history, self._gather[self._phase], axis=1, out=self.observation, mode="clip")
        return self.observation

    def _assemble(self, sources: npt.NDArray[np.float64], frame: npt.NDArray[np.float64]) -> None:
        """Compute frame = clip(scale × f(sign × source − offset)), rows of sources to rows of frames."""
        np.take(sources, self._pick, axis=1, out=frame, mode="clip")
        if self._turns:
            np.multiply(frame, self._sign, out=frame)
        np.subtract(frame, self._offset, out=frame)
        for function, columns in self._curved:
            function(frame[:, columns], out=frame[:, columns])
        np.multiply(frame, self._scale, out=frame)
        for (low, high), columns in self._clipped:
            part = frame[:, columns]
            np.maximum(part, low, out=part)
            np.minimum(part, high, out=part)

    def split(self, observation: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        """Take observations apart: term name → values as the network sees them, shape (N, history_length, width).

        History positions are in the contract's order (`Observation.history_order`).

        Raises:
            ContractError: The observations have another width than the contract's.
        """
        if observation.shape[1:] != self.observation.shape[1:]:
            raise ContractError(
                f"observation: expected shape (N, {self.observation.shape[1]}), got {observation.shape}; "
                "it was made under another contract"
            )
        parts: dict[str, list[npt.NDArray[np.float32]]] = {term.name: [] for term in self._terms}
        start = 0
        for index, _, _ in self._blocks:
            parts[self._terms[index].name].append(observation[:, start : start + self._widths[index]])
            start += self._widths[index]
        return {name: np.stack(frames, axis=1) for name, frames in parts.items()}

    def invert(self, observation: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float64]]:
        """Recover measurements from observations: term name → policy-side values in the source's unit.

        Exact up to float32 for ``identity`` terms whose value was not clipped; sin and cos terms have no single inverse
        and are left out. Shape (N, history_length, width).
        """
        split = self.split(observation)
        return {
            term.name: split[term.name].astype(np.float64) / np.array(term.scale) + np.array(term.offset)
            for term in self._terms
            if term.function == "identity"
        }

    def state(self) -> dict[str, npt.NDArray[np.float64 | np.float32 | np.int64]]:
        """Return a copy of everything that later observations depend on, for `load_state`."""
        return {
            "sources": self._sources.copy(),
            "history": self._history.copy(),
            "phase": np.array(self._phase),
            "observation": self.observation.copy(),
        }

    def load_state(self, state: dict[str, npt.NDArray[np.float64 | np.float32 | np.int64]]) -> None:
        """Continue exactly from what `state` returned."""
        self._sources[:] = state["sources"]
        self._history[:] = state["history"]
        self._phase = int(state["phase"])
        self.observation[:] = state["observation"]


def _elements(term: ObservationTerm) -> tuple[str, ...]:
    """One name per element of a term: the joint, or an empty name where there is none."""
    return term.joints or ("",) * len(term.scale)


def _on_robot_axes(term: ObservationTerm) -> bool:
    """Whether the source is measured on the robot's joint axes; the policy's own output already is on its own."""
    return term.source in SIGNALS and SIGNALS[term.source].per_joint
