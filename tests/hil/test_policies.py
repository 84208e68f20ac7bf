"""A run in place of a bundle: what is made of it is what its export is. About 8 s."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sim2real.bundle import read_bundle
from sim2real.errors import BundleError, InputError
from sim2real.policies import read_policy
from tests.hil.untrained import random_policy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder, with the bundle of its checkpoint beside that."""
    return random_policy("pendulum-swingup", tmp_path_factory.mktemp("run")).parent


def test_a_run_is_what_its_export_is(run: Path) -> None:
    before = sorted(run.rglob("*"))
    exported = read_bundle(run / "policy.s2r")
    for path in (run, run / "checkpoint"):
        policy = read_policy(path)
        assert (policy.bundle.contract, policy.bundle.models) == (exported.contract, exported.models)
        assert policy.name == f"{run / 'checkpoint'}, of iteration 1"
    assert sorted(run.rglob("*")) == before
    policy = read_policy(run / "policy.s2r")
    assert (policy.bundle.contract, policy.name) == (exported.contract, f"bundle {run / 'policy.s2r'}")


def test_what_cannot_be_a_policy_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a run, which nobody has signed; leave out --trust, or export it with"):
        read_policy(run, trusted_keys=["00" * 32])
    with pytest.raises(BundleError, match="cannot be read"):
        read_policy(tmp_path / "nothing")
    with pytest.raises(InputError, match="expected the robot that the policy drives, 'pendulum', got 'so101'"):
        read_policy(run, robot="so101")


def test_without_what_exports_it_the_extra_is_named(run: Path) -> None:
    """A bundle needs none of it."""
    program = f"""
        import sys
        sys.modules["torch"] = None
        from pathlib import Path
        from sim2real.errors import MissingExtraError
        from sim2real.policies import read_policy
        read_policy(Path({str(run / "policy.s2r")!r}))
        try:
            read_policy(Path({str(run)!r}))
        except MissingExtraError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "torch is not installed: needs the 'train' extra: pip install 'sim2real[train]'\n"
