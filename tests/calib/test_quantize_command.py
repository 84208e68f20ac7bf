"""`sim2real quantize` as a person meets it: what is in the bundle, what is refused, what a robot runs. About 20 s."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sim2real.acceptance import Acceptance, Trial, read_acceptance
from sim2real.bundle import Bundle, read_bundle, write_bundle
from sim2real.cli import main
from sim2real.errors import BundleError, EngineError, WireError
from sim2real.members import ACCEPTANCE, CALIBRATION
from sim2real.signing import generate_signing_key
from sim2real_calib.calibration_set import CalibrationSet, decode_set, encode_set
from sim2real_edge.commands import EdgeRunArgs, run_edge
from sim2real_edge.engine import load_engine
from sim2real_edge.golden import GOLDEN_TOLERANCES, replay_golden
from sim2real_edge.release import require_released
from tests.calib.policies import KINDS, exported, pumping

FEW = ("--steps", "60", "--envs", "4", "--no-acceptance")
"""Records little and judges nothing."""
JUDGED = ("--steps", "60", "--episodes", "30", "--max-loss", "0.1")


def quantize(bundle: Path, precision: str, out: Path, *words: str) -> int:
    return main(["quantize", str(bundle), "--precision", precision, "--out", str(out), *words])


@pytest.fixture(scope="module")
def float32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("mlp").write(tmp_path_factory.mktemp("float32") / "policy.s2r")


@pytest.fixture(scope="module")
def accepted(float32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an int8 policy that was judged."""
    out = tmp_path_factory.mktemp("accepted") / "policy.s2r"
    assert quantize(float32, "int8", out, "--steps", "100", "--episodes", "150") == 0
    return out


