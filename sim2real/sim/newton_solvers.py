"""The solvers of Newton that step a robot: MuJoCo's and Featherstone's algorithm."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import Any, NamedTuple

import mujoco_warp as mjw
import newton
import numpy as np
import numpy.typing as npt
import warp as wp

from sim2real.sim.mujoco_warp_room import RoomWatch
from sim2real.sim.warp_arrays import Array, Graphs, flat, host_copy, put

__all__ = ["FeatherstoneSolver", "Gradient", "JointColumns", "MujocoSolver"]


class JointColumns(NamedTuple):
    """Where the actuated joints of a world lie in Newton's arrays, shape (J,) each."""

    q: npt.NDArray[np.intp]
    qd: npt.NDArray[np.intp]


class Gradient(NamedTuple):
    """How one number that follows from the last joint positions changes with what it began with. Shapes (N, J)."""

    joint_pos: Array
    """With the first joint positions."""
    joint_vel: Array
    """With the first joint velocities."""
    joint_effort: Array
    """With an effort added to the command throughout."""


class MujocoSolver:
    """Newton's SolverMuJoCo: MuJoCo Warp on the model that Newton imported, with gains that act implicitly."""

    def __init__(self, model: Any, num_envs: int, dt: float, *, nconmax: int | None, njmax: int | None) -> None:
        with _newer_mujoco():
            self._solver = newton.solvers.SolverMuJoCo(model, nconmax=nconmax, njmax=njmax)
        self._solver.mjw_model.opt.warn_overflow = 0
        self._solver.mjw_model.opt.deterministic = int(mjw.DeterminismType.ALL)
        self._model = model
        self._num_envs = num_envs
        self._dt = dt
        self.state = model.state()
        self._control = model.control()
        self._bias = flat(model.mujoco.actuator_biasprm)
        with wp.ScopedDevice(model.device):
            self._room = RoomWatch(self._solver.mjw_data, int(self._solver.mjw_model.opt.contact_sensor_maxmatch))
        self._graphs = Graphs(model.device)

    def hold(self, gains: Array) -> None:
        """Put gains kp and kd, shape (N, 2, J), in force."""
        put(self._bias, -gains.swapaxes(1, 2).reshape(-1, 2), None, np.array([1, 2], np.intp))
        self.changed(newton.ModelFlags.ACTUATOR_PROPERTIES)

    def advance(self, ctrl: Array, steps: int) -> Array:
        """Advance `state` under actuator inputs and return the efforts of the last step, shapes (N, J)."""
        self._control.mujoco.ctrl.assign(ctrl.astype(np.float32).ravel())
        self._graphs.run(self._step, steps)
        self._room.check()
        return host_copy(self._solver.mjw_data.actuator_force)

    def _step(self) -> None:
        self._solver.step(self.state, self.state, self._control, None, self._dt)
        self._room.note()

    def changed(self, flags: int) -> None:
        """Let the solver know that fields of the model were written."""
        with _newer_mujoco():
            self._solver.notify_model_changed(flags)

    def memory(self) -> Array:
        """Return what the solver remembers from step to step, shape (N, nv)."""
        return host_copy(self._solver.mjw_data.qacc_warmstart)

    def remember(self, memory: Array, rows: npt.NDArray[np.intp] | None) -> None:
        """Put back what `memory` returned, in the given environments."""
        put(flat(self._solver.mjw_data.qacc_warmstart), memory, rows)

    def contact_forces(self, shapes: list[set[int]]) -> Array:
        """Return the net contact force [N] on each set of shapes of a world in world axes, shape (N, F, 3)."""
        data = self._solver.mjw_data
        count = min(int(data.nacon.numpy()[0]), data.naconmax)
        total = np.zeros((self._num_envs, len(shapes), 3))
        if count == 0:
            return total
        with wp.ScopedDevice(self._model.device):
            wrench = wp.zeros(count, dtype=wp.spatial_vector)
            mjw.contact_force(self._solver.mjw_model, data, wp.array(np.arange(count, dtype=np.int32)), True, wrench)
        force = wrench.numpy()[:, :3].astype(np.float64)
        world = data.contact.worldid.numpy()[:count]
        shape_of = self._solver.mjc_geom_to_newton_shape.numpy()
        before = self._model.shape_count // self._num_envs * world  # shapes of the worlds before that one
        for side, sign in ((0, -1.0), (1, 1.0)):  # the force acts on the second geom, its reaction on the first
            shape = shape_of[world, data.contact.geom.numpy()[:count, side]] - before
            for foot, members in enumerate(shapes):
                touched = np.isin(shape, list(members))
                np.add.at(total, (world[touched], foot), sign * force[touched])
        return total


