"""Learned actuators: parity with a law written in numpy, one model for several joints, files that are no actuator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

from sim2real.errors import InputError, MissingExtraError
from sim2real.layout import EFFORT, POSITION
from sim2real.robots.drives import IDEAL, DcMotor, Drive, DriveNetwork, Friction
from tests.core.drive_rig import drives, linear_network, save

Array = npt.NDArray[np.float64]

HISTORY = 3
# PD gains on the newest error and velocity, and something of the past: 2 · HISTORY weights.
WEIGHTS = np.array([[20.0], [3.0], [-1.0], [-0.5], [0.2], [0.1]])


def network(path: Path, history: int = HISTORY, effort_scale: float = 2.0) -> DriveNetwork:
    return DriveNetwork(path=path, history=history, error_scale=1.5, velocity_scale=0.25, effort_scale=effort_scale)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return linear_network(tmp_path / "actuator.onnx", WEIGHTS)


def inputs(step: int, num_envs: int, num_joints: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(step)
    shape = (num_envs, num_joints)
    return 0.3 * rng.normal(size=(num_envs, 5, num_joints)), 0.3 * rng.normal(size=shape), rng.normal(size=shape)


def reference(past: list[tuple[Array, Array, Array]]) -> Array:
    """The law in float64; before the first step, the first is repeated."""
    newest_first = [past[max(len(past) - 1 - age, 0)] for age in range(HISTORY)]
    errors = [1.5 * (command[:, POSITION] - position) for command, position, _ in newest_first]
    velocities = [0.25 * velocity for _, _, velocity in newest_first]
    columns = np.stack(errors + velocities, axis=-1)
    return 2.0 * (columns @ WEIGHTS)[..., 0] + past[-1][0][:, EFFORT]


def test_the_network_is_the_law_it_was_built_with(model_path: Path) -> None:
    learned = Drive(network=network(model_path))
    model = drives(learned, IDEAL, learned, num_envs=4, limit=1e3)
    ideal = drives(IDEAL, num_envs=4, limit=1e3)
    out, plain = np.empty((4, 3)), np.empty((4, 1))
    past: list[tuple[Array, Array, Array]] = []
    for step in range(10):
        command, position, velocity = inputs(step, 4, 3)
        past.append((command, position, velocity))
        model.effort(command, position, velocity, out)
        expected = reference(past)
        np.testing.assert_allclose(out[:, [0, 2]], expected[:, [0, 2]], rtol=1e-6, atol=2e-6)
        ideal.effort(command[:, :, [1]], position[:, [1]], velocity[:, [1]], plain)
        np.testing.assert_array_equal(out[:, [1]], plain)


def test_its_effort_is_limited_and_rubbed_like_any_other(model_path: Path) -> None:
    part = Friction(coulomb=0.5, viscous=0.0, static=0.5, stribeck_velocity=0.1, load=0.0)
    model = drives(Drive(network=network(model_path), friction=part, rotor_inertia=0.01), limit=5.0)
    command, out = np.zeros((1, 5, 1)), np.empty((1, 1))
    command[0, POSITION] = 1.0
    for _ in range(50):
        model.effort(command, np.zeros((1, 1)), np.full((1, 1), 2.0), out)
    assert out[0, 0] == 4.5
    assert model.motor_effort[0, 0] == 5.0


def test_a_new_episode_has_no_past(model_path: Path) -> None:
    model = drives(Drive(network=network(model_path)), num_envs=3, limit=1e3)
    out = np.empty((3, 1))
    for step in range(5):
        model.effort(*inputs(step, 3, 1), out)
    model.reset(np.array([1]))
    past: list[tuple[Array, Array, Array]] = []
    for step in range(5, 9):
        past.append(inputs(step, 3, 1))
        model.effort(*past[-1], out)
        np.testing.assert_allclose(out[1], reference(past)[1], rtol=1e-6, atol=2e-6)
        if step == 5:
            assert abs(out[0] - reference(past)[0]) > 1e-3, "another environment forgot its past"


def test_one_environment_that_is_not_finite_leaves_the_others_alone(model_path: Path) -> None:
    learned = Drive(network=network(model_path))
    sick, well = drives(learned, learned, num_envs=3), drives(learned, learned, num_envs=3)
    out, expected = np.empty((3, 2)), np.empty((3, 2))
    for step in range(8):
        command, position, velocity = inputs(step, 3, 2)
        well.effort(command, position, velocity, expected)
        position[1], velocity[1] = np.nan, [np.inf, 1e300]
        sick.effort(command, position, velocity, out)
        np.testing.assert_array_equal(out[[0, 2]], expected[[0, 2]])


def test_a_snapshot_continues_exactly(model_path: Path) -> None:
    model = drives(IDEAL, Drive(network=network(model_path)), num_envs=2)
    for step in range(3):
        model.effort(*inputs(step, 2, 2), np.empty((2, 2)))
    saved = model.snapshot()

    def go_on() -> list[Array]:
        runs: list[Array] = []
        for step in range(3, 8):
            model.effort(*inputs(step, 2, 2), out := np.empty((2, 2)))
            runs.append(out)
        return runs

    first = go_on()
    model.randomize("network.effort_scale", "j1", np.full(2, 9.0))
    model.restore(saved)
    np.testing.assert_array_equal(go_on(), first)


@pytest.mark.parametrize("field", ["error_scale", "velocity_scale", "effort_scale"])
def test_scales_are_per_joint_and_environment(model_path: Path, field: str) -> None:
    learned = Drive(network=network(model_path))
    model, plain = (drives(learned, learned, num_envs=3, limit=1e3) for _ in range(2))
    model.randomize(f"network.{field}", "j1", np.array([7.0]), np.array([2]))
    out, untouched = np.empty((3, 2)), np.empty((3, 2))
    model.effort(*inputs(0, 3, 2), out)
    plain.effort(*inputs(0, 3, 2), untouched)
    differs = out != untouched
    assert differs[2, 1]
    assert np.count_nonzero(differs) == 1


def no_tensors_of(path: Path, ins: int, outs: int) -> Path:
    """A model that adds its inputs to each of its outputs."""
    names = [f"in{index}" for index in range(ins)]
    graph = helper.make_graph(
        [helper.make_node("Sum", names, [f"sum{index}"]) for index in range(outs)]
        + [helper.make_node("ReduceSum", [f"sum{index}", "axes"], [f"out{index}"]) for index in range(outs)],
        "several",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2 * HISTORY]) for name in names],
        [helper.make_tensor_value_info(f"out{index}", TensorProto.FLOAT, ["batch", 1]) for index in range(outs)],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    return save(path, graph)


def garbage(path: Path) -> Path:
    path.write_bytes(b"\x08\x07not a model")
    return path


def not_finite(path: Path) -> Path:
    return linear_network(path, np.full((2 * HISTORY, 1), np.inf))


BAD_FILES: list[tuple[Callable[[Path], Path], str]] = [
    (lambda path: path, "expected an ONNX model, found no such file"),
    (garbage, "cannot be loaded by onnxruntime"),
    (lambda path: linear_network(path, np.ones((4, 1))), "got 'past': tensor(float) of shape ['batch', 4]"),
    (lambda path: linear_network(path, np.ones((6, 2))), "got 'effort': tensor(float) of shape ['batch', 2]"),
    (
        lambda path: linear_network(path, WEIGHTS, batch=1),
        "with a free batch, got 'past': tensor(float) of shape [1, 6]",
    ),
    (lambda path: linear_network(path, WEIGHTS, dtype=TensorProto.DOUBLE), "got 'past': tensor(double)"),
    (lambda path: no_tensors_of(path, 2, 1), "expected one input, tensor(float) of shape ['batch', 6]"),
    (lambda path: no_tensors_of(path, 1, 2), "expected one output, tensor(float) of shape ['batch', 1]"),
    (not_finite, "for 4 rows of zeros expected finite efforts of shape [4, 1], got shape [4, 1] with 4 not finite"),
]


@pytest.mark.parametrize(("write", "sentence"), BAD_FILES)
def test_a_file_that_is_no_actuator_is_refused(tmp_path: Path, write: Callable[[Path], Path], sentence: str) -> None:
    path = write(tmp_path / "bad.onnx")
    with pytest.raises(InputError) as told:
        drives(Drive(network=network(path)), num_envs=4)
    assert str(path) in str(told.value)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_the_other_sum_model_would_do(tmp_path: Path) -> None:
    path = no_tensors_of(tmp_path / "sum.onnx", 1, 1)
    model = drives(Drive(network=network(path, effort_scale=1.0)))
    model.effort(np.zeros((1, 5, 1)), np.full((1, 1), -1.0), np.zeros((1, 1)), out := np.empty((1, 1)))
    assert out[0, 0] == pytest.approx(HISTORY * 1.5)


def test_without_onnxruntime_the_extra_is_named(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sim2real\[edge\]'"):
        drives(Drive(network=network(model_path)))


def test_a_model_has_one_thread(model_path: Path) -> None:
    drives(Drive(network=network(model_path)))
    before = len(os.listdir("/proc/self/task"))
    several = [drives(Drive(network=network(model_path)), num_envs=64) for _ in range(4)]
    for model in several:
        model.effort(*inputs(0, 64, 1), np.empty((64, 1)))
    assert len(os.listdir("/proc/self/task")) == before


def test_a_network_takes_the_motors_place(model_path: Path) -> None:
    with pytest.raises(InputError, match="expected a motor or a network"):
        Drive(network=network(model_path), motor=DcMotor(stall_effort=1.0, no_load_velocity=1.0))
    with pytest.raises(InputError, match=r"drive\.network\.history: expected at least 1, got 0"):
        network(model_path, history=0)
