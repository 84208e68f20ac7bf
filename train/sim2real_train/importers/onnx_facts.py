"""What mjlab and holosoma write of a policy into its ONNX file's metadata.

mjlab writes comma-separated text with three decimals, holosoma JSON. Both drive joints on the robot's own axes by
absolute position targets that nothing limits in their rate. mjlab clips an observation before it scales it, and keeps
histories term by term, oldest first, that begin with copies of the first frame.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree

from sim2real.errors import InputError
from sim2real.signals import SIGNALS
from sim2real_train.importers.facts import Document, Facts, Rounding
from sim2real_train.importers.plain import as_list, as_mapping, inner, numbers, one_number
from sim2real_train.importers.unitree import clip_after_scale

__all__ = ["facts_of_metadata"]

_MJLAB_TERMS: Final = {
    "base_lin_vel": "base_lin_vel",
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "joint_pos": "joint_pos",
    "joint_vel": "joint_vel",
    "actions": "last_action",
    "command": "command",
}
"""Names that mjlab's own tasks give to terms, and the source of each."""
_HALF_OF_THREE_DECIMALS: Final = 5e-4
_MOST_URDF_BYTES: Final = 4 << 20


def facts_of_metadata(metadata: Mapping[str, str]) -> Facts:
    """Return what an ONNX file's metadata say of a contract; nothing where they are neither mjlab's nor holosoma's.

    Raises:
        InputError: They contradict themselves or are not what the two write.
    """
    if "dof_names" in metadata:
        return _holosoma(metadata)
    if {"joint_names", "joint_stiffness"} <= set(metadata):
        return _mjlab(metadata)
    return Facts(told_by="the ONNX file", document={})


def _mjlab(metadata: Mapping[str, str]) -> Facts:
    names = _words(metadata, "joint_names")
    told = _Decimals(metadata, len(names))
    joints: list[Document] = [{"name": name, "axis_sign": 1, "command_mode": "position"} for name in names]
    for key, field in (("joint_stiffness", "kp"), ("joint_damping", "kd"), ("default_joint_pos", "default_position")):
        for index, (value, text) in enumerate(told.per_joint(key)):
            path = f"joints[{index}].{field}"
            if value == 0.0 and field != "default_position":
                told.reasons[path] = f"says {key} {text}, which may be any number that three decimals do not show"
                continue
            joints[index][field] = value
            told.note(path, value)
    action: Document = {"mode": "absolute", "joints": names, "rate_limit": None}
    if "action_scale" in metadata:
        action["scale"] = [value for value, _ in told.per_joint("action_scale")]
        for index, value in enumerate(action["scale"]):
            told.note(f"action.scale[{index}]", value)
    document: Document = {"joints": joints, "action": action}
    if "observation_names" in metadata:
        document["observation"] = _mjlab_observation(metadata, names, told)
        if not {None, "command"} & {term.get("source") for term in document["observation"]["terms"]}:
            # The policy sees none.
            document["commands"] = []
    return Facts("mjlab's metadata", document, reasons=told.reasons, rounded=told.rounded)


class _Decimals:
    """Numbers that were written with three decimals, and which of them show it."""

    def __init__(self, metadata: Mapping[str, str], num_joints: int) -> None:
        self.reasons: dict[str, str] = {}
        self.rounded: dict[str, Rounding] = {}
        self._metadata = metadata
        self._num_joints = num_joints

    def per_joint(self, key: str) -> list[tuple[float, str]]:
        """Return values and their text, one per joint; one value stands for all."""
        words = _words(self._metadata, key)
        words = words * self._num_joints if len(words) == 1 else words
        if len(words) != self._num_joints:
            raise InputError(
                f"metadata {key}: expected {self._num_joints} numbers, one per joint_names, got {len(words)}: which "
                "joints they are of is not said; export from a robot of which every joint is actuated"
            )
        return [(_as_number(word, f"metadata {key}"), word) for word in words]

    def note(self, path: str, value: float) -> None:
        """Keep in mind that the number at `path` was rounded."""
        visible = round(value, 2) != value
        self.rounded[path] = Rounding(half_width=_HALF_OF_THREE_DECIMALS, visible=visible)


def _mjlab_observation(metadata: Mapping[str, str], joints: list[str], told: _Decimals) -> Document:
    names = _words(metadata, "observation_names")
    scales = _nested(metadata, ("observation_terms_scale",), len(names))
    clips = _nested(metadata, ("observation_terms_clip",), len(names))
    histories = _nested(metadata, ("observation_terms_history_length", "observation_history_lengths"), len(names))
    terms: list[Document] = []
    for index, name in enumerate(names):
        term: Document = {"name": name, "history_stride": 1}
        terms.append(term)
        if histories is not None:
            term["history_length"] = max(1, round(one_number(histories[index], f"metadata history of {name}")))
        source = _MJLAB_TERMS.get(name)
        if source is None:
            continue
        signal = SIGNALS.get(source)
        per_joint = source == "last_action" or (signal is not None and signal.per_joint)
        term |= {"source": source, "function": "identity", "quaternion": None}
        term |= {"frame": "policy" if signal is None else signal.frame, "joints": joints if per_joint else []}
        width = len(joints) if per_joint else None if signal is None else signal.width
        if width is not None and source not in ("joint_pos", "joint_vel"):
            term["offset"] = [0.0] * width
        if width is not None and scales is not None:
            _shape(term, scales[index], None if clips is None else clips[index], width)
            for element, value in enumerate(term["scale"]):
                told.note(f"observation.terms[{index}].scale[{element}]", value)
    return {"terms": terms, "layout": "term_major", "history_order": "oldest_first", "startup_fill": "first"}


