"""Robots out of any MJCF: what the file says of them, and what a caller adds.

`get_robot("path/to/robot.xml")` and `get_robot("menagerie:unitree_g1")` come here. The file's actuators say which
joints are driven, in which order, how hard and with which gains; what it leaves open has to be given.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import mujoco
import numpy as np
import numpy.typing as npt

from sim2real.errors import InputError
from sim2real.extras import require
from sim2real.robots.base import Robot, RobotJoint
from sim2real.robots.model_files import name_of
from sim2real.robots.quiet import silence_mujoco

__all__ = ["VELOCITY_LIMIT", "robot_from_menagerie", "robot_from_mjcf"]

VELOCITY_LIMIT: Final = 30.0
"""Velocity limit [rad/s] where none is given: an MJCF has no such thing."""

_MENAGERIE: Final = "menagerie:"


class _Drive(NamedTuple):
    """What the actuators of one joint amount to, at the joint."""

    effort_limit: float
    kp: float
    kd: float


class _Given(NamedTuple):
    """What the caller says of joints, by their names."""

    effort_limits: dict[str, float]
    velocity_limits: dict[str, float]
    kp: dict[str, float]
    kd: dict[str, float]


def robot_from_mjcf(
    path: Path | str,
    *,
    name: str | None = None,
    joints: Sequence[str] | None = None,
    effort_limits: float | Mapping[str, float] | None = None,
    velocity_limits: float | Mapping[str, float] = VELOCITY_LIMIT,
    kp: float | Mapping[str, float] | None = None,
    kd: float | Mapping[str, float] | None = None,
    default_positions: Mapping[str, float] | None = None,
    feet: Sequence[str] | None = None,
    base_height: float | None = None,
) -> Robot:
    """Return the robot that an MJCF describes.

    Joints are those hinges and slides that the file's actuators drive, in the order of the actuators. Whatever is not
    given comes from the file: effort limits from the actuators' force range, the joint's actuator force range, and the
    control range of a plain motor, whichever is least; gains from position actuators; the default pose from the
    keyframe ``home``, else from the first one, else from the model's initial state; feet from names or default classes
    with "foot" in them (geoms that can touch something, else bodies); the height of a floating base from the lowest
    point of what can touch the ground. A numeric argument goes to every joint, a mapping to those that it names.

    Args:
        path: The file.
        name: Name of the robot; None: path and content, by which `get_robot` finds it again and knows it.
        joints: Names of the joints to use, in this order; None: all that are driven.
        effort_limits: Largest efforts [N·m].
        velocity_limits: Largest velocities [rad/s].
        kp: Stiffness [N·m/rad].
        kd: Damping [N·m·s/rad].
        default_positions: Positions [rad] of the default pose.
        feet: Geoms or bodies that are meant to touch the ground.
        base_height: Height [m] of a floating base above flat ground in the default pose.

    Raises:
        InputError: The file is no MJCF, holds what is no number, or drives no joint, an effort limit is not known, or
            an argument names what the robot has not.
    """
    spec, model = _compile(Path(path))
    drives = _drives(str(path), model, joints)
    given = _Given(
        effort_limits=_of_joints("effort_limits", effort_limits, drives),
        velocity_limits=_of_joints("velocity_limits", velocity_limits, drives),
        kp=_of_joints("kp", kp, drives),
        kd=_of_joints("kd", kd, drives),
    )
    pose = _default_pose(str(path), model, _of_joints("default_positions", default_positions, drives))
    rated = tuple(_rate(str(path), model, joint, drive, given, pose) for joint, drive in drives.items())
    floating = model.njnt > 0 and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    if floating and feet is None:
        feet = _find_feet(spec)
    if floating and base_height is None:
        base_height = _base_height(model, pose)
    return Robot(
        name=name_of(Path(path)) if name is None else name,
        mjcf=Path(path).resolve(),
        joints=rated,
        parameters=(),
        base="floating" if floating else "fixed",
        base_height=base_height or 0.0,
        feet=_check_feet(str(path), model, feet or ()),
    )


def robot_from_menagerie(name: str) -> Robot:
    """Return a robot of MuJoCo Menagerie, e.g. ``menagerie:unitree_g1``; downloads it on first use.

    Args:
        name: ``menagerie:`` and the model's name; another file of it than its own default: ``menagerie:NAME/FILE``.

    Raises:
        InputError: There is no such model, or it is not here and cannot be downloaded.
        MissingExtraError: The package `mujoco-menagerie` is not installed.
    """
    menagerie: Any = require("mujoco_menagerie", "menagerie")
    model, _, entry = name.removeprefix(_MENAGERIE).partition("/")
    try:
        known = menagerie.get(model)
        path = Path(known.xml(entry or known.default_model))
    except menagerie.DownloadError as error:
        raise InputError(
            f"robot {name!r}: cannot be downloaded ({_one_line(error)}); connect to the network once, or let "
            "MENAGERIE_ROOT name a checkout of MuJoCo Menagerie"
        ) from error
    except menagerie.UnknownRobotError as error:
        names: list[str] = list(menagerie.names())
        near = difflib.get_close_matches(model, names, cutoff=0.4)
        told = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
        raise InputError(f"robot {name!r}: MuJoCo Menagerie has no {model!r}; {told}") from error
    except (menagerie.MenagerieError, OSError) as error:
        raise InputError(f"robot {name!r}: {_one_line(error)}") from error
    return robot_from_mjcf(path, name=name)


def _compile(path: Path) -> tuple[Any, mujoco.MjModel]:
    if not path.is_file():
        raise InputError(f"robot {str(path)!r}: no such file; expected an MJCF, or a name that `sim2real robots` lists")
    silence_mujoco()
    warnings: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(warnings.append)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        model = spec.compile()
    except ValueError as error:
        raise InputError(f"{path}: no MJCF that MuJoCo reads: {_one_line(error)}") from error
    finally:
        mujoco.set_mju_user_warning(before)
    # MuJoCo takes what is said to be NaN, e.g. a mass, for not said.
    if any("NaN" in warning for warning in warnings) or not np.isfinite(model.body_mass).all():
        raise InputError(
            f"{path}: a number in it, or in what it includes, is not finite; give it a value, or leave it out"
        )
    return spec, model


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


def _drives(path: str, model: mujoco.MjModel, chosen: Sequence[str] | None) -> dict[str, _Drive]:
    """Return what drives each joint, in the order of the actuators or of the caller."""
    drives: dict[str, _Drive] = {}
    for actuator in range(model.nu):
        if model.actuator_trntype[actuator] != mujoco.mjtTrn.mjTRN_JOINT:
            continue
        joint = int(model.actuator_trnid[actuator, 0])
        if int(model.jnt_type[joint]) not in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
            continue
        name = model.joint(joint).name
        here, before = _drive(model, actuator, joint), drives.get(name, _Drive(0.0, 0.0, 0.0))
        drives[name] = _Drive(max(here.effort_limit, before.effort_limit), here.kp + before.kp, here.kd + before.kd)
    if not drives:
        raise InputError(f"{path}: no actuator drives a hinge or a slide; add actuators to the MJCF")
    if chosen is None:
        return drives
    for name in chosen:
        if name not in drives:
            raise InputError(f"joints: {name!r}: no joint that is driven; allowed: {', '.join(drives)}")
    return {name: drives[name] for name in chosen}


def _drive(model: mujoco.MjModel, actuator: int, joint: int) -> _Drive:
    gear = abs(float(model.actuator_gear[actuator, 0]))
    gain = abs(float(model.actuator_gainprm[actuator, 0]))
    affine = model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE
    stiffness, damping = (-model.actuator_biasprm[actuator, 1:3]).tolist() if affine else (0.0, 0.0)
    limits = [np.inf]
    if model.actuator_forcelimited[actuator]:
        limits.append(gear * float(np.abs(model.actuator_forcerange[actuator]).max()))
    if model.jnt_actfrclimited[joint]:
        limits.append(float(np.abs(model.jnt_actfrcrange[joint]).max()))
    motor = not affine and model.actuator_gaintype[actuator] == mujoco.mjtGain.mjGAIN_FIXED
    if motor and model.actuator_ctrllimited[actuator]:
        limits.append(gear * gain * float(np.abs(model.actuator_ctrlrange[actuator]).max()))
    if stiffness <= 0.0:
        return _Drive(min(limits), 0.0, 0.0)
    return _Drive(min(limits), stiffness * gear**2, damping * gear**2)


def _rate(
    path: str, model: mujoco.MjModel, joint: str, drive: _Drive, given: _Given, pose: npt.NDArray[np.float64]
) -> RobotJoint:
    effort_limit = given.effort_limits.get(joint, drive.effort_limit)
    if not 0.0 < effort_limit < np.inf:
        raise InputError(
            f"{path}: joint {joint!r}: its effort limit is not known; give its actuator a forcerange, or give "
            f"effort_limits={{{joint!r}: …}}"
        )
    return RobotJoint(
        name=joint,
        position_limits=_position_limits(model, joint),
        velocity_limit=given.velocity_limits.get(joint, VELOCITY_LIMIT),
        effort_limit=effort_limit,
        default_position=float(pose[model.joint(joint).qposadr[0]]),
        kp=given.kp.get(joint, drive.kp),
        kd=given.kd.get(joint, drive.kd),
    )


def _of_joints(
    argument: str, values: float | Mapping[str, float] | None, joints: Mapping[str, _Drive]
) -> dict[str, float]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        return dict.fromkeys(joints, float(values))
    for name in values:
        if name not in joints:
            raise InputError(f"{argument}: {name!r}: no joint of the robot; allowed: {', '.join(joints)}")
    return dict(values)


def _position_limits(model: mujoco.MjModel, joint: str) -> tuple[float, float] | None:
    identifier = model.joint(joint).id
    if not model.jnt_limited[identifier]:
        return None
    low, high = model.jnt_range[identifier].tolist()
    return low, high


def _default_pose(path: str, model: mujoco.MjModel, given: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Return the default pose as positions of the whole model, shape (nq,), within the joints' limits."""
    names = [model.key(index).name for index in range(model.nkey)]
    pose: npt.NDArray[np.float64] = model.qpos0.copy()
    if names:
        pose[:] = model.key_qpos[names.index("home") if "home" in names else 0]
    for joint in range(model.njnt):
        address = int(model.jnt_qposadr[joint])
        if model.jnt_limited[joint] and model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_BALL:
            pose[address] = np.clip(pose[address], *model.jnt_range[joint])
        if model.joint(joint).name in given:
            pose[address] = given[model.joint(joint).name]
    if not np.isfinite(pose).all():
        raise InputError(
            f"{path}: position {int(np.flatnonzero(~np.isfinite(pose))[0])} of the default pose is not finite; correct "
            "its keyframe, or default_positions"
        )
    return pose