@pytest.fixture(scope="module")
def unproven(float32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with an int8 policy that nobody judged."""
    out = tmp_path_factory.mktemp("unproven") / "policy.s2r"
    assert quantize(float32, "int8", out, *FEW) == 0
    return out


def acceptance_of(bundle: Bundle) -> Acceptance:
    return read_acceptance(bundle.members[ACCEPTANCE])


def judged(bundle: Bundle, precision: str) -> Trial:
    found = acceptance_of(bundle).of(hashlib.sha256(bundle.models[precision]).hexdigest())
    assert found is not None
    return found


def rewritten(bundle: Bundle, out: Path, change: Callable[[Trial], Trial]) -> Bundle:
    """The same bundle, in which what was judged was changed."""
    acceptance = acceptance_of(bundle)
    changed = msgspec.structs.replace(acceptance, trials=tuple(change(trial) for trial in acceptance.trials))
    return write_bundle(
        out,
        contract=bundle.contract,
        models=bundle.models,
        golden=bundle.golden,
        answers={name: golden for name, golden in bundle.goldens.items() if name != "float32"},
        extras={CALIBRATION: bundle.members[CALIBRATION], ACCEPTANCE: msgspec.json.encode(changed)},
        created_by="tests",
    )


def test_an_accepted_bundle_holds_both_policies_and_what_they_were_judged_by(float32: Path, accepted: Path) -> None:
    before, bundle = read_bundle(float32), read_bundle(accepted)
    assert set(bundle.models) == set(bundle.goldens) == {"float32", "int8"}
    assert bundle.models["float32"] == before.models["float32"]
    assert bundle.contract == before.contract
    acceptance, trial = acceptance_of(bundle), judged(bundle, "int8")
    assert acceptance.calibration_sha256 == hashlib.sha256(bundle.members[CALIBRATION]).hexdigest()
    assert acceptance.trials == (trial,)
    assert (trial.verdict, trial.episodes, trial.max_loss, trial.method) == ("accepted", 150, 0.02, "percentile")
    assert [layer.product for layer in trial.layers] == ["gemm_0", "gemm_1", "gemm_2"]
    assert 0.0 < trial.output_error < 0.05
    assert trial.returns is not None
    assert abs(trial.returns.change.mean) < 0.02 * abs(trial.returns.float32.mean)
    assert set(trial.terms) >= {"energy", "effort"}
    assert decode_set(bundle.members[CALIBRATION]).observations.shape == (100, 16, 4)
    for precision in bundle.models:
        require_released(bundle, precision, unproven=False)
        assert replay_golden(load_engine("onnxruntime-cpu", bundle, precision), bundle).passed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["int8", "fp8", "float16", "bfloat16"])
def test_every_kind_in_every_precision_reproduces_its_own_golden_run(kind: str, precision: str, tmp_path: Path) -> None:
    bundle_path = exported(kind).write(tmp_path / "policy.s2r")
    assert quantize(bundle_path, precision, bundle_path, *FEW) == 0
    bundle = read_bundle(bundle_path)
    # It is not the float32 policy's.
    change = np.abs(bundle.goldens[precision].actions - bundle.golden.actions).max()
    assert change > 0.0
    if precision == "bfloat16":
        with pytest.raises(
            EngineError, match="'onnxruntime-cpu': cannot run bfloat16; allowed: float32, float16, int8"
        ):
            load_engine("onnxruntime-cpu", bundle, precision)
        return
    report = replay_golden(load_engine("onnxruntime-cpu", bundle, precision), bundle)
    assert report.passed
    assert (report.precision, report.tolerance) == (precision, GOLDEN_TOLERANCES[precision])
    assert report.action_error < 0.1 * max(change, report.tolerance)


def test_a_second_precision_keeps_the_first_and_its_calibration(accepted: Path, tmp_path: Path) -> None:
    out = tmp_path / "both.s2r"
    assert quantize(accepted, "float16", out, "--no-acceptance") == 0
    before, bundle = read_bundle(accepted), read_bundle(out)
    assert set(bundle.models) == {"float32", "int8", "float16"}
    assert bundle.models["int8"] == before.models["int8"]
    assert bundle.members[CALIBRATION] == before.members[CALIBRATION]
    # What was said of the first still holds, by what it was judged then.
    assert judged(bundle, "int8") == judged(before, "int8")
    assert judged(bundle, "float16").verdict == "not judged"
    for precision in ("int8", "float16"):
        assert replay_golden(load_engine("onnxruntime-cpu", bundle, precision), bundle).passed
    require_released(bundle, "int8", unproven=False)


def test_a_second_precision_of_another_calibration_set_is_refused(
    accepted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = decode_set(read_bundle(accepted).members[CALIBRATION])
    other = tmp_path / "calibration.npz"
    other.write_bytes(encode_set(CalibrationSet(content.observations * np.float32(0.5), content.episode_start)))
    assert quantize(accepted, "fp8", tmp_path / "out.s2r", "--calibration", str(other), "--no-acceptance") == 2
    assert "were calibrated with another set; leave out --calibration" in capsys.readouterr().err
    assert not (tmp_path / "out.s2r").exists()


def test_a_set_of_ones_own_is_used_and_travels(float32: Path, accepted: Path, tmp_path: Path) -> None:
    own = tmp_path / "calibration.npz"
    own.write_bytes(read_bundle(accepted).members[CALIBRATION])
    assert quantize(float32, "int8", tmp_path / "own.s2r", "--calibration", str(own), "--no-acceptance") == 0
    bundle = read_bundle(tmp_path / "own.s2r")
    assert bundle.members[CALIBRATION] == own.read_bytes()
    assert bundle.models["int8"] == read_bundle(accepted).models["int8"]


def test_the_robot_runs_no_policy_that_nobody_judged_unless_it_is_told_to(unproven: Path, tmp_path: Path) -> None:
    assert judged(read_bundle(unproven), "int8").verdict == "not judged"
    args = EdgeRunArgs(bundle=unproven, connect=f"ipc://{tmp_path}/plant", precision="int8", connect_timeout=0.2)
    with pytest.raises(EngineError, match=r"policy.int8.onnx: nobody judged it in closed loop: .* --unproven"):
        run_edge(args)
    told = EdgeRunArgs(
        bundle=unproven, connect=f"ipc://{tmp_path}/plant", precision="int8", connect_timeout=0.2, unproven=True
    )
    # It goes on, to a plant that is not there.
    with pytest.raises(WireError):
        run_edge(told)


def test_the_robot_runs_no_policy_other_than_the_one_that_was_judged(accepted: Path, tmp_path: Path) -> None:
    bundle = rewritten(
        read_bundle(accepted),
        tmp_path / "other.s2r",
        lambda trial: msgspec.structs.replace(trial, onnx_sha256="0" * 64),
    )
    for unproven in (False, True):
        with pytest.raises(EngineError, match=r"policy.int8.onnx: acceptance.json says nothing of this file"):
            require_released(bundle, "int8", unproven=unproven)
    require_released(bundle, "float32", unproven=False)


def test_the_robot_runs_no_policy_that_was_refused_whatever_it_is_told(accepted: Path, tmp_path: Path) -> None:
    bundle = rewritten(
        read_bundle(accepted),
        tmp_path / "refused.s2r",
        lambda trial: msgspec.structs.replace(trial, verdict="refused", reason="it fell"),
    )
    with pytest.raises(EngineError, match="was refused: it fell; use another --precision"):
        require_released(bundle, "int8", unproven=True)


@pytest.mark.parametrize("content", [b"{}", b'{"schema_version": 2}'])
def test_an_acceptance_that_cannot_be_read_releases_nothing(accepted: Path, tmp_path: Path, content: bytes) -> None:
    bundle = read_bundle(accepted)
    changed = write_bundle(
        tmp_path / "changed.s2r",
        contract=bundle.contract,
        models=bundle.models,
        golden=bundle.golden,
        answers={"int8": bundle.goldens["int8"]},
        extras={ACCEPTANCE: content},
        created_by="tests",
    )
    with pytest.raises(BundleError, match=r"acceptance.json: .*quantize it again"):
        require_released(changed, "int8", unproven=True)


def run_json(bundle: Path, out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = quantize(bundle, "int8", out, *words, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_where_int8_fails_its_worst_product_stays_float32(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = pumping(loud_unit=1e4).write(tmp_path / "policy.s2r")
    code, result = run_json(source, tmp_path / "out.s2r", capsys, *JUDGED)
    trials: list[dict[str, Any]] = result["acceptance"]["trials"]
    assert (code, result["chosen"]) == (0, "int8")
    assert [(trial["precision"], trial["verdict"]) for trial in trials] == [("int8", "refused"), ("int8", "accepted")]
    assert [layer["kept"] for layer in trials[1]["layers"]] == [False, True]
    bundle = read_bundle(tmp_path / "out.s2r")
    assert judged(bundle, "int8").verdict == "accepted"
    require_released(bundle, "int8", unproven=False)


@pytest.mark.slow
def test_where_int8_fails_in_all_products_float16_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = pumping(loud_unit=1e4, loud_input=3e4).write(tmp_path / "policy.s2r")
    code, result = run_json(source, tmp_path / "out.s2r", capsys, *JUDGED)
    trials: list[dict[str, Any]] = result["acceptance"]["trials"]
    assert (code, result["chosen"]) == (0, "float16")
    assert [(each["precision"], each["verdict"]) for each in trials] == [("int8", "refused"), ("float16", "accepted")]
    bundle = read_bundle(tmp_path / "out.s2r")
    assert set(bundle.models) == {"float32", "float16"}
    require_released(bundle, "float16", unproven=False)


def test_where_nothing_is_accepted_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loud unit is beyond what float16 holds once a measurement is added to it."""
    source = pumping(loud_unit=6.52e4, loud_input=3e4).write(tmp_path / "policy.s2r")
    before = source.read_bytes()
    assert quantize(source, "int8", source, *JUDGED) == 1
    told = capsys.readouterr().out
    assert "float16: refused: with 95 % confidence it loses at most" in told
    assert "actions are no numbers" in told
    assert f"wrote nothing: no policy of fewer bits was accepted; {source} stays as it is" in told
    assert source.read_bytes() == before
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--episodes", "149"), "--episodes: 149 cannot show that a loss is below --max-loss 0.02; give at least 150"),
        (
            ("--max-loss", "0.001"),
            "--episodes: 512 cannot show that a loss is below --max-loss 0.001; give at least 3000",
        ),
        (("--max-loss", "0"), "--max-loss: expected a number > 0"),
        (("--max-loss", "nan"), "--max-loss: expected a number > 0"),
        (("--episodes", "1"), "--episodes: expected a number at least 2"),
        (("--steps", "0"), "--steps: expected a number at least 2"),
        (("--envs", "-1"), "--envs: expected a number at least 2"),
        (("--seed", "-1"), "--seed: expected an integer from 0"),
        (("--method", "max"), "--method: expected one of percentile, minmax, mse, entropy, got 'max'"),
        (("--calibration", "none.npz"), "none.npz"),
        (("--randomization", "none.json"), "none.json"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_one_line_before_anything_runs(
    words: tuple[str, ...], expected: str, float32: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize(float32, "int8", tmp_path / "out.s2r", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_calibration_set_that_holds_what_is_no_number_is_refused_by_the_inputs_name(
    accepted: Path, float32: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Case 11.
    content = decode_set(read_bundle(accepted).members[CALIBRATION])
    observations = content.observations.copy()
    observations[5, 2, 1] = np.inf
    (tmp_path / "bad.npz").write_bytes(encode_set(CalibrationSet(observations, content.episode_start)))
    assert quantize(float32, "int8", tmp_path / "out.s2r", "--calibration", str(tmp_path / "bad.npz")) == 2
    assert "calibration: cos_angle[0] is inf in step 5 of sequence 2" in capsys.readouterr().err
    assert not (tmp_path / "out.s2r").exists()


def test_a_bundle_without_a_float32_policy_and_one_of_another_signer_are_refused(
    float32: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = generate_signing_key(tmp_path / "other.key")
    assert key
    words = ("--trust", str(tmp_path / "other.key.pub"))
    assert quantize(float32, "int8", tmp_path / "out.s2r", *words) == 2
    assert "expected a trusted signer" in capsys.readouterr().err


def test_a_given_key_signs(float32: Path, tmp_path: Path) -> None:
    public_key = generate_signing_key(tmp_path / "release.key")
    out = tmp_path / "out.s2r"
    assert quantize(float32, "float16", out, *FEW, "--signing-key", str(tmp_path / "release.key")) == 0
    assert read_bundle(out, trusted_keys=[public_key]).signature.trusted


def test_a_check_that_is_not_installed_is_told_before_anything_runs(
    float32: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", None)
    assert quantize(float32, "int8", tmp_path / "out.s2r", "--check") == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "needs the 'trt-check' extra" in captured.err


@pytest.mark.parametrize("stage", [b"record", b"float32, 512 episodes"])
def test_an_interrupt_leaves_the_bundle_as_it_was(stage: bytes, float32: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "policy.s2r"
    bundle.write_bytes(float32.read_bytes())
    steps = "100000" if stage == b"record" else "20"
    command = [sys.executable, "-m", "sim2real.cli", "quantize", "policy.s2r", "--precision", "int8"]
    command += ["--out", "policy.s2r", "--steps", steps]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stderr is not None
        told = b""
        while stage not in told:
            chunk = os.read(process.stderr.fileno(), 4096)
            assert chunk, told
            told = told[-100:] + chunk
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert b"interrupted" in rest
    assert [path.name for path in tmp_path.iterdir()] == ["policy.s2r"]
    assert bundle.read_bytes() == float32.read_bytes()
