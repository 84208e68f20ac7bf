"""`randomization.json`: whole or not there, checked field by field, drawn as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.randomization import (
    COMMAND_DELAY,
    HeldOutError,
    ParameterRange,
    RandomizationFile,
    read_randomization,
    sample,
    write_randomization,
)
from sim2real.robots import get_robot
from sim2real.tasks.ranges import check_robot


def content(**changes: Any) -> RandomizationFile:
    fields: dict[str, Any] = {
        "name": "mass",
        "unit": "kg",
        "nominal": 0.7,
        "low": 0.6,
        "high": 0.8,
        "operation": "set",
        "distribution": "uniform",
        "identified": True,
        "how": "for a test",
        "delays": None,
    }
    parameter = ParameterRange(**(fields | changes))
    return RandomizationFile(
        schema_version=2,
        robot="pendulum",
        toolkit_version="0",
        parameters=(parameter,),
        covariance=None,
        log_parameters=(),
        logs=(),
        fit_position_mae=0.01,
        held_out=(),
    )


finite = st.floats(min_value=1e-300, max_value=1e300, allow_subnormal=False)


@given(st.tuples(finite, finite, finite).map(sorted), st.sampled_from(["fixed", "uniform", "log_uniform"]))
def test_files_round_trip_exactly_and_draws_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float], distribution: str
) -> None:
    low, nominal, high = numbers
    written = content(low=low, nominal=nominal, high=high, distribution=distribution)
    path = tmp_path_factory.mktemp("ranges") / "randomization.json"
    write_randomization(path, written)
    assert read_randomization(path) == written
    values = sample(written, np.random.default_rng(0), 50)["mass"]
    if distribution == "fixed":
        assert np.all(values == nominal)
    assert np.all((values >= low * (1 - 1e-12)) & (values <= high * (1 + 1e-12)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nominal": float("nan")}, r"randomization\.parameters\[0\]\.nominal: expected a finite number"),
        ({"high": float("inf")}, r"randomization\.parameters\[0\]\.high: expected a finite number"),
        ({"nominal": 0.9}, r"expected a number from low 0\.6 to high 0\.8, got 0\.9"),
        ({"low": 0.0, "distribution": "log_uniform"}, "expected a number > 0 for log_uniform"),
        ({"name": COMMAND_DELAY}, "expected what is delayed"),
        ({"delays": "command"}, "null for any other parameter"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "randomization.json"
    with pytest.raises(InputError, match=message):
        write_randomization(path, content(**changes))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fit_position_mae": float("nan")},
            r"randomization\.fit_position_mae: expected a finite number >= 0, got nan",
        ),
        (
            {"held_out": (HeldOutError(candidate="fitted", position_mae=-1.0, position_mae_all=0.1, window=0.5),)},
            r"randomization\.held_out\[0\]\.position_mae: expected a finite number >= 0, got -1\.0",
        ),
        (
            {"log_parameters": content(high=float("inf")).parameters},
            r"randomization\.log_parameters\[0\]\.high: expected a finite number, got inf",
        ),
    ],
)
def test_errors_and_ranges_of_logs_are_checked_too(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "randomization.json"
    with pytest.raises(InputError, match=message):
        write_randomization(path, msgspec.structs.replace(content(), **changes))
    assert list(tmp_path.iterdir()) == []


def test_what_describes_the_logs_is_not_drawn() -> None:
    delay = content(name="effort_log_delay", unit="s", low=-0.1, high=1.0, delays="logged effort").parameters
    written = msgspec.structs.replace(content(), log_parameters=delay)
    assert set(sample(written, np.random.default_rng(0), 3)) == {"mass"}


def test_every_field_is_needed_and_no_other_allowed(tmp_path: Path) -> None:
    path = tmp_path / "randomization.json"
    whole = msgspec.to_builtins(content())
    for field in whole["parameters"][0]:
        broken = msgspec.to_builtins(content())
        del broken["parameters"][0][field]
        path.write_bytes(msgspec.json.encode(broken))
        with pytest.raises(InputError, match=f"missing required field `{field}`"):
            read_randomization(path)
    whole["parameters"][0]["colour"] = "red"
    path.write_bytes(msgspec.json.encode(whole))
    with pytest.raises(InputError, match="unknown field `colour`"):
        read_randomization(path)


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_truncated_file_is_one_clear_line(tmp_path: Path, length: int) -> None:
    path = tmp_path / "randomization.json"
    write_randomization(path, content())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match="make it anew with: sim2real calib fit"):
        read_randomization(path)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"randomization file .*cannot be read \(No such file or directory\)"):
        read_randomization(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": -0.1}, r"\[0\] mass: expected a range > 0, got low -0.1"),
        ({"low": 0.0}, r"\[0\] mass: expected a range > 0, got low 0.0"),
        ({"high": 1e300}, r"\[0\] mass: expected a range within 0 to 1e\+06 kg, got 0.6 to 1e\+300"),
        ({"name": "damping", "low": -0.1}, r"\[0\] damping: expected a range within 0 to"),
        ({"name": "weight"}, "parameter 'weight' of robot pendulum: unknown; allowed: mass"),
        (
            {"name": "command_delay", "delays": "command", "unit": "s"},
            "command_delay: expected a range within",
        ),
    ],
)
def test_ranges_that_the_robot_cannot_have_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_robot(content(**changes), get_robot("pendulum"))


def test_only_its_own_robot_passes() -> None:
    check_robot(content(), get_robot("pendulum"))
    other = msgspec.structs.replace(content(), robot="acrobot")
    with pytest.raises(InputError, match="is of robot 'acrobot', but the task needs 'pendulum'"):
        check_robot(other, get_robot("pendulum"))


def test_a_range_wider_than_a_number_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a finite distance from low"):
        write_randomization(tmp_path / "r.json", content(low=-1e308, high=1e308))
