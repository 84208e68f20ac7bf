"""Sensor errors: statistics against closed forms, geometry of a tilted IMU, order of effects, exact resumption."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real.errors import InputError
from sim2real.layout import SignalLayout
from sim2real.signals import SIGNALS
from sim2real.sim.sensors import SensorModel, SensorSpec, SignalErrors
from tests.core.plant_rig import walker_contract
from tests.core.strategies import random_measurements

Array = npt.NDArray[np.float64]

CONTRACT = walker_contract()
LAYOUT = SignalLayout(CONTRACT)
PERIOD = 0.02
EVERYONE = slice(None)
SIX_SIGMA = 6.0
"""Tolerances are six standard errors: a right program fails one test in 5e8."""


def model(num_envs: int, spec: SensorSpec, seed: int = 0) -> tuple[SensorModel, np.random.Generator]:
    sensors, rng = SensorModel(spec, LAYOUT, num_envs, PERIOD), np.random.default_rng(seed)
    sensors.reset(EVERYONE, rng)
    return sensors, rng


def only(name: str, **errors: float) -> SensorSpec:
    return SensorSpec(signals={name: SignalErrors(**errors)})


def measurements(num_envs: int, seed: int = 0) -> Array:
    return random_measurements(np.random.default_rng(seed), CONTRACT, num_envs)


def gravity(quat: Array) -> Array:
    """R(q)ᵀ (0, 0, −1), by rotation matrices."""
    return -rotation(quat)[:, 2, :]


def rotation(quat: Array) -> Array:
    """R(q), shape (N, 3, 3): v ↦ q v q*, column by column from the quaternion product itself."""
    conjugate = quat * [1.0, -1.0, -1.0, -1.0]
    columns = [product(product(quat, np.tile(np.eye(4)[i + 1], (len(quat), 1))), conjugate)[:, 1:] for i in range(3)]
    return np.stack(columns, axis=2)


def product(p: Array, q: Array) -> Array:
    scalar = p[:, :1] * q[:, :1] - (p[:, 1:] * q[:, 1:]).sum(axis=1, keepdims=True)
    return np.hstack((scalar, p[:, :1] * q[:, 1:] + q[:, :1] * p[:, 1:] + np.cross(p[:, 1:], q[:, 1:])))


def test_a_spec_of_nothing_changes_nothing_and_draws_nothing() -> None:
    sensors, rng = model(5, SensorSpec(signals={name: SignalErrors() for name in LAYOUT.names}))
    before, exact = rng.bit_generator.state, measurements(5)
    signals = exact.copy()
    sensors.apply(signals, None, None)
    assert np.array_equal(signals, exact)
    assert rng.bit_generator.state == before


@pytest.mark.parametrize("name", ["joint_pos", "joint_vel", "base_ang_vel", "base_lin_acc"])
def test_noise_is_white_and_normal(name: str) -> None:
    """Mean, variance, fourth moment and correlation from one sample to the next, each of its closed form."""
    sensors, rng = model(400, only(name, noise=0.3))
    samples: list[Array] = []
    for _ in range(50):
        signals = np.zeros((400, LAYOUT.size))
        sensors.apply(signals, None, rng)
        samples.append(signals[:, LAYOUT.slices[name]].copy())
        signals[:, LAYOUT.slices[name]] = 0.0
        assert not signals.any()
    noise = np.array(samples) / 0.3
    error = SIX_SIGMA / np.sqrt(noise.size)
    assert abs(noise.mean()) < error
    assert abs(np.square(noise).mean() - 1.0) < error * np.sqrt(2.0)
    assert abs((noise**4).mean() - 3.0) < error * np.sqrt(96.0)
    assert abs((noise[1:] * noise[:-1]).mean()) < error * np.sqrt(50 / 49)
    assert abs((noise[..., 0] * noise[..., 1]).mean()) < error * np.sqrt(noise.shape[-1])


def test_bias_is_constant_in_an_episode_and_uniform_over_episodes() -> None:
    sensors, rng = model(20_000, only("joint_vel", bias=0.2))
    columns = LAYOUT.slices["joint_vel"]
    signals = np.zeros((20_000, LAYOUT.size))
    sensors.apply(signals, None, rng)
    bias = signals[:, columns].copy()
    signals[:] = 0.0
    sensors.apply(signals, None, rng)
    assert np.array_equal(signals[:, columns], bias)
    assert np.abs(bias).max() <= 0.2
    error = SIX_SIGMA / np.sqrt(bias.size)
    assert abs(bias.mean()) < error * 0.2 / np.sqrt(3.0)
    assert abs(np.square(bias).mean() - 0.2**2 / 3.0) < error * 0.2**2 * np.sqrt(4.0 / 45.0)
    rows = np.array([4, 7])
    sensors.reset(rows, rng)
    signals[:] = 0.0
    sensors.apply(signals, None, rng)
    changed = (signals[:, columns] != bias).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [4, 7]


def test_noise_lies_about_the_bias() -> None:
    spec = only("joint_vel", noise=0.1, bias=0.2)
    (sensors, rng), (exact, _) = model(50, spec), model(50, only("joint_vel", bias=0.2))
    columns, bias = LAYOUT.slices["joint_vel"], np.zeros((50, LAYOUT.size))
    exact.apply(bias, None, None)
    mean = np.zeros_like(bias)
    for _ in range(400):
        signals = np.zeros_like(bias)
        sensors.apply(signals, None, rng)
        mean += signals / 400
    assert np.abs(bias[:, columns]).max() > 0.1
    assert np.abs(mean - bias).max() < SIX_SIGMA * 0.1 / np.sqrt(400)


@pytest.mark.parametrize("samples", [1, 25])
def test_the_bias_walks_as_the_root_of_time(samples: int) -> None:
    sensors, rng = model(10_000, only("base_ang_vel", bias_walk=0.5))
    signals = np.zeros((10_000, LAYOUT.size))
    for _ in range(samples):
        signals[:] = 0.0
        sensors.apply(signals, None, rng)
    walked = signals[:, LAYOUT.slices["base_ang_vel"]] / (0.5 * np.sqrt(samples * PERIOD))
    error = SIX_SIGMA / np.sqrt(walked.size)
    assert abs(walked.mean()) < error
    assert abs(np.square(walked).mean() - 1.0) < error * np.sqrt(2.0)


@given(st.floats(1e-6, 10.0), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_quantisation_is_to_the_nearest_step_and_idempotent(step: float, seed: int) -> None:
    sensors, _ = model(20, only("joint_pos", step=step))
    exact = measurements(20, seed)
    once = exact.copy()
    sensors.apply(once, None, None)
    columns = LAYOUT.slices["joint_pos"]
    assert np.abs(once - exact)[:, columns].max() <= step * (0.5 + 1e-9)
    multiples = once[:, columns] / step
    assert np.abs(multiples - np.rint(multiples)).max() <= 1e-9 * np.abs(multiples).max()
    twice = once.copy()
    sensors.apply(twice, None, None)
    assert np.array_equal(twice, once)


def test_quantisation_follows_noise_as_a_converter_follows_its_sensor() -> None:
    sensors, rng = model(1_000, only("joint_pos", noise=0.3, bias=0.1, step=0.25))
    signals = np.zeros((1_000, LAYOUT.size))
    sensors.apply(signals, None, rng)
    values = signals[:, LAYOUT.slices["joint_pos"]] / 0.25
    assert np.array_equal(values, np.rint(values))
    assert len(np.unique(values)) > 3


@pytest.mark.parametrize(("name", "independent"), [("joint_pos", True), ("base_ang_vel", False)])
def test_dropout_repeats_the_last_value(name: str, independent: bool) -> None:
    """Of one joint, because it has an encoder of its own; of a vector as a whole, because it comes in one sample."""
    num_envs, samples = 500, 40
    sensors, rng = model(num_envs, only(name, dropout=0.3))
    columns = LAYOUT.slices[name]
    seen: list[Array] = []
    for sample in range(samples):
        signals = np.full((num_envs, LAYOUT.size), float(sample))
        sensors.apply(signals, None, rng)
        seen.append(signals[:, columns].copy())
        assert (np.delete(signals, np.arange(LAYOUT.size)[columns], axis=1) == sample).all()
    values = np.array(seen)
    assert (values[0] == 0.0).all(), "there is nothing to repeat before the first sample"
    dropped = values[1:] != np.arange(1, samples)[:, None, None]
    assert np.array_equal(values[1:][dropped], values[:-1][dropped])
    trials = dropped.size if independent else dropped[..., 0].size
    share = dropped.mean()
    assert abs(share - 0.3) < SIX_SIGMA * np.sqrt(0.3 * 0.7 / trials)
    assert (dropped == dropped[..., :1]).all() == (not independent)


@given(st.floats(0.0, np.pi), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_a_tilted_imu_sees_one_rotated_world(tilt: float, seed: int) -> None:
    """Gravity stays R(q)ᵀ (0, 0, −1); lengths and angles between vectors stay; the angle is at most the tilt."""
    sensors, rng = model(20, SensorSpec(signals={}, imu_tilt=tilt), seed)
    exact = measurements(20, seed)
    exact[:, LAYOUT.slices["projected_gravity"]] = gravity(exact[:, LAYOUT.slices["base_quat"]])
    seen = exact.copy()
    sensors.apply(seen, None, rng)
    part = {name: (exact[:, columns], seen[:, columns]) for name, columns in LAYOUT.slices.items()}
    quat, seen_quat = part["base_quat"]
    assert np.allclose(np.linalg.norm(seen_quat, axis=1), 1.0, atol=1e-14)
    assert np.allclose(gravity(seen_quat), part["projected_gravity"][1], atol=1e-12)
    mount = np.einsum("nji,njk->nik", rotation(quat), rotation(seen_quat))  # R_bodyᵀ R_imu
    for name in ("base_ang_vel", "base_lin_vel", "base_lin_acc", "projected_gravity"):
        before, after = part[name]
        assert np.allclose(np.einsum("nji,nj->ni", mount, before), after, atol=1e-12)
    angle = np.arccos(np.clip((np.trace(mount, axis1=1, axis2=2) - 1.0) / 2.0, -1.0, 1.0))
    assert angle.max() <= tilt + 1e-7
    for name in ("joint_pos", "joint_vel", "joint_effort"):
        assert np.array_equal(*part[name])


def test_the_tilt_is_one_per_episode_in_all_directions() -> None:
    sensors, rng = model(20_000, SensorSpec(signals={}, imu_tilt=0.1))
    exact = np.zeros((20_000, LAYOUT.size))
    exact[:, LAYOUT.slices["base_quat"]] = [1.0, 0.0, 0.0, 0.0]
    seen, again = exact.copy(), exact.copy()
    sensors.apply(seen, None, rng)
    sensors.apply(again, None, rng)
    assert np.array_equal(seen, again)
    vector = seen[:, LAYOUT.slices["base_quat"]][:, 1:]
    length = np.linalg.norm(vector, axis=1)
    angle = 2.0 * np.arcsin(length)
    assert abs(angle.mean() - 0.05) < SIX_SIGMA * 0.1 / np.sqrt(12 * 20_000)
    # The square of one component of a random direction has mean 1/3 and variance 4/45.
    axis = vector / length[:, None]
    assert np.abs(np.square(axis).mean(axis=0) - 1 / 3).max() < SIX_SIGMA * np.sqrt(4 / 45 / 20_000)
    assert np.abs(axis.mean(axis=0)).max() < SIX_SIGMA / np.sqrt(3 * 20_000)


def test_attitude_errors_are_small_rotations() -> None:
    """For noise σ about each axis the angle has mean square 3 σ²; a unit vector keeps its length."""
    sensors, rng = model(
        20_000,
        SensorSpec(signals={"base_quat": SignalErrors(noise=0.01), "projected_gravity": SignalErrors(noise=0.01)}),
    )
    exact = measurements(20_000)
    seen = exact.copy()
    sensors.apply(seen, None, rng)
    quat, direction = LAYOUT.slices["base_quat"], LAYOUT.slices["projected_gravity"]
    inner = np.abs((exact[:, quat] * seen[:, quat]).sum(axis=1))
    angle = 2.0 * np.arccos(np.minimum(inner, 1.0))
    # χ² of 3: variance of its mean over n is 6 / n.
    assert abs(np.square(angle / 0.01).mean() - 3.0) < SIX_SIGMA * np.sqrt(6.0 / 20_000) + 1e-3
    assert np.allclose(np.linalg.norm(seen[:, quat], axis=1), 1.0, atol=1e-14)
    assert np.allclose(np.linalg.norm(seen[:, direction], axis=1), 1.0, atol=1e-14)
    across = np.linalg.norm(np.cross(exact[:, direction], seen[:, direction]), axis=1)
    assert abs(np.square(across / 0.01).mean() - 2.0) < SIX_SIGMA * np.sqrt(4.0 / 20_000) + 1e-3


def test_encoder_offsets_are_one_per_joint_and_episode() -> None:
    sensors, rng = model(5_000, SensorSpec(signals={}, encoder_offset=0.05))
    signals = np.zeros((5_000, LAYOUT.size))
    sensors.apply(signals, None, rng)
    offset = signals[:, LAYOUT.slices["joint_pos"]]
    assert np.array_equal(offset, sensors.encoder_offset)
    assert np.abs(offset).max() <= 0.05
    assert abs(np.square(offset).mean() - 0.05**2 / 3.0) < SIX_SIGMA * 0.05**2 * np.sqrt(4.0 / 45.0 / offset.size)
    assert abs((offset[:, 0] * offset[:, 1]).mean()) < SIX_SIGMA * 0.05**2 / 3.0 / np.sqrt(5_000)


EVERY_ERROR = SensorSpec(
    signals={
        name: SignalErrors(noise=0.1, bias=0.1, bias_walk=0.1, step=0.0 if name == "base_quat" else 0.01, dropout=0.2)
        for name in SIGNALS
    },
    imu_tilt=0.1,
    encoder_offset=0.1,
)


@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
@settings(max_examples=15)
def test_a_snapshot_resumes_exactly_and_equal_seeds_give_equal_samples(seed: int, samples: int) -> None:
    (one, rng), (two, same) = model(7, EVERY_ERROR, seed), model(7, EVERY_ERROR, seed)
    other = SensorModel(EVERY_ERROR, LAYOUT, 7, PERIOD)
    one.randomize("noise/joint_pos", np.linspace(0.0, 0.3, 7), EVERYONE)
    two.randomize("noise/joint_pos", np.linspace(0.0, 0.3, 7), EVERYONE)
    for sample in range(samples):
        first, second = measurements(7, sample), measurements(7, sample)
        one.apply(first, None, rng)
        two.apply(second, None, same)
        assert np.array_equal(first, second)
    other.restore(one.snapshot())
    resumed = np.random.default_rng(0)
    resumed.bit_generator.state = rng.bit_generator.state
    for sample in range(5):
        first, second = measurements(7, sample), measurements(7, sample)
        one.apply(first, None, rng)
        other.apply(second, None, resumed)
        assert np.array_equal(first, second)


def test_an_environment_that_is_not_finite_leaves_the_others_alone() -> None:
    (one, rng), (two, same) = model(6, EVERY_ERROR), model(6, EVERY_ERROR)
    others = np.array([0, 1, 2, 4, 5])
    for sample in range(10):
        healthy, sick = measurements(6, sample), measurements(6, sample)
        sick[3] = np.nan
        one.apply(healthy, None, rng)
        two.apply(sick, None, same)
        assert np.array_equal(sick[others], healthy[others])
        assert np.isnan(sick[3]).all()


def test_some_environments_are_sensed_alone() -> None:
    sensors, rng = model(6, EVERY_ERROR)
    rows = np.array([1, 4])
    state = sensors.snapshot()
    part = measurements(6)[rows]
    sensors.apply(part, rows, rng)
    others = np.array([0, 2, 3, 5])
    for name, values in sensors.snapshot().items():
        assert np.array_equal(values[others], state[name][others]), name


def test_amounts_are_set_by_environment() -> None:
    sensors, rng = model(4, only("joint_pos", noise=0.0))
    sensors.randomize("noise/joint_pos", np.array([0.5]), np.array([2]))
    signals = np.zeros((4, LAYOUT.size))
    sensors.apply(signals, None, rng)
    assert np.flatnonzero(signals.any(axis=1)).tolist() == [2]
    sensors.randomize("imu_tilt", np.full(4, 0.1), EVERYONE)
    sensors.randomize("encoder_offset", np.full(4, 0.1), EVERYONE)
    sensors.reset(EVERYONE, rng)
    assert (sensors.encoder_offset != 0.0).all()
    exact = measurements(4)
    seen = exact.copy()
    sensors.apply(seen, None, rng)
    assert (seen[:, LAYOUT.slices["base_ang_vel"]] != exact[:, LAYOUT.slices["base_ang_vel"]]).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("noise/joint_poss", 0.1, "sensor.noise/joint_poss: unknown; .* did you mean noise/joint_pos"),
        ("noise/joint_vel", 0.1, "sensor.noise/joint_vel: unknown; allowed: .*noise/joint_pos"),
        ("imu_tlt", 0.1, "did you mean imu_tilt"),
        ("dropout/joint_pos", 1.5, "expected 0 to 1, got 1.5"),
        ("noise/joint_pos", -0.1, "expected 0 to inf, got -0.1"),
        ("noise/joint_pos", float("nan"), "expected 0 to inf, got nan"),
        ("encoder_offset", 4.0, "expected 0 to 3.14159, got 4.0"),
    ],
)
def test_an_error_that_is_not_there_or_cannot_be_is_refused(name: str, value: float, message: str) -> None:
    sensors, _ = model(2, only("joint_pos", noise=0.1))
    with pytest.raises(InputError, match=message):
        sensors.randomize(name, np.full(2, value), EVERYONE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignalErrors(noise=-1.0), r"sensor\.noise: expected a finite number >= 0, got -1"),
        (lambda: SignalErrors(bias=float("inf")), r"sensor\.bias: expected a finite"),
        (lambda: SignalErrors(dropout=1.5), r"sensor\.dropout: expected a probability"),
        (lambda: SensorSpec(signals={}, imu_tilt=4.0), "expected 0 to π rad, got 4"),
        (lambda: model(1, only("base_quatt", noise=0.1)), "'base_quatt': unknown; allowed: .* did you mean base_quat"),
        (lambda: model(1, only("base_quat", step=0.1)), "it would be no quaternion; got 0.1"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_what_is_drawn_needs_a_generator() -> None:
    sensors, _ = model(2, only("joint_pos", noise=0.1))
    with pytest.raises(ValueError, match="expected a generator, because the noise of joint_pos is drawn at random"):
        sensors.apply(measurements(2), None, None)
