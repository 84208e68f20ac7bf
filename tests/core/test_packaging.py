"""What a user installs: the wheel, alone, in a new environment, from a folder full of files with our names. About 25 s.

Needs the package index that `make install` used (or its cache).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.edge import policies

# What is not in pip's cache is fetched, which may take its time.
pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "sim2real": ROOT / "sim2real",
    "sim2real_train": ROOT / "train" / "sim2real_train",
    "sim2real_edge": ROOT / "edge" / "sim2real_edge",
    "sim2real_calib": ROOT / "calib" / "sim2real_calib",
    "sim2real_hil": ROOT / "hil" / "sim2real_hil",
}
# Of a package, the extras that bring what it imports, be it inside a function. The core has none of its own: what
# simulates comes with "sim"; learned drives run on the edge's engine, and views of a GPU's arrays are a trainer's.
EXTRAS_OF = {
    "sim2real": ("sim", "warp", "newton", "gym", "envpool", "menagerie", "edge", "train"),
    "sim2real_train": ("train", "rsl-rl", "tune", "wandb"),
    "sim2real_edge": ("edge", "edge-trt"),
    "sim2real_calib": ("calib", "trt-check"),
    "sim2real_hil": ("hil", "play"),
}
DISTRIBUTION_OF = {
    "zmq": "pyzmq",
    "typing_extensions": "typing-extensions",
    "zstandard": "mcap",
    "glfw": "mujoco",
    "warp": "warp-lang",
    "mujoco_warp": "mujoco-warp",
    "mujoco_menagerie": "mujoco-menagerie",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "rsl_rl": "rsl-rl-lib",
    "tensordict": "rsl-rl-lib",
    "google": "onnx",
    "ml_dtypes": "ml-dtypes",
    "yaml": "pyyaml",
    "cuda": "cuda-bindings",
    "tensorrt": "tensorrt-cu13",
    "tensorrt_rtx_bindings": "tensorrt-rtx-cu13-bindings",
}
USED_BY_OTHERS = {"tensorboard", "onnxscript", "tensorrt-rtx-cu13-libs"}
EXTRAS = {"edge-gpu", "dev", "all", "bench", "tune", "wandb"}.union(*EXTRAS_OF.values())
NOT_ON_A_ROBOT = {"torch", "ray", "mujoco", "scipy", "matplotlib"}
TRAPS = ("sim2real", "sim2real_edge", "train", "edge", "calib", "hil", "tests", "tyro", "numpy")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # Through the source distribution, so that what is missing there is missing here.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def robot(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a new environment that holds the wheel with the extra `edge` and nothing else."""
    folder = tmp_path_factory.mktemp("robot") / "venv"
    subprocess.run([oldest_python(), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--quiet", f"{wheel}[edge]"], capture_output=True, text=True, timeout=350, check=False
    )
    assert done.returncode == 0, f"needs the package index, or a cache of what it holds: {done.stderr}"
    return folder / "bin"


def oldest_python() -> str:
    """The oldest Python that a robot may have, where it is at hand (pyenv has to be asked for it); else this one."""
    ask = ["python3.10", "-I", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(
            ask, env=os.environ | {"PYENV_VERSION": "3.10"}, capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return sys.executable
    return done.stdout.strip() or sys.executable


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder of a user whose own files have our names, and who would notice if one were imported instead."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemError('{name}.py of the working folder was imported')\n")
    return tmp_path


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_five_packages_whole_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    assert "sim2real/robots/pendulum.xml" in held
    assert {Path(name).suffix for name in held} <= {".py", ".typed", ".xml"}


def test_the_wheel_carries_its_licence_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        assert b"Apache License" in archive.read(names["licenses/LICENSE"])
        assert (
            archive.read(names["entry_points.txt"]).split() == b"[console_scripts] sim2real = sim2real.cli:main".split()
        )


def test_neither_the_base_nor_edge_asks_for_what_has_no_place_on_a_robot(wheel: Path) -> None:
    told = metadata(wheel)
    assert set(told.get_all("Provides-Extra", [])) == EXTRAS
    requirements = told.get_all("Requires-Dist", [])
    extra_of = {line: match[1] if (match := re.search(r"extra == '([\w-]+)'", line)) else "" for line in requirements}
    for line, extra in extra_of.items():
        if extra in ("", "edge", "edge-gpu"):
            assert re.split(r"[^\w-]", line)[0] not in NOT_ON_A_ROBOT
    assert any(line.startswith("torch") for line in requirements), "the check above would find it"


@pytest.mark.parametrize(("package", "extras"), EXTRAS_OF.items())
def test_a_package_imports_what_the_base_and_its_extras_bring_and_no_more(
    package: str, extras: tuple[str, ...], wheel: Path
) -> None:
    imported = {name for path in PACKAGES[package].rglob("*.py") for name in imports(path)}
    ours = imported - sys.stdlib_module_names - PACKAGES.keys()
    brought = brought_by(wheel, extras)
    assert {DISTRIBUTION_OF.get(name, name) for name in ours} <= brought


def test_every_dependency_is_used(wheel: Path) -> None:
    brought = set[str]().union(*(brought_by(wheel, extras) for extras in EXTRAS_OF.values()))
    imported = {name for folder in PACKAGES.values() for path in folder.rglob("*.py") for name in imports(path)}
    assert brought - {DISTRIBUTION_OF.get(name, name) for name in imported} <= USED_BY_OTHERS


def imports(path: Path) -> set[str]:
    """Top-level packages that the module at `path` imports, be it inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("require", "extras.require"):
            module = node.args[0]
            assert isinstance(module, ast.Constant)
            names.add(str(module.value).partition(".")[0])
    return names - {"__future__"}


def brought_by(wheel: Path, extras: tuple[str, ...]) -> set[str]:
    """Names of what the base install and `extras` require; the wheel's metadata has extras of extras spelt out."""
    names: set[str] = set()
    for line in metadata(wheel).get_all("Requires-Dist", []):
        marker = re.search(r"extra == '([\w-]+)'", line)
        if not marker or marker[1] in extras:
            names.add(re.split(r"[^\w-]", line)[0])
    return names


def test_a_robot_gets_neither_torch_nor_ray_nor_mujoco(robot: Path) -> None:
    list_installed = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    installed = set(run([robot / "python", "-I", "-c", list_installed], robot).stdout.split())
    assert {"sim2real", "onnxruntime", "numpy"} <= installed
    assert not installed & NOT_ON_A_ROBOT


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "policy.s2r"
    policies.mlp(policies.pendulum_contract()).write(path)
    return path


def test_edge_run_drives_a_plant_from_a_folder_of_files_with_our_names(robot: Path, traps: Path, bundle: Path) -> None:
    endpoint = f"ipc://{bundle.parent}/plant.ipc"
    # The plant is this environment's, the edge the robot's: two installations, as on two machines.
    serve = [sys.executable, "-I", "-m", "sim2real.cli", "hil", "plant", str(bundle), "--bind", endpoint]
    serve += ["--mode", "lockstep", "--seconds", "2", "--json"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as plant:
        drive = ["edge", "run", bundle, "--connect", endpoint, "--mode", "lockstep", "--record", "log.mcap", "--json"]
        edge = run([robot / "sim2real", *drive], traps)
        stdout, stderr = plant.communicate(timeout=60)
    assert edge.returncode == 0, edge.stderr
    assert plant.returncode == 0, stderr
    assert json.loads(stdout)["ticks"] == 200
    recording = json.loads(edge.stdout)["recording"]
    assert (recording["rows"], recording["dropped"], recording["error"]) == (200, 0, "")
    assert {path.name for path in traps.iterdir()} == {f"{name}.py" for name in TRAPS} | {"log.mcap"}


@pytest.mark.parametrize("words", [["--help"], ["tasks"], ["verify"], ["inspect"]], ids=lambda words: words[0])
def test_commands_run_in_a_folder_of_files_with_our_names(
    words: list[str], robot: Path, traps: Path, bundle: Path
) -> None:
    done = run([robot / "sim2real", *words, *([bundle] if words[0] in ("verify", "inspect") else [])], traps)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_traps_would_catch_it(robot: Path, traps: Path) -> None:
    assert "was imported" in run([robot / "python", "-m", "sim2real.cli", "--help"], traps).stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["train", "pendulum-swingup", "--out", "out"], "train"),
        (["calib", "record", "pendulum", "--out", "log.csv"], "calib"),
        (["hil", "plant", "policy.s2r", "--bind", "tcp://127.0.0.1:5555"], "hil"),
    ],
    ids=["train", "calib", "hil"],
)
def test_what_is_not_installed_is_named_with_what_brings_it(
    words: list[str], extra: str, robot: Path, traps: Path
) -> None:
    done = run([robot / "sim2real", *words], traps)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"is not installed: needs the '{extra}' extra: pip install 'sim2real[{extra}]'\n")
    assert {path.stem for path in traps.iterdir()} == set(TRAPS), "nothing is left of what could not be done"


def test_no_child_looks_for_modules_in_the_working_folder() -> None:
    """``python -m`` puts the working folder first on sys.path, where a user's train.py lies; ``-I`` does not."""
    for folder in PACKAGES.values():
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.List | ast.Tuple):
                    words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
                    assert "-m" not in words or "-I" in words, f"{path}:{node.lineno}: start Python with -I"
