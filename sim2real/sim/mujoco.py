"""The `mujoco` engine: `mujoco.batch` of MuJoCo 4, bit-identical at any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import mujoco
import numpy as np
import numpy.typing as npt
from mujoco.batch import Batch

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY, columns_of
from sim2real.robots import Robot
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.model import FOOT_FORCE, foot_object, load_model
from sim2real.sim.places import Lowest, field_values, lowest_of, nominal_value, places_of
from sim2real.sim.scene import EMPTY, Scene

__all__ = ["MujocoSim"]

Array = npt.NDArray[np.float64]

_MODEL: Final = "model."
# The parts of mjSTATE_INTEGRATION.
_STATE: Final = (
    *("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata", "plugin_state", "plastic"),
)
# The fields from which MuJoCo derives constants: after a write to one of them, set_const() must follow.
_CONSTANTS_FROM = frozenset[str](mujoco.MjModel._setconst_inputs)  # pyright: ignore[reportPrivateUsage] the name that mujoco.batch's documentation gives
_GAINS: Final = "gains"
_INITIAL: Final = frozenset({"qpos0", "eq_active0"})
"""Fields that the initial state follows from, beside those of bodies that are moved as mocap."""
_FEW: Final = 4
"""Simulations that the caller's thread computes sooner than it wakes the others."""
_BIAS: Final = slice(1, 3)  # of actuator_biasprm: what multiplies position and velocity


class _Target(NamedTuple):
    """Where a parameter goes."""

    places: tuple[tuple[Array, tuple[int, ...]], ...]
    """Fields with an axis for the simulations, and where in them."""
    lowest: Lowest
    has_constants: bool
    """Whether constants follow from it."""


