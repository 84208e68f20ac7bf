from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from sim2real_train.scratch import scratch_folder

HOLD = """
import sys
from sim2real_train.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "socket").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


LIVE = "import os, sys; os.chdir(sys.argv[1]); print(flush=True); sys.stdin.read()"


def resident(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    return process


def test_who_lives_in_a_folder_ends_with_it() -> None:
    killed, of_killed = holder()
    orphan = resident(of_killed)
    killed.kill()
    killed.communicate()
    assert orphan.poll() is None
    with scratch_folder() as folder:
        orphan.communicate(timeout=30.0)
        assert orphan.returncode == -signal.SIGKILL
        own = resident(folder)
        stranger = resident(Path("/tmp"))
        assert own.poll() is None
    own.communicate(timeout=30.0)
    assert own.returncode == -signal.SIGKILL
    stranger.communicate("", timeout=30.0)
    assert stranger.returncode == 0


def test_a_folder_ends_with_its_run_and_one_of_a_killed_run_with_the_next() -> None:
    (killed, of_killed), (alive, of_alive) = holder(), holder()
    assert killed.poll() is alive.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert of_killed.exists()
    with scratch_folder() as folder:
        assert not of_killed.exists()
        assert (of_alive / "socket").exists()
        assert folder.exists()
    assert not folder.exists()
    alive.communicate("")
    assert alive.returncode == 0
    assert not of_alive.exists()
