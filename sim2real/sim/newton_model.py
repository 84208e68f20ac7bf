"""From a robot's MJCF to Newton's model of many worlds, and between the coordinates of MuJoCo and of Newton."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import mujoco
import newton
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.sim.base import EnvIds
from sim2real.sim.places import Place
from sim2real.sim.rotation import rotate, rotate_inverse
from sim2real.sim.warp_arrays import Array

__all__ = ["Coordinates", "Parameters", "build_model", "named"]

_WXYZ_TO_XYZW = (1, 2, 3, 0)
_XYZW_TO_WXYZ = (3, 0, 1, 2)


def build_model(spec: mujoco.MjSpec, num_envs: int, device: Any, *, requires_grad: bool) -> Any:
    """Return Newton's model of `num_envs` worlds of what `load_model` specified, through Newton's own MJCF importer.

    Actuators stay MuJoCo's, commanded by their ctrl. Sensors are not imported.
    """
    spec = spec.copy()
    spec.option.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # the importer does not know it
    spec.compile()
    world = newton.ModelBuilder()
    world.add_mjcf(spec.to_xml(), ctrl_direct=True)
    worlds = newton.ModelBuilder()
    worlds.replicate(world, num_envs)
    with warnings.catch_warnings():
        # Each world has its own height field, and they need not touch.
        warnings.filterwarnings("ignore", ".*Heightfield-vs-heightfield collision", newton.NewtonWarning)
        return worlds.finalize(device=device, requires_grad=requires_grad)


def named(labels: Sequence[str], name: str, num_envs: int) -> int:
    """Return the index in one world of what the MJCF calls `name`, or -1; labels are paths, world after world."""
    in_world = labels[: len(labels) // num_envs]
    return next((index for index, label in enumerate(in_world) if label.rpartition("/")[2] == name), -1)


class _Columns(NamedTuple):
    """Where the coordinates of joints lie, in MuJoCo's arrays and in Newton's."""

    mujoco: npt.NDArray[np.intp]
    newton: npt.NDArray[np.intp]


class Coordinates:
    """Converts positions and velocities, all worlds at once.

    Hinges and slides are the same numbers in another order. Of a free joint, Newton keeps the quaternion as xyzw, the
    velocity of the centre of mass instead of the origin's, and the angular velocity in world axes instead of the
    body's: v_com = v + ω × R c, with ω = R ω_body and the centre of mass c in the body.

    Raises:
        InputError: There are joints that are no hinge, slide or free joint, or several on one body.
    """

    def __init__(self, robot: Robot, model: mujoco.MjModel, newton_model: Any, num_envs: int) -> None:
        self._num_envs = num_envs
        self._newton = newton_model
        self._free: list[tuple[int, int, int, int, int]] = []
        scalars: list[tuple[int, int, int, int]] = []
        q_starts, qd_starts = newton_model.joint_q_start.numpy(), newton_model.joint_qd_start.numpy()
        children = newton_model.joint_child.numpy()
        by_body = {int(child): index for index, child in enumerate(children[: len(children) // num_envs])}
        for joint in range(model.njnt):
            kind = int(model.jnt_type[joint])
            body = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, int(model.jnt_bodyid[joint])) or ""
            child = named(newton_model.body_label, body, num_envs)
            if kind == int(mujoco.mjtJoint.mjJNT_BALL) or child < 0 or model.body_jntnum[model.jnt_bodyid[joint]] > 1:
                raise InputError(
                    f"robot {robot.name}: {robot.mjcf}: not for the engine newton: body {body!r}: expected a name and "
                    "one hinge, slide or free joint"
                )
            at = by_body[child]
            addresses = (
                int(model.jnt_qposadr[joint]),
                int(model.jnt_dofadr[joint]),
                int(q_starts[at]),
                int(qd_starts[at]),
            )
            if kind == int(mujoco.mjtJoint.mjJNT_FREE):
                self._free.append((*addresses, child))
            else:
                scalars.append(addresses)
        table = np.array(scalars, np.intp).reshape(-1, 4)
        self._q = _Columns(table[:, 0], table[:, 2])
        self._qd = _Columns(table[:, 1], table[:, 3])
        self.coordinate = dict(zip(table[:, 0].tolist(), table[:, 2].tolist(), strict=True))
        """Newton's coordinate in one world, by MuJoCo's, of hinges and slides."""
        self.dof = dict(zip(table[:, 1].tolist(), table[:, 3].tolist(), strict=True))
        """Newton's degree of freedom in one world, by MuJoCo's, of hinges and slides."""

    def to_newton(self, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """Return Newton's joint_q and joint_qd, shapes (N, nq) and (N, nv), of MuJoCo's qpos and qvel."""
        q, qd = np.empty_like(qpos), np.empty_like(qvel)
        q[:, self._q.newton] = qpos[:, self._q.mujoco]
        qd[:, self._qd.newton] = qvel[:, self._qd.mujoco]
        for qa, va, qb, vb, body in self._free:
            quat = qpos[:, qa + 3 : qa + 7]
            omega = rotate(quat, qvel[:, va + 3 : va + 6])
            q[:, qb : qb + 3] = qpos[:, qa : qa + 3]
            q[:, qb + 3 : qb + 7] = quat[:, _WXYZ_TO_XYZW]
            qd[:, vb : vb + 3] = qvel[:, va : va + 3] + np.cross(omega, rotate(quat, self._centre(body)))
            qd[:, vb + 3 : vb + 6] = omega
        return q, qd

    def to_mujoco(self, q: Array, qd: Array) -> tuple[Array, Array]:
        """Return MuJoCo's qpos and qvel of Newton's joint_q and joint_qd: the inverse of `to_newton`."""
        qpos, qvel = np.empty_like(q), np.empty_like(qd)
        qpos[:, self._q.mujoco] = q[:, self._q.newton]
        qvel[:, self._qd.mujoco] = qd[:, self._qd.newton]
        for qa, va, qb, vb, body in self._free:
            quat = q[:, qb + 3 : qb + 7][:, _XYZW_TO_WXYZ]
            omega = qd[:, vb + 3 : vb + 6]
            qpos[:, qa : qa + 3] = q[:, qb : qb + 3]
            qpos[:, qa + 3 : qa + 7] = quat
            qvel[:, va : va + 3] = qd[:, vb : vb + 3] - np.cross(omega, rotate(quat, self._centre(body)))
            qvel[:, va + 3 : va + 6] = rotate_inverse(quat, omega)
        return qpos, qvel

    def _centre(self, body: int) -> Array:
        """Return a body's centre of mass in its own frame [m], shape (N, 3)."""
        centres = self._newton.body_com.numpy().reshape(self._num_envs, -1, 3)
        return centres[:, body].astype(np.float64)


