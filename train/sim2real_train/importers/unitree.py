"""Unitree's `deploy.yaml`, as unitree_rl_lab writes it and its C++ runtime reads it.

What the format fixes without saying so, from its runtime: gains lie in the order of the motors, all else in the order
of the policy (`joint_ids_map` leads from the latter to the former); observations are clipped before they are scaled;
histories are term-major, or frame-major with ``use_gym_history``, oldest first, and begin with copies of the first
frame; joints turn on the robot's own axes; targets are not limited in their rate.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Final

from sim2real.contract import CommandMode
from sim2real.errors import InputError
from sim2real.signals import SIGNALS
from sim2real_train.importers.facts import Document, Facts, Rounding
from sim2real_train.importers.plain import as_list, as_mapping, numbers, one_number
from sim2real_train.importers.yaml_text import read_yaml

__all__ = ["ACTIONS", "COMMANDS", "TERMS", "TOLD_BY", "clip_after_scale", "read_deploy_yaml"]

TOLD_BY: Final = "deploy.yaml"
TERMS: Final = {
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "velocity_commands": "command",
    "generated_commands": "command",
    "joint_pos": "joint_pos",
    "joint_pos_rel": "joint_pos",
    "joint_vel": "joint_vel",
    "joint_vel_rel": "joint_vel",
    "last_action": "last_action",
}
"""What its runtime computes of what a contract can name: observation to source."""
_RELATIVE: Final = "joint_pos_rel"
COMMANDS: Final = {"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"}
"""Ranges of ``base_velocity``, in the order in which the policy sees them."""
ACTIONS: Final[Mapping[str, CommandMode]] = {"JointPositionAction": "position", "JointVelocityAction": "velocity"}
_DIGITS: Final = 3
"""Significant digits that its exporter keeps."""
_SWITCHES: Final = ("use_gym_history", "scale_first")


def read_deploy_yaml(text: str, joint_names: tuple[str, ...]) -> Facts:
    """Return what a deploy.yaml says of a contract.

    Args:
        text: The file.
        joint_names: In the order of the policy, which the file does not name; empty: not given.

    Raises:
        InputError: It is no such file, contradicts itself, or says what no contract can hold.
    """
    deploy = read_yaml(text, TOLD_BY)
    motors = _motors(deploy)
    if joint_names and len(joint_names) != len(motors):
        raise InputError(f"--joint-names: expected {len(motors)} names, as joint_ids_map has, got {len(joint_names)}")
    mode, action = _action(deploy)
    reasons: dict[str, str] = {}
    joints = _joints(deploy, motors, joint_names, mode, reasons)
    document: Document = {
        "timing": {"control_period_ns": round(_number(deploy, "step_dt") * 1e9)},
        "joints": joints,
        "observation": {},
        "action": _read_action(action, joint_names, len(motors), reasons),
        "commands": _commands(deploy),
    }
    document = {name: value for name, value in document.items() if value is not None}
    order = tuple(document["action"].get("joints", ()))
    document["observation"] = _observation(deploy, {"last_action": order}, joint_names, len(motors))
    terms = document["observation"]["terms"]
    return Facts(
        told_by=TOLD_BY,
        document=document,
        reasons=reasons,
        rounded=_roundings(document),
        relative_terms=tuple(term["name"] for term in terms if term["name"] == _RELATIVE),
    )


def clip_after_scale(clip: list[float] | None, scale: list[float], where: str) -> list[float] | None:
    """Return bounds on the scaled values for `clip`, bounds on the values before they are scaled.

    Raises:
        InputError: A contract has one pair of bounds, and these would differ from element to element.
    """
    if clip is None:
        return None
    bounds = {tuple(sorted((clip[0] * each, clip[1] * each))) for each in scale}
    if len(bounds) != 1:
        raise InputError(
            f"{where}: clips before it scales by {reprlib.repr(scale)}, which a contract, with one pair of "
            "bounds after scaling, cannot hold; train with one scale for the term, or without the clip"
        )
    return list(bounds.pop())


def _motors(deploy: Document) -> list[int]:
    motors = [int(each) for each in numbers(deploy.get("joint_ids_map"), f"{TOLD_BY}: joint_ids_map")]
    if not motors or len(set(motors)) != len(motors) or min(motors) < 0:
        raise InputError(f"{TOLD_BY}: joint_ids_map: expected motor numbers that differ, got {reprlib.repr(motors)}")
    return motors


def _joints(
    deploy: Document, motors: list[int], names: tuple[str, ...], mode: CommandMode, reasons: dict[str, str]
) -> list[Document]:
    pose = numbers(deploy.get("default_joint_pos"), f"{TOLD_BY}: default_joint_pos", len(motors))
    joints: list[Document] = [{"axis_sign": 1, "default_position": position, "command_mode": mode} for position in pose]
    for joint, name in zip(joints, names, strict=False):
        joint["name"] = name
    for key, field in (("stiffness", "kp"), ("damping", "kd")):
        gains = numbers(deploy.get(key), f"{TOLD_BY}: {key}")
        for index, motor in enumerate(motors):
            path = f"joints[{index}].{field}"
            if len(gains) <= max(motors):
                reasons[path] = (
                    f"has {len(gains)} values of {key} for motors up to {max(motors)}, so not whose they are"
                )
            elif gains[motor] == 0.0 and not (mode == "velocity" and field == "kp"):
                reasons[path] = f"says {key} 0, which no drive has that is meant to move"
            else:
                joints[index][field] = gains[motor]
    return joints


def _action(deploy: Document) -> tuple[CommandMode, Document]:
    actions = as_mapping(deploy.get("actions")) or {}
    if len(actions) != 1 or not set(actions) <= set(ACTIONS):
        raise InputError(
            f"{TOLD_BY}: actions: expected one of {', '.join(ACTIONS)}, got {', '.join(map(str, actions)) or 'none'}; "
            "others have no place in a contract"
        )
    ((name, action),) = actions.items()
    return ACTIONS[name], _mapping(action, f"actions.{name}")


def _read_action(action: Document, names: tuple[str, ...], count: int, reasons: dict[str, str]) -> Document:
    where = f"{TOLD_BY}: actions"
    ids = action.get("joint_ids")
    order = list(range(count)) if ids is None else [int(each) for each in numbers(ids, f"{where}: joint_ids")]
    if sorted(order) != list(range(count)):
        raise InputError(f"{where}: joint_ids: expected null or all of 0 to {count - 1}, got {reprlib.repr(ids)}")
    scale = _per_element(action.get("scale"), count, f"{where}: scale")
    offset = _per_element(action.get("offset"), count, f"{where}: offset")
    document: Document = {"mode": "absolute", "scale": scale, "offset": offset, "rate_limit": None}
    _action_clip(document, action.get("clip"), reasons)
    if names:
        document["joints"] = [names[index] for index in order]
    return document


def _action_clip(document: Document, clip: Any, reasons: dict[str, str]) -> None:
    """The format bounds targets, each joint's by itself; a contract bounds actions, all alike."""
    if clip is None:
        document["clip"] = None
        return
    where = f"{TOLD_BY}: actions: clip"
    pairs = [numbers(each, where, 2) for each in as_list(clip) or ()]
    if len(pairs) != len(document["scale"]):
        raise InputError(f"{where}: expected null or {len(document['scale'])} pairs, got {reprlib.repr(clip)}")
    raw = [
        sorted(((low - zero) / scale, (high - zero) / scale))
        for (low, high), scale, zero in zip(pairs, document["scale"], document["offset"], strict=True)
    ]
    # Without the noise of the division.
    told = [float(f"{bound:.12g}") for bound in raw[0]]
    if all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for pair in raw for a, b in zip(pair, told, strict=True)):
        document["clip"] = told
    else:
        reasons["action.clip"] = (
            f"bounds targets, that of the first joint to {pairs[0]}, and no bounds on actions are the same for all "
            "joints; none is as good where contract.joints[*].position_limits are narrower"
        )


