"""From a robot's MJCF and a scene to the one model that every MuJoCo-based engine steps."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.robots import Robot
from sim2real.robots.quiet import silence_mujoco
from sim2real.sim.scene import HeightField, Scene

__all__ = ["FOOT_FORCE", "GROUND", "foot_object", "load_model"]

GROUND = "ground"
"""Geom of the scene's ground, and its height field."""
FOOT_FORCE = "foot_force/"
"""With a foot's name behind it: the sensor of the net force [N] that contacts put on that foot, shape (3,)."""

_NET_FORCE = 3  # intprm[1] of a contact sensor: all of its contacts as one wrench at their centre of pressure
_FLOORS = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
_FOUNDATION = 1.0  # thickness [m] of a height field below its lowest point: nothing falls through


def load_model(
    robot: Robot, scene: Scene, *, dt: float | None = None, effort_limits: Sequence[float] | None = None
) -> tuple[mujoco.MjSpec, mujoco.MjModel]:
    """Return the specification and the compiled model of a robot in a scene, made of any MJCF.

    What differs from the file, in this order:

    - its actuators give way to one per joint of the robot, of the joint's name and in the robot's order, with gain 1
      and an affine bias of 0, into which the gains of command blocks are written; it is limited by `effort_limits` and
      by nothing else. Armature and damping that an old actuator brought to its joint stay;
    - its keyframes go: they have the old actuators' size;
    - with `scene.ground`, planes and height fields of its world give way to the geom `GROUND`. Where two geoms of the
      same priority touch, the larger friction counts, as everywhere in MuJoCo;
    - each of `robot.feet`, a geom or else a body, gets a sensor `FOOT_FORCE` + name;
    - no body counts as simple: MuJoCo leaves out the products of inertia of those, which randomization may bring;
    - a simulation that becomes unstable is not reset in silence: NaN stays visible.

    Args:
        robot: The robot.
        scene: What surrounds it.
        dt: Physics step [s]; None: the MJCF's own.
        effort_limits: What each actuator can apply at most [N·m], in the robot's joint order; None: its ratings.

    Raises:
        InputError: The file is no MJCF, or lacks a joint, a foot or the free joint of the robot.
    """
    silence_mujoco()
    try:
        spec = mujoco.MjSpec.from_file(str(robot.mjcf))
    except ValueError as error:
        raise InputError(f"robot {robot.name}: {robot.mjcf}: {_one_line(error)}") from error
    _check_base(robot, spec)
    if dt is not None:
        spec.option.timestep = dt
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    for key in list(spec.keys):
        spec.delete(key)
    for body in spec.bodies:
        body.simple = 0
    _drive(robot, spec, [joint.effort_limit for joint in robot.joints] if effort_limits is None else effort_limits)
    if scene.ground:
        _lay_ground(spec, scene)
    for foot in robot.feet:
        _sense_foot(robot, spec, foot)
    try:
        return spec, spec.compile()
    except ValueError as error:
        raise InputError(f"robot {robot.name}: {robot.mjcf}: {_one_line(error)}") from error


def foot_object(model: mujoco.MjModel, foot: str) -> tuple[mujoco.mjtObj, int]:
    """Return whether a foot of the model is a geom or a body, and its id."""
    for kind in (mujoco.mjtObj.mjOBJ_GEOM, mujoco.mjtObj.mjOBJ_BODY):
        identifier = mujoco.mj_name2id(model, kind, foot)
        if identifier >= 0:
            return kind, identifier
    raise InputError(f"MJCF: no geom or body named {foot!r}; add it to the model")


def _check_base(robot: Robot, spec: mujoco.MjSpec) -> None:
    if robot.base == "floating" and not (spec.joints and spec.joints[0].type == mujoco.mjtJoint.mjJNT_FREE):
        raise InputError(
            f"robot {robot.name}: its base is floating, but the first joint of {robot.mjcf} is no free joint; "
            "add <freejoint/> to its base body"
        )


