"""Unitree's deploy.yaml, read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.cli import main
from sim2real.contract import PolicyContract
from sim2real.errors import InputError
from sim2real.observation import ObservationBuilder
from sim2real_train.deploy_yaml import LOST, deploy_yaml
from sim2real_train.import_command import ImportArgs
from sim2real_train.importers.unitree import read_deploy_yaml
from sim2real_train.importers.yaml_text import read_yaml
from sim2real_train.importing import import_policy
from tests.train.foreign import ACT, CONTRACT, JOINTS, OBS, TASK, imported, onnx_file
from tests.train.test_export import MODELS, trained_checkpoint

MOTORS = tuple(f"{leg}_{joint}_joint" for leg in ("FR", "FL", "RR", "RL") for joint in ("hip", "thigh", "calf"))
"""The Go2's own order."""
RIGHT_POSE = [joint.default_position for joint in CONTRACT.joints]


def unitree(**changes: Any) -> dict[str, Any]:
    """As unitree_rl_lab writes it: three digits, gains in the order of the motors, no joint names."""
    joints = {joint.name: joint for joint in CONTRACT.joints}

    def term(width: int, scale: float = 1.0) -> dict[str, Any]:
        return {"params": {}, "clip": None, "scale": [scale] * width, "history_length": 1}

    observations = {
        "base_ang_vel": term(3, 0.2),
        "projected_gravity": term(3),
        "velocity_commands": term(3) | {"params": {"command_name": "base_velocity"}},
        "joint_pos_rel": term(ACT),
        "joint_vel_rel": term(ACT, 0.05),
        "last_action": term(ACT),
    }
    return {
        "joint_ids_map": [MOTORS.index(name) for name in JOINTS],
        "step_dt": 0.02,
        "stiffness": [joints[name].kp + MOTORS.index(name) for name in MOTORS],
        "damping": [0.5 + 0.01 * MOTORS.index(name) for name in MOTORS],
        "default_joint_pos": RIGHT_POSE,
        "commands": {
            "base_velocity": {
                "ranges": {
                    "lin_vel_x": [-1.0, 1.0],
                    "lin_vel_y": [-0.4, 0.4],
                    "ang_vel_z": [-1.0, 1.0],
                    "heading": None,
                }
            }
        },
        "actions": {
            "JointPositionAction": {
                "clip": None,
                "joint_names": [".*"],
                "scale": [0.25] * ACT,
                "offset": RIGHT_POSE,
                "joint_ids": None,
            }
        },
        "observations": observations,
        **changes,
    }


def action(**changes: Any) -> dict[str, Any]:
    return {"actions": {"JointPositionAction": unitree()["actions"]["JointPositionAction"] | changes}}


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False))
    return path


OPEN: dict[str, Any] = {"joint_names": JOINTS, "command_initial": ("*=0",)}
"""What the format never says."""


def refusal(folder: Path, document: Any, **options: Any) -> str:
    source, deploy = onnx_file(folder / "policy.onnx"), write(folder / "deploy.yaml", document)
    with pytest.raises(InputError) as caught:
        import_policy(ImportArgs(source=source, out=folder / "no.s2r", deploy=deploy, **options))
    assert not (folder / "no.s2r").exists()
    return str(caught.value)


def test_a_policy_of_unitree(tmp_path: Path) -> None:
    deploy = write(tmp_path / "deploy.yaml", unitree())
    result, bundle = imported(
        onnx_file(tmp_path / "policy.onnx"), tmp_path / "policy.s2r", deploy=deploy, task=TASK, **OPEN
    )
    contract = bundle.contract
    assert contract.joint_names == JOINTS
    for joint, own in zip(contract.joints, CONTRACT.joints, strict=True):
        motor = MOTORS.index(joint.name)
        assert (joint.kp, joint.kd) == (own.kp + motor, 0.5 + 0.01 * motor)
        assert (joint.axis_sign, joint.command_mode) == (1, "position")
        assert joint.position_limits == own.position_limits
    assert contract.timing.control_period_ns == 20_000_000
    assert [(each.name, each.low, each.initial) for each in contract.commands] == [
        ("lin_vel_x", -1.0, 0.0),
        ("lin_vel_y", -0.4, 0.0),
        ("ang_vel_z", -1.0, 0.0),
    ]
    assert {term.name: term.offset for term in contract.observation.terms}["joint_pos_rel"] == tuple(RIGHT_POSE)
    assert contract.action.clip is None
    # 0.51 has all the digits that a number of three can show but one; 40.0 shows none of its third.
    assert not any("kp" in note for note in result.notes if note.startswith("lossy"))
    task = [note for note in result.notes if note.startswith("deploy.yaml stands where --task")]
    assert any("contract.joints[0].kd" in note for note in task)