def _observation(
    deploy: Document, orders: Mapping[str, tuple[str, ...]], names: tuple[str, ...], count: int
) -> Document:
    listed = _mapping(deploy.get("observations"), "observations")
    if listed.get("scale_first"):
        raise InputError(f"{TOLD_BY}: observations.scale_first: expected false or nothing; true is not known here")
    terms = [
        _term(name, told, orders.get(name, names), count) for name, told in listed.items() if name not in _SWITCHES
    ]
    return {
        "terms": terms,
        "layout": "frame_major" if listed.get("use_gym_history") else "term_major",
        "history_order": "oldest_first",
        "startup_fill": "first",
    }


def _term(name: str, told: Any, names: tuple[str, ...], count: int) -> Document:
    where = f"{TOLD_BY}: observations.{name}"
    if name not in TERMS:
        raise InputError(f"{where}: is none that a contract can name; expected {', '.join(TERMS)}")
    told = _mapping(told, f"observations.{name}")
    if set(_mapping(told.get("params") or {}, f"observations.{name}.params")) - {"command_name"}:
        raise InputError(f"{where}.params: expected none, since what they choose is not known here")
    source = TERMS[name]
    signal = SIGNALS.get(source)
    per_joint = source == "last_action" or (signal is not None and signal.per_joint)
    width = count if per_joint else len(COMMANDS) if signal is None else signal.width
    scale = [1.0] * width if told.get("scale") is None else _per_element(told["scale"], width, f"{where}.scale")
    clip = None if told.get("clip") is None else numbers(told["clip"], f"{where}.clip", 2)
    term: Document = {
        "name": name,
        "source": source,
        "function": "identity",
        "scale": scale,
        "clip": clip_after_scale(clip, scale, where),
        "history_length": max(1, int(one_number(told.get("history_length", 1), f"{where}.history_length"))),
        "history_stride": 1,
        "quaternion": None,
        "frame": "policy" if signal is None else signal.frame,
    }
    if name != _RELATIVE:
        term["offset"] = [0.0] * width
    if not per_joint:
        term["joints"] = []
    elif names:
        term["joints"] = list(names)
    return term


