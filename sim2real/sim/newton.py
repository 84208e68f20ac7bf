"""The `newton` engine: the same robot through Newton's MJCF importer and solvers, to check a policy sim-to-sim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import mujoco
import newton
import numpy as np

from sim2real.errors import InputError
from sim2real.layout import EFFORT, KD, KP, POSITION, VELOCITY
from sim2real.robots import Robot
from sim2real.sim.base import EnvIds, Snapshot
from sim2real.sim.model import foot_object, load_model
from sim2real.sim.newton_model import Coordinates, Parameters, build_model, named
from sim2real.sim.newton_solvers import FeatherstoneSolver, Gradient, JointColumns, MujocoSolver
from sim2real.sim.places import Place, nominal_value, places_of
from sim2real.sim.rotation import rotate
from sim2real.sim.scene import EMPTY, Scene
from sim2real.sim.warp_arrays import Array, device_of, host_copy

__all__ = ["NewtonSim"]

_MODEL: Final = "model."


class NewtonSim:
    """A `BatchedSim` of Newton. Its state is float64 on the host; Newton computes in float32.

    What it does not have is an error that says so: sensors of the MJCF, balls and bodies of several joints, joints
    whose reference is not 0, and parameters other than mass, centre of mass, armature, damping, friction of joints and
    sliding friction of geoms. The solver "featherstone" lacks also ground, forces on feet and joint friction; there,
    bodies do not touch each other.

    On a CPU, runs are repeated bit for bit.

    Attributes:
        spec: The model's specification, as for the other engines.
        model: MuJoCo's model of it, whose coordinates are those of `qpos` and `qvel`.
        newton_model: Newton's model of all environments.
        device: The Warp device.

    Args:
        robot: The robot.
        num_envs: Number of environments.
        scene: What surrounds it.
        dt: Physics step [s]; None: the MJCF's own.
        effort_limits: What each actuator can apply at most [N·m], in the robot's joint order; None: its ratings.
        device: ``"cuda:0"``, ``"cpu"``, ...; None: the first GPU where there is one, else the CPU.
        solver: "mujoco": constraints, contacts and gains as MuJoCo has them. "featherstone": Featherstone's algorithm
            with an explicit step, which `gradient` differentiates; gains act explicitly, so kd dt must stay well below
            the inertia at the joint.
        nconmax: Room for contacts per environment, shared by all; None: Newton's guess. More contacts are an error.
        njmax: Room for constraint rows in each environment; None: Newton's guess. Likewise.

    Raises:
        InputError: The MJCF does not fit the robot or needs what this engine lacks, or there is no such device.
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
        solver: Literal["mujoco", "featherstone"] = "mujoco",
        nconmax: int | None = None,
        njmax: int | None = None,
    ) -> None:
        self.device = device_of(device)
        self.robot = robot
        self.scene = scene
        self.num_envs = num_envs
        self.joint_names = tuple(joint.name for joint in robot.joints)
        self.spec, self.model = load_model(robot, scene, dt=dt, effort_limits=effort_limits)
        self.dt = float(self.model.opt.timestep)
        if solver == "featherstone":
            self._check_featherstone()
        self.newton_model = build_model(self.spec, num_envs, self.device, requires_grad=solver == "featherstone")
        self._coordinates = Coordinates(robot, self.model, self.newton_model, num_envs)
        self._parameters = Parameters(self.model, self.newton_model, self._coordinates, num_envs)
        joints = [mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_JOINT, name) for name in self.joint_names]
        self._qpos_columns = [int(self.model.jnt_qposadr[joint]) for joint in joints]
        self._qvel_columns = [int(self.model.jnt_dofadr[joint]) for joint in joints]
        self._limits: Array = self.model.actuator_forcerange[:, 1].copy()
        self._solver = self._make_solver(solver, nconmax, njmax)

        self.qpos: Array = np.tile(self.model.qpos0, (num_envs, 1))
        self.qvel: Array = np.zeros((num_envs, self.model.nv))
        self.ctrl: Array = np.zeros((num_envs, len(joints)))
        self._gains = np.zeros((num_envs, 2, len(joints)))
        self._effort = np.zeros((num_envs, len(joints)))
        self._points: dict[str, Array] = {}
        self._places: dict[str, tuple[Place, ...]] = {}
        self._feet = [self._shapes_of_foot(foot) for foot in robot.feet]
        self._check_reference()

    def _make_solver(self, solver: str, nconmax: int | None, njmax: int | None) -> MujocoSolver | FeatherstoneSolver:
        if solver == "mujoco":
            return MujocoSolver(self.newton_model, self.num_envs, self.dt, nconmax=nconmax, njmax=njmax)
        if solver == "featherstone":
            q = np.array([self._coordinates.coordinate[column] for column in self._qpos_columns], np.intp)
            qd = np.array([self._coordinates.dof[column] for column in self._qvel_columns], np.intp)
            return FeatherstoneSolver(
                self.newton_model, self.num_envs, self.dt, joints=JointColumns(q, qd), limits=self._limits
            )
        raise InputError(f"solver {solver!r}: unknown; allowed: mujoco, featherstone")

    def _check_featherstone(self) -> None:
        lacking = "ground" if self.scene.ground else "joint friction" if self.model.dof_frictionloss.any() else None
        if lacking is not None:
            raise InputError(f"robot {self.robot.name}: the solver 'featherstone' has no {lacking}; use 'mujoco'")

    def _check_reference(self) -> None:
        q = self.newton_model.joint_q.numpy().reshape(self.num_envs, -1).astype(np.float64)
        qd = np.zeros((self.num_envs, self.model.nv))
        qpos, _ = self._coordinates.to_mujoco(q, qd)
        if not np.allclose(qpos, self.qpos, atol=1e-5):
            raise InputError(f"robot {self.robot.name}: not for the engine newton: a joint's reference (ref) is not 0")

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
        return self._effort

    @property
    def feet_force(self) -> Array:
        """Magnitude of the net contact force on each foot [N], shape (N, F), one physics step old.

        Raises:
            InputError: The solver has no contacts.
        """
        if isinstance(self._solver, FeatherstoneSolver):
            raise InputError("the solver 'featherstone' has no contacts; use 'mujoco'")
        return np.linalg.norm(self._solver.contact_forces(self._feet), axis=2)

    @property
    def feet_pos(self) -> Array:
        """Centres of the feet (of a body: its origin) in the world [m], shape (N, F, 3), current."""
        points = [self._point(foot, foot_object(self.model, foot)[0]) for foot in self.robot.feet]
        return np.stack(points, axis=1) if points else np.zeros((self.num_envs, 0, 3))

    def site_pos(self, name: str) -> Array:
        """Return the live position of a site in the world [m], shape (N, 3), current.

        Raises:
            InputError: The MJCF has no such site.
        """
        if name not in self._points:
            self._points[name] = self._point(name, mujoco.mjtObj.mjOBJ_SITE)
        return self._points[name]

    def sensor(self, name: str) -> Array:
        """Refuse: Newton does not import sensors.

        Raises:
            InputError: Always.
        """
        raise InputError(f"sensor {name!r}: the engine newton has no sensors of the MJCF; use mujoco or mujoco_warp")

    def set_command(self, command: Array, env_ids: EnvIds | None = None) -> None:
        """Hold command blocks, shape (n, 5, J)."""
        rows = slice(None) if env_ids is None else env_ids
        kp, kd = command[:, KP], command[:, KD]
        self.ctrl[rows] = kp * command[:, POSITION] + kd * command[:, VELOCITY] + command[:, EFFORT]
        gains = command[:, [KP, KD]]
        if not np.array_equal(self._gains[rows], gains):
            self._gains[rows] = gains
            self._solver.hold(self._gains)

    def step(self, n: int = 1) -> None:
        """Advance every environment by n physics steps.

        Raises:
            InputError: There were more contacts or constraints than `nconmax` or `njmax` leave room for.
        """
        self._upload()
        self._effort = self._solver.advance(self.ctrl, n)
        state = self._solver.state
        by_world = (self.num_envs, -1)
        q, qd = host_copy(state.joint_q.reshape(by_world)), host_copy(state.joint_qd.reshape(by_world))
        self.qpos[:], self.qvel[:] = self._coordinates.to_mujoco(q, qd)
        self._show_points()

    def reset(self, env_ids: EnvIds | None = None) -> None:
        """Put environments into the model's initial state; randomized parameters and gains stay."""
        rows = slice(None) if env_ids is None else env_ids
        self.qpos[rows] = self.model.qpos0
        self.qvel[rows] = 0.0
        self.ctrl[rows] = 0.0
        self._solver.remember(np.zeros((1, self._solver.memory().shape[1])), env_ids)

    def refresh(self, env_ids: EnvIds | None = None) -> None:
        """Make efforts, feet and sites agree with a state that was written to; forces on feet stay the last step's."""
        rows = slice(None) if env_ids is None else env_ids
        asked = self.ctrl - self._gains[:, 0] * self.joint_pos - self._gains[:, 1] * self.joint_vel
        self._effort[rows] = np.clip(asked, -self._limits, self._limits)[rows]
        self._upload()
        self._show_points()

    def gradient(self, steps: int, weights: Array) -> Gradient:
        """Return the gradient of Σ weights · joint_pos after `steps` physics steps from now; the state stays as it is.

        Reverse-mode through every step, with the command held. Memory grows with `steps`.

        Args:
            steps: Physics steps, at least 1.
            weights: Shape (N, J).

        Raises:
            InputError: The solver is not "featherstone".
        """
        if not isinstance(self._solver, FeatherstoneSolver):
            raise InputError("gradient: the solver 'mujoco' has none; make the simulation with solver='featherstone'")
        self._upload()
        return self._solver.gradient(self.ctrl, steps, weights)

    def randomize(self, param: str, values: Array, env_ids: EnvIds | None = None) -> None:
        """Set a physical parameter to `values`, shape (n,), in `env_ids` (None: all).

        Raises:
            InputError: There is no such parameter or place, this engine cannot change it, or a value is not finite.
        """
        if param not in self._places:
            self._places[param] = places_of(self.robot, self.model, param)
        if not np.isfinite(values).all():
            raise InputError(f"parameter {param!r}: expected finite values, got {values[~np.isfinite(values)][0]}")
        for place in self._places[param]:
            self._solver.changed(self._parameters.write(place, values, env_ids))

    def nominal(self, place: str) -> float:
        """Return what the robot's model holds at a place, whatever was randomized.

        Raises:
            InputError: There is no such place; the message lists near names.
        """
        return nominal_value(self.model, place)

    def snapshot(self) -> Snapshot:
        """Return a copy of the state, gains, what the solver remembers and all parameters that can be randomized."""
        state = {"qpos": self.qpos, "qvel": self.qvel, "ctrl": self.ctrl, "gains": self._gains}
        fields = {_MODEL + field: values for field, values in self._parameters.snapshot().items()}
        return {name: values.copy() for name, values in state.items()} | {"memory": self._solver.memory()} | fields

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly from a snapshot of a simulation of the same robot, scene, solver and size.

        Efforts, feet and sites are those of the next step: they are outputs, not state.
        """
        fields = {name.removeprefix(_MODEL): values for name, values in snapshot.items() if name.startswith(_MODEL)}
        self._solver.changed(self._parameters.restore(fields))
        self._gains[:] = snapshot["gains"]
        self._solver.hold(self._gains)
        self._solver.remember(snapshot["memory"], None)
        self.qpos[:], self.qvel[:], self.ctrl[:] = snapshot["qpos"], snapshot["qvel"], snapshot["ctrl"]

    def _upload(self) -> None:
        q, qd = self._coordinates.to_newton(self.qpos, self.qvel)
        state = self._solver.state
        state.joint_q.assign(q.astype(np.float32).ravel())
        state.joint_qd.assign(qd.astype(np.float32).ravel())
        newton.eval_fk(self.newton_model, state.joint_q, state.joint_qd, state)

    def _show_points(self) -> None:
        for name, point in self._points.items():
            point[:] = self._point(name, mujoco.mjtObj.mjOBJ_SITE)

    def _point(self, name: str, kind: mujoco.mjtObj) -> Array:
        """Return where a body's origin, or the centre of a geom or site, is in the world, shape (N, 3)."""
        model = self.newton_model
        if kind == mujoco.mjtObj.mjOBJ_BODY:
            body, place = named(model.body_label, name, self.num_envs), np.zeros(3)
        else:
            shape = named(model.shape_label, name, self.num_envs)
            if shape < 0:
                raise InputError(
                    f"MJCF: no {kind.name.removeprefix('mjOBJ_').lower()} named {name!r}; add it to the model"
                )
            body = int(model.shape_body.numpy()[shape])
            place = model.shape_transform.numpy()[shape, :3].astype(np.float64)
        if body < 0:
            return np.tile(place, (self.num_envs, 1))
        pose = self._solver.state.body_q.numpy().reshape(self.num_envs, -1, 7)[:, body].astype(np.float64)
        return pose[:, :3] + rotate(pose[:, [6, 3, 4, 5]], np.tile(place, (self.num_envs, 1)))

    def _shapes_of_foot(self, foot: str) -> set[int]:
        """Return the shapes of a world whose contacts count for a foot."""
        model: Any = self.newton_model
        if foot_object(self.model, foot)[0] == mujoco.mjtObj.mjOBJ_GEOM:
            return {named(model.shape_label, foot, self.num_envs)}
        body = named(model.body_label, foot, self.num_envs)
        return {int(shape) for shape in np.flatnonzero(model.shape_body.numpy() == body)}
