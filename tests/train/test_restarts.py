"""How often a run begins again whose environment ends its own process, or hangs. About 25 s."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.train.processes import PATIENCE, SIM2REAL, told

DEADLY = """
import os
import gymnasium
import numpy as np

class Deadly(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 40:  # in its third iteration of 16 steps
            os.kill(os.getpid(), int(os.environ["DEADLY_SIGNAL"]))
        return np.zeros(1, np.float32), 0.0, False, False, {}

gymnasium.register("Deadly-v0", Deadly)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "save_every", "restarts", "lost", "lines"),
    [
        # Without a checkpoint on the way every attempt ends where the one before did.
        (
            signal.SIGKILL,
            25,
            5,
            "a worker process died (killed, out of memory, or ended by its environment); ",
            ["beginning anew (restarts left: 5)", "worker 0 was lost in iteration 3 twice, and would be again: "],
        ),
        # Each goes on from where the one before has come to, and so far may a run come.
        (
            signal.SIGSTOP,
            1,
            1,
            "worker 0 has not answered for 3 s (it is stopped, or its environment hangs; --hang-limit ",
            ["going on from iteration 2 (restarts left: 1)", "the checkpoint of iteration 4 is whole"],
        ),
    ],
    ids=["ends", "hangs"],
)
def test_what_loses_a_worker_at_the_same_place_again_ends_the_run(
    tmp_path: Path, number: signal.Signals, save_every: int, restarts: int, lost: str, lines: list[str]
) -> None:
    (tmp_path / "deadly_env.py").write_text(DEADLY)
    words = ["--num-envs=2", "--num-steps=16", "--hidden=8", "--set", "algorithm.minibatches=1", "algorithm.epochs=1"]
    words += ["--iterations=20", f"--save-every={save_every}", f"--restarts={restarts}", "--hang-limit=3"]
    done = subprocess.run(
        [SIM2REAL, "train", "gym:deadly_env:Deadly-v0", f"--out={tmp_path / 'run'}", *words],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "DEADLY_SIGNAL": str(int(number))},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    found = told(done.stderr, "train")
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        assert lost in line
        assert expected in line
