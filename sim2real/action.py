"""From the network's output to the command block: one implementation for trainer, plant and robot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim2real.contract import Joint, PolicyContract
from sim2real.errors import ContractError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY, columns_of, zero_commands

__all__ = ["ActionMapper"]

_Place = tuple[int, "slice | npt.NDArray[np.intp]", "slice | npt.NDArray[np.intp]"]
_ROW = {"position": POSITION, "velocity": VELOCITY, "effort": EFFORT}


class ActionMapper:
    """Maps actions to joint targets as `sim2real.contract.Action` defines.

    Where actions are in the order of the joints, `apply` allocates nothing.

    Attributes:
        command: Command blocks in robot-side axes and contract joint order, shape (N, 5, J), float64; live.
    """

    def __init__(self, contract: PolicyContract, num_envs: int) -> None:
        action = contract.action
        driven = [index for index, joint in enumerate(contract.joints) if joint.command_mode != "passive"]
        joints = [contract.joints[index] for index in driven]
        order = [action.joints.index(joint.name) for joint in joints]
        self._driven = columns_of(driven)
        self._order = columns_of(order)
        self._scale = np.array(action.scale)[order]
        self._offset = np.array(action.offset)[order]
        self._clip = action.clip
        self._incremental = action.mode == "incremental"
        period = contract.timing.control_period_ns * 1e-9
        self._step = None if action.rate_limit is None else np.array(action.rate_limit)[order] * period
        self._sign = np.array([float(joint.axis_sign) for joint in joints])
        self._turns = bool(np.any(self._sign != 1.0))
        self._low, self._high = np.array([_policy_side_limits(joint) for joint in joints]).T.copy()
        self._holds_position = np.array([joint.command_mode == "position" for joint in joints])

        num_joints = len(contract.joints)
        self.command = zero_commands(num_envs, num_joints)
        self.command[:, KP] = [joint.kp for joint in contract.joints]
        self.command[:, KD] = [joint.kd for joint in contract.joints]
        # Which row of a block, which joints in it, and which targets go there.
        self._places: list[_Place] = []
        for mode, row in _ROW.items():
            chosen = [index for index, joint in enumerate(joints) if joint.command_mode == mode]
            if chosen:
                self._places.append((row, columns_of([driven[index] for index in chosen]), columns_of(chosen)))
        self._target = np.zeros((num_envs, len(driven)))
        self._previous = np.zeros((num_envs, len(driven)))
        self._bound = np.zeros((num_envs, len(driven)))

    def reset(self, joint_pos: npt.NDArray[np.float64], env_ids: npt.NDArray[np.intp] | None = None) -> None:
        """Start an episode in rows `env_ids` (None: all) at the measured positions.

        Args:
            joint_pos: Joint positions [rad], robot-side axes, contract order, shape (N, J).
            env_ids: Rows that start.
        """
        rows = slice(None) if env_ids is None else env_ids
        start = np.where(self._holds_position, joint_pos[rows][:, self._driven] * self._sign, 0.0)
        self._previous[rows] = start
        start *= self._sign
        for row, joints, targets in self._places:
            block = self.command[rows, row]
            block[:, joints] = start[:, targets]
            self.command[rows, row] = block

    def apply(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Turn actions, shape (N, A), into `command`, shape (N, 5, J); a NaN in an action stays visible as NaN."""
        target = self._target
        target[:] = action[:, self._order]
        if self._clip is not None:
            np.maximum(target, self._clip[0], out=target)
            np.minimum(target, self._clip[1], out=target)
        np.multiply(target, self._scale, out=target)
        np.add(target, self._previous if self._incremental else self._offset, out=target)
        if self._step is not None:
            np.subtract(self._previous, self._step, out=self._bound)
            np.maximum(target, self._bound, out=target)
            np.add(self._previous, self._step, out=self._bound)
            np.minimum(target, self._bound, out=target)
        np.maximum(target, self._low, out=target)
        target = np.minimum(target, self._high, out=self._previous)
        if self._turns:
            target = np.multiply(target, self._sign, out=self._target)
        for row, joints, targets in self._places:
            self.command[:, row, joints] = target[:, targets]
        return self.command

    def invert(self, command: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Recover actions, shape (N, A), from command blocks; exact where nothing was clipped, limited or clamped.

        Raises:
            ContractError: The contract's actions are incremental: a command alone does not determine the action.
        """
        if self._incremental:
            raise ContractError("contract.action.mode: expected absolute to invert a command, got incremental")
        target = np.empty((len(command), len(self._sign)))
        for row, joints, targets in self._places:
            target[:, targets] = command[:, row, joints]
        target *= self._sign
        action = np.empty_like(target)
        action[:, self._order] = (target - self._offset) / self._scale
        return action

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return a copy of everything that later commands depend on, for `load_state`."""
        return {"previous": self._previous.copy(), "command": self.command.copy()}

    def load_state(self, state: dict[str, npt.NDArray[np.float64]]) -> None:
        """Continue exactly from what `state` returned."""
        self._previous[:] = state["previous"]
        self.command[:] = state["command"]


def _policy_side_limits(joint: Joint) -> tuple[float, float]:
    """Bounds of a joint's target on the policy's axes, in the unit of its command mode."""
    if joint.command_mode == "position":
        low, high = joint.position_limits or (-np.inf, np.inf)
    elif joint.command_mode == "velocity":
        low, high = -joint.velocity_limit, joint.velocity_limit
    else:
        low, high = -joint.effort_limit, joint.effort_limit
    return (low, high) if joint.axis_sign > 0 else (-high, -low)