def _shape(term: Document, scale: Any, clip: Any, width: int) -> None:
    where = f"metadata of the term {term['name']}"
    one_for_all = isinstance(scale, int | float)
    term["scale"] = [one_number(scale, where)] * width if one_for_all else numbers(scale, where, width)
    if clip is None:
        return
    bounds = as_list(clip)
    if bounds is None or len(bounds) != 2:
        raise InputError(f"{where}: expected a pair of bounds, got {reprlib.repr(clip)}")
    open_ended = [isinstance(each, float) and math.isinf(each) for each in bounds]
    if any(open_ended) and not all(open_ended):
        raise InputError(
            f"{where}: expected two bounds or none, got {reprlib.repr(bounds)}; a contract has no half ones"
        )
    pair = None if all(open_ended) else numbers(bounds, where)
    term["clip"] = clip_after_scale(pair, term["scale"], where)


def _words(metadata: Mapping[str, str], key: str) -> list[str]:
    if key not in metadata:
        raise InputError(f"metadata: expected {key} beside joint_names, which mjlab writes together; export it again")
    return [word.strip() for word in metadata[key].split(",") if word.strip()]


def _nested(metadata: Mapping[str, str], keys: tuple[str, ...], count: int) -> list[Any] | None:
    """Return a list of numbers, or of lists of numbers, as mjlab writes it: ``1.000,[-inf, inf],0.250``."""
    key = next((key for key in keys if key in metadata), None)
    if key is None:
        return None
    values: list[Any] = []
    for part in re.findall(r"\[[^\[\]]*\]|[^,\[\]\s]+", metadata[key]):
        if part.startswith("["):
            values.append([_as_number(word, f"metadata {key}") for word in part[1:-1].split(",") if word.strip()])
        else:
            values.append(_as_number(part, f"metadata {key}"))
    if len(values) != count:
        raise InputError(f"metadata {key}: expected {count} entries, one per observation_names, got {len(values)}")
    return values


def _as_number(word: str, where: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise InputError(f"{where}: expected a number, got {reprlib.repr(word)}; export it again") from error


def _holosoma(metadata: Mapping[str, str]) -> Facts:
    names = as_list(_json(metadata, "dof_names")) or []
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"metadata dof_names: expected a list of names, got {reprlib.repr(names)}")
    joints: list[Document] = [{"name": name, "axis_sign": 1, "command_mode": "position"} for name in names]
    reasons: dict[str, str] = {}
    for key in ("kp", "kd"):
        gains = numbers(_json(metadata, key), f"metadata {key}", len(joints)) if key in metadata else []
        for index, gain in enumerate(gains):
            if gain == 0.0:
                reasons[f"joints[{index}].{key}"] = f"says {key} 0, which no drive has that is meant to move"
            else:
                joints[index][key] = gain
    if "robot_urdf" in metadata:
        _add_limits(joints, _json(metadata, "robot_urdf"))
    _add_pose(joints, _json(metadata, "experiment_config") if "experiment_config" in metadata else None)
    action: Document = {"mode": "absolute", "joints": [joint["name"] for joint in joints], "rate_limit": None}
    if "action_scale" in metadata:
        scale = _json(metadata, "action_scale")
        one = isinstance(scale, int | float)
        action["scale"] = (
            [one_number(scale, "metadata action_scale")] * len(joints)
            if one
            else numbers(scale, "metadata action_scale", len(joints))
        )
    return Facts("holosoma's metadata", {"joints": joints, "action": action}, reasons=reasons)


def _json(metadata: Mapping[str, str], key: str) -> Any:
    try:
        return json.loads(metadata[key])
    except (ValueError, RecursionError) as error:
        raise InputError(f"metadata {key}: expected JSON, as holosoma writes it; export it again") from error


def _add_limits(joints: list[Document], urdf: Any) -> None:
    """Take positions, velocities and efforts that are allowed from the robot's URDF."""
    if not isinstance(urdf, str) or len(urdf) > _MOST_URDF_BYTES or "<!DOCTYPE" in urdf or "<!ENTITY" in urdf:
        raise InputError("metadata robot_urdf: expected the text of a URDF of up to 4 MB, without entities of its own")
    try:
        root = ElementTree.fromstring(urdf.encode())
    except ElementTree.ParseError as error:
        raise InputError(f"metadata robot_urdf: expected a URDF, got: {error}; export it again") from error
    elements = {element.get("name"): element for element in root.iter("joint")}
    for joint in joints:
        element = elements.get(joint["name"])
        limit = None if element is None else element.find("limit")
        if element is None or limit is None:
            continue
        told = {key: _as_number(value, f"metadata robot_urdf: {joint['name']}") for key, value in limit.items()}
        joint |= {
            field: told[key]
            for key, field in (("velocity", "velocity_limit"), ("effort", "effort_limit"))
            if told.get(key)
        }
        if element.get("type") == "continuous":
            joint["position_limits"] = None
        elif {"lower", "upper"} <= set(told):
            joint["position_limits"] = [told["lower"], told["upper"]]


def _add_pose(joints: list[Document], config: Any) -> None:
    """Take the default pose from the experiment's configuration, where it has one of these joints."""
    pose = as_mapping(inner(config, "robot", "init_state", "default_joint_angles")) or {}
    for joint in joints:
        if joint["name"] in pose:
            joint["default_position"] = one_number(pose[joint["name"]], f"metadata experiment_config: {joint['name']}")
