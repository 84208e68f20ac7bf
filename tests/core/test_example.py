"""The example of a new robot: as short as it says, installable as a package, and through every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "furuta"
TIMEOUT = 120


def run(environment: dict[str, str], folder: Path, *words: str) -> dict[str, Any]:
    """The result that a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sim2real.cli", *words, "--json"],
        env=environment,
        cwd=folder,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that see the example's package, built and installed from its own files."""
    site = tmp_path_factory.mktemp("site")
    words = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *words, "--target", str(site), str(EXAMPLE)],
        check=True,
        timeout=TIMEOUT,
    )
    return os.environ | {"PYTHONPATH": str(site)}


def test_it_is_under_a_hundred_lines() -> None:
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in {".py", ".xml", ".toml"}]
    assert len(files) == 3
    assert sum(len(path.read_text().splitlines()) for path in files) < 100


def test_from_mjcf_to_a_policy_on_the_bench(installed: dict[str, str], tmp_path: Path) -> None:
    assert "furuta-swingup" in {task["name"] for task in run(installed, tmp_path, "tasks")["tasks"]}
    small = ["--iterations", "2", "--num-envs", "16", "--num-steps", "16", "--hidden", "16", "--evaluate-starts", "4"]
    trained = run(installed, tmp_path, "train", "furuta-swingup", "--out", "run", *small)
    assert trained["iterations"] == 2
    exported = run(installed, tmp_path, "export", "run/checkpoint", "--out", "policy.s2r")
    assert all(parity["error"] <= parity["tolerance"] for parity in exported["parity"])
    assert run(installed, tmp_path, "hil", "run", "policy.s2r", "--mode", "lockstep", "--ticks", "50")["passed"]


@pytest.mark.slow
def test_it_learns_to_swing_up(installed: dict[str, str], tmp_path: Path) -> None:
    trained = run(installed, tmp_path, "train", "furuta-swingup", "--out", "run", "--iterations", "150")
    assert trained["evaluation"]["success_rate"] > 0.9