class _Field(NamedTuple):
    """Where a field of MuJoCo's model lies in Newton's."""

    array: str
    width: int
    """Numbers that Newton keeps for each object."""
    flag: int
    """What to tell the solver."""


_INERTIA = int(newton.ModelFlags.BODY_INERTIAL_PROPERTIES)
_JOINT = int(newton.ModelFlags.JOINT_DOF_PROPERTIES)
_FIELDS = {
    "body_mass": _Field("body_mass", 1, _INERTIA),
    "body_ipos": _Field("body_com", 3, _INERTIA),
    "dof_armature": _Field("joint_armature", 1, _JOINT),
    "dof_damping": _Field("joint_damping", 1, _JOINT),
    "dof_frictionloss": _Field("joint_friction", 1, _JOINT),
    "geom_friction": _Field("shape_material_mu", 1, int(newton.ModelFlags.SHAPE_PROPERTIES)),
}


class Parameters:
    """The parameters of Newton's model that may differ between environments."""

    def __init__(self, model: mujoco.MjModel, newton_model: Any, coordinates: Coordinates, num_envs: int) -> None:
        self._model = model
        self._newton = newton_model
        self._coordinates = coordinates
        self._num_envs = num_envs

    def write(self, place: Place, values: Array, env_ids: EnvIds | None) -> int:
        """Write one number of each environment, shape (n,), and return what to tell the solver.

        Raises:
            InputError: The engine cannot change it.
        """
        if place.field not in _FIELDS or (place.field == "geom_friction" and place.index[1] != 0):
            allowed = ", ".join(_FIELDS)
            raise InputError(f"parameter field {place.field}: newton cannot change it; allowed: {allowed} (of it, [0])")
        field = _FIELDS[place.field]
        by_world = self._by_world(field)
        column = self._object(place) * field.width + (place.index[1] if field.width > 1 else 0)
        by_world[slice(None) if env_ids is None else env_ids, column] = values
        self._assign(field, by_world)
        return field.flag

    def snapshot(self) -> dict[str, Array]:
        """Return a copy of all fields that `write` can change, shapes (N, numbers in a world)."""
        return {name: self._by_world(field).astype(np.float64) for name, field in _FIELDS.items()}

    def restore(self, fields: dict[str, Array]) -> int:
        """Write what `snapshot` returned, and return what to tell the solver."""
        for name, values in fields.items():
            self._assign(_FIELDS[name], values)
        return _INERTIA | _JOINT | int(newton.ModelFlags.SHAPE_PROPERTIES)

    def _object(self, place: Place) -> int:
        """Return the body, degree of freedom or shape of a world that a place belongs to."""
        index = place.index[0]
        if place.field.startswith("dof_"):
            if index not in self._coordinates.dof:
                raise InputError(f"parameter field {place.field}: newton can change it of hinges and slides alone")
            return self._coordinates.dof[index]
        kind = mujoco.mjtObj.mjOBJ_BODY if place.field.startswith("body_") else mujoco.mjtObj.mjOBJ_GEOM
        labels = self._newton.body_label if kind == mujoco.mjtObj.mjOBJ_BODY else self._newton.shape_label
        found = named(labels, mujoco.mj_id2name(self._model, kind, index) or "", self._num_envs)
        if found < 0:
            raise InputError(f"parameter field {place.field}: newton did not import that body or geom")
        return found

    def _by_world(self, field: _Field) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = getattr(self._newton, field.array).numpy().reshape(self._num_envs, -1).copy()
        return values

    def _assign(self, field: _Field, by_world: npt.NDArray[Any]) -> None:
        array = getattr(self._newton, field.array)
        array.assign(by_world.astype(np.float32).reshape(array.numpy().shape))
        if field.array == "body_mass":
            mass = array.numpy()
            self._newton.body_inv_mass.assign(np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0.0))