def _find_feet(spec: Any) -> tuple[str, ...]:
    """Return geoms that can touch, else bodies, with "foot" in their name, default class or site's name."""
    geoms = [geom for geom in spec.geoms if geom.contype or geom.conaffinity]
    named = [geom.name for geom in geoms if geom.name and _is_foot(geom.name, geom.classname.name)]
    if named:
        return tuple(named)
    bodies = [
        body.name
        for body in spec.bodies
        if body.name
        and (
            _is_foot(body.name, *(site.name for site in body.sites))
            or any(_is_foot(geom.classname.name) for geom in body.geoms)
        )
    ]
    return tuple(bodies)


def _is_foot(*names: str) -> bool:
    return any("foot" in name.lower() for name in names)


def _check_feet(path: str, model: mujoco.MjModel, feet: Sequence[str]) -> tuple[str, ...]:
    for foot in feet:
        kinds = (mujoco.mjtObj.mjOBJ_GEOM, mujoco.mjtObj.mjOBJ_BODY)
        if all(mujoco.mj_name2id(model, kind, foot) < 0 for kind in kinds):
            raise InputError(f"feet: {foot!r}: no geom or body of that name in {path}; name it there")
    return tuple(feet)


def _base_height(model: mujoco.MjModel, pose: npt.NDArray[np.float64]) -> float:
    """Return how far the base's origin is above the lowest point that can touch the ground [m], in the pose."""
    data = mujoco.MjData(model)
    data.qpos[:] = pose
    mujoco.mj_kinematics(model, data)
    base = int(model.jnt_bodyid[0])
    lowest = [
        _lowest_point(model, data, geom)
        for geom in range(model.ngeom)
        if model.body_rootid[model.geom_bodyid[geom]] == base
        and (model.geom_contype[geom] or model.geom_conaffinity[geom])
    ]
    return float(data.xpos[base, 2]) - min(lowest, default=0.0)


def _lowest_point(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """Return the least height [m] of a geom's surface: that of its centre less its extent downwards."""
    size = model.geom_size[geom]
    down: npt.NDArray[np.float64] = np.abs(data.geom_xmat[geom].reshape(3, 3)[2])  # of each axis of the geom
    axis = float(down[2])
    match int(model.geom_type[geom]):
        case mujoco.mjtGeom.mjGEOM_SPHERE:
            extent = size[0]
        case mujoco.mjtGeom.mjGEOM_CAPSULE:
            extent = size[0] + size[1] * axis
        case mujoco.mjtGeom.mjGEOM_CYLINDER:
            extent = size[0] * np.sqrt(max(0.0, 1.0 - axis**2)) + size[1] * axis
        case mujoco.mjtGeom.mjGEOM_ELLIPSOID:
            extent = np.linalg.norm(size * down)
        case mujoco.mjtGeom.mjGEOM_MESH:
            mesh = int(model.geom_dataid[geom])
            first = int(model.mesh_vertadr[mesh])
            vertices = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
            extent = -(vertices @ data.geom_xmat[geom].reshape(3, 3)[2]).min()
        case _:
            extent = size @ down
    return float(data.geom_xpos[geom, 2] - extent)
