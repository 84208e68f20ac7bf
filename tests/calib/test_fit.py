"""A fit finds what it was not told, says how sure it is, and says what the logs do not show."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sim2real.errors import InputError
from sim2real.randomization import COMMAND_DELAY, read_randomization
from sim2real_calib.calibrate import calibrate
from sim2real_calib.command_delay import command_delay
from sim2real_calib.fit import fit
from sim2real_calib.identifiability import identifiable, information
from sim2real_calib.intervals import fitted_parameters
from sim2real_calib.priors import EFFORT_LOG_DELAY, EFFORT_LOG_SCALE, start_vector
from sim2real_calib.record import hidden_plant, record, write_csv
from sim2real_calib.replay import Replay
from sim2real_calib.result import FitResult
from sim2real_calib.search import Problem, inside, least_squares, search_globally
from sim2real_calib.summary import summarise
from sim2real_calib.windows import cut
from tests.calib.plants import DT, PERIOD, PRIORS, ROBOT, TRUTH, log_of, simulate, tones, true_log, write_log

SEED = 3
USUAL = tuple(index for index, prior in enumerate(PRIORS) if prior.of_robot or prior.name == EFFORT_LOG_DELAY)
SCALE = [prior.name for prior in PRIORS].index(EFFORT_LOG_SCALE)


def problem_of(duration: float = 6.0) -> Problem:
    log = true_log(duration)
    windows = cut([log], dt=DT, length=0.5)
    replay = Replay(ROBOT, PRIORS, [log], windows)
    return Problem(replay=replay, priors=PRIORS, free=USUAL, rows=np.arange(len(windows)))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    """The fit of one recorded log, judged on another of the same hidden plant."""
    folder = tmp_path_factory.mktemp("recorded")
    for take in (0, 1):
        write_csv(folder / f"take{take}.csv", record(ROBOT, seed=SEED, take=take, duration=10.0))
    out = folder / "randomization.json"
    result = calibrate(ROBOT, [folder / "take0.csv"], out, validate=[folder / "take1.csv"], seed=0)
    assert read_randomization(out) == result.randomization
    return result


def test_the_ranges_hold_the_hidden_parameters(fitted: FitResult) -> None:
    for name, value in hidden_plant(ROBOT, SEED).values.items():
        parameter = fitted.parameter(name)
        assert parameter.identified
        assert parameter.low <= value <= parameter.high, name


def test_what_is_well_shown_is_found_closely(fitted: FitResult) -> None:
    hidden = hidden_plant(ROBOT, SEED).values
    assert fitted.parameter("mass").nominal == pytest.approx(hidden["mass"], rel=0.01)
    inertia = 0.25 * hidden["mass"] + hidden["armature"]
    found = 0.25 * fitted.parameter("mass").nominal + fitted.parameter("armature").nominal
    assert found == pytest.approx(inertia, rel=0.015)


def test_the_held_out_log_prefers_the_fit(fitted: FitResult) -> None:
    errors = {each.name: each.held_out_mae for each in fitted.candidates}
    # What was published of the real pendulum says nothing of a simulated one.
    assert set(errors) == {"fitted", "datasheet"}
    assert fitted.passed
    best, datasheet = errors["fitted"], errors["datasheet"]
    assert best is not None
    assert datasheet is not None
    assert best < 0.006
    assert best < 0.5 * datasheet


def test_a_start_on_a_bound_is_moved_inside_and_told(fitted: FitResult) -> None:
    assert any("started on a bound" in note and "armature, frictionloss" in note for note in fitted.notes)
    assert fitted.parameter("frictionloss").moved


def test_what_is_delayed_is_part_of_the_file(fitted: FitResult) -> None:
    ranges = {each.name: each for each in fitted.randomization.parameters}
    assert ranges[COMMAND_DELAY].delays == "command, until its effort acts"
    assert not ranges[COMMAND_DELAY].identified
    (late,) = fitted.randomization.log_parameters
    assert late.name == EFFORT_LOG_DELAY
    assert late.delays == "logged effort, behind the logged position"


def test_the_result_is_plain_json(fitted: FitResult) -> None:
    assert msgspec.json.decode(msgspec.json.encode(fitted), type=FitResult) == fitted


def test_the_summary_tells_values_errors_and_verdict(fitted: FitResult) -> None:
    told = summarise(fitted)
    for word in ("mass", "kg", "held-out", "datasheet", "pass: "):
        assert word in told


def test_the_verdict_says_what_it_leaves_out(fitted: FitResult) -> None:
    assert "without the" not in summarise(fitted)
    held_out = [index for index, window in enumerate(fitted.windows) if window.role == "validate"]
    windows = [
        msgspec.structs.replace(window, counts=index not in held_out[:2], mae={"fitted": 0.040})
        for index, window in enumerate(fitted.windows)
    ]
    candidate = msgspec.structs.replace(fitted.candidate("fitted"), held_out_mae=0.0155)
    result = msgspec.structs.replace(fitted, windows=tuple(windows), candidates=(candidate,))
    assert summarise(result).splitlines()[-1] == (
        f"pass: 15.5 mrad on held-out logs without the 2 of {len(held_out)} windows in which something pushed the "
        "robot (40.0 with them); allowed 30.0 mrad and less than the datasheet's"
    )


def test_no_value_is_dust_of_the_optimiser(fitted: FitResult) -> None:
    for parameter in fitted.parameters:
        for value in (parameter.nominal, parameter.low, parameter.high):
            assert value == 0.0 or abs(value) > 1e-6 * (parameter.high - parameter.low), parameter.name
            assert len(f"{abs(value):.12f}".rstrip("0").split(".")[1]) <= 7, parameter.name


def test_the_axes_of_the_correlation_are_named(fitted: FitResult) -> None:
    assert len(fitted.correlation_names) == len(fitted.correlation) == len(fitted.correlation[0]) == len(USUAL)


def test_the_file_says_how_fitted_parameters_vary_together(fitted: FitResult) -> None:
    covariance = fitted.randomization.covariance
    assert covariance is not None
    assert covariance.names == ("mass", "armature", "damping", "frictionloss")
    found = [fitted.parameter(name) for name in covariance.names]
    rows = [fitted.correlation_names.index(name) for name in covariance.names]
    deviation = np.array([each.deviation for each in found], np.float64)
    expected = np.array(fitted.correlation)[np.ix_(rows, rows)] * np.outer(deviation, deviation)
    # What widened a range beyond ± 2 σ, e.g. other sessions, adds variance of its own, which is nobody else's.
    ranged = np.array([0.25 * (each.high - each.low) for each in found])
    np.fill_diagonal(expected, np.square(np.maximum(deviation, ranged)))
    scale = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        np.array(covariance.matrix) / scale[:, None] / scale, expected / np.outer(scale, scale), atol=1e-5
    )
    # Damping and dry friction brake alike, so the logs can hardly tell them apart.
    assert covariance.matrix[2][3] < 0.0


def test_the_same_seed_gives_the_same_fit(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", true_log(4.0))
    first, second = (calibrate(ROBOT, [log], tmp_path / f"{k}.json", seed=5, num_threads=k) for k in (1, 2))
    assert first.parameters == second.parameters


def test_a_start_far_off_is_found_back_by_the_global_search() -> None:
    problem = problem_of()
    far = start_vector(PRIORS, {"mass": 1.9, "armature": 0.045, "damping": 0.45, "frictionloss": 0.95})
    found = least_squares(problem, search_globally(problem, inside(PRIORS, far, USUAL), seed=0).vector)
    truth = start_vector(PRIORS, TRUTH)
    np.testing.assert_allclose(found.vector[:2], truth[:2], atol=0.004)
    np.testing.assert_allclose(found.vector[2:4], truth[2:4], atol=0.02)


def test_the_scale_of_the_effort_cannot_be_told_from_mass_inertia_and_friction() -> None:
    # τ, m g l, J, damping and friction times the same factor give the same motion.
    truth = start_vector(PRIORS, TRUTH)
    problem = problem_of()
    usual, degenerate = information(problem, truth), information(problem.with_free((*USUAL, SCALE)), truth)
    assert degenerate.condition > 2.0 * usual.condition
    scale, mass = degenerate.names.index(EFFORT_LOG_SCALE), degenerate.names.index("mass")
    assert degenerate.correlation[scale, mass] > 0.99
    shown, _ = identifiable(problem.with_free((*USUAL, SCALE)), truth)
    assert SCALE not in shown
    assert set(shown) >= {0, 3}


def test_an_unknown_that_is_not_shown_is_called_so_and_keeps_its_wide_range(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", true_log(5.0))
    result = calibrate(ROBOT, [log], tmp_path / "r.json", also_free=[EFFORT_LOG_SCALE])
    scale = result.parameter(EFFORT_LOG_SCALE)
    assert not scale.identified
    assert (scale.low, scale.nominal, scale.high) == (0.5, 1.0, 2.0)
    assert any(note.startswith("are not identifiable: ") and "effort_log_scale" in note for note in result.notes)
    assert "effort_log_scale  not identifiable" in summarise(result)


def test_a_joint_that_stays_still_shows_nothing(tmp_path: Path) -> None:
    time = np.arange(0.0, 5.0, PERIOD)
    still = log_of(time, np.full(len(time), 0.0029), np.zeros(len(time)))
    result = calibrate(ROBOT, [write_log(tmp_path / "still.csv", still)], tmp_path / "r.json")
    assert not any(parameter.identified for parameter in result.parameters if parameter.of_robot)
    assert result.randomization.covariance is None
    mass = result.parameter("mass")
    assert (mass.low, mass.nominal, mass.high) == (0.2, 0.6755, 2.0)
    assert not result.passed


def test_a_window_that_something_pushed_neither_teaches_nor_judges(tmp_path: Path) -> None:
    time = np.arange(0.0, 6.0, DT)
    hand = np.where((time > 3.1) & (time < 3.3), 8.0, 0.0)
    pushed = write_log(tmp_path / "pushed.csv", true_log(hidden=hand))
    result = calibrate(ROBOT, [pushed], tmp_path / "r.json")
    assert [(part.start, part.stop) for part in result.excluded] == [(3.0, 3.5)]
    assert "something pushed the robot" in result.excluded[0].reason
    assert result.parameter("mass").nominal == pytest.approx(TRUTH["mass"], rel=0.01)
    assert [window.counts for window in result.windows].count(False) == 1
    assert "on fitted logs without the 1 of 11 windows that were left out (" in summarise(result).splitlines()[-1]


def test_a_window_that_no_parameters_explain_is_left_out_and_told(tmp_path: Path) -> None:
    log = true_log()
    effort = log.effort.copy()
    turned = (log.time > 0.5) & (log.time < 1.0)
    effort[turned] *= -1.0
    damaged = write_log(tmp_path / "turned.csv", msgspec.structs.replace(log, effort=effort))
    result = calibrate(ROBOT, [damaged], tmp_path / "r.json")
    assert [(part.start, part.reason.split(":")[0]) for part in result.excluded] == [(0.5, "no parameters explain it")]
    assert result.parameter("mass").nominal == pytest.approx(TRUTH["mass"], rel=0.02)


def test_a_command_that_the_log_holds_gives_the_command_delay() -> None:
    time = np.arange(0.0, 6.0, PERIOD)
    rng = np.random.default_rng(0)
    command = np.repeat(rng.uniform(-1.0, 1.0, len(time) // 4), 4)
    effort = command[np.clip(np.floor((time - 0.012) / PERIOD).astype(np.intp), 0, None)]
    log = log_of(time, np.zeros(len(time)), effort, command)
    delay = command_delay([log], (-0.001, 0.002, 0.004))
    assert delay.identified
    assert delay.low <= 0.010 <= delay.high
    assert delay.nominal == pytest.approx(0.010, abs=PERIOD)


def test_commands_that_no_effort_follows_leave_the_command_delay_open() -> None:
    time = np.arange(0.0, 6.0, PERIOD)
    noise = np.random.default_rng(0).normal(size=len(time))
    for command in (None, noise, np.zeros(len(time))):
        delay = command_delay([log_of(time, time, tones(time), command)], (0.0, 0.0, 0.0))
        assert not delay.identified
        assert (delay.low, delay.high) == (0.0, 0.02)


def test_a_lag_that_the_log_itself_explains_leaves_the_command_delay_open() -> None:
    time = np.arange(0.0, 6.0, PERIOD)
    command = np.repeat(np.random.default_rng(0).uniform(-1.0, 1.0, len(time) // 4), 4)
    effort = command[np.clip(np.floor((time - 0.012) / PERIOD).astype(np.intp), 0, None)]
    log = log_of(time, np.zeros(len(time)), effort, command)
    for late in ((0.016, 0.017, 0.020), (-0.010, 0.003, 0.012)):
        delay = command_delay([log], late)
        assert not delay.identified
        assert (delay.low, delay.nominal, delay.high) == (0.0, 0.005, 0.02)
        assert delay.how.startswith("not identifiable")


@pytest.mark.parametrize("steps", [1, 3])
def test_a_recording_of_a_closed_loop_gives_the_delay_of_its_commands(steps: int) -> None:
    # A command answers a measurement and acts `steps` physics steps after it; a measured effort is that of the last
    # step, so of an earlier command.
    every = 4
    asked = tones(np.arange(0.0, 8.0, every * DT)) + np.random.default_rng(0).normal(0.0, 0.3, 800)
    acted = np.concatenate((np.zeros(steps), np.repeat(asked, every)))[: 800 * every]
    sensed = np.arange(0, 800 * every, every)
    log = msgspec.structs.replace(
        log_of(
            sensed.astype(np.float64) * DT,
            simulate(acted, TRUTH)[sensed],
            np.concatenate(([0.0], acted))[sensed],
            asked,
        ),
        effort_held=True,
    )
    found = fit(ROBOT, [log], length=0.5, dt=DT, seed=0, progress=lambda step: None)
    late = next(each for each in fitted_parameters(found) if each.name == EFFORT_LOG_DELAY)
    # A window's start velocity is that of a continuous motion, half a step from what the integrator means by it.
    assert late.nominal == pytest.approx(-steps * DT, abs=DT)
    delay = command_delay([log], (late.low, late.nominal, late.high))
    assert delay.identified
    assert delay.low <= steps * DT <= delay.high
    assert delay.nominal == pytest.approx(steps * DT, abs=DT)


def test_a_log_cannot_judge_its_own_fit(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", true_log(4.0))
    copy = write_log(tmp_path / "b.csv", true_log(4.0))
    with pytest.raises(InputError, match=r"expected a log that is not fitted, got the content of a.csv"):
        calibrate(ROBOT, [log], tmp_path / "r.json", validate=[copy])
    assert not (tmp_path / "r.json").exists()


def test_an_unknown_unknown_is_refused_with_those_that_are_allowed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", true_log(4.0))
    with pytest.raises(InputError, match=r"parameter 'length': unknown; allowed: mass, armature"):
        calibrate(ROBOT, [log], tmp_path / "r.json", also_free=["length"])


def test_two_takes_are_of_one_plant_and_two_seeds_of_two() -> None:
    first, again, other = (record(ROBOT, seed=1, take=take, duration=2.0) for take in (0, 0, 1))
    np.testing.assert_array_equal(first.position, again.position)
    assert not np.array_equal(first.effort, other.effort)
    assert hidden_plant(ROBOT, 1) == hidden_plant(ROBOT, 1)
    assert hidden_plant(ROBOT, 1) != hidden_plant(ROBOT, 2)
