from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sim2real import __version__
from sim2real.errors import InputError
from sim2real_train.checkpoint import (
    Arrays,
    State,
    checkpoint_of,
    has_checkpoint,
    read_checkpoint,
    sealed,
    write_checkpoint,
)
from sim2real_train.teacher import teacher_at
from tests.train.builders import metrics, small_config

ROOT = Path(__file__).parents[2]


def state_of(iteration: int, num_workers: int = 1) -> State:
    return State(
        schema_version=2,
        toolkit_version=__version__,
        config=small_config(num_workers=num_workers),
        iteration=iteration,
        wall_seconds=1.5,
        metrics=tuple(metrics(number + 1) for number in range(iteration)),
        generators=tuple(dict(np.random.default_rng(rank).bit_generator.state) for rank in range(num_workers)),
        members={},
    )


def arrays_of(iteration: int, num_workers: int = 1) -> dict[str, Arrays]:
    """Arrays of every type that a run has, with the iteration as their content."""
    worker: Arrays = {
        "double": np.full((3, 2), float(iteration)),
        "whole": np.array(iteration),
        "flags": np.array([True, False]),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    return {
        "weights": {"w": np.full(4, iteration, np.float32)},
        "learner": {"step": np.array(float(iteration), np.float32)},
        **{f"worker-{rank}": worker for rank in range(num_workers)},
    }


def test_round_trip_is_exact(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, state_of(7, 2), arrays_of(7, 2))
    read = read_checkpoint(tmp_path)
    assert read.state == written
    # 128-bit integers of the generator included.
    rng = np.random.default_rng()
    rng.bit_generator.state = read.state.generators[1]
    assert rng.random() == np.random.default_rng(1).random()
    for role, tensors in arrays_of(7, 2).items():
        assert read.arrays[role].keys() == tensors.keys()
        for name, array in tensors.items():
            np.testing.assert_array_equal(read.arrays[role][name], array)
            assert read.arrays[role][name].dtype == array.dtype


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_checkpoint(tmp_path / folder, state_of(3), arrays_of(3))
    names = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert names == [
        "000003.learner.safetensors",
        "000003.weights.safetensors",
        "000003.worker-0.safetensors",
        "state.json",
    ]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_next_one_replaces_it_and_leaves_foreign_files_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".000002.weights.safetensors.0a1b2c3d.partial").write_bytes(b"left by a killed writer")
    write_checkpoint(tmp_path, state_of(2), arrays_of(2))
    assert read_checkpoint(tmp_path).state.iteration == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "000002.learner.safetensors",
        "000002.weights.safetensors",
        "000002.worker-0.safetensors",
        "notes.txt",
        "state.json",
    ]


@pytest.mark.parametrize("name", ["weights", "learner", "worker-0"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "gone"])
def test_a_damaged_member_is_named_in_one_line(tmp_path: Path, name: str, damage: str) -> None:
    write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    file = tmp_path / f"000001.{name}.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        content[-1] ^= 1
        file.write_bytes(content[:-3] if damage == "truncated" else content)
    with pytest.raises(InputError, match=f"000001.{name}.safetensors") as caught:
        read_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_state_cut_at_any_byte_is_refused_in_one_line(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    path = tmp_path / "state.json"
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"state\.json") as caught:
            read_checkpoint(tmp_path)
        assert "\n" not in str(caught.value)


def test_members_of_another_shape_are_refused(tmp_path: Path) -> None:
    state = write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    outside = msgspec.structs.replace(state.members["weights"], file="../000001.weights.safetensors")
    swapped = {"weights": state.members["learner"], "learner": state.members["weights"]}
    for members in ({}, state.members | {"weights": outside}, state.members | swapped):
        changed = sealed(msgspec.structs.replace(state, members=members))
        (tmp_path / "state.json").write_bytes(msgspec.json.encode(changed))
        with pytest.raises(InputError, match=r"expected the members 000001\.weights\.safetensors, 000001\.learner"):
            read_checkpoint(tmp_path)


@pytest.mark.parametrize("field", ["wall_seconds", "metrics", "iteration", "generators", "sha256"])
def test_an_altered_state_is_refused(tmp_path: Path, field: str) -> None:
    state = write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    values: dict[str, Any] = {
        "wall_seconds": 1e9,
        "metrics": (),
        "iteration": -3,
        "generators": ({},),
        "sha256": "",
    }
    (tmp_path / "state.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(state, **{field: values[field]})))
    with pytest.raises(InputError, match=r"state\.json: does not have the SHA-256 that it names"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"metrics": ()}, "expected 1 metrics, got 0"),
        ({"generators": ()}, "expected 1 generators, got 0"),
        ({"iteration": -3}, "expected the members -00003"),
    ],
)
def test_a_state_whose_parts_do_not_belong_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    state = write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    (tmp_path / "state.json").write_bytes(msgspec.json.encode(sealed(msgspec.structs.replace(state, **changes))))
    with pytest.raises(InputError, match=told):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["state.json", "000001.learner.safetensors"])
