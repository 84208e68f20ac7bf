"""Files are whole or not there: after an error, a full disk, a kill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sim2real.arguments import check_writable
from sim2real.errors import InputError
from sim2real.files import atomic_directory, atomic_write, read_bytes
from sim2real.signing import load_signing_key

KILLED = """
import os, signal, sys
from pathlib import Path
from sim2real.files import atomic_write, atomic_directory
with {writer}(Path(sys.argv[1])) as partial:
    target = partial / "a" if partial.is_dir() else partial
    target.write_text("half")
    os.kill(os.getpid(), signal.{signal})
    signal.pause()
"""

FULL = """
import resource, signal, sys
from pathlib import Path
from sim2real.arguments import check_writable
from sim2real.errors import InputError
from sim2real.files import atomic_write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with atomic_write(Path(sys.argv[1])) as partial:
        partial.write_bytes(b"x" * 5000)
except InputError as error:
    print(error)
    sys.exit(2)
"""


def python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("writer", ["atomic_write", "atomic_directory"])
def test_a_process_that_ends_inside_the_block_changes_nothing(tmp_path: Path, writer: str, end: str) -> None:
    target = tmp_path / "target"
    if writer == "atomic_write":
        target.write_text("old")
    else:
        target.mkdir()
        (target / "a").write_text("old")
    done = python(KILLED.format(writer=writer, signal=end), target)
    assert done.returncode in (-getattr(signal, end), 1)
    content = target if writer == "atomic_write" else target / "a"
    assert content.read_text() == "old"
    if end == "SIGINT":
        assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    target = tmp_path / "target"
    done = python(FULL, target)
    assert done.returncode == 2, done.stderr
    assert "cannot be written (File too large)" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")

    def write() -> None:
        with atomic_write(target) as partial:
            partial.write_text("new")
            raise ValueError("stop here")

    with pytest.raises(ValueError, match="stop here"):
        write()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_replaces_the_old_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for names in (("a", "b"), ("c",)):
        with atomic_directory(target) as partial:
            for name in names:
                (partial / name).write_text(name)
    assert [path.name for path in target.iterdir()] == ["c"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_where_a_file_should_go_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(InputError, match="cannot be written"), atomic_write(tmp_path / "target") as partial:
        partial.write_text("new")


def test_a_file_where_a_folder_should_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(InputError, match="cannot be written"), atomic_write(tmp_path / "file" / "target") as partial:
        partial.write_text("new")
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_comes_back_when_its_successor_cannot_take_its_place(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(InputError, match="cannot be written"), atomic_directory(target) as partial:
        partial.rmdir()
    assert (target / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_reading_what_is_not_there_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"policy bundle .*nothing\.s2r: cannot be read"):
        read_bytes(tmp_path / "nothing.s2r", "policy bundle")


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match=rf"log {path}: expected a plain file"):
            read_bytes(path, "log")
        with pytest.raises(InputError, match="expected a plain file"):
            load_signing_key(path)


def test_a_file_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(InputError, match="expected at most 1073741824 bytes, got 1073741825"):
        read_bytes(path, "log")


@pytest.mark.parametrize("through_a_link", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_plain_file_is_refused_and_stays(tmp_path: Path, kind: str, through_a_link: bool) -> None:
    target = tmp_path / "target"
    if kind == "pipe":
        os.mkfifo(target)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(target))
    before = target.stat()
    path = tmp_path / "link" if through_a_link else target
    if through_a_link:
        path.symlink_to(target)
    with pytest.raises(InputError, match=f"expected the path of a plain file, got a {kind}"), atomic_write(path):
        pytest.fail("nothing is to be written")
    with pytest.raises(InputError, match=f"--out .*: expected the path of a plain file, got a {kind}"):
        check_writable("--out", path)
    assert (target.stat().st_ino, target.stat().st_mode) == (before.st_ino, before.st_mode)
    assert len(list(tmp_path.iterdir())) == 1 + through_a_link


@pytest.mark.parametrize("there", [False, True])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to("elsewhere/target")
    if there:
        target.write_text("old")
    check_writable("--out", link)
    with atomic_write(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert not target.is_symlink()
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_link_that_leads_nowhere_is_refused_in_one_line(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("link")
    with pytest.raises(InputError, match=r"cannot be written \(.*symbolic links"), atomic_write(link):
        pytest.fail("nothing is to be written")
    with pytest.raises(InputError, match=r"cannot be written \(.*symbolic links"):
        check_writable("--out", link)
