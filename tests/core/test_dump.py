"""Case 26, the part of the evidence: what is kept of a simulation that diverged. About 5 s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.canonical_zip import pack, unpack
from sim2real.errors import InputError
from sim2real.layout import command_shape
from sim2real.npz import read_npz, write_npz
from sim2real.sim.engines import make_sim
from sim2real.sim.plant import Plant
from sim2real.tasks import TaskEnv, get_task
from sim2real.tasks.base import unpublished
from sim2real.tasks.dump import MOST_DUMPS, Dump, Episode, StateRing, read_dump, write_dump

TASK = get_task("pendulum-swingup")
CONTRACT = TASK.contract(unpublished(TASK))
EPISODE = Episode(env=1, step=4, seed=7, engine="mujoco")


def make_plant(num_envs: int) -> Plant:
    return Plant(CONTRACT, make_sim(CONTRACT, num_envs))


def write_one(folder: Path, steps: int = 5, length: int = 100) -> Path:
    """A file of real steps under commands that tell their number: effort 0.001 × step."""
    plant = make_plant(2)
    ring = StateRing(plant, length=length)
    ring.start(np.arange(2), {"mass": np.array([0.5, 0.75])})
    command = np.zeros((2, *command_shape(CONTRACT)))
    for step in range(steps):
        command[:, 2] = 0.001 * step
        ring.append(command)
        plant.step(command)
    path = write_dump(folder, ring, TASK, EPISODE)
    assert path is not None
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_one(tmp_path_factory.mktemp("dump")).read_bytes()


@given(episodes=st.lists(st.integers(1, 9), min_size=1, max_size=4), length=st.integers(1, 6), env=st.integers(0, 2))
def test_a_ring_holds_the_last_steps_of_the_present_episode_and_no_others(
    episodes: list[int], length: int, env: int
) -> None:
    plant = make_plant(3)
    ring = StateRing(plant, length=length)
    number = first = 0.0
    command = np.zeros((3, *command_shape(CONTRACT)))
    for steps in episodes:
        first = number
        ring.start(np.array([env]), {})
        for _ in range(steps):
            plant.sim.qpos[:], plant.sim.qvel[:], command[:, 2] = number, 10.0 * number, 100.0 * number
            ring.append(command)
            number += 1.0
    steps = min(length, int(number - first))
    expected = np.arange(number - steps, number)
    history = ring.history(env)
    np.testing.assert_array_equal(history["state/qpos"][:, 0], expected)
    np.testing.assert_array_equal(history["state/qvel"][:, 0], 10.0 * expected)
    np.testing.assert_array_equal(history["target"][:, 2, 0], 100.0 * expected)
    assert ring.reaches_start(env) == (expected[0] == first)
    # An environment whose episode began before the ring did has no start.
    other = (env + 1) % 3
    assert len(ring.history(other)["target"]) == min(length, int(number))
    assert not ring.reaches_start(other)


def test_what_was_written_from_outside_is_marked_in_the_next_step_alone() -> None:
    ring = StateRing(make_plant(2), length=5)
    command = np.zeros((2, *command_shape(CONTRACT)))
    ring.append(command)
    ring.written(np.array([1]))
    ring.append(command)
    ring.append(command)
    assert ring.history(1)["written"].tolist() == [False, True, False]
    assert not ring.history(0)["written"].any()


def test_after_a_loaded_state_nothing_of_before_is_left() -> None:
    ring = StateRing(make_plant(2), length=5)
    ring.start(np.arange(2), {"mass": np.ones(2)})
    ring.append(np.zeros((2, *command_shape(CONTRACT))))
    ring.clear()
    assert len(ring.history(0)["target"]) == 0
    assert not ring.reaches_start(0)
    assert ring.parameters(0) == {}


def test_a_file_tells_what_was(tmp_path: Path) -> None:
    path = write_one(tmp_path, steps=5, length=3)
    dump = read_dump(path)
    facts = dump.facts
    assert (facts.task, facts.robot, facts.engine) == ("pendulum-swingup", "pendulum", "mujoco")
    assert (facts.seed, facts.env, facts.step) == (7, 1, 4)
    assert facts.parameters == {"mass": 0.75}
    assert facts.contract == CONTRACT
    assert not facts.from_start
    assert set(facts.versions) == {"sim2real", "mujoco", "numpy"}
    assert dump.command[:, 2, 0].tolist() == [0.002, 0.003, 0.004]
    assert dump.state["qpos"].shape == (3, 1)
    # Anybody can look into it with numpy alone.
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["state/qvel"], dump.state["qvel"])


def test_a_folder_takes_twenty_and_overwrites_none(tmp_path: Path) -> None:
    plant = make_plant(2)
    ring = StateRing(plant)
    ring.append(np.zeros((2, *command_shape(CONTRACT))))
    (tmp_path / "diverged-7.npz").write_bytes(b"of an earlier run")
    paths = [write_dump(tmp_path, ring, TASK, EPISODE) for _ in range(MOST_DUMPS + 3)]
    written = [path for path in paths if path is not None]
    assert len(set(written)) == MOST_DUMPS - 1
    assert paths[MOST_DUMPS - 1 :] == [None] * 4
    assert len(list(tmp_path.iterdir())) == MOST_DUMPS
    assert (tmp_path / "diverged-7.npz").read_bytes() == b"of an earlier run"


def test_an_environment_that_turns_nan_is_dumped_and_the_others_go_on(tmp_path: Path) -> None:
    env = TaskEnv(TASK, 3, seed=1, noise=False, dump_folder=tmp_path)
    calm = TaskEnv(TASK, 3, seed=1, noise=False)
    action = np.full((3, 1), 0.3, np.float32)
    for step in range(12):
        if step == 8:
            env.plant.sim.qvel[1] = np.nan
        result, expected = env.step(action), calm.step(action)
        if step == 8:
            assert result.terminated.tolist() == [False, True, False]
            assert result.reward[1] == 0.0
            assert np.isfinite(result.final_observation).all()
        for other in (0, 2):
            np.testing.assert_array_equal(env.plant.sim.qpos[other], calm.plant.sim.qpos[other])
            assert result.reward[other] == expected.reward[other]
    assert np.isfinite(env.plant.sim.qvel).all()
    assert env.diverged == 1
    (path,) = tmp_path.iterdir()
    dump = read_dump(path)
    assert (dump.facts.env, dump.facts.step, dump.facts.from_start) == (1, 8, True)
    assert np.isnan(dump.final_qvel).all()
    assert np.isnan(dump.state["qvel"][8]).all()
    assert np.isfinite(dump.state["qvel"][:8]).all()


def test_a_robot_that_has_left_the_real_numbers_has_no_ground_below_it(tmp_path: Path) -> None:
    """A height field was looked up at the index that NaN gives, and the whole batch ended."""
    env = TaskEnv(get_task("go2-velocity-rough"), 2, seed=0, dump_folder=tmp_path)
    env.plant.sim.qpos[1, 0] = np.nan
    result = env.step(np.zeros((2, env.action_size), np.float32))
    assert result.terminated.tolist() == [False, True]
    assert np.isfinite(env.observation).all()
    assert env.diverged == 1


@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_truncated_file_is_refused(whole: bytes, tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    path = tmp_path_factory.mktemp("truncated") / "diverged-0.npz"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"dump .*diverged-0\.npz: .*; expected a whole file diverged-<n>\.npz"):
        read_dump(path)


@given(place=st.floats(0.0, 1.0, exclude_max=True), flip=st.integers(1, 255))
def test_an_altered_byte_is_refused_in_one_line(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, place: float, flip: int
) -> None:
    data = bytearray(whole)
    data[int(place * len(data))] ^= flip
    path = tmp_path_factory.mktemp("altered") / "diverged-0.npz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="dump ") as error:
        read_dump(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "truncated"),
        (b"hello", "expected a zip file"),
        (write_npz({"qpos": np.zeros(3)}), r"it has no dump\.json"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=told):
        read_dump(path)


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_dump(tmp_path / "none.npz")


def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    members = unpack(write_one(tmp_path).read_bytes())
    facts = members.pop("dump.json")
    arrays = read_npz(pack(members))

    def refused(changed: dict[str, npt.NDArray[Any]], told: str) -> None:
        path = tmp_path / "changed.npz"
        path.write_bytes(pack({**unpack(write_npz(changed)), "dump.json": facts}))
        with pytest.raises(InputError, match=told):
            read_dump(path)

    refused({name: values for name, values in arrays.items() if name != "written"}, "it has no array 'written'")
    refused(arrays | {"state/qpos": arrays["state/qpos"][1:]}, r"array 'state/qpos' has shape \(4, 1\)")
    refused(arrays | {"state/qacc_warmstart": arrays["state/qacc_warmstart"][1:]}, "array 'state/qacc_warmstart'")
    refused(arrays | {"target": arrays["target"][:0]}, "array 'target'")
    assert isinstance(read_dump(next(tmp_path.glob("diverged-*"))), Dump)


def altered(
    data: bytes, facts: dict[str, Any] | None = None, arrays: dict[str, npt.NDArray[Any]] | None = None
) -> bytes:
    """A whole file, with hashes that fit, that says something else."""
    members = unpack(data)
    told = json.loads(members.pop("dump.json")) | (facts or {})
    return pack(
        {
            **unpack(write_npz(read_npz(pack(members), finite=False) | (arrays or {}))),
            "dump.json": json.dumps(told).encode(),
        }
    )


def nan_in(row: int) -> npt.NDArray[np.float64]:
    values = np.zeros((5, 1))
    values[row] = np.nan
    return values


@pytest.mark.parametrize("name", ["seed", "env", "step"])
def test_numbers_that_no_run_counts_are_refused(tmp_path: Path, whole: bytes, name: str) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(altered(whole, facts={name: -1}))
    with pytest.raises(InputError, match=f"d.npz: {name}: expected at least 0, got -1"):
        read_dump(path)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"state/qvel": nan_in(2)}, "'state/qvel' is not finite before step 2 of 5"),
        ({"state/wings": np.zeros((5, 1))}, "'state/wings' is unknown, expected states of qpos, qvel"),
        ({"written": np.zeros(5)}, "'written' is of float64, expected bool"),
        ({"target": np.zeros((5, 3, 1), np.float32)}, "'target' is of float32, expected float64"),
        ({"state/qpos": np.zeros((5, 1), np.int64)}, "'state/qpos' is of int64, expected float64"),
    ],
)
def test_arrays_that_no_run_writes_are_refused(
    tmp_path: Path, whole: bytes, arrays: dict[str, npt.NDArray[Any]], told: str
) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(altered(whole, arrays=arrays))
    with pytest.raises(InputError, match=f"d.npz: array {told}"):
        read_dump(path)


def test_the_last_state_may_be_no_number(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(altered(whole, arrays={"state/qvel": nan_in(4)}))
    assert np.isnan(read_dump(path).state["qvel"][-1]).all()


def test_json_of_endless_depth_is_refused_in_one_line(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(pack({**unpack(whole), "dump.json": b'{"parameters": ' + b"[" * 100_000}))
    with pytest.raises(InputError, match=r"d\.npz: .*; expected a whole file"):
        read_dump(path)
