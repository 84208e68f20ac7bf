"""What the presets reach, and how fast: each task is trained as a user does it, and judged on 512 episodes.

    python benchmarks/train_tasks.py [TASK ...] [--out FOLDER]

It takes as long as the trainings do, so that `make bench` leaves it out. One JSON object per task: seconds from the
start of the command to its end, success, falls, and the share of the largest reward that each tracking term reached,
on plants of the task's own ranges and with its pushes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from sim2real.tasks import get_task

TASKS: Final = ("pendulum-swingup", "acrobot-swingup", "go2-velocity-flat")
STARTS: Final = 512


def main() -> None:
    """Train and judge each task that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--out", type=Path, help="keep the runs here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for task in arguments.tasks:
            print(json.dumps(measure(task, (arguments.out or Path(temporary)) / task)), flush=True)


def measure(task: str, out: Path) -> dict[str, Any]:
    """Train a task by its preset; return what the policy is worth."""
    began = time.monotonic()
    trained = sim2real("train", task, "--out", str(out))
    seconds = time.monotonic() - began
    judged = sim2real("eval", str(out), "--task-ranges", "--starts", str(STARTS), "--min-success", "0")
    weights = {name: reward.weight for name, reward in get_task(task).rewards.items()}
    return {
        "task": task,
        "seconds": round(seconds, 1),
        "env_steps": trained["env_steps"],
        "success": judged["success_rate"],
        "ended_early": judged["ended_early"],
        "tracking": {
            name: value / weights[name] for name, value in judged["terms"].items() if name.startswith("track_")
        },
    }


def sim2real(*words: str) -> dict[str, Any]:
    """Run a command; return what it reports."""
    command = [sys.executable, "-m", "sim2real.cli", *words, "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


if __name__ == "__main__":
    main()