class FeatherstoneSolver:
    """Newton's SolverFeatherstone: explicit, differentiable, without contacts; the command's effort is joint_f."""

    def __init__(self, model: Any, num_envs: int, dt: float, *, joints: JointColumns, limits: Array) -> None:
        self._model = model
        self._num_envs = num_envs
        self._dt = dt
        self._joints = joints
        device = model.device
        count = len(joints.q)
        self._columns = [wp.array(each.astype(np.int32), dtype=wp.int32, device=device) for each in joints]
        self._limits = wp.array(limits.astype(np.float32), dtype=wp.float32, device=device)
        self._gains = wp.zeros((num_envs, 2, count), dtype=wp.float32, device=device)
        self._ctrl = wp.zeros((num_envs, count), dtype=wp.float32, device=device, requires_grad=True)
        self._effort = wp.zeros((num_envs, count), dtype=wp.float32, device=device)
        self._solver = newton.solvers.SolverFeatherstone(model, angular_damping=0.0)
        self.state, self._next = model.state(), model.state()
        self._control = model.control()
        self._graphs = Graphs(device)

    def hold(self, gains: Array) -> None:
        """Put gains kp and kd, shape (N, 2, J), in force."""
        put(flat(self._gains), gains.reshape(len(gains), -1), None)

    def advance(self, ctrl: Array, steps: int) -> Array:
        """Advance `state` under actuator inputs and return the efforts of the last step, shapes (N, J)."""
        put(flat(self._ctrl), ctrl, None)
        self._graphs.run(self._step, steps)
        return host_copy(self._effort)

    def _step(self) -> None:
        self._drive(self.state, self._control, self._effort)
        self._solver.step(self.state, self._next, self._control, None, self._dt)
        for name in ("joint_q", "joint_qd", "body_q", "body_qd"):
            wp.copy(getattr(self.state, name), getattr(self._next, name))

    def _drive(self, state: Any, control: Any, effort: Any) -> None:
        shape = (self._num_envs, -1)
        wp.launch(
            _drive,
            dim=(self._num_envs, len(self._joints.q)),
            inputs=[
                *(*self._columns, self._limits, self._gains, self._ctrl),
                *(state.joint_q.reshape(shape), state.joint_qd.reshape(shape)),
            ],
            outputs=[control.joint_f.reshape(shape), effort],
            device=self._model.device,
        )

    def changed(self, flags: int) -> None:
        """Let the solver know that fields of the model were written."""
        self._solver.notify_model_changed(flags)
        self._graphs.clear()

    def memory(self) -> Array:
        """Return what the solver remembers from step to step: nothing, shape (N, 0)."""
        return np.zeros((self._num_envs, 0))

    def remember(self, memory: Array, rows: npt.NDArray[np.intp] | None) -> None:
        """Put back what `memory` returned."""

    def gradient(self, ctrl: Array, steps: int, weights: Array) -> Gradient:
        """Return the gradient of Σ weights · joint_pos after a number of steps from `state`, which stays as it is."""
        put(flat(self._ctrl), ctrl, None)
        model = self._model
        states = [model.state() for _ in range(steps + 1)]
        states[0].assign(self.state)
        controls = [model.control() for _ in range(steps)]
        # Each solver keeps the factors of its last mass matrix, which the way back needs for every step.
        solvers = [newton.solvers.SolverFeatherstone(model, angular_damping=0.0) for _ in range(steps)]
        tape = wp.Tape()
        with tape:
            for step, (solver, control) in enumerate(zip(solvers, controls, strict=True)):
                self._drive(states[step], control, wp.zeros_like(self._effort))
                solver.step(states[step], states[step + 1], control, None, self._dt)
        seed = np.zeros((self._num_envs, model.joint_coord_count // self._num_envs), np.float32)
        seed[:, self._joints.q] = weights
        last = states[-1].joint_q
        tape.backward(grads={last: wp.array(seed.ravel(), dtype=wp.float32, device=model.device)})
        by_world = (self._num_envs, -1)
        of_pos = host_copy(states[0].joint_q.grad.reshape(by_world))[:, self._joints.q]
        of_vel = host_copy(states[0].joint_qd.grad.reshape(by_world))[:, self._joints.qd]
        gradient = Gradient(of_pos, of_vel, host_copy(self._ctrl.grad))
        tape.zero()
        return gradient


@contextlib.contextmanager
def _newer_mujoco() -> Generator[None]:
    """Newton 1.8 is made for MuJoCo 3.17 and warns of others; parity tests say whether it fits the installed one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "MuJoCo dependency version mismatch", newton.NewtonWarning)
        warnings.filterwarnings("ignore", ".*Value for n(con|j)max is changed", newton.NewtonWarning)  # to more room
        warnings.filterwarnings("ignore", "set_const_(0|fixed) is deprecated", DeprecationWarning)
        yield


@wp.kernel
def _drive(
    q_columns: wp.array[int],
    qd_columns: wp.array[int],
    limits: wp.array[float],
    gains: wp.array3d[float],
    ctrl: wp.array2d[float],
    joint_q: wp.array2d[float],
    joint_qd: wp.array2d[float],
    joint_f: wp.array2d[float],
    effort: wp.array2d[float],
) -> None:
    world, joint = wp.tid()
    dof = qd_columns[joint]
    spring = gains[world, 0, joint] * joint_q[world, q_columns[joint]]
    damper = gains[world, 1, joint] * joint_qd[world, dof]
    given = wp.clamp(ctrl[world, joint] - spring - damper, -limits[joint], limits[joint])
    joint_f[world, dof] = given
    effort[world, joint] = given
