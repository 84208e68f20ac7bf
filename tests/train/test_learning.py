"""The whole bar, with the command's defaults: about a minute and a half."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim2real import __version__
from sim2real.randomization import COMMAND_DELAY, ParameterRange, RandomizationFile, write_randomization
from sim2real_train.commands import EvaluateArgs, ExportArgs, run_evaluate, run_export
from sim2real_train.train_command import TrainArgs, run_train
from tests.train.builders import TASK


def ranges(path: Path) -> Path:
    """About what calibration finds on the real pendulum's logs."""
    bounds = (
        ("mass", "kg", 0.65, 0.735, 0.82),
        ("armature", "kg·m²", 0.0005, 0.003, 0.01),
        ("damping", "N·m·s/rad", 0.0, 0.006, 0.03),
        ("frictionloss", "N·m", 0.08, 0.2, 0.45),
        (COMMAND_DELAY, "s", 0.0, 0.005, 0.015),
    )
    parameters = tuple(
        ParameterRange(
            name=name,
            unit=unit,
            nominal=nominal,
            low=low,
            high=high,
            operation="set",
            distribution="uniform",
            identified=True,
            how="Typed for a test.",
            delays="command" if name == COMMAND_DELAY else None,
        )
        for name, unit, low, nominal, high in bounds
    )
    content = RandomizationFile(
        schema_version=2,
        robot="pendulum",
        toolkit_version=__version__,
        parameters=parameters,
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.0,
        held_out=(),
    )
    write_randomization(path, content)
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_defaults_swing_up_and_hold_on_nominal_and_on_calibrated_plants(tmp_path: Path) -> None:
    file, bundle = ranges(tmp_path / "randomization.json"), tmp_path / "policy.s2r"
    run_train(TrainArgs(task=TASK, out=tmp_path / "run", randomization=file))
    assert run_export(ExportArgs(checkpoint=tmp_path / "run" / "checkpoint", out=bundle)).passed
    nominal = run_evaluate(EvaluateArgs(policy=bundle, min_success=0.95))
    calibrated = run_evaluate(EvaluateArgs(policy=bundle, min_success=0.90, randomization=file))
    assert nominal.passed, nominal.summary
    assert calibrated.passed, calibrated.summary
