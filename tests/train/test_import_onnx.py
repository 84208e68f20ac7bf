"""`sim2real import` of ONNX files: what mjlab and holosoma say in them, what fits, and what is left of their origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from sim2real.contract import encode_contract
from sim2real.errors import InputError
from sim2real.inspect import InspectArgs, run_inspect
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import replay_golden
from sim2real_train.import_command import ImportArgs
from sim2real_train.importing import import_policy
from tests.train.foreign import ACT, CONTRACT, JOINTS, OBS, TASK, answers, imported, observations, onnx_file

# The order of mjlab's robot differs from that of our task's.
ORDER = tuple(sorted(JOINTS, key=lambda name: (name.split("_")[1], name)))
KP = {name: 20.0 + index + 0.125 * (index % 2) for index, name in enumerate(ORDER)}
POSE = {joint.name: joint.default_position for joint in CONTRACT.joints}


WIDTHS = {"base_ang_vel": 3, "projected_gravity": 3, "command": 3, "joint_pos": ACT, "joint_vel": ACT, "actions": ACT}


def csv(values: Any) -> str:
    """As mjlab writes lists: three decimals, everything else as it is."""
    return ",".join(f"{value:.3f}" if isinstance(value, int | float) else str(value) for value in values)


def mjlab(**changes: str | None) -> dict[str, str]:
    """The metadata of a velocity policy of mjlab; None takes one away."""
    metadata: dict[str, str | None] = {
        "run_path": "me/secret/1",
        "joint_names": ",".join(ORDER),
        "joint_stiffness": csv(KP.values()),
        "joint_damping": csv([0.5] * ACT),
        "default_joint_pos": csv(POSE[name] for name in ORDER),
        "command_names": "twist",
        "observation_names": ",".join(WIDTHS),
        "observation_terms_scale": csv([0.25, 1.0, 1.0, 1.0, 0.05, 1.0]),
        "observation_terms_clip": csv(
            [[float("-inf"), float("inf")]] * 4 + [[-40.0, 40.0], [float("-inf"), float("inf")]]
        ),
        "observation_terms_history_length": csv([0, 0, 0, 0, 0, 1]),
        "action_scale": csv([0.25] * ACT),
        **changes,
    }
    return {key: value for key, value in metadata.items() if value is not None}


OPEN: Mapping[str, Any] = {
    "action_offset": "default",
    "action_clip": "none",
    "term_offset": ("joint_pos=default", "joint_vel=zero"),
}
"""What mjlab leaves open and no task of ours can say."""


def refusal(source: Path, **options: Any) -> str:
    out = source.parent / "no.s2r"
    with pytest.raises(InputError) as caught:
        import_policy(ImportArgs(source=source, out=out, **options))
    assert not out.exists()
    return str(caught.value)


def commands(folder: Path) -> Path:
    """A file that says the operator's inputs and how they are observed, which mjlab's metadata do not."""
    given = {
        "commands": [
            {"name": n, "unit": u, "low": -1.0, "high": 1.0, "initial": 0.0}
            for n, u in (("x", "m/s"), ("y", "m/s"), ("z", "rad/s"))
        ],
        "observation": {"terms": [{"name": "command", "offset": [0.0] * 3, "scale": [1.0] * 3, "clip": None}]},
    }
    path = folder / "open.json"
    path.write_text(json.dumps(given))
    return path


def test_mjlab(tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "policy.onnx", mjlab())
    result, bundle = imported(source, tmp_path / "policy.s2r", task=TASK, contract=commands(tmp_path), **OPEN)
    contract = bundle.contract
    assert contract.joint_names == ORDER == contract.action.joints
    assert {joint.name: joint.kp for joint in contract.joints} == KP
    for own in CONTRACT.joints:
        joint = contract.joints[ORDER.index(own.name)]
        assert (joint.kd, joint.default_position) == (0.5, own.default_position)
        assert (joint.position_limits, joint.effort_limit) == (own.position_limits, own.effort_limit)
        place, there = ORDER.index(own.name), JOINTS.index(own.name)
        assert contract.safety.fallback.hold_kp[place] == CONTRACT.safety.fallback.hold_kp[there]
    terms = {term.name: term for term in contract.observation.terms}
    assert terms["joint_pos"].offset == contract.action.offset == tuple(POSE[name] for name in ORDER)
    assert (terms["joint_vel"].scale[0], terms["joint_vel"].clip) == (0.05, (-2.0, 2.0))
    assert all(term.history_length == 1 for term in terms.values())
    lossy = [note for note in result.notes if note.startswith("lossy")]
    assert len(lossy) == 1
    assert "contract.joints[].kp" in lossy[0]
    assert f"{ORDER[1]} {KP[ORDER[1]]:g}" in lossy[0]
    assert f"{ORDER[0]} " not in lossy[0]
    assert any("kd" in note and "0.5" in note for note in result.notes)  # The task has another, and does not count.
    seen = observations()
    session = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    expected: Any = session.run(None, {"obs": seen})[0]
    np.testing.assert_allclose(answers(bundle, seen), expected, rtol=1e-6, atol=1e-6)
    assert replay_golden(load_engine("onnxruntime-cpu", bundle), bundle).passed
    assert ORDER[1] in run_inspect(InspectArgs(bundle=tmp_path / "policy.s2r")).summary


def test_exact_numbers_replace_rounded_ones_and_nothing_else(tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "policy.onnx", mjlab(joint_stiffness=csv([14.250623] * ACT)))
    options = {"task": TASK, "contract": commands(tmp_path), **OPEN}
    result, bundle = imported(source, tmp_path / "policy.s2r", **options, joint_kp=("*=14.250623",))
    assert {joint.kp for joint in bundle.contract.joints} == {14.250623}
    assert not any(note.startswith("lossy") for note in result.notes)
    told = refusal(source, **options, joint_kp=("*=14.2517",))
    assert "contradict each other: contract.joints[0].kp is 14.251, you say 14.2517" in told


def test_a_gain_of_zero_decimals_is_asked_for(tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "policy.onnx", mjlab(joint_damping=csv([0.0004] * ACT)))
    options = {"contract": commands(tmp_path), **OPEN}
    told = refusal(source, **options)
    assert (
        f"contract.joints[0..{ACT - 1}].kd: mjlab's metadata says joint_damping 0.000, which may be any number" in told
    )
    assert f"give --joint-kd {ORDER[0]}=…" in told
    _, bundle = imported(source, tmp_path / "policy.s2r", **options, task=TASK, joint_kd=("*=0.0004",))
    assert {joint.kd for joint in bundle.contract.joints} == {0.0004}


def test_what_older_metadata_leave_open_is_asked_for(tmp_path: Path) -> None:
    older = mjlab(**{f"observation_terms_{part}": None for part in ("scale", "clip", "history_length")})
    told = refusal(onnx_file(tmp_path / "policy.onnx", older))
    for field in ("terms[0..5].scale", "terms[0..5].clip"):
        assert f"contract.observation.{field}: mjlab's metadata does not say" in told or field in told
    assert "contract.observation.terms[2..4].offset" in told
    assert "give --term-offset command=default" in told
    (tmp_path / "scales.json").write_text(
        json.dumps(
            {"observation": {"terms": [{"name": name, "scale": [1.0] * width} for name, width in WIDTHS.items()]}}
        )
    )
    # With these the network's input is as long as one frame, so that there is no history.
    assert "history_length" not in refusal(tmp_path / "policy.onnx", contract=tmp_path / "scales.json")
    longer = refusal(onnx_file(tmp_path / "longer.onnx", older, inputs=2 * OBS))
    assert "contract.observation.terms[0..5].history_length" in longer
    for field in ("contract.commands", "contract.action.offset", "contract.action.clip", "contract.timing.decimation"):
        assert field in told


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"joint_stiffness": csv([1.0] * (ACT - 1))}, "which joints they are of is not said"),
        ({"joint_damping": "a," * ACT}, "expected a number"),
        ({"default_joint_pos": None}, "expected default_joint_pos"),
        ({"observation_terms_scale": csv([1.0] * 5)}, "expected 6 entries"),
        ({"observation_terms_scale": csv([1.0] * 4 + [[0.1] * 6 + [0.2] * 6, 1.0])}, "clips before it scales"),
    ],
    ids=["fewer gains", "no numbers", "half of it", "fewer scales", "clip"],
)
def test_metadata_that_contradict_themselves(changes: dict[str, str | None], named: str, tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "policy.onnx", mjlab(**changes))
    assert named in refusal(source, task=TASK, contract=commands(tmp_path), **OPEN)


def holosoma(**changes: Any) -> dict[str, str]:
    limits = "".join(
        f'<joint name="{name}" type="revolute"><limit lower="-1.5" upper="2.5" velocity="21" effort="30"/></joint>'
        for name in ORDER
    )
    metadata: dict[str, Any] = {
        "dof_names": list(ORDER),
        "kp": [28.345678] * ACT,
        "kd": [0.654321] * ACT,
        "action_scale": 0.25,
        "robot_urdf": f'<robot name="dog">{limits}</robot>',
        "experiment_config": {"robot": {"init_state": {"default_joint_angles": POSE}}},
        **changes,
    }
    return {key: json.dumps(value) for key, value in metadata.items()}


def test_holosoma(tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "policy.onnx", holosoma())
    pose = {name: min(max(value, -1.5), 2.5) for name, value in POSE.items()}
    assert pose == POSE
    result, bundle = imported(source, tmp_path / "policy.s2r", task=TASK, action_offset="default", action_clip="none")
    joints = {joint.name: joint for joint in bundle.contract.joints}
    assert bundle.contract.joint_names == ORDER
    for name, joint in joints.items():
        assert (joint.kp, joint.kd, joint.default_position) == (28.345678, 0.654321, POSE[name])
        assert (joint.position_limits, joint.velocity_limit, joint.effort_limit) == ((-1.5, 2.5), 21.0, 30.0)
    assert bundle.contract.action.scale == (0.25,) * ACT
    assert not any(note.startswith("lossy") for note in result.notes)
    told = refusal(
        onnx_file(tmp_path / "new.onnx", holosoma(robot_urdf="<!DOCTYPE x [<!ENTITY a 'b'>]><robot/>")), task=TASK
    )
    assert "without entities" in told
    assert "expected JSON" in refusal(onnx_file(tmp_path / "odd.onnx", holosoma() | {"kp": "[1,"}), task=TASK)


def test_nothing_of_its_origin_is_left(tmp_path: Path) -> None:
    source = onnx_file(tmp_path / "policy.onnx", {"run_path": "me/secret/1", "sim2real.contract": "{}"})
    _, bundle = imported(source, tmp_path / "policy.s2r", task=TASK)
    content = bundle.models["float32"]
    for word in (b"/home/me", b"secret", b"main_graph", b"pytorch"):
        assert word not in content
    model = onnx.load_from_string(content)
    assert [prop.key for prop in model.metadata_props] == ["sim2real.contract"]
    assert model.metadata_props[0].value.encode() == encode_contract(bundle.contract)
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [1, OBS]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"more_inputs": ("time_step",)}, "inputs obs, time_step"),
        ({"extra": (helper.make_node("RandomNormalLike", ["obs"], ["noise"]),)}, "RandomNormalLike"),
        ({"extra": (helper.make_node("Call", ["obs"], ["noise"], domain="com.evil"),)}, "com.evil"),
        ({"batch": 4}, "(batch, size)"),
        ({"inputs": OBS - 1}, "the terms' sum"),
        ({"outputs": ACT + 1}, "another robot or task"),
    ],
    ids=["inputs", "chance", "foreign", "batch", "observations", "actions"],
)
def test_a_graph_that_does_not_fit(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    told = refusal(onnx_file(tmp_path / "policy.onnx", **options), task=TASK)
    assert named in told or "another task" in told


def test_files_that_are_no_policy(tmp_path: Path) -> None:
    whole = onnx_file(tmp_path / "policy.onnx").read_bytes()
    for length in (0, 1, 100, len(whole) // 2):
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        assert "expected" in refusal(tmp_path / "cut.onnx", task=TASK)
    model = onnx.load_from_string(whole)
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.ClearField("raw_data")
    weight.external_data.add(key="location", value="../../secret")
    (tmp_path / "outside.onnx").write_bytes(model.SerializeToString())
    assert "expected" in refusal(tmp_path / "outside.onnx", task=TASK)
    assert "leave them out" in refusal(tmp_path / "policy.onnx", task=TASK, activation="elu")
