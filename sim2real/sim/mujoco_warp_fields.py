"""Fields of MuJoCo Warp's model: one value for all environments until somebody asks for one each."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Final

import mujoco
import mujoco_warp as mjw
import numpy as np
import numpy.typing as npt
import warp as wp

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.places import Place
from sim2real.sim.warp_arrays import Array, flat, host_copy, put, write

__all__ = ["ModelFields", "put_model"]

_MODEL: Final = "model."
_CONSTANTS_FROM = frozenset[str](mujoco.MjModel._setconst_inputs)  # pyright: ignore[reportPrivateUsage] the name that mujoco.batch's documentation gives
# What set_const() derives from them: one row for all worlds would be written by all worlds.
_CONSTANTS: Final = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_length0", "tendon_invweight0", "actuator_acc0"),
    *("geom_aabb", "geom_rbound", "eq_data", "cam_pos0", "cam_poscom0", "cam_mat0"),
    *("light_pos0", "light_poscom0", "light_dir0"),
)
# Read only where put_model() found a value other than zero; what does the same job.
_FIXED_AT_ZERO: Final = {
    "actuator_armature": "dof_armature",
    "actuator_damping": "dof_damping",
    "actuator_dampingpoly": "dof_dampingpoly",
}
# Read only where put_model() found a value other than zero, and set this attribute.
_SWITCHED_ON_BY: Final = {
    "opt.density": "has_fluid",
    "opt.viscosity": "has_fluid",
    "opt.wind": "has_fluid",
    "tendon_stiffness": "has_tendon_stiffness",
    "tendon_stiffnesspoly": "has_tendon_stiffness",
    "tendon_damping": "has_tendon_damping",
    "tendon_dampingpoly": "has_tendon_damping",
}
# Not in MuJoCo Warp, which neither resets a world by itself nor has that stage of collision detection.
_NEUTRAL_FLAGS: Final = mujoco.mjtDisableBit.mjDSBL_AUTORESET | mujoco.mjtDisableBit.mjDSBL_MIDPHASE


def put_model(robot: Robot, model: mujoco.MjModel, *, deterministic: bool) -> Any:
    """Return the model as MuJoCo Warp's, on the current device.

    Raises:
        InputError: It needs what MuJoCo Warp lacks.
    """
    model = copy.copy(model)
    model.opt.disableflags &= ~_NEUTRAL_FLAGS
    model.actuator_biasprm[:, 1] = -1.0  # where it finds gains of 0, it leaves them out of the integrator for good
    unfit = f"robot {robot.name}: {robot.mjcf}: not for the engine mujoco_warp: "
    if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        raise InputError(unfit + "bodies that sleep; disable the flag 'sleep'")
    try:
        on_device = mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise InputError(unfit + str(error)) from error
    on_device.actuator_biasprm.zero_()
    on_device.opt.warn_overflow = 0  # it would print from the device; RoomWatch raises
    on_device.opt.deterministic = int(mjw.DeterminismType.ALL if deterministic else mjw.DeterminismType.NONE)
    return on_device


class ModelFields:
    """The fields that have one value for each environment.

    Attributes:
        generation: Grows when an array of the model gives way to another, which a captured graph does not see.
        unsettled: A field was written from which `mjw.set_const` derives others.
    """

    def __init__(self, model: Any, num_envs: int) -> None:
        self.generation = 0
        self.unsettled = False
        self._model = model
        self._num_envs = num_envs
        self._nominal: dict[str, Array] = {}

    def __contains__(self, field: str) -> bool:
        """Tell whether a field has one value for each environment."""
        return field in self._nominal

    def expand(self, field: str) -> Any:
        """Return the array of a field, of one row for each environment; so are then those of what follows from it.

        Raises:
            InputError: MuJoCo Warp does not read the field by environment.
        """
        holder, name = self._holder(field)
        if field not in self._nominal:
            self._check(field, holder, name)
            shared = getattr(holder, name)
            self._nominal[field] = host_copy(shared)[:1]
            values = np.repeat(shared.numpy()[:1], self._num_envs, axis=0)
            setattr(holder, name, wp.array(values, dtype=shared.dtype, device=shared.device))
            self.generation += 1
            if field in _SWITCHED_ON_BY:
                setattr(self._model, _SWITCHED_ON_BY[field], True)
            if field in _CONSTANTS_FROM:
                for constant in _CONSTANTS:
                    if getattr(self._model, constant).size:
                        self.expand(constant)
        return getattr(holder, name)

    def write(self, place: Place, values: npt.NDArray[np.float64], env_ids: EnvIds | None) -> None:
        """Write one number of each environment, shape (n,).

        Raises:
            InputError: As by `expand`.
        """
        array = self.expand(place.field)
        shape = array.shape[1:] + tuple(getattr(array.dtype, "_shape_", ()))
        column = np.ravel_multi_index(place.index, shape) if shape else 0
        put(flat(array), values.reshape(-1, 1), env_ids, np.array([column], np.intp))
        self.unsettled |= place.field in _CONSTANTS_FROM

    def snapshot(self) -> Snapshot:
        """Return a copy of every field that was expanded."""
        return {_MODEL + field: host_copy(self.expand(field)) for field in self._nominal}

    def restore(self, snapshot: Snapshot) -> None:
        """Write what a snapshot holds; other fields become the model's own again."""
        fields = {name.removeprefix(_MODEL): values for name, values in snapshot.items() if name.startswith(_MODEL)}
        for field in fields:
            self.expand(field)
        for field, nominal in self._nominal.items():
            write(self.expand(field), fields.get(field, nominal), None)
        self.unsettled = False  # what follows from the fields was in the snapshot too

    def _holder(self, field: str) -> tuple[Any, str]:
        return (self._model.opt, field.removeprefix("opt.")) if field.startswith("opt.") else (self._model, field)

    def _check(self, field: str, holder: Any, name: str) -> None:
        if field in _FIXED_AT_ZERO:
            raise InputError(f"parameter field {field}: mujoco_warp cannot change it; use {_FIXED_AT_ZERO[field]}")
        by_environment = {
            each.name for each in dataclasses.fields(holder) if getattr(each.type, "shape", ("",))[0] == "*"
        }
        if name not in by_environment:
            raise InputError(
                f"parameter field {field}: mujoco_warp has one value of it for all environments; use the engine mujoco"
            )
