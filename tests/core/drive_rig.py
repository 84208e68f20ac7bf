"""Joints to test drives on: a drive model beside a one-joint MuJoCo model, stepped together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from sim2real.layout import EFFORT
from sim2real.robots import RobotJoint
from sim2real.robots.drives import DcMotor, Drive, Friction
from sim2real.sim.drives import DriveModel

Array = npt.NDArray[np.float64]
NO_COMMAND = (0.0, 0.0, 0.0, 0.0, 0.0)
LIMIT = 20.0


def joint(drive: Drive, name: str = "hinge") -> RobotJoint:
    return RobotJoint(
        name=name, position_limits=None, velocity_limit=30.0, effort_limit=LIMIT, default_position=0.0, drive=drive
    )


def drives(*parts: Drive, num_envs: int = 1, dt: float = 0.002, limit: float = LIMIT) -> DriveModel:
    """Joints ``j0``, ``j1``, … with these drives."""
    joints = [joint(part, f"j{index}") for index, part in enumerate(parts)]
    return DriveModel(joints, [limit] * len(joints), num_envs, dt)


def friction(
    coulomb: float = 0.0,
    viscous: float = 0.0,
    static: float | None = None,
    stribeck_velocity: float = 0.1,
    load: float = 0.0,
) -> Friction:
    return Friction(
        coulomb=coulomb,
        viscous=viscous,
        static=coulomb if static is None else static,
        stribeck_velocity=stribeck_velocity,
        load=load,
    )


def run(model: DriveModel, command: Array, position: Array, velocity: Array) -> Array:
    out = np.empty_like(position)
    model.effort(command, position, velocity, out)
    return out


def push(model: DriveModel, effort: float, velocity: float = 0.0, position: float = 0.0) -> float:
    """One step of a model of one joint under an effort command."""
    command = np.zeros((1, 5, 1))
    command[0, EFFORT] = effort
    return float(run(model, command, np.full((1, 1), position), np.full((1, 1), velocity))[0, 0])


def random_inputs(seed: int, num_envs: int, num_joints: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    command = rng.normal(size=(num_envs, 5, num_joints)) * np.array([1.0, 1.0, 2.0, 30.0, 1.0])[:, None]
    return np.abs(command), 0.3 * rng.normal(size=(num_envs, num_joints)), 4 * rng.normal(size=(num_envs, num_joints))


MOTOR = DcMotor(stall_effort=30.0, no_load_velocity=10.0)
FRICTION = friction(0.4, 0.05, static=0.6, load=0.1)
EVERYTHING = Drive(motor=MOTOR, friction=FRICTION, backlash=0.02, rotor_inertia=0.01)


@dataclass(frozen=True)
class Record:
    """What one joint did, a row per physics step, before the step."""

    time: Array
    position: Array
    velocity: Array
    effort: Array
    """On the link."""
    motor_effort: Array
    motor_position: Array


def simulate(
    drive: Drive,
    command: Callable[[float], tuple[float, float, float, float, float]],
    duration: float,
    *,
    inertia: float = 0.05,
    dt: float = 0.002,
    velocity: float = 0.0,
    load: Callable[[float], float] = lambda _: 0.0,
    frictionloss: float = 0.0,
) -> Record:
    """Run a joint of total inertia `inertia` (its rotor's included) under `command` and an external `load`."""
    armature = drive.rotor_inertia or 0.0
    link = max(inertia - armature, 1e-9)
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option timestep="{dt}" gravity="0 0 0" integrator="implicitfast"/><worldbody><body>
        <joint name="hinge" axis="0 1 0" armature="{armature}" frictionloss="{frictionloss}"/>
        <inertial pos="0 0 0" mass="1" diaginertia="{link} {link} {link}"/></body></worldbody>
        <actuator><motor joint="hinge"/></actuator></mujoco>"""
    )
    data = mujoco.MjData(model)
    data.qvel[0] = velocity
    drive_model = DriveModel([joint(drive)], [LIMIT], 1, dt)
    effort = np.zeros((1, 1))
    rows: list[tuple[float, float, float, float, float, float]] = []
    for step in range(round(duration / dt)):
        time = step * dt
        position, speed = data.qpos.copy().reshape(1, 1), data.qvel.copy().reshape(1, 1)
        motor_position = position.copy()
        drive_model.read_encoders(motor_position, speed.copy())
        drive_model.effort(np.array(command(time)).reshape(1, 5, 1), position, speed, effort)
        joint_state = (time, position[0, 0], speed[0, 0])
        rows.append((*joint_state, effort[0, 0], drive_model.motor_effort[0, 0], motor_position[0, 0]))
        data.ctrl[0] = effort[0, 0]
        data.qfrc_applied[0] = load(time)
        mujoco.mj_step(model, data)
    return Record(*np.array(rows).T)


def linear_network(path: Path, weights: Array, *, batch: str | int = "batch", dtype: int = TensorProto.FLOAT) -> Path:
    """Write the ONNX model ``effort = history @ weights``, weights of shape (2 · history, outputs)."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["past", "weights"], ["effort"])],
        "actuator",
        [helper.make_tensor_value_info("past", dtype, [batch, weights.shape[0]])],
        [helper.make_tensor_value_info("effort", dtype, [batch, weights.shape[1]])],
        [numpy_helper.from_array(weights.astype(kind), "weights")],
    )
    return save(path, graph)


def save(path: Path, graph: onnx.GraphProto) -> Path:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(path))
    return path
