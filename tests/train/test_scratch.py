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
