"""`randomization.json`: whole or not there, checked field by field, drawn as it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim2real.contract import decode_contract
from sim2real.errors import ContractError, InputError
from sim2real.latency import read_latency
from sim2real.randomization import (
    COMMAND_DELAY,
    Covariance,
    HeldOutError,
    ParameterRange,
    RandomizationFile,
    read_randomization,
    sample,
    validate,
    without_delays,
    write_randomization,
)
from sim2real.robots import get_robot
from sim2real.tasks.ranges import check_robot
from sim2real.wire import decode_control
from sim2real.wire_messages import Ping


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
        ({"name": "damping", "unit": "", "low": -0.1}, r"\[0\] damping: expected a range within 0 to"),
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


def named(name: str, low: float, high: float, **changes: Any) -> ParameterRange:
    return content(name=name, nominal=low, low=low, high=high, **changes).parameters[0]


MANY = (
    named("a", -1.0, 3.0),
    named("b", 1.0, 100.0, distribution="log_uniform"),
    named("c", 0.5, 0.5, distribution="fixed"),
    named("d", 10.0, 11.0),
    named("e", 0.01, 0.02, distribution="log_uniform"),
)


def many(names: Sequence[str] = (), matrix: Sequence[Sequence[float]] = ()) -> RandomizationFile:
    """Return a file of `MANY`, with a covariance if there are names."""
    covariance = Covariance(names=tuple(names), matrix=tuple(tuple(row) for row in matrix)) if names else None
    return msgspec.structs.replace(content(), parameters=MANY, covariance=covariance)


@pytest.mark.parametrize("num", [1, 3, 64])
def test_without_a_covariance_draws_are_those_of_one_parameter_after_the_other(num: int) -> None:
    """Bit for bit what was drawn before files could carry a covariance: checkpoints go on with the same numbers."""
    rng, expected = np.random.default_rng(7), dict[str, npt.NDArray[np.float64]]()
    for each in MANY:
        if each.distribution == "fixed":
            expected[each.name] = np.full(num, each.nominal)
        elif each.distribution == "uniform":
            expected[each.name] = rng.uniform(each.low, each.high, num)
        else:
            expected[each.name] = np.exp(rng.uniform(math.log(each.low), math.log(each.high), num))
    mine = np.random.default_rng(7)
    draws = sample(many(), mine, num)
    assert list(draws) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(draws[name], values)
    assert mine.bit_generator.state == rng.bit_generator.state


CORRELATIONS = np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.2], [-0.5, -0.2, 1.0]])
DEVIATIONS = np.array([0.3, 1e-3, 400.0])
NUM = 20_000


def test_a_covariance_leaves_every_range_as_it_is() -> None:
    file = many(("d", "a", "b"), (CORRELATIONS * np.outer(DEVIATIONS, DEVIATIONS)).tolist())
    draws = sample(file, np.random.default_rng(0), NUM)
    for each in MANY:
        values = draws[each.name]
        if each.distribution == "fixed":
            assert np.all(values == each.nominal)
            continue
        assert np.all((values >= each.low * (1 - 1e-12)) & (values <= each.high * (1 + 1e-12)))
        logarithmic = each.distribution == "log_uniform"
        exact = (stats.loguniform if logarithmic else stats.uniform)(
            *((each.low, each.high) if logarithmic else (each.low, each.high - each.low))
        )
        assert stats.kstest(values, exact.cdf).pvalue > 1e-3, each.name


def test_draws_vary_together_as_the_covariance_says() -> None:
    names = ("d", "a", "b")
    file = many(names, (CORRELATIONS * np.outer(DEVIATIONS, DEVIATIONS)).tolist())
    draws = sample(file, np.random.default_rng(1), NUM)
    ranges = {each.name: each for each in MANY}

    def shares(name: str) -> npt.NDArray[np.float64]:
        """How much of its range lies below each value: the quantile."""
        low, high, values = ranges[name].low, ranges[name].high, draws[name]
        if ranges[name].distribution == "log_uniform":
            low, high, values = math.log(low), math.log(high), np.log(values)
        return (values - low) / (high - low)

    together = np.array([shares(name) for name in names])
    found = np.corrcoef(stats.norm.ppf(together))
    # The standard error of a correlation of normal variables (Fisher).
    error = (1.0 - np.square(CORRELATIONS)) / math.sqrt(NUM)
    assert (np.abs(found - CORRELATIONS) <= 4.0 * error + 1e-12).all()
    # What sample's text says of the values themselves.
    kruskal = 6.0 / math.pi * np.arcsin(CORRELATIONS / 2.0)
    np.testing.assert_allclose(np.corrcoef(together), kruskal, atol=4.0 / math.sqrt(NUM))
    assert abs(np.corrcoef(draws["e"], draws["a"])[0, 1]) < 4.0 / math.sqrt(NUM)


def test_what_is_one_and_the_same_is_drawn_as_that() -> None:
    draws = sample(many(("a", "d"), ((4.0, -2.0), (-2.0, 1.0))), np.random.default_rng(0), 100)
    np.testing.assert_allclose((draws["a"] + 1.0) / 4.0, 1.0 - (draws["d"] - 10.0), atol=1e-6)


def test_a_covariance_survives_the_file(tmp_path: Path) -> None:
    written = many(("d", "a", "b"), CORRELATIONS.tolist())
    write_randomization(tmp_path / "r.json", written)
    assert read_randomization(tmp_path / "r.json") == written


@pytest.mark.parametrize(
    ("names", "matrix", "message"),
    [
        (
            ("a", "x"),
            ((1.0, 0.0), (0.0, 1.0)),
            r"names\[1\]: expected a parameter .* got 'x'; allowed: a, b",
        ),
        (("a", "c"), ((1.0, 0.0), (0.0, 1.0)), r"names\[1\]: .* got 'c'"),
        (("a", "a"), ((1.0, 0.0), (0.0, 1.0)), "names: expected each name once"),
        (("a", "b"), ((1.0, 0.0),), "matrix: expected 2 rows of 2 numbers"),
        (("a", "b"), ((1.0, 0.0), (0.0,)), "matrix: expected 2 rows of 2 numbers"),
        (("a", "b"), ((1.0, math.nan), (0.0, 1.0)), "matrix: expected finite numbers"),
        (("a", "b"), ((1.0, 0.0), (0.0, 0.0)), "on the diagonal > 0"),
        (("a", "b"), ((1.0, 0.5), (0.4, 1.0)), r"expected a symmetric one, got 0\.5 for a and b but 0\.4"),
        (("a", "b"), ((1.0, 1.1), (1.1, 1.0)), r"positive semidefinite one, but .* eigenvalue -0\.1"),
        (
            ("a", "b", "d"),
            ((1.0, 0.9, 0.9), (0.9, 1.0, -0.9), (0.9, -0.9, 1.0)),
            "positive semidefinite one, but its correlations have the eigenvalue -0.8; no variables have",
        ),
    ],
)
def test_a_covariance_that_nothing_has_is_refused(
    tmp_path: Path, names: Sequence[str], matrix: Sequence[Sequence[float]], message: str
) -> None:
    with pytest.raises(InputError, match=rf"randomization\.covariance\..*{message}"):
        write_randomization(tmp_path / "r.json", many(names, matrix))
    assert list(tmp_path.iterdir()) == []


def test_six_digits_of_a_singular_covariance_are_enough(tmp_path: Path) -> None:
    matrix = np.full((3, 3), 1.0 / 3.0)
    matrix = np.array([[float(f"{value:.6g}") for value in row] for row in matrix * np.outer(DEVIATIONS, DEVIATIONS)])
    write_randomization(tmp_path / "r.json", many(("a", "b", "d"), matrix.tolist()))


def test_a_file_of_the_first_schema_means_what_it_did(tmp_path: Path) -> None:
    path, now = tmp_path / "r.json", content()
    old = msgspec.to_builtins(now)
    del old["covariance"]
    for parameter in old["parameters"]:
        del parameter["operation"]
    path.write_bytes(msgspec.json.encode(old | {"schema_version": 1}))
    assert read_randomization(path) == now


@pytest.mark.parametrize("field", ["robot", "parameters", "log_parameters", "held_out"])
def test_a_file_of_the_first_schema_needs_its_fields_too(tmp_path: Path, field: str) -> None:
    path, old = tmp_path / "r.json", msgspec.to_builtins(content()) | {"schema_version": 1}
    del old[field]
    path.write_bytes(msgspec.json.encode(old))
    with pytest.raises(InputError, match=f"missing required field `{field}`"):
        read_randomization(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": true}', r"expected an integer, got True - at `\$\.schema_version`"),
        ('{"schema_version": 1.0}', r"expected an integer, got 1\.0 - at `\$\.schema_version`"),
        ('{"schema_version": 3}', "expected schema_version 1 or 2, got 3: a newer toolkit wrote it; update this one"),
        ('{"schema_version": 1, "parameters": [3], "log_parameters": null}', "make it anew with: sim2real calib fit"),
        ('{"schema_version": 1, "parameters": 3}', "make it anew with: sim2real calib fit"),
        ("[]", "make it anew with: sim2real calib fit"),
    ],
)
def test_what_is_of_no_schema_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_randomization(path)


def test_without_delays_leaves_all_else_and_its_correlations() -> None:
    """Delays that a bench has measured take the place of what a calibration knew of them."""
    mass = content().parameters[0]
    delay = msgspec.structs.replace(mass, name=COMMAND_DELAY, delays="command")
    damping = msgspec.structs.replace(mass, name="damping")
    whole = msgspec.structs.replace(
        content(),
        parameters=(mass, delay, damping),
        covariance=Covariance(
            names=(mass.name, COMMAND_DELAY, "damping"), matrix=((1.0, 0.1, 0.2), (0.1, 1.0, 0.3), (0.2, 0.3, 1.0))
        ),
    )
    left = without_delays(whole)
    validate(left)
    assert left.parameters == (mass, damping)
    assert left.covariance == Covariance(names=(mass.name, "damping"), matrix=((1.0, 0.2), (0.2, 1.0)))
    assert without_delays(content()) == content()


NESTED = b"[" * 100_000


def read_contract(path: Path) -> object:
    return decode_contract(path.read_bytes())


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (read_randomization, InputError),
        (read_latency, InputError),
        (read_contract, ContractError),
    ],
    ids=["randomization", "latency", "contract"],
)
def test_json_of_endless_depth_is_one_clear_line(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(b'{"parameters": ' + NESTED)
    with pytest.raises(error) as refused:
        read(path)
    assert "\n" not in str(refused.value)


def test_a_message_of_endless_depth_is_none() -> None:
    assert decode_control(NESTED, Ping) is None
