from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sim2real_train.models import ObservationNormalizer
from sim2real_train.moments import Moments, merge


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    offset=st.floats(-1e4, 1e4),
)
def test_merged_parts_equal_the_whole(seed: int, sizes: list[int], offset: float) -> None:
    rng = np.random.default_rng(seed)
    parts = [offset + rng.normal(scale=3.0, size=(size, 2)) for size in sizes]
    merged, whole = merge([Moments.of(part) for part in parts]), np.concatenate(parts)
    assert merged.count == len(whole)
    np.testing.assert_allclose(merged.mean, whole.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged.std, whole.std(axis=0), rtol=1e-7, atol=1e-9)


def test_nothing_is_neutral() -> None:
    some, none = Moments.of(np.arange(6.0).reshape(3, 2)), Moments.none(2)
    for merged in (some.merged(none), none.merged(some)):
        assert merged.count == 3.0
        assert merged.mean.tolist() == some.mean.tolist()
        assert merged.squares.tolist() == some.squares.tolist()
    assert none.merged(none).count == 0.0


def test_far_from_zero_the_variance_survives() -> None:
    """Σx² − n·mean² would lose all digits here."""
    samples = 1e9 + np.array([[0.0], [1.0], [2.0]])
    halves = Moments.of(samples[:1]).merged(Moments.of(samples[1:]))
    np.testing.assert_allclose(halves.std, [np.sqrt(2.0 / 3.0)], rtol=1e-6)


def test_leading_axes_are_samples() -> None:
    samples = np.arange(24.0).reshape(2, 4, 3)
    np.testing.assert_allclose(Moments.of(samples).mean, samples.reshape(8, 3).mean(axis=0))


def test_normaliser_equals_numpy_and_clips_last() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(5.0, 2.0, (1000, 3))
    normalizer = ObservationNormalizer(3, limit=2.0)
    normalizer.set_moments(Moments.of(samples))
    inputs = np.concatenate((samples[:50], [[1e6, -1e6, 5.0]])).astype(np.float32)
    expected = np.clip((inputs - samples.mean(axis=0)) / (samples.std(axis=0) + normalizer.epsilon), -2.0, 2.0)
    np.testing.assert_allclose(normalizer(torch.from_numpy(inputs)).numpy(), expected, atol=1e-5)


def test_an_input_that_never_moved_stays_small() -> None:
    normalizer = ObservationNormalizer(1)
    normalizer.set_moments(Moments.of(np.full((100, 1), 0.5)))
    assert normalizer(torch.tensor([[0.501]])).abs().item() < 0.2
