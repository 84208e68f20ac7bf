"""Where a robot's joints are in the arrays of its simulation: a model file may hold them in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError

if TYPE_CHECKING:
    from sim2real.sim.mujoco import MujocoSim

__all__ = ["Columns", "columns_of", "controls"]

Ids = npt.NDArray[np.intp]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of the J joints, in the robot's order, each of shape (J,)."""

    qpos: Ids
    qvel: Ids
    ctrl: Ids


def columns_of(sim: MujocoSim) -> Columns:
    """Return the columns of the robot that `sim` simulates.

    Raises:
        InputError: The model moves in more ways than its joints: a log of the joints does not tell where it is.
    """
    import mujoco

    model, names = sim.model, sim.joint_names
    if not model.nv == model.nu == len(names):
        raise InputError(
            f"robot {sim.robot.name}: calibration replays robots whose joints are all driven and logged: expected "
            f"{len(names)} degrees of freedom and actuators ({', '.join(names)}), got {model.nv} and {model.nu}; "
            "fix the base and the other joints in the model"
        )
    joints = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in names]
    return Columns(
        qpos=np.array([model.jnt_qposadr[joint] for joint in joints], np.intp),
        qvel=np.array([model.jnt_dofadr[joint] for joint in joints], np.intp),
        ctrl=np.array([mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, name) for name in names], np.intp),
    )


def controls(columns: Columns, efforts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `efforts`, shape (..., J) in the robot's order, in the order of the model's actuators."""
    out = np.empty_like(efforts)
    out[..., columns.ctrl] = efforts
    return out