def test_numbers_of_three_digits_are_flagged_and_take_exact_ones(tmp_path: Path) -> None:
    document = unitree(damping=[float(f"{0.987654 * (1 + i):.3g}") for i in range(ACT)])
    source, deploy = onnx_file(tmp_path / "policy.onnx"), write(tmp_path / "deploy.yaml", document)
    options = {"deploy": deploy, "task": TASK, **OPEN}
    result, _ = imported(source, tmp_path / "policy.s2r", **options)
    (lossy,) = [note for note in result.notes if note.startswith("lossy")]
    assert "contract.joints[].kd" in lossy
    assert f"{MOTORS[0]} 0.988 ± 0.0005" in lossy
    exact = tuple(f"{name}={0.987654 * (1 + index)!r}" for index, name in enumerate(MOTORS))
    result, bundle = imported(source, tmp_path / "policy.s2r", **options, joint_kd=exact)
    assert not [note for note in result.notes if note.startswith("lossy")]
    assert {joint.name: joint.kd for joint in bundle.contract.joints}[MOTORS[2]] == 0.987654 * 3


def test_what_it_does_not_say_is_asked_for(tmp_path: Path) -> None:
    assert "contract.joints[0..11].name: deploy.yaml does not say; give --joint-names: 12 names" in refusal(
        tmp_path, unitree(), task=TASK
    )
    told = refusal(tmp_path, unitree(), joint_names=JOINTS)
    for field, option in (
        ("joints[0..11].position_limits", "--joint-position-limits FL_hip_joint=LOW:HIGH"),
        ("joints[0..11].velocity_limit", "--joint-velocity-limit FL_hip_joint=…"),
        ("joints[0..11].effort_limit", "--joint-effort-limit FL_hip_joint=…"),
        ("commands[0..2].initial", "--command-initial lin_vel_x=…"),
        ("identity.robot", "--robot-name"),
    ):
        assert f"contract.{field}: deploy.yaml does not say; give {option}, or a --contract file" in told
    assert "contract.timing.physics_step_ns, contract.timing.decimation: deploy.yaml does not say" in told
    assert "contract.safety.stale_timeout_ns" in told


