"""A robot and a shell start without the heavy libraries: proved by fresh interpreters. About 8 s.

Lint bans them at module level (TID253 in pyproject.toml), but a chain of imports only shows when it is run.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import sim2real
from sim2real.cli import COMMANDS, Command

ROBOT = {"onnxruntime", "mcap", "tensorrt", "cuda"}
HEAVY = {"torch", "ray", "mujoco", "onnx", "onnxscript", "matplotlib", "scipy", "tensorboard"} | ROBOT
NOT_FOR_A_LIST_OF_COMMANDS = HEAVY | {"numpy", "msgspec", "zmq", "tyro", "cryptography"}
CORE = [module.name for module in pkgutil.iter_modules(sim2real.__path__, "sim2real.") if not module.ispkg]

LOADED = """
import json, sys
before = set(sys.modules)
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})), file=sys.stderr)
"""


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter loads for `statement`."""
    command = [sys.executable, "-I", "-c", LOADED.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("package", ["sim2real", "sim2real_edge"])
def test_the_packages_of_a_robot_load_nothing_heavy(package: str) -> None:
    loaded = loaded_by(f"import {package}")
    assert package in loaded
    assert not loaded & (HEAVY | {"cryptography"})


def test_no_module_of_the_core_loads_anything_heavy() -> None:
    assert len(CORE) > 10
    assert not loaded_by(f"import {', '.join(CORE)}") & (HEAVY | {"cryptography"})


def test_the_list_of_commands_needs_the_standard_library_alone() -> None:
    assert not loaded_by("from sim2real.cli import main; sys.exit(main(['--help']))") & NOT_FOR_A_LIST_OF_COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_the_help_of_a_command_loads_nothing_heavy(command: Command) -> None:
    words = [*command.words.split(), "--help"]
    assert not loaded_by(f"from sim2real.cli import main; sys.exit(main({words}))") & (HEAVY | {"cryptography"})


def test_a_fresh_interpreter_would_have_shown_it() -> None:
    assert "scipy" in loaded_by("import scipy")