class MujocoSim:
    """A `BatchedSim` on CPU threads. What `load_model` makes of the robot's MJCF is what it steps.

    Attributes:
        spec: The model's specification: compile variants of it for `set_models`.
        model: The model, which all environments share but for what is randomized.

    Args:
        robot: The robot.
        num_envs: Number of environments.
        scene: What surrounds it.
        dt: Physics step [s]; None: the MJCF's own.
        effort_limits: What each actuator can apply at most [N·m], in the robot's joint order; None: its ratings.
        num_threads: Worker threads, the caller's included; 0: one per CPU.

    Raises:
        InputError: The MJCF does not fit the robot.
    """

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        *,
        scene: Scene = EMPTY,
        dt: float | None = None,
        effort_limits: Sequence[float] | None = None,
        num_threads: int = 1,
    ) -> None:
        self.robot = robot
        self.scene = scene
        self.spec, self.model = load_model(robot, scene, dt=dt, effort_limits=effort_limits)
        for options in (self.spec.option, self.model.opt):
            _choose_fastest(options, self.model.ntree)
        self.num_envs = num_envs
        self.dt = float(self.model.opt.timestep)
        self.joint_names = tuple(joint.name for joint in robot.joints)
        self._batch = Batch(self.model, num_envs, nthread=num_threads)
        self._models: tuple[mujoco.MjModel, ...] = ()
        self._stage = mujoco.mjtStage.mjSTAGE_NONE

        self.qpos = self._batch.bind("qpos")
        self.qvel = self._batch.bind("qvel")
        self.ctrl = self._batch.bind("ctrl")
        self._state = {name: values for name in _STATE if (values := self._batch.bind(name)).size}
        self._force = self._batch.bind("actuator_force")
        self._sensors = self._batch.bind("sensordata")
        self._sites = self._batch.bind("site_xpos")
        joints = [mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in self.joint_names]
        self._qpos_columns = columns_of([int(self.model.jnt_qposadr[joint]) for joint in joints])
        self._qvel_columns = columns_of([int(self.model.jnt_dofadr[joint]) for joint in joints])
        self._bind_feet()

        # In memory as commands are, with which they are compared at every step.
        self._gains = np.zeros((2, num_envs, len(joints))).swapaxes(0, 1)
        self._bias: Array | None = None
        self._fields: dict[str, Array] = {}
        self._targets: dict[str, _Target] = {}
        self._unsettled = np.zeros(num_envs, np.bool_)
        self._settled = True
        self._initial = self._batch.state[0].copy()
        self._batch.forward()

    def _bind_feet(self) -> None:
        """Find the feet's places and forces in the outputs."""
        feet = [foot_object(self.model, foot) for foot in self.robot.feet]
        if len({kind for kind, _ in feet}) > 1:
            raise InputError(f"robot {self.robot.name}: feet: expected geoms or bodies, got both; name one kind")
        of_bodies = bool(feet) and feet[0][0] == mujoco.mjtObj.mjOBJ_BODY
        self._centres = self._batch.bind("xpos" if of_bodies else "geom_xpos") if feet else self.qpos[:, None, :3]
        self._feet = columns_of([identifier for _, identifier in feet])
        forces = [self._sensor_columns(FOOT_FORCE + foot) for foot in self.robot.feet]
        columns = slice(forces[0].start, forces[-1].stop) if forces else slice(0)
        self._contact = self._sensors[:, columns].reshape(self.num_envs, len(forces), 3)

    @property
    def batch(self) -> Batch:
        """The batch below, with all that was randomized in force."""
        self._settle()
        return self._batch

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
        return self._force

    @property
    def feet_force(self) -> Array:
        """Magnitude of the net contact force on each foot [N], shape (N, F), one physics step old."""
        # By components, which takes a third of the time of a sum over three numbers each.
        squares = np.square(self._contact)
        return np.sqrt((squares[:, :, 0] + squares[:, :, 2]) + squares[:, :, 1])

    @property
    def feet_pos(self) -> Array:
        """Centres of the feet (of a body: its origin) in the world [m], shape (N, F, 3), one physics step old."""
        return self._centres[:, self._feet]

    def site_pos(self, name: str) -> Array:
        """Return the live position of a site in the world [m], shape (N, 3), one physics step old.

        Raises:
            InputError: The MJCF has no such site.
        """
        return self._sites[:, _object_id(self.model, mujoco.mjtObj.mjOBJ_SITE, name)]

    def sensor(self, name: str) -> Array:
        """Return the live output of the sensor `name`, shape (N, width).

        It is current after `step`, unless it measures accelerations or forces, which are one physics step old.

        Raises:
            InputError: The MJCF has no such sensor.
        """
        columns = self._sensor_columns(name)
        sensor = _object_id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        if self.model.sensor_needstage[sensor] <= int(mujoco.mjtStage.mjSTAGE_VEL):
            self._stage = mujoco.mjtStage.mjSTAGE_VEL
        return self._sensors[:, columns]

    def _sensor_columns(self, name: str) -> slice:
        sensor = _object_id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        start = int(self.model.sensor_adr[sensor])
        return slice(start, start + int(self.model.sensor_dim[sensor]))

    def set_command(self, command: Array, env_ids: EnvIds | None = None) -> None:
        """Hold command blocks, shape (n, 5, J): stiffness and damping go into the actuators' affine bias."""
        self._set_gains(command[:, KP : KD + 1], env_ids)
        ctrl = command[:, KP] * command[:, POSITION]
        ctrl += command[:, KD] * command[:, VELOCITY]
        ctrl += command[:, EFFORT]
        self.ctrl[slice(None) if env_ids is None else env_ids] = ctrl

    def _set_gains(self, gains: Array, env_ids: EnvIds | None) -> None:
        """Write kp and kd, shape (n, 2, J), where they differ from those in force: they seldom do."""
        rows = slice(None) if env_ids is None else env_ids
        if (self._gains[rows] == gains).all():
            return
        if self._models:
            self._set_gains_of_models(rows, gains)
            return
        if self._bias is None:
            self._bias = self._batch.expand("actuator_biasprm")
        self._gains[rows] = gains
        self._bias[rows, :, _BIAS] = -gains.swapaxes(1, 2)

    def _set_gains_of_models(self, rows: EnvIds | slice, gains: Array) -> None:
        every = self._gains.copy()
        every[rows] = gains
        of_model: dict[int, Array] = {}
        for model, wanted in zip(self._models, every, strict=True):
            if not np.array_equal(of_model.setdefault(id(model), wanted), wanted):
                raise InputError(
                    "command: environments that share a model need the same kp and kd; give each a model of its own"
                )
        for model in self._models:
            model.actuator_biasprm[:, _BIAS] = -of_model[id(model)].T
        self._batch.set_models(self._models)
        self._gains[:] = every

    def step(self, n: int = 1) -> None:
        """Advance every environment by n physics steps."""
        self._settle()
        self._batch.step(nstep=n, stage=self._stage)

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Put environments into the model's initial state; randomized parameters stay."""
        self._settle()
        if self._models or self.model.nmocap or not _INITIAL.isdisjoint(self._fields):
            self._batch.reset(env_ids, stage=mujoco.mjtStage.mjSTAGE_NONE)
        else:
            # A state is all that there is of a simulation, and Batch.reset takes 30 times as long.
            self._batch.state[slice(None) if env_ids is None else env_ids] = self._initial

    def refresh(self, env_ids: EnvIds | None = None) -> None:
        """Run the forward dynamics so that outputs agree with a state that was written to."""
        self._settle()
        _call(self._batch.forward, env_ids)

    def randomize(self, param: str, values: Array, env_ids: EnvIds | None = None) -> None:
        """Set a physical parameter to `values`, shape (n,), in `env_ids` (None: all).

        `param` is the robot's name for it or a place in the model, see `sim2real.sim.places`.

        Raises:
            InputError: There is no such parameter or place, a value is impossible, or `set_models` was called.
        """
        target = self._targets.get(param) or self._find_target(param, values)
        target.lowest.check(param, values)
        rows = slice(None) if env_ids is None else env_ids
        for field, index in target.places:
            field[(rows, *index)] = values
        if target.has_constants:
            self._unsettled[rows] = True
            self._settled = False

    def _find_target(self, param: str, values: Array) -> _Target:
        """Find out once what every episode's draw writes to."""
        places = places_of(self.robot, self.model, param)
        if self._models:
            raise InputError(f"parameter {param!r}: environments have models of their own (set_models): change those")
        # A field is not copied for every environment for values that are refused.
        lowest = lowest_of(places)
        lowest.check(param, values)
        self._targets[param] = _Target(
            places=tuple((self._expand(place.field), place.index) for place in places),
            lowest=lowest,
            has_constants=any(_has_constants(place.field) for place in places),
        )
        return self._targets[param]

    def nominal(self, place: str) -> float:
        """Return what the robot's model holds at a place, whatever was randomized.

        Raises:
            InputError: There is no such place; the message lists near names.
        """
        return nominal_value(self.model, place)

    def _expand(self, field: str) -> Array:
        if field not in self._fields:
            self._fields[field] = self._batch.expand(field)
        return self._fields[field]

    def _settle(self) -> None:
        """Let the constants that MuJoCo derives follow the parameters, once for all that were set."""
        if self._settled:
            return
        _call(self._batch.set_const, np.flatnonzero(self._unsettled))
        self._unsettled[:] = False
        self._settled = True

    def set_models(self, models: Sequence[mujoco.MjModel]) -> None:
        """Give each environment its own model, e.g. with other meshes or terrain, compiled from a variant of `spec`.

        They differ from `model` in values and shapes, not in what there is. Their gains are written by `set_command`.

        Args:
            models: One per environment; environments may share one.

        Raises:
            InputError: A model does not fit, or parameters were set before.
        """
        if len(models) != self.num_envs:
            raise InputError(f"set_models: expected {self.num_envs} models, one per environment, got {len(models)}")
        if self._fields or self._bias is not None:
            raise InputError("set_models: parameters or gains were set before; call it on a new simulation")
        for number, model in enumerate(models):
            if model.opt.timestep != self.dt:
                raise InputError(
                    f"set_models: models[{number}]: expected a step of {self.dt} s, got {model.opt.timestep}"
                )
        try:
            self._batch.set_models(models)
        except mujoco.FatalError as error:
            raise InputError(f"set_models: {error}; compile the models from variants of `spec`") from error
        self._models = tuple(models)
        self._batch.forward()

    def snapshot(self) -> Snapshot:
        """Return a copy of the integration state, the gains and all per-environment parameters.

        Models that `set_models` gave are not in it.
        """
        state = {name: values.copy() for name, values in self._state.items()}
        fields = {_MODEL + field: values.astype(np.float64) for field, values in self._fields.items()}
        return state | fields | {_GAINS: self._gains.copy()}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from a snapshot of a simulation of the same robot, scene and size.

        `joint_effort`, feet and sensors are those of the next step: they are outputs, not state.
        """
        fields = {name.removeprefix(_MODEL) for name in snapshot if name.startswith(_MODEL)}
        for field in fields | self._fields.keys():
            values = snapshot.get(_MODEL + field)
            self._expand(field)[:] = field_values(self.model, field) if values is None else values
            if _has_constants(field):
                self._unsettled[:] = True
                self._settled = False
        self._settle()
        self._set_gains(snapshot[_GAINS], None)
        for name, values in self._state.items():
            values[:] = snapshot[name]


def _choose_fastest(options: Any, num_trees: int) -> None:
    """Let the solver go the fastest of its ways to the same forces, for a single robot."""
    if num_trees == 1:
        # One tree is one island: nothing to be found out at every step (4 % of Go2's and HalfCheetah's time).
        options.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    if options.cone == mujoco.mjtCone.mjCONE_ELLIPTIC and options.jacobian == mujoco.mjtJacobian.mjJAC_AUTO:
        # Newton's method updates its matrix for each cone: 13 % of Go2's time, though small models are dense otherwise.
        options.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE


def _call(method: Callable[[EnvIds | None], None], env_ids: EnvIds | None) -> None:
    """Call a method of the batch: for a few simulations one by one, which wakes no other thread."""
    if env_ids is None or len(env_ids) > _FEW:
        method(env_ids)
        return
    for row in range(len(env_ids)):
        method(env_ids[row : row + 1])


def _has_constants(field: str) -> bool:
    return field in _CONSTANTS_FROM or field.startswith("opt.")


def _object_id(model: mujoco.MjModel, kind: mujoco.mjtObj, name: str) -> int:
    identifier = mujoco.mj_name2id(model, kind, name)
    if identifier < 0:
        raise InputError(f"MJCF: no {kind.name.removeprefix('mjOBJ_').lower()} named {name!r}; add it to the model")
    return identifier