def test_all_by_options_and_a_partial_contract(tmp_path: Path) -> None:
    """What is not said by single options stands in a file that says nothing else."""
    whole = msgspec.to_builtins(CONTRACT)
    rest = {name: whole[name] for name in ("safety", "latency")}
    limits = {
        "joint_position_limits": ("*_hip_joint=-1:1", "*_thigh_joint=-1.5:3.5", "*_calf_joint=-2.7:-0.8"),
        "joint_velocity_limit": ("*=30",),
        "joint_effort_limit": ("*=23.7",),
    }
    _, bundle = imported(
        onnx_file(tmp_path / "policy.onnx"),
        tmp_path / "policy.s2r",
        deploy=write(tmp_path / "deploy.yaml", unitree()),
        contract=write(tmp_path / "rest.yaml", json.loads(json.dumps(rest))),
        decimation=4,
        task_name="walk",
        robot_name="go2",
        **OPEN,
        **limits,
    )
    contract = bundle.contract
    assert (contract.identity.task, contract.timing.physics_step_ns) == ("walk", 5_000_000)
    assert contract.joints[2].position_limits == (-2.7, -0.8)
    assert contract.safety == CONTRACT.safety


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"damping": [0.0] * ACT}, "contract.joints[0..11].kd: deploy.yaml says damping 0"),
        ({"joint_ids_map": [26, *range(ACT - 1)]}, "so not whose they are; give --joint-kp"),
        (action(clip=[[-100.0, 100.0]] * ACT), "contract.action.clip: deploy.yaml bounds targets"),
        ({"joint_ids_map": [0] * ACT}, "motor numbers that differ"),
        ({"stiffness": "stiff"}, "stiffness: expected a list of numbers"),
        ({"stiffness": [float("nan")] * ACT}, "expected a finite number"),
        ({"step_dt": "1e-2"}, "step_dt: expected a finite number"),
        ({"default_joint_pos": [0.0]}, "expected 12 numbers"),
        ({"actions": {"JointEffortAction": {}}}, "expected one of JointPositionAction"),
        ({"observations": {"gait_phase": {}}}, "gait_phase: is none that a contract can name"),
        ({"observations": {"scale_first": True}}, "scale_first"),
        ({"commands": {}}, "contract.commands, contract.safety"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
)
def test_what_cannot_be_taken_from_it(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    task = None if "commands" in change else TASK
    options = {"joint_names": JOINTS} if "commands" in change else OPEN
    assert named in refusal(tmp_path, unitree(**change), task=task, **options)


def test_bounds_on_targets_become_bounds_on_actions_where_they_can(tmp_path: Path) -> None:
    alike = [[pose - 0.25 * 3.0, pose + 0.25 * 3.0] for pose in RIGHT_POSE]
    source = onnx_file(tmp_path / "policy.onnx")
    deploy = write(tmp_path / "deploy.yaml", unitree(**action(clip=alike)))
    _, bundle = imported(source, tmp_path / "policy.s2r", deploy=deploy, task=TASK, **OPEN)
    assert bundle.contract.action.clip == (-3.0, 3.0)
    # Where the joints' own limits are narrower, a person may say that they do not count.
    wide = write(tmp_path / "wide.yaml", unitree(**action(clip=[[-100.0, 100.0]] * ACT)))
    _, bundle = imported(source, tmp_path / "wide.s2r", deploy=wide, task=TASK, **OPEN, action_clip="none")
    assert bundle.contract.action.clip is None


def test_actions_in_another_order_than_the_joints(tmp_path: Path) -> None:
    """The last action lies in the order of the actions, joints in their own."""
    order = list(reversed(range(ACT)))
    deploy = write(tmp_path / "deploy.yaml", unitree(**action(joint_ids=order)))
    _, bundle = imported(onnx_file(tmp_path / "policy.onnx"), tmp_path / "policy.s2r", deploy=deploy, task=TASK, **OPEN)
    contract = bundle.contract
    terms = {term.name: term.joints for term in contract.observation.terms}
    assert contract.action.joints == terms["last_action"] == tuple(reversed(JOINTS))
    assert terms["joint_pos_rel"] == contract.joint_names == JOINTS


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch ran']",
        "joint_ids: !!python/object/apply:builtins.slice [null, null, null]",
        "a: 1\na: 2",
        "[1, 2]",
        "a: [1",
        "a: &a [*a]",
        "\n".join([f"a0: &a0 [{'x, ' * 9}x]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}*a{i - 1}]" for i in range(1, 9))]),
        "a: " + "[" * 2000,
        "? [a, b]\n: c",
    ],
    ids=["call", "slice", "twice", "list", "open", "itself", "laughs", "deep", "key"],
)
def test_yaml_is_data(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        read_deploy_yaml(text, ())
    assert list(tmp_path.iterdir()) == []


def refused_field(contract: PolicyContract) -> str:
    with pytest.raises(InputError) as caught:
        deploy_yaml(contract, MOTORS)
    return str(caught.value)


def with_joint(**changes: Any) -> PolicyContract:
    first, *others = CONTRACT.joints
    return msgspec.structs.replace(CONTRACT, joints=(msgspec.structs.replace(first, **changes), *others))


def with_term(index: int, **changes: Any) -> PolicyContract:
    terms = list(CONTRACT.observation.terms)
    terms[index] = msgspec.structs.replace(terms[index], **changes)
    return msgspec.structs.replace(
        CONTRACT, observation=msgspec.structs.replace(CONTRACT.observation, terms=tuple(terms))
    )


@pytest.mark.parametrize(
    ("contract", "field"),
    [
        (with_joint(axis_sign=-1), "joints[0].axis_sign"),
        (with_joint(command_mode="velocity", kp=0.0), "joints[*].command_mode"),
        (with_term(0, offset=(0.1, 0.0, 0.0)), "observation.terms[0].offset"),
        (with_term(0, source="base_lin_vel"), "observation.terms[0].source"),
        (
            with_term(3, joints=tuple(reversed(JOINTS)), offset=tuple(reversed(RIGHT_POSE))),
            "observation.terms[3].joints",
        ),
        (with_term(0, clip=(-1.0, 1.0), scale=(0.1, 0.2, 0.3)), "observation.terms[0].scale"),
        (with_term(0, history_length=2, history_stride=3), "observation.terms[0].history_stride"),
        (msgspec.structs.replace(CONTRACT, commands=CONTRACT.commands[:2]), "commands"),
        (
            msgspec.structs.replace(CONTRACT, action=msgspec.structs.replace(CONTRACT.action, rate_limit=(1.0,) * ACT)),
            "action.rate_limit",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
)
def test_what_the_format_cannot_hold_is_refused(contract: PolicyContract, field: str) -> None:
    assert f"contract.{field} is" in refused_field(contract)


def test_the_order_of_motors_is_asked_for() -> None:
    with pytest.raises(InputError, match="--motors: expected the joints in the order of the robot's motors"):
        deploy_yaml(CONTRACT, ())


def read_back(contract: PolicyContract) -> dict[str, Any]:
    return read_deploy_yaml(deploy_yaml(contract, MOTORS), contract.joint_names).document


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_numbers_come_back_to_the_last_digit(data: st.DataObject) -> None:
    gains = st.floats(1e-3, 1e3)
    angles = st.floats(-3.0, 3.0)
    joints = tuple(
        msgspec.structs.replace(
            joint, kp=data.draw(gains), kd=data.draw(gains), default_position=data.draw(angles), position_limits=None
        )
        for joint in CONTRACT.joints
    )
    pose = tuple(joint.default_position for joint in joints)
    terms = list(CONTRACT.observation.terms)
    terms[3] = msgspec.structs.replace(terms[3], offset=pose, scale=tuple(data.draw(gains) for _ in pose))
    contract = msgspec.structs.replace(
        CONTRACT,
        joints=joints,
        action=msgspec.structs.replace(
            CONTRACT.action, scale=tuple(data.draw(gains) for _ in pose), offset=pose, clip=None
        ),
        observation=msgspec.structs.replace(CONTRACT.observation, terms=tuple(terms)),
    )
    document = read_back(contract)
    assert [(each["kp"], each["kd"], each["default_position"]) for each in document["joints"]] == [
        (joint.kp, joint.kd, joint.default_position) for joint in joints
    ]
    assert tuple(document["action"]["scale"]) == contract.action.scale
    assert tuple(document["action"]["offset"]) == contract.action.offset
    assert tuple(document["observation"]["terms"][3]["scale"]) == terms[3].scale


def test_export_and_import_give_the_same_contract_but_for_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = go2_checkpoint(tmp_path / "checkpoint")
    out = tmp_path / "policy.s2r"
    words = ["export", str(checkpoint), "--out", str(out), "--emit", "deploy-yaml"]
    assert main(words) == 2
    assert "--motors" in capsys.readouterr().err
    assert not list(tmp_path.glob("policy*"))
    assert main([*words, "--motors", *MOTORS]) == 0
    told = capsys.readouterr().out
    assert all(f"contract.{field}" in told for field in LOST)
    folder = tmp_path / "policy.deploy"
    _, bundle = imported(
        folder / "exported" / "policy.onnx",
        tmp_path / "again.s2r",
        deploy=folder / "params" / "deploy.yaml",
        task=TASK,
        **OPEN,
    )
    first, again = CONTRACT, bundle.contract
    held = {
        "timing": first.timing,
        "joints": first.joints,
        "action": first.action,
        "safety": first.safety,
        "latency": first.latency,
    }
    assert {name: getattr(again, name) for name in held} == held
    assert [(each.low, each.high, each.unit) for each in again.commands] == [
        (each.low, each.high, each.unit) for each in first.commands
    ]
    nameless = [msgspec.structs.replace(term, name="") for term in again.observation.terms]
    assert nameless == [msgspec.structs.replace(term, name="") for term in first.observation.terms]
    assert ObservationBuilder(again, 1).observation.shape == (1, OBS)
    (tmp_path / "other.deploy").mkdir()
    assert main([*words[:3], str(tmp_path / "other.s2r"), *words[4:], "--motors", *MOTORS]) == 2
    assert "is no folder of deploy.yaml" in capsys.readouterr().err
    assert not (tmp_path / "other.s2r").exists()
    # Written once more, the folder takes the place of the earlier one.
    assert main([*words, "--motors", *MOTORS]) == 0


def go2_checkpoint(folder: Path) -> Path:
    """A checkpoint of the Go2's task with the weights of a short training on it."""
    return trained_checkpoint(folder, MODELS["mlp"], task=TASK)


def test_a_contract_is_read_from_json_as_from_yaml() -> None:
    document = json.loads(msgspec.json.encode(CONTRACT))
    assert read_yaml(json.dumps(document), "contract") == document
    assert read_yaml(yaml.safe_dump(document), "contract") == document
