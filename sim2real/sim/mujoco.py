"""The `mujoco` engine: `mujoco.batch` of MuJoCo 4, bit-identical at any number of threads."""

from __future__ import annotations

import re
from collections.abc import Sequence

import mujoco
import numpy as np
import numpy.typing as npt
from mujoco.batch import Batch

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from sim2real.robots import Robot
from sim2real.sim.base import EnvIds, Snapshot

__all__ = ["MujocoSim"]

_MODEL = "model."
_STATE = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl", "qfrc_applied", "mocap_pos", "mocap_quat")
# The fields from which MuJoCo derives constants: after a write to one of them, set_const() must follow.
_CONSTANTS_FROM = frozenset[str](mujoco.MjModel._setconst_inputs)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] the name that mujoco.batch's documentation gives
_FIELD = re.compile(r"(?P<field>\w+)/(?P<object>[\w.-]+)(?:\[(?P<index>\d+)\])?")
_OBJECT_OF_PREFIX = {
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "jnt": mujoco.mjtObj.mjOBJ_JOINT,
    "dof": mujoco.mjtObj.mjOBJ_JOINT,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "site": mujoco.mjtObj.mjOBJ_SITE,
}


class MujocoSim:
    """A `BatchedSim` on CPU threads.

    Args:
        robot: The robot; its MJCF must drive each joint by a general actuator of the joint's name with gain 1 and an
            affine bias of 0, into which the gains of command blocks are written.
        num_envs: Number of environments.
        dt: Physics step [s]; None: the MJCF's own.
        effort_limits: What each actuator can apply at most [N·m], in the robot's joint order; None: its ratings.
        num_threads: Worker threads, the caller's included; 0: one per CPU.

    Raises:
        InputError: The model lacks a joint or an actuator of the robot.
    """

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        *,
        dt: float | None = None,
        effort_limits: Sequence[float] | None = None,
        num_threads: int = 1,
    ) -> None:
        _silence()
        self.robot = robot
        self.model = mujoco.MjModel.from_xml_path(str(robot.mjcf))
        if dt is not None:
            self.model.opt.timestep = dt
        self.num_envs = num_envs
        self.dt = float(self.model.opt.timestep)
        self.joint_names = tuple(joint.name for joint in robot.joints)
        joints = [_object_id(self.model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in self.joint_names]
        self._actuators = np.array(
            [_object_id(self.model, mujoco.mjtObj.mjOBJ_ACTUATOR, name) for name in self.joint_names], np.intp
        )
        limits = np.array(effort_limits or [joint.effort_limit for joint in robot.joints])
        self.model.actuator_forcerange[self._actuators] = np.stack((-limits, limits), axis=1)
        self.model.actuator_forcelimited[self._actuators] = True
        self.batch = Batch(self.model, num_envs, nthread=num_threads)
        self._has_sensors = self.model.nsensor > 0
        self._fields: dict[str, npt.NDArray[np.float64]] = {}
        self.qpos = self.batch.bind("qpos")
        self.qvel = self.batch.bind("qvel")
        self.ctrl = self.batch.bind("ctrl")
        self._force = self.batch.bind("actuator_force")
        self._qpos_columns = _columns([int(self.model.jnt_qposadr[joint]) for joint in joints])
        self._qvel_columns = _columns([int(self.model.jnt_dofadr[joint]) for joint in joints])
        self._state = {name: self.batch.bind(name) for name in _STATE if self.batch.bind(name).size}
        self._bias = self._expand("actuator_biasprm")
        self._sensors = self.batch.bind("sensordata") if self._has_sensors else None
        self.batch.forward()

    @property
    def joint_pos(self) -> npt.NDArray[np.float64]:
        """Positions of the actuated joints [rad], shape (N, J)."""
        return self.qpos[:, self._qpos_columns]

    @property
    def joint_vel(self) -> npt.NDArray[np.float64]:
        """Velocities of the actuated joints [rad/s], shape (N, J)."""
        return self.qvel[:, self._qvel_columns]

    @property
    def joint_effort(self) -> npt.NDArray[np.float64]:
        """Efforts of the last physics step [N·m], shape (N, J)."""
        return self._force[:, self._actuators]

    def sensor(self, name: str) -> npt.NDArray[np.float64]:
        """Return the live output of the sensor `name`, shape (N, width).

        Raises:
            InputError: The MJCF has no such sensor.
        """
        sensor = _object_id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        assert self._sensors is not None
        start = int(self.model.sensor_adr[sensor])
        return self._sensors[:, start : start + int(self.model.sensor_dim[sensor])]

    def set_command(self, command: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Hold command blocks, shape (n, 5, J): stiffness and damping go into the actuators' affine bias."""
        kp, kd = command[:, KP], command[:, KD]
        drive = kp * command[:, POSITION] + kd * command[:, VELOCITY] + command[:, EFFORT]
        if env_ids is None:
            self.ctrl[:, self._actuators] = drive
            self._bias[:, self._actuators, 1] = -kp
            self._bias[:, self._actuators, 2] = -kd
            return
        rows = env_ids[:, None]
        self.ctrl[rows, self._actuators] = drive
        self._bias[rows, self._actuators, 1] = -kp
        self._bias[rows, self._actuators, 2] = -kd

    def step(self, n: int = 1) -> None:
        """Advance every environment by n physics steps."""
        stage = mujoco.mjtStage.mjSTAGE_VEL if self._has_sensors else mujoco.mjtStage.mjSTAGE_NONE
        self.batch.step(nstep=n, stage=stage)

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Put environments into the model's initial state; randomized parameters stay."""
        self.batch.reset(env_ids)

    def refresh(self) -> None:
        """Run the forward dynamics so that efforts and sensors agree with a state that was written to."""
        self.batch.forward()

    def randomize(self, param: str, values: npt.NDArray[np.float64], env_ids: EnvIds | None = None) -> None:
        """Set the robot's parameter `param`, shape (n,), in `env_ids` (None: all).

        Raises:
            InputError: The robot has no such parameter.
        """
        rows = slice(None) if env_ids is None else env_ids
        located = [self._locate(place) for place in self.robot.parameter(param).places]
        for field, index in located:
            self._expand(field)[(rows, *index)] = values
        if any(field in _CONSTANTS_FROM for field, _ in located):
            self.batch.set_const(env_ids)

    def _locate(self, address: str) -> tuple[str, tuple[int, ...]]:
        """Resolve ``field/object[index]`` to the field's name and the index after the environment's."""
        match = _FIELD.fullmatch(address)
        if match is None:
            raise InputError(
                f"robot {self.robot.name}: parameter field {address!r}: expected field/object or field/object[i]"
            )
        field = match["field"]
        identifier = _object_id(self.model, _OBJECT_OF_PREFIX[field.partition("_")[0]], match["object"])
        if field.startswith("dof_"):
            identifier = int(self.model.jnt_dofadr[identifier])
        return field, (identifier,) if match["index"] is None else (identifier, int(match["index"]))

    def _expand(self, field: str) -> npt.NDArray[np.float64]:
        if field not in self._fields:
            self._fields[field] = self.batch.expand(field)
        return self._fields[field]

    def snapshot(self) -> Snapshot:
        """Return a copy of the integration state and of all per-environment parameters."""
        state = {name: values.copy() for name, values in self._state.items()}
        return state | {_MODEL + field: values.copy() for field, values in self._fields.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from a snapshot of a simulation of the same robot and size.

        `joint_effort` and sensors are those of the next step: they are outputs, not state.
        """
        for name, values in snapshot.items():
            if name.startswith(_MODEL):
                self._expand(name.removeprefix(_MODEL))[:] = values
        if any(field in _CONSTANTS_FROM for field in self._fields):
            self.batch.set_const()
        for name, values in self._state.items():
            values[:] = snapshot[name]


def _silence() -> None:
    """Let MuJoCo keep its warnings of unstable simulations to itself, in this whole process.

    Of each it would write a line to the console and one to MUJOCO_LOG.TXT in the working directory; they stay counted.
    """
    config = mujoco.MjLogConfig.get()
    config.logto_file = config.logto_console = False
    config.set()


def _object_id(model: mujoco.MjModel, kind: mujoco.mjtObj, name: str) -> int:
    identifier = mujoco.mj_name2id(model, kind, name)
    if identifier < 0:
        raise InputError(f"MJCF: no {kind.name.removeprefix('mjOBJ_').lower()} named {name!r}; add it to the model")
    return identifier


def _columns(addresses: Sequence[int]) -> slice | npt.NDArray[np.intp]:
    """Addresses as a slice where they are consecutive, so that reading them is a view and not a copy."""
    start, stop = addresses[0], addresses[0] + len(addresses)
    return slice(start, stop) if list(addresses) == list(range(start, stop)) else np.array(addresses, np.intp)