def _drive(robot: Robot, spec: mujoco.MjSpec, limits: Sequence[float]) -> None:
    """Put one plain actuator on each joint of the robot in place of those of the file."""
    known = {joint.name: joint for joint in spec.joints}
    for joint in robot.joints:
        if joint.name not in known:
            raise InputError(f"MJCF: no joint named {joint.name!r}; add it to the model")
        if known[joint.name].type not in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
            raise InputError(f"MJCF: joint {joint.name!r}: expected a hinge or a slide, which one number drives")
    names = {joint.name for joint in robot.joints}
    reflected = _drop_actuators(spec, names)
    for name, limit in zip((joint.name for joint in robot.joints), limits, strict=True):
        # Every field is given: what is not would come from the file's default class.
        armature, damping = reflected.get(name, (0.0, np.zeros(3)))
        spec.add_actuator(
            name=name,
            target=name,
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            gear=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            dyntype=mujoco.mjtDyn.mjDYN_NONE,
            gaintype=mujoco.mjtGain.mjGAIN_FIXED,
            gainprm=[1.0] + [0.0] * 9,
            biastype=mujoco.mjtBias.mjBIAS_AFFINE,
            biasprm=[0.0] * 10,
            ctrllimited=mujoco.mjtLimited.mjLIMITED_FALSE,
            actlimited=mujoco.mjtLimited.mjLIMITED_FALSE,
            forcelimited=mujoco.mjtLimited.mjLIMITED_TRUE,
            forcerange=[-limit, limit],
            delay=0.0,
            nsample=0,
            group=0,
            armature=armature,
            damping=damping,
        )
        known[name].actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE


def _drop_actuators(spec: mujoco.MjSpec, joints: set[str]) -> dict[str, tuple[float, npt.NDArray[np.float64]]]:
    """Delete all actuators; return the armature and damping that they gave to each of the joints.

    Sensors of an actuator that drove one of the joints turn to its successor; others go.
    """
    successor: dict[str, str] = {}
    reflected: dict[str, tuple[float, npt.NDArray[np.float64]]] = {}
    for actuator in list(spec.actuators):
        target = actuator.target if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT else ""
        if target in joints:
            successor[actuator.name] = target
            armature, damping = reflected.get(target, (0.0, np.zeros(3)))
            scale = actuator.gear[0] ** 2
            reflected[target] = armature + scale * actuator.armature, damping + scale * actuator.damping
        spec.delete(actuator)
    for sensor in list(spec.sensors):
        if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR:
            if sensor.objname in successor:
                sensor.objname = successor[sensor.objname]
            else:
                spec.delete(sensor)
    return reflected


def _lay_ground(spec: mujoco.MjSpec, scene: Scene) -> None:
    """Add the ground and let what referred to the file's own floors refer to it."""
    floors = [geom for geom in spec.worldbody.geoms if geom.type in _FLOORS]
    masks = [(geom.contype, geom.conaffinity) for geom in floors]
    replaced = {geom.name for geom in floors if geom.name}
    for geom in floors:
        spec.delete(geom)
    for pair in spec.pairs:
        if pair.geomname1 in replaced:
            pair.geomname1 = GROUND
        if pair.geomname2 in replaced:
            pair.geomname2 = GROUND
    contype, conaffinity = masks[0] if masks else (1, 1)
    ground = spec.worldbody.add_geom(
        name=GROUND,
        contype=contype,
        conaffinity=conaffinity,
        condim=3,
        priority=0,
        friction=[scene.friction, 0.005, 0.0001],
        solmix=1.0,
        solref=[0.02, 1.0],
        solimp=[0.9, 0.95, 0.001, 0.5, 2.0],
        margin=0.0,
        gap=0.0,
        group=0,
        rgba=[0.42, 0.45, 0.48, 1.0],
    )
    if scene.terrain is None:
        ground.type = mujoco.mjtGeom.mjGEOM_PLANE
        ground.size = [0.0, 0.0, 0.05]  # without end
    else:
        _shape(spec, ground, scene.terrain)


def _shape(spec: mujoco.MjSpec, ground: mujoco.MjsGeom, terrain: HeightField) -> None:
    """Give the ground the form of a height field; MuJoCo scales the heights to the range 0 to 1."""
    low, high = float(terrain.heights.min()), float(terrain.heights.max())
    rows, columns = terrain.heights.shape
    spec.add_hfield(
        name=GROUND,
        nrow=rows,
        ncol=columns,
        # A level field keeps some height, which its heights of 0 do not use.
        size=[terrain.size[0] / 2.0, terrain.size[1] / 2.0, (high - low) or 1.0, _FOUNDATION],
        userdata=(terrain.heights - low).ravel().tolist(),
    )
    ground.type = mujoco.mjtGeom.mjGEOM_HFIELD
    ground.hfieldname = GROUND
    ground.pos = [0.0, 0.0, low]


def _sense_foot(robot: Robot, spec: mujoco.MjSpec, foot: str) -> None:
    if spec.geom(foot) is not None:
        kind = mujoco.mjtObj.mjOBJ_GEOM
    elif spec.body(foot) is not None:
        kind = mujoco.mjtObj.mjOBJ_BODY
    else:
        raise InputError(f"robot {robot.name}: foot {foot!r}: no geom or body of that name in {robot.mjcf}")
    spec.add_sensor(
        name=FOOT_FORCE + foot,
        type=mujoco.mjtSensor.mjSENS_CONTACT,
        objtype=kind,
        objname=foot,
        intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), _NET_FORCE, 1],
    )


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
