"""What a person says on the command line, as a part of a contract."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sim2real.errors import InputError
from sim2real_train.importers.facts import Document, Facts

__all__ = ["JOINT_OPTIONS", "bounds", "given_document"]

JOINT_OPTIONS: Final = {
    "joint_kp": "kp",
    "joint_kd": "kd",
    "joint_default": "default_position",
    "joint_velocity_limit": "velocity_limit",
    "joint_effort_limit": "effort_limit",
    "joint_position_limits": "position_limits",
}
"""Option (a field of the arguments) to the field of a joint that it says."""


def given_document(args: Any, facts: Facts, base: Document) -> Document:
    """Return `base`, the document of --contract, with what single options say put into it.

    Args:
        args: `sim2real_train.import_command.ImportArgs`.
        facts: What the source says, whose joints, terms and commands the options name.
        base: Changed in place.

    Raises:
        InputError: An option names what is not there, twice, or gives no value that its field takes.
    """
    document = base
    joints = _names(facts.document, document, "joints")
    for option, field in JOINT_OPTIONS.items():
        read = bounds if field == "position_limits" else _number
        for name, value in _assigned(getattr(args, option), joints, option, read).items():
            _part(document, "joints", name)[field] = value
    commands = _names(facts.document, document, "commands")
    for name, value in _assigned(args.command_initial, commands, "command_initial", _number).items():
        _part(document, "commands", name)["initial"] = value
    terms = _names(facts.document.get("observation", {}), document.get("observation", {}), "terms")
    for name, value in _assigned(args.term_offset, terms, "term_offset", _pose_or_zero).items():
        _part(document.setdefault("observation", {}), "terms", name)["offset"] = value
    _add_action(document, args, facts)
    _add_timing(document, args, facts)
    for field, value in (("task", args.task_name), ("robot", args.robot_name)):
        if value is not None:
            document.setdefault("identity", {})[field] = value
    return document


def bounds(text: str, option: str) -> list[float] | None:
    """Return ``LOW:HIGH`` as two numbers, ``none`` as None.

    Raises:
        InputError: It is neither.
    """
    if text == "none":
        return None
    low, _, high = text.partition(":")
    pair = [_number(low, option), _number(high, option)]
    if not pair[0] < pair[1]:
        raise InputError(f"{option}: expected LOW:HIGH with low < high, or none, got {text}")
    return pair


def _assigned(
    words: Sequence[str], names: Sequence[str], option: str, read: Callable[[str, str], Any]
) -> dict[str, Any]:
    """Return name to value of ``NAME=VALUE`` words, where a name may be a pattern such as ``*_hip_joint``."""
    shown = f"--{option.replace('_', '-')}"
    values: dict[str, Any] = {}
    for word in words:
        pattern, equals, text = word.partition("=")
        found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not equals or not found:
            raise InputError(f"{shown}: expected NAME=VALUE of {', '.join(names) or 'nothing here'}, got {word}")
        for name in found:
            if name in values:
                raise InputError(f"{shown}: says {name} twice; keep one")
            values[name] = read(text, shown)
    return values


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{option}: expected a finite number, got {text!r}")
    return value


def _pose_or_zero(text: str, option: str) -> str:
    """The numbers follow when the default pose is known."""
    if text not in ("default", "zero"):
        raise InputError(f"{option}: expected default (each joint's default position) or zero, got {text}")
    return text


def _names(facts: Mapping[str, Any], document: Mapping[str, Any], key: str) -> list[str]:
    told = [*facts.get(key, ()), *document.get(key, ())]
    return list(dict.fromkeys(part["name"] for part in told if "name" in part))


def _part(document: Document, key: str, name: str) -> Document:
    """Return the element of a list that has this name, made if it is not there."""
    listed: list[Document] = document.setdefault(key, [])
    found = next((part for part in listed if part.get("name") == name), None)
    if found is None:
        found = {"name": name}
        listed.append(found)
    return found


def _add_action(document: Document, args: Any, facts: Facts) -> None:
    action: Document = document.get("action", {})
    told: Document = facts.document.get("action", {})
    count = len(action.get("joints", told.get("joints", ())))
    if args.action_scale is not None:
        words = args.action_scale.split(",")
        values = [_number(word, "--action-scale") for word in words]
        action["scale"] = values * count if len(values) == 1 else values
    if args.action_offset is not None:
        action["offset"] = _pose_or_zero(args.action_offset, "--action-offset")
    if args.action_clip is not None:
        action["clip"] = bounds(args.action_clip, "--action-clip")
    if action:
        document["action"] = action


def _add_timing(document: Document, args: Any, facts: Facts) -> None:
    timing: Document = document.get("timing", {})
    if args.step_dt is not None:
        timing["control_period_ns"] = round(args.step_dt * 1e9)
    if args.decimation is not None:
        period = timing.get("control_period_ns", facts.document.get("timing", {}).get("control_period_ns"))
        timing["decimation"] = args.decimation
        if period is not None:
            if args.decimation < 1 or period % args.decimation:
                raise InputError(
                    f"--decimation: expected a whole number of physics steps in {period} ns, got {args.decimation}"
                )
            timing["physics_step_ns"] = period // args.decimation
    if timing:
        document["timing"] = timing
