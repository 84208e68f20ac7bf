"""Unitree's folder of a policy, ``params/deploy.yaml`` and ``exported/policy.onnx``, from a contract of ours.

What their format fixes, and what of a contract it has no place for, is in `sim2real_train.importers.unitree`. Numbers
are written with all their digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sim2real import extras
from sim2real.contract import ObservationTerm, PolicyContract
from sim2real.errors import InputError
from sim2real.files import atomic_directory
from sim2real_train.importers.unitree import ACTIONS, COMMANDS

__all__ = ["LOST", "deploy_folder", "deploy_yaml", "write_deploy_folder"]

LOST: Final = (
    "identity",
    "timing.physics_step_ns",
    "timing.decimation",
    "joints[*].name",
    "joints[*].position_limits",
    "joints[*].velocity_limit",
    "joints[*].effort_limit",
    "observation.terms[*].name",
    "commands[*].name",
    "commands[*].initial",
    "safety",
    "latency",
)
"""Fields of a contract that the format has no place for; its runtime does without them."""


def deploy_folder(out: Path) -> Path:
    """Return where the folder of the bundle at `out` goes; an earlier one there will be replaced.

    Raises:
        InputError: Something else is there.
    """
    folder = out.with_suffix(".deploy")
    if folder.exists() and not (folder / "params" / "deploy.yaml").is_file():
        raise InputError(f"{folder}: exists and is no folder of deploy.yaml; choose another --out")
    return folder


def write_deploy_folder(folder: Path, text: str, onnx: bytes) -> None:
    """Write the folder, whole or not at all.

    Args:
        folder: As of `deploy_folder`.
        text: As of `deploy_yaml`.
        onnx: The policy's float32 file.

    Raises:
        InputError: It cannot be written.
    """
    with atomic_directory(folder) as partial:
        for name, content in (("params/deploy.yaml", text.encode()), ("exported/policy.onnx", onnx)):
            (partial / name).parent.mkdir()
            (partial / name).write_bytes(content)


def deploy_yaml(contract: PolicyContract, motors: Sequence[str]) -> str:
    """Return the text of deploy.yaml.

    Args:
        contract: The policy's.
        motors: Joints in the order of the robot's motors, which no contract says.

    Raises:
        InputError: The format cannot hold the contract; the message names the field.
    """
    names = contract.joint_names
    if sorted(motors) != sorted(names):
        raise InputError(
            f"--motors: expected the joints in the order of the robot's motors, all of {', '.join(names)}; got "
            f"{', '.join(motors) or 'none'}"
        )
    yaml = extras.require("yaml", "train")
    joints = {joint.name: joint for joint in contract.joints}
    document: dict[str, Any] = {
        "joint_ids_map": [list(motors).index(name) for name in names],
        "step_dt": contract.timing.control_period_ns / 1e9,
        "stiffness": [joints[name].kp for name in motors],
        "damping": [joints[name].kd for name in motors],
        "default_joint_pos": [joint.default_position for joint in contract.joints],
        "commands": _commands(contract),
        "actions": _actions(contract),
        "observations": _observations(contract),
    }
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)


def _commands(contract: PolicyContract) -> dict[str, Any]:
    """Its runtime knows three operator inputs, in this order."""
    commands = contract.commands
    if not commands:
        return {}
    units = [command.unit for command in commands]
    _expect(
        units == list(COMMANDS.values()), "commands", f"{', '.join(COMMANDS)} ({', '.join(COMMANDS.values())})", units
    )
    ranges = {name: [command.low, command.high] for name, command in zip(COMMANDS, commands, strict=True)}
    return {"base_velocity": {"ranges": {**ranges, "heading": None}}}


def _actions(contract: PolicyContract) -> dict[str, Any]:
    action = contract.action
    for index, joint in enumerate(contract.joints):
        _expect(joint.axis_sign == 1, f"joints[{index}].axis_sign", "1", joint.axis_sign)
    modes = {joint.command_mode for joint in contract.joints}
    kinds = [kind for kind, mode in ACTIONS.items() if {mode} == modes]
    _expect(len(kinds) == 1, "joints[*].command_mode", f"one of {', '.join(ACTIONS.values())} for all", sorted(modes))
    _expect(action.mode == "absolute", "action.mode", "absolute", action.mode)
    _expect(action.rate_limit is None, "action.rate_limit", "None", action.rate_limit)
    clip = None
    if action.clip is not None:
        low, high = action.clip
        clip = [
            sorted((zero + scale * low, zero + scale * high))
            for zero, scale in zip(action.offset, action.scale, strict=True)
        ]
    return {
        kinds[0]: {
            "clip": clip,
            "joint_names": list(action.joints),
            "scale": list(action.scale),
            "offset": list(action.offset),
            "joint_ids": [contract.joint_names.index(name) for name in action.joints],
        }
    }


def _observations(contract: PolicyContract) -> dict[str, Any]:
    observation = contract.observation
    if any(term.history_length > 1 for term in observation.terms):
        for field, held in (("history_order", "oldest_first"), ("startup_fill", "first")):
            got = getattr(observation, field)
            _expect(got == held, f"observation.{field}", held, got)
    told: dict[str, Any] = {"use_gym_history": True} if observation.layout == "frame_major" else {}
    for index, term in enumerate(observation.terms):
        path = f"observation.terms[{index}]"
        name = _name(term, contract, path)
        _expect(name not in told, path, "each of its kinds once", term.name)
        told[name] = _term(term, contract, path)
    return told


def _name(term: ObservationTerm, contract: PolicyContract, path: str) -> str:
    """Return what its runtime calls the term."""
    pose = {joint.name: joint.default_position for joint in contract.joints}
    zero = all(value == 0.0 for value in term.offset)
    plain = {
        "base_ang_vel": "base_ang_vel",
        "projected_gravity": "projected_gravity",
        "command": "velocity_commands",
        "joint_vel": "joint_vel_rel",
        "last_action": "last_action",
    }
    if term.source == "joint_pos":
        relative = list(term.offset) == [pose[name] for name in term.joints]
        _expect(relative or zero, f"{path}.offset", "the default pose or zeros", term.offset)
        return "joint_pos_rel" if relative else "joint_pos"
    _expect(term.source in plain, f"{path}.source", f"one of joint_pos, {', '.join(plain)}", term.source)
    _expect(zero, f"{path}.offset", "zeros", term.offset)
    return plain[term.source]


def _term(term: ObservationTerm, contract: PolicyContract, path: str) -> dict[str, Any]:
    _expect(term.function == "identity", f"{path}.function", "identity", term.function)
    _expect(term.history_length == 1 or term.history_stride == 1, f"{path}.history_stride", "1", term.history_stride)
    order = contract.action.joints if term.source == "last_action" else contract.joint_names
    _expect(term.joints in ((), order), f"{path}.joints", "all of them, in their order", term.joints)
    clip = None
    if term.clip is not None:
        # It clips before it scales.
        bounds = [sorted(bound / scale for bound in term.clip) for scale in term.scale]
        alike = all(math.isclose(a, b, rel_tol=1e-12) for pair in bounds for a, b in zip(pair, bounds[0], strict=True))
        _expect(alike, f"{path}.scale", "one scale for all, as the term is clipped", term.scale)
        clip = bounds[0]
    params = {"command_name": "base_velocity"} if term.source == "command" else {}
    return {"params": params, "clip": clip, "scale": list(term.scale), "history_length": term.history_length}


def _expect(holds: bool, path: str, allowed: str, got: object) -> None:
    if not holds:
        raise InputError(
            f"--emit deploy-yaml: contract.{path} is {got!r}, and the format holds {allowed} alone; leave --emit out"
        )
