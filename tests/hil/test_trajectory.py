from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError, Sim2RealError
from sim2real_hil.plant_server import make_plant
from sim2real_hil.trajectory import Recorder, Trajectory, compare, read_trajectory, write_trajectory
from tests.edge.policies import pendulum_contract

STEPS = 20
FIELDS = ("tick", "qpos", "qvel", "signals", "command", "status")


def trajectory(seed: int = 0) -> Trajectory:
    rng = np.random.default_rng(seed)
    return Trajectory(
        period=0.01,
        tick=np.arange(STEPS),
        qpos=rng.normal(size=(STEPS, 1)),
        qvel=rng.normal(size=(STEPS, 1)),
        signals=rng.normal(size=(STEPS, 3)),
        command=rng.normal(size=(STEPS, 5, 1)),
        status=np.zeros(STEPS, np.int64),
    )


def test_equal_trajectories_have_no_difference() -> None:
    assert compare(trajectory(), trajectory()) == ""


@given(st.sampled_from(FIELDS), st.integers(0, STEPS - 1), st.integers(0, 63))
def test_a_single_flipped_bit_is_found_and_named(field: str, step: int, bit: int) -> None:
    changed = trajectory()
    values = getattr(changed, field)
    values.reshape(STEPS, -1)[step, 0:1].view(np.uint64)[:] ^= np.uint64(1) << np.uint64(bit)
    told = compare(trajectory(), changed)
    assert told.startswith(f"tick {step}: {field}[0] is ")


def test_the_earliest_difference_is_told_whatever_its_field() -> None:
    changed = trajectory()
    changed.qpos[7] = 0.0
    changed.command[3, 2] = 1.0
    assert compare(trajectory(), changed).startswith("tick 3: command[2] is ")


def test_zero_and_minus_zero_differ_and_nan_equals_itself() -> None:
    left, right = trajectory(), trajectory()
    left.qvel[4] = right.qvel[4] = np.nan
    assert compare(left, right) == ""
    left.qpos[5], right.qpos[5] = 0.0, -0.0
    assert compare(left, right).startswith("tick 5: qpos[0] is ")


def test_lengths_and_shapes_are_compared_first() -> None:
    short = Trajectory(period=0.01, **{name: getattr(trajectory(), name)[:-1] for name in FIELDS})
    assert compare(trajectory(), short) == "lengths differ: 20 and 19 steps"
    wide = replace(trajectory(), qpos=np.zeros((STEPS, 2)))
    assert compare(trajectory(), wide) == "qpos: shapes differ: (20, 1) and (20, 2)"


def test_a_file_gives_back_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "trajectory.npz"
    write_trajectory(path, trajectory())
    read = read_trajectory(path)
    assert compare(read, trajectory()) == ""
    assert read.period == 0.01
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["qpos"], trajectory().qpos)


def test_another_or_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.npz"
    write_trajectory(path, trajectory())
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(Sim2RealError):
        read_trajectory(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_trajectory(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"ends in \.npz"):
        write_trajectory(tmp_path / "trajectory.csv", trajectory())


def test_a_recorder_keeps_what_fits() -> None:
    contract = pendulum_contract()
    plant = make_plant(contract, start="random", seed=1)
    recorder = Recorder(contract, plant, 2, contract.timing.control_period_ns)
    signals = np.zeros((1, plant.layout.size))
    command = np.zeros((1, 5, 1))
    for tick in range(3):
        plant.read(signals)
        command[0, 2] = tick
        recorder.add(tick, signals[0], command[0], 0)
        plant.step(command)
    recorded = recorder.trajectory()
    assert recorded.tick.tolist() == [0, 1]
    assert recorded.command[:, 2, 0].tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(recorded.signals[:, plant.layout.slices["joint_pos"]], recorded.qpos)
    assert recorded.time.tolist() == [0.0, 0.01]


def test_positions_at_control_ticks_bridge_lost_ticks() -> None:
    contract = pendulum_contract()
    layout_width = make_plant(contract, start="rest", seed=0).layout.size
    # Physics ticks of 2.5 ms, four to a control step; tick 4 and all from 7 to 9 were lost.
    tick = np.array([0, 1, 2, 3, 5, 6, 10, 11, 12])
    recorded = Trajectory(
        period=contract.timing.physics_step_ns * 1e-9,
        tick=tick,
        qpos=np.zeros((len(tick), 1)),
        qvel=np.zeros((len(tick), 1)),
        signals=np.repeat(tick[:, None].astype(np.float64), layout_width, axis=1),
        command=np.zeros((len(tick), 5, 1)),
        status=np.zeros(len(tick), np.int64),
    )
    rows = recorded.control_rows(contract)
    assert recorded.signals[rows, 0].tolist() == [0.0, 3.0, 6.0, 12.0]