def _commands(deploy: Document) -> list[Document] | None:
    commands = _mapping(deploy.get("commands") or {}, "commands")
    if "base_velocity" not in commands:
        seen = any(TERMS.get(str(name)) == "command" for name in deploy.get("observations", ()))
        return None if seen else []
    ranges = _mapping(
        _mapping(commands["base_velocity"], "commands.base_velocity").get("ranges"), "commands.base_velocity.ranges"
    )
    told: list[Document] = []
    for name, unit in COMMANDS.items():
        low, high = numbers(ranges.get(name), f"{TOLD_BY}: commands.base_velocity.ranges.{name}", 2)
        told.append({"name": name, "unit": unit, "low": low, "high": high})
    return told


def _roundings(document: Document) -> dict[str, Rounding]:
    """Return the numbers that were cut to three digits; none if any number has more, as then nothing was cut."""
    found: dict[str, Rounding] = {}
    places = [
        (f"joints[{i}].{name}", joint[name])
        for i, joint in enumerate(document["joints"])
        for name in ("kp", "kd", "default_position")
        if name in joint
    ]
    places += [
        (f"action.{name}[{i}]", value)
        for name in ("scale", "offset")
        for i, value in enumerate(document["action"][name])
    ]
    places += [
        (f"observation.terms[{i}].scale[{k}]", value)
        for i, term in enumerate(document["observation"]["terms"])
        for k, value in enumerate(term["scale"])
    ]
    for path, value in places:
        if value == 0.0:
            continue
        if float(f"{value:.{_DIGITS}g}") != value:
            return {}
        unit = 10.0 ** (math.floor(math.log10(abs(value))) - _DIGITS + 1)
        found[path] = Rounding(half_width=0.5 * unit, visible=float(f"{value:.{_DIGITS - 1}g}") != value)
    return found


def _per_element(value: Any, count: int, where: str) -> list[float]:
    return [one_number(value, where)] * count if isinstance(value, int | float) else numbers(value, where, count)


def _number(deploy: Document, key: str) -> float:
    value = one_number(deploy.get(key), f"{TOLD_BY}: {key}")
    if value <= 0.0:
        raise InputError(f"{TOLD_BY}: {key}: expected a number > 0, got {value}")
    return value


def _mapping(value: object, where: str) -> Document:
    mapping = as_mapping(value)
    if mapping is None:
        raise InputError(f"{TOLD_BY}: {where}: expected a mapping of names to values, got {reprlib.repr(value)}")
    return {str(name): each for name, each in mapping.items()}
