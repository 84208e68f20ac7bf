from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim2real_train.provenance import note_attempt, read_record
from tests.train.builders import small_config

ROOT = Path(__file__).parents[2]


def test_each_attempt_is_noted_and_a_run_that_begins_has_a_new_record(tmp_path: Path) -> None:
    for from_iteration, iterations in ((0, [0]), (5, [0, 5]), (9, [0, 5, 9]), (0, [0])):
        note_attempt(tmp_path, small_config(seed=from_iteration), from_iteration)
        record = read_record(tmp_path)
        assert [attempt.from_iteration for attempt in record.attempts] == iterations
        assert record.config == small_config(seed=from_iteration)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


DAMAGES = {
    "empty": b"",
    "no text": b'{"schema_version": "\xff"}',
    "other JSON": b"[1, 2]",
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", ["truncated", *DAMAGES])
@pytest.mark.parametrize("from_iteration", [0, 5])
def test_a_damaged_record_is_put_aside_and_told(
    damage: str, from_iteration: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_attempt(tmp_path, small_config(), 0)
    path = tmp_path / "run.json"
    content = DAMAGES.get(damage, path.read_bytes()[:-20])
    path.write_bytes(content)
    note_attempt(tmp_path, small_config(), from_iteration)
    assert (tmp_path / "run.json.damaged").read_bytes() == content
    assert [attempt.from_iteration for attempt in read_record(tmp_path).attempts] == [from_iteration]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: record of a run {path}: is truncated, altered or of another version")
    assert line.endswith("it is kept as run.json.damaged, and a new record begins")


def test_a_lost_record_is_told_where_there_has_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note_attempt(tmp_path, small_config(), 0)
    assert capsys.readouterr().err == ""
    (tmp_path / "run.json").unlink()
    note_attempt(tmp_path, small_config(), 5)
    assert capsys.readouterr().err == f"warning: {tmp_path / 'run.json'} is missing; a new record begins\n"
    assert [attempt.from_iteration for attempt in read_record(tmp_path).attempts] == [5]


NOTE = """
from pathlib import Path
from sim2real_train.provenance import note_attempt
from tests.train.builders import small_config
note_attempt(Path("run"), small_config(), 0)
"""


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path) -> str:
    """Make one with a commit; return its hash."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q")
    return commit(folder)


def commit(folder: Path) -> str:
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "work")
    return git(folder, "rev-parse", "HEAD")


def test_the_record_tells_the_repository_of_the_work_from_that_of_the_toolkit(tmp_path: Path) -> None:
    """A copy of the toolkit lies in the user's repository as an environment does: untracked, then as one of its own."""
    work = tmp_path / "work"
    users = repository(work)
    copy = work / "toolkit"
    subprocess.run(["cp", "-r", "train", "sim2real", "tests", f"{copy.mkdir() or copy}"], cwd=ROOT, check=True)
    (work / "run").mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables |= {"PYTHONPATH": f"{copy}:{copy / 'train'}"}
    told: list[tuple[str | None, str | None]] = []
    toolkits = ""
    for own in (False, True):
        if own:
            git(copy, "init", "-q")
            git(copy, "add", ".")
            toolkits = commit(copy)
            # As in a hook of the user's.
            variables["GIT_DIR"] = str(work / ".git")
        subprocess.run([sys.executable, "-c", NOTE], cwd=work, env=variables, check=True)
        (attempt,) = read_record(work / "run").attempts
        told.append((attempt.git and attempt.git.commit, attempt.toolkit_git and attempt.toolkit_git.commit))
    assert told == [(users, None), (users, toolkits)]
