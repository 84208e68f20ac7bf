"""The `mujoco_warp` engine: the model of the `mujoco` engine on an NVIDIA GPU, in float32; on a CPU for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from sim2real.robots import Robot
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.model import FOOT_FORCE, foot_object, load_model
from sim2real.sim.mujoco_warp_fields import ModelFields, put_model
from sim2real.sim.mujoco_warp_room import RoomWatch
from sim2real.sim.places import Place, nominal_value, places_of
from sim2real.sim.scene import EMPTY, Scene
from sim2real.sim.warp_arrays import Array, Graphs, Mirror, device_of, flat, host_copy, keep, put, write

if TYPE_CHECKING:
    import torch

__all__ = ["MujocoWarpSim"]

# What the next step depends on: mjSTATE_INTEGRATION, as far as MuJoCo Warp has it.
_STATE: Final = (
    *("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata"),
)
_OUTPUTS: Final = ("sensordata", "actuator_force", "geom_xpos", "site_xpos", "xpos")


class MujocoWarpSim:
    """A `BatchedSim` of MuJoCo Warp. One physics step is one graph of kernels, captured once and launched again.

    `qpos`, `qvel` and `ctrl` are float64 on the host and follow the device, which computes in float32: what is written
    to them is rounded at the next call. A trainer on the same GPU works on `torch_view`, which copies nothing.

    Runs are repeated bit for bit on the same machine unless `deterministic` is False.

    Attributes:
        spec: The model's specification.
        model: The model on the host, without what is randomized.
        device: The Warp device.
        command: The command blocks that `set_command` wrote last, on the device, shape (N, 5, J).
        host: As given.

    Args:
        robot: The robot.
        num_envs: Number of environments; "worlds" in MuJoCo Warp.
        scene: What surrounds it.
        dt: Physics step [s]; None: the MJCF's own.
        effort_limits: What each actuator can apply at most [N·m], in the robot's joint order; None: its ratings.
        device: ``"cuda:0"``, ``"cpu"``, ...; None: the first GPU where there is one, else the CPU.
        nconmax: Room for contacts per environment, shared by all; None: MuJoCo Warp's guess. A step with more contacts
            than there is room for is an error.
        njmax: Room for constraint rows in each environment; None: MuJoCo Warp's guess. Likewise.
        deterministic: Add up contacts and constraints in the same order in every run; False: as they come, which a GPU
            may do faster.
        host: Bring `qpos`, `qvel`, `ctrl`, sites and sensors to the host after each `step`; False: only `refresh` does,
            for those who work on `torch_view`.

    Raises:
        InputError: The MJCF does not fit the robot or needs what MuJoCo Warp lacks, or there is no such device.
    """

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        *,
        scene: Scene = EMPTY,
        dt: float | None = None,
        effort_limits: Sequence[float] | None = None,
        device: str | None = None,
        nconmax: int | None = None,
        njmax: int | None = None,
        deterministic: bool = True,
        host: bool = True,
    ) -> None:
        for name, room in (("nconmax", nconmax), ("njmax", njmax)):
            if room is not None and room < 1:
                raise InputError(f"{name}: expected at least 1, got {room}")
        self.device = device_of(device)
        self.robot = robot
        self.scene = scene
        self.num_envs = num_envs
        self.joint_names = tuple(joint.name for joint in robot.joints)
        self.spec, self.model = load_model(robot, scene, dt=dt, effort_limits=effort_limits)
        self.dt = float(self.model.opt.timestep)
        with wp.ScopedDevice(self.device):
            self._model = put_model(robot, self.model, deterministic=deterministic)
            self._data = mjw.make_data(self.model, nworld=num_envs, nconmax=nconmax, njmax=njmax)
            self.command = wp.zeros((num_envs, 5, len(robot.joints)), dtype=wp.float32)
            self._room = RoomWatch(self._data, int(self._model.opt.contact_sensor_maxmatch))
        self._graphs = Graphs(self.device)
        self._captured = 0
        self._senses_state = False
        self._places: dict[str, tuple[Place, ...]] = {}
        self._fields = ModelFields(self._model, num_envs)
        self._bias = flat(self._fields.expand("actuator_biasprm"))
        self._initial = {name: host_copy(array)[:1] for name, array in self._state()}

        self.host = host
        self._inputs = tuple(
            Mirror(array, array.shape) for array in (self._data.qpos, self._data.qvel, self._data.ctrl)
        )
        self.qpos, self.qvel, self.ctrl = (mirror.host for mirror in self._inputs)
        self._outputs: dict[str, Mirror] = {}
        joints = [mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in self.joint_names]
        self._qpos_columns = [int(self.model.jnt_qposadr[joint]) for joint in joints]
        self._qvel_columns = [int(self.model.jnt_dofadr[joint]) for joint in joints]
        self._find_feet()
        self.refresh()

    def _find_feet(self) -> None:
        """Find the feet's places and forces in the outputs."""
        feet = [foot_object(self.model, foot) for foot in self.robot.feet]
        if len({kind for kind, _ in feet}) > 1:
            raise InputError(f"robot {self.robot.name}: feet: expected geoms or bodies, got both; name one kind")
        of_bodies = bool(feet) and feet[0][0] == mujoco.mjtObj.mjOBJ_BODY
        self._feet_source = self._data.xpos if of_bodies else self._data.geom_xpos
        self._feet = np.array([identifier for _, identifier in feet], np.intp)
        forces = [self._sensor_columns(FOOT_FORCE + foot) for foot in self.robot.feet]
        self._feet_columns = [column for force in forces for column in range(force.start, force.stop)]

    @property
    def joint_pos(self) -> Array:
        """Positions of the actuated joints [rad], shape (N, J)."""
        return self.qpos[:, self._qpos_columns]

    @property
    def joint_vel(self) -> Array:
        """Velocities of the actuated joints [rad/s], shape (N, J)."""
        return self.qvel[:, self._qvel_columns]

    @property
    def joint_effort(self) -> Array:
        """Efforts of the last physics step [N·m], shape (N, J)."""
        return host_copy(self._data.actuator_force)

    @property
    def feet_force(self) -> Array:
        """Magnitude of the contact force on each foot [N], shape (N, F), one physics step old."""
        if not self._feet_columns:
            return np.zeros((self.num_envs, 0))
        forces = host_copy(self._data.sensordata)[:, self._feet_columns].reshape(self.num_envs, -1, 3)
        return np.linalg.norm(forces, axis=2)

    @property
    def feet_pos(self) -> Array:
        """Centres of the feet (of a body: its origin) in the world [m], shape (N, F, 3), one physics step old."""
        positions: Array = self._feet_source.numpy()[:, self._feet].astype(np.float64)
        return positions

    def site_pos(self, name: str) -> Array:
        """Return the live position of a site in the world [m], shape (N, 3), one physics step old.

        Raises:
            InputError: The MJCF has no such site.
        """
        site = _object_id(self.model, mujoco.mjtObj.mjOBJ_SITE, name)
        return self._output("site_xpos")[:, site]

    def sensor(self, name: str) -> Array:
        """Return the live, read-only output of the MJCF's sensor `name`, shape (N, width).

        Raises:
            InputError: The MJCF has no such sensor.
        """
        columns = self._sensor_columns(name)
        sensor = _object_id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        if self.model.sensor_needstage[sensor] != int(mujoco.mjtStage.mjSTAGE_ACC) and not self._senses_state:
            self._senses_state = True
            self.refresh()
        return self._output("sensordata")[:, columns]

    def set_command(self, command: Array, env_ids: EnvIds | None = None) -> None:
        """Hold command blocks, shape (n, 5, J): stiffness and damping go into the actuators' affine bias."""
        put(flat(self.command), command.reshape(len(command), -1), env_ids)
        self.hold_command(self.command)

    def hold_command(self, command: Any) -> None:
        """Hold command blocks that are on the device: a float32 `warp.array` of shape (N, 5, J).

        A trainer gives ``warp.from_torch(tensor)``, or writes to ``torch_view("command")`` and gives ``sim.command``.
        """
        ctrl = self._inputs[2]
        ctrl.upload()
        wp.launch(
            _hold,
            dim=(self.num_envs, len(self.joint_names)),
            inputs=[command],
            outputs=[self._data.ctrl, self._bias],
            device=self.device,
        )
        if self.host:
            ctrl.download()

    def step(self, n: int = 1) -> None:
        """Advance every environment by n physics steps.

        Raises:
            InputError: There were more contacts or constraints than `nconmax` or `njmax` leave room for; the state is
                no longer that of the model.
        """
        self._prepare()
        self._run(self._physics_step, n)
        if self._senses_state:
            self._run(self._sense_state)
        if self.host:
            self._show()
        self._room.check()

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Put environments into the model's initial state; randomized parameters and gains stay."""
        self._prepare()
        for name, array in self._state():
            write(array, self._initial_rows(name, env_ids), env_ids)
        self._show_inputs()

    def refresh(self, env_ids: EnvIds | None = None) -> None:
        """Run the forward dynamics so that outputs, and the host's arrays, agree with the state on the device.

        Raises:
            InputError: As by `step`.
        """
        self._prepare()
        outputs = [getattr(self._data, name) for name in _OUTPUTS]
        before = [wp.clone(array) for array in outputs] if env_ids is not None else []
        self._run(self._forward)
        if env_ids is not None:
            for array, old in zip(outputs, before, strict=True):
                keep(array, old, env_ids)
        self._show()
        self._room.check()

    def randomize(self, param: str, values: Array, env_ids: EnvIds | None = None) -> None:
        """Set the robot's parameter `param`, or the model's number at that place, shape (n,), in `env_ids` (None: all).

        Raises:
            InputError: There is no such parameter or place, MuJoCo Warp has one value of it for all environments, or a
                value is not finite.
        """
        if param not in self._places:
            self._places[param] = places_of(self.robot, self.model, param)
        if not np.isfinite(values).all():
            raise InputError(f"parameter {param!r}: expected finite values, got {values[~np.isfinite(values)][0]}")
        for place in self._places[param]:
            self._fields.write(place, values, env_ids)

    def nominal(self, place: str) -> float:
        """Return what the robot's model holds at a place, whatever was randomized.

        Raises:
            InputError: There is no such place; the message lists near names.
        """
        return nominal_value(self.model, place)

    def snapshot(self) -> Snapshot:
        """Return a copy of the integration state and of all per-environment parameters."""
        self._prepare()
        return {name: host_copy(array) for name, array in self._state()} | self._fields.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from a snapshot of a simulation of the same robot and size.

        Efforts, feet, sites and sensors are those of the next step: they are outputs, not state.
        """
        self._fields.restore(snapshot)
        for name, array in self._state():
            write(array, snapshot[name], None)
        self._show_inputs()

    def torch_view(self, name: str) -> torch.Tensor:
        """Return a live float32 tensor of the device's own memory, of shape (N, ...).

        Args:
            name: A field of MuJoCo Warp's `Data` (``qpos``, ``qvel``, ``ctrl``, ``sensordata``, ``actuator_force``,
                ``geom_xpos``, ``cvel``, ...), or ``command``, shape (N, 5, J), which `hold_command` puts in force.

        Raises:
            InputError: There is no such field.
            MissingExtraError: PyTorch is not installed.
        """
        require("torch", "train")
        fields = {field.name for field in dataclasses.fields(self._data)}
        array = self.command if name == "command" else getattr(self._data, name) if name in fields else None
        if not isinstance(array, wp.array) or array.shape[0] != self.num_envs:
            raise InputError(f"torch_view({name!r}): expected 'command' or a field of mujoco_warp.Data of each world")
        return wp.to_torch(array, requires_grad=False)

    def _run(self, work: Callable[[], None], times: int = 1) -> None:
        if self._captured != self._fields.generation:
            self._graphs.clear()
            self._captured = self._fields.generation
        self._graphs.run(work, times)

    def _physics_step(self) -> None:
        mjw.step(self._model, self._data)
        self._room.note()

    def _forward(self) -> None:
        mjw.forward(self._model, self._data)
        self._room.note()

    def _set_constants(self) -> None:
        mjw.set_const(self._model, self._data)

    def _sense_state(self) -> None:
        """Let sensors of position and velocity agree with the state after the step."""
        mjw.fwd_position(self._model, self._data)
        mjw.sensor_pos(self._model, self._data)
        mjw.fwd_velocity(self._model, self._data)
        mjw.sensor_vel(self._model, self._data)

    def _prepare(self) -> None:
        """Put in force what was written on the host, and constants of what was randomized."""
        for mirror in self._inputs:
            mirror.upload()
        if self._fields.unsettled:
            self._run(self._set_constants)
            self._fields.unsettled = False

    def _show_inputs(self) -> None:
        for mirror in self._inputs:
            mirror.download()

    def _show(self) -> None:
        self._show_inputs()
        for mirror in self._outputs.values():
            mirror.download()

    def _state(self) -> Iterator[tuple[str, Any]]:
        for name in _STATE:
            array = getattr(self._data, name)
            if array.size:
                yield name, array

    def _initial_rows(self, name: str, env_ids: EnvIds | None) -> Array:
        if name == "qpos" and "qpos0" in self._fields:
            rows = host_copy(self._model.qpos0)
            return rows if env_ids is None else rows[env_ids]
        return self._initial[name]

    def _output(self, field: str) -> Array:
        """Return the live, read-only twin of one of the engine's outputs."""
        if field not in self._outputs:
            array = getattr(self._data, field)
            self._outputs[field] = Mirror(array, array.numpy().shape)
        view = self._outputs[field].host.view()
        view.flags.writeable = False
        return view

    def _sensor_columns(self, name: str) -> slice:
        sensor = _object_id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        start = int(self.model.sensor_adr[sensor])
        return slice(start, start + int(self.model.sensor_dim[sensor]))


def _object_id(model: mujoco.MjModel, kind: mujoco.mjtObj, name: str) -> int:
    identifier = mujoco.mj_name2id(model, kind, name)
    if identifier < 0:
        raise InputError(f"MJCF: no {kind.name.removeprefix('mjOBJ_').lower()} named {name!r}; add it to the model")
    return identifier


@wp.kernel(enable_backward=False)
def _hold(command: wp.array3d[float], ctrl: wp.array2d[float], bias: wp.array2d[float]) -> None:
    """The actuators' affine law is gain 1 on ctrl plus bias 1 on position plus bias 2 on velocity; 10 biases each."""
    world, joint = wp.tid()
    kp = command[world, wp.static(KP), joint]
    kd = command[world, wp.static(KD), joint]
    drive = kp * command[world, wp.static(POSITION), joint] + kd * command[world, wp.static(VELOCITY), joint]
    ctrl[world, joint] = drive + command[world, wp.static(EFFORT), joint]
    bias[world, 10 * joint + 1] = -kp
    bias[world, 10 * joint + 2] = -kd
