"""The replay against closed forms, and against itself."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real_calib.disturbance import find_pushes, pushed
from sim2real_calib.priors import EFFORT_LOG_DELAY, start_vector
from sim2real_calib.replay import Replay
from sim2real_calib.windows import cut, smooth
from tests.calib.plants import DT, PRIORS, ROBOT, TRUTH, log_of, true_log, windows_of

GRAVITY = 9.81
SILENT = log_of(np.arange(0.0, 5.0, 0.005), np.zeros(1000), np.zeros(1000))


def replayed(start: tuple[float, float], steps: int, values: dict[str, float]) -> np.ndarray:
    replay = Replay(ROBOT, PRIORS, [SILENT], windows_of(start, np.zeros(steps)))
    return replay.positions(start_vector(PRIORS, values)[None])[0, 0, :, 0]


@settings(max_examples=15)
@given(
    mass=st.floats(0.3, 1.5),
    armature=st.floats(0.0, 0.05),
    damping=st.floats(0.0, 0.3),
    amplitude=st.floats(0.005, 0.02),
)
def test_a_small_swing_is_the_damped_oscillation_of_the_textbook(
    mass: float, armature: float, damping: float, amplitude: float
) -> None:
    inertia = mass * 0.25 + armature
    decay = 0.5 * damping / inertia
    frequency = np.sqrt(mass * GRAVITY * 0.5 / inertia - decay**2)
    steps = 600
    values = {"mass": mass, "armature": armature, "damping": damping, "frictionloss": 0.0}
    time = (np.arange(steps) + 1) * DT
    exact = amplitude * np.exp(-decay * time) * np.cos(frequency * time)
    exact += amplitude * np.exp(-decay * time) * decay / frequency * np.sin(frequency * time)
    # The integrator is of first order: its error is at most a few steps' share of a radian of phase.
    tolerance = amplitude * (frequency + 2.0 * decay) * DT * 2.0
    np.testing.assert_allclose(replayed((amplitude, 0.0), steps, values), exact, atol=tolerance)


@pytest.mark.parametrize("friction", [0.02, 0.1, 0.2])
def test_coulomb_friction_takes_the_same_angle_from_every_half_swing(friction: float) -> None:
    # From rest at A a swing ends at −(A − 2 Fc / m g l) after half a period of the frictionless one.
    mass, amplitude = 0.7, 0.2
    stiffness = mass * GRAVITY * 0.5
    half = round(np.pi * np.sqrt(mass * 0.25 / stiffness) / DT)
    values = {"mass": mass, "armature": 0.0, "damping": 0.0, "frictionloss": friction}
    end = replayed((amplitude, 0.0), half, values)[-1]
    assert end == pytest.approx(-(amplitude - 2.0 * friction / stiffness), abs=0.004)


def test_friction_holds_a_load_without_creep() -> None:
    # Soft friction lets a loaded joint slide by 5 mrad/s.
    values = {"mass": 0.7, "armature": 0.0, "damping": 0.0, "frictionloss": 0.5}
    held = replayed((0.1, 0.0), 800, values)
    assert abs(held[-1] - 0.1) < 0.01e-3 * 2.0 + 1e-4


@pytest.mark.parametrize("late", [0.01, -0.01])
def test_a_positive_delay_means_that_the_log_is_late(late: float) -> None:
    log = true_log(late=late)
    windows = cut([log], dt=DT, length=0.5)
    delays = np.arange(-0.02, 0.0201, 0.005)
    vectors = np.tile(start_vector(PRIORS, TRUTH), (len(delays), 1))
    vectors[:, [prior.name for prior in PRIORS].index(EFFORT_LOG_DELAY)] = delays
    errors = np.abs(Replay(ROBOT, PRIORS, [log], windows).residuals(vectors)).mean(axis=(1, 2, 3))
    assert delays[np.argmin(errors)] == pytest.approx(late)


@settings(max_examples=8)
@given(st.data())
def test_what_is_replayed_together_equals_what_is_replayed_alone(data: st.DataObject) -> None:
    log = true_log(4.0)
    replay = Replay(ROBOT, PRIORS, [log], cut([log], dt=DT, length=0.5))
    num = data.draw(st.sampled_from([1, 3, 170]))  # 170 × 7 windows are more than one batch holds
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    lows, highs = (np.array([getattr(prior, side) for prior in PRIORS]) for side in ("low", "high"))
    vectors = lows + rng.random((num, len(PRIORS))) * (highs - lows)
    together = replay.positions(vectors)
    chosen = data.draw(st.integers(0, num - 1))
    rows = np.array([2, 5])
    np.testing.assert_array_equal(replay.positions(vectors[chosen : chosen + 1], rows)[0], together[chosen, rows])


def test_smoothing_has_no_lag() -> None:
    time = np.arange(0.0, 4.0, 0.005)
    log = log_of(time, np.sin(3.0 * time), np.zeros(len(time)))
    motion = smooth(log)
    inner = slice(20, -20)
    # A cubic over ± 80 ms follows a sine of 3 rad/s to within (3 · 0.08)⁴ / 20 of its amplitude.
    np.testing.assert_allclose(motion.position[inner, 0], np.sin(3.0 * motion.time[inner]), atol=2e-4)
    np.testing.assert_allclose(motion.velocity[inner, 0], 3.0 * np.cos(3.0 * motion.time[inner]), atol=1e-2)


def test_a_push_is_found_where_it_was_whatever_the_parameters() -> None:
    time = np.arange(0.0, 6.0, DT)
    hand = np.where((time > 3.1) & (time < 3.3), 8.0, 0.0)
    log = true_log(hidden=hand)
    for values in (TRUTH, {}):
        pushes = find_pushes(ROBOT, PRIORS, start_vector(PRIORS, values), [log])
        assert min(push.start for push in pushes) == pytest.approx(3.1, abs=0.1)
        assert max(push.stop for push in pushes) == pytest.approx(3.3, abs=0.1)
        assert max(push.effort for push in pushes) == pytest.approx(8.0, rel=0.35)
        touched = pushed(cut([log], dt=DT, length=0.5), pushes)
        assert [row for row, push in enumerate(touched) if push is not None] == [6]


def test_a_robot_that_nobody_touches_is_not_pushed() -> None:
    log = true_log()
    for values in (TRUTH, {}):
        assert not find_pushes(ROBOT, PRIORS, start_vector(PRIORS, values), [log])


def test_a_missing_log_effort_column_value_is_held_at_the_ends() -> None:
    # A delay reaches beyond the log; what acted there is taken to be what was last known.
    log = true_log(2.0)
    windows = msgspec.structs.replace(cut([log], dt=DT, length=0.5), start=np.array([1.6, 1.7, 1.8]))
    vector = start_vector(PRIORS, TRUTH | {EFFORT_LOG_DELAY: 0.03})
    assert np.isfinite(Replay(ROBOT, PRIORS, [log], windows).positions(vector[None])).all()