def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, state_of(1), arrays_of(1))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name}: expected a regular file"):
        read_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=name):
        read_checkpoint(tmp_path)


def test_members_that_have_lost_their_state_are_neither_taken_for_nothing_nor_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, state_of(1), arrays_of(1))
    (folder / "state.json").unlink()
    assert has_checkpoint(folder)
    with pytest.raises(InputError, match=r"state\.json: is missing beside 000001\.learner\.safetensors, .*: restore"):
        read_checkpoint(folder)


def test_a_folder_in_place_of_an_old_member_is_told(tmp_path: Path) -> None:
    (tmp_path / "000001.learner.safetensors").mkdir()
    with pytest.raises(InputError, match="cannot be written to") as caught:
        write_checkpoint(tmp_path, state_of(2), arrays_of(2))
    assert "\n" not in str(caught.value)


def test_no_checkpoint(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path)
    with pytest.raises(InputError, match="give the folder of a run, or one of its checkpoint folders"):
        read_checkpoint(tmp_path)
    (tmp_path / "policy.s2r").write_bytes(b"")
    with pytest.raises(InputError, match=r"policy\.s2r: expected the folder of a run or of a checkpoint, got a file"):
        read_checkpoint(tmp_path / "policy.s2r")


FIRST = """
import os, signal, sys
from pathlib import Path
from tests.train.test_checkpoint import arrays_of, state_of
from sim2real_train.checkpoint import write_checkpoint
replaced = 0
def kill(event, arguments):
    global replaced
    if event == "os.rename":
        replaced += 1
        if replaced == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
write_checkpoint(Path(sys.argv[1]), state_of(1), arrays_of(1))
"""


def test_a_writer_killed_at_its_first_checkpoint_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    """Members without `state.json` would look like a checkpoint that was lost, and keep a job from beginning anew."""
    folder = tmp_path / "checkpoint"
    # Three members, the state, and the folder itself: the first of them, the last, and all of them done.
    for rename, end in ((1, -signal.SIGKILL), (5, -signal.SIGKILL), (6, 0)):
        with start(FIRST, folder, rename) as writer:
            assert writer.wait() == end
        assert has_checkpoint(folder) == (end == 0)
    assert read_checkpoint(folder).state.iteration == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


WRITER = """
import sys
from pathlib import Path
from tests.train.test_checkpoint import arrays_of, state_of
from sim2real_train.checkpoint import write_checkpoint
for iteration in range(1, 10_000):
    write_checkpoint(Path(sys.argv[1]), state_of(iteration), arrays_of(iteration))
    print(iteration, flush=True)
"""


def start(code: str, *words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    for attempt in range(2):
        writer = start(WRITER, tmp_path)
        assert writer.stdout is not None
        seen = 0
        # A different part of the next save each time: kill once the n-th file of it has come up.
        while seen < 2 + attempt:
            seen = int(writer.stdout.readline())
        while not any(file.name.startswith(f"{seen + 1:06d}") for file in tmp_path.iterdir()):
            seen = max(seen, *(int(file.name[:6]) for file in tmp_path.iterdir() if file.name[:6].isdigit()))
            if any(file.name.startswith(".") for file in tmp_path.iterdir()):
                break
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        checkpoint = read_checkpoint(tmp_path)
        iteration = checkpoint.state.iteration
        assert iteration >= 2
        assert checkpoint.arrays["weights"]["w"].tolist() == [iteration] * 4
        assert int(checkpoint.arrays["worker-0"]["whole"]) == iteration


def test_commands_take_the_folder_of_a_run_by_its_last_checkpoint(tmp_path: Path) -> None:
    """Or one of its checkpoint folders."""
    run = tmp_path / "run"
    for name, iteration in (("checkpoint", 3), ("best", 1)):
        write_checkpoint(run / name, state_of(iteration), arrays_of(iteration))
    assert checkpoint_of(run) == run / "checkpoint"
    assert checkpoint_of(run / "best") == run / "best"
    assert teacher_at(run) == teacher_at(run / "checkpoint") != teacher_at(run / "best")
    assert teacher_at(run).checkpoint == str(run / "checkpoint")
