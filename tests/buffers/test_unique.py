"""`unique=True`: no transition comes twice in a batch."""

import itertools
from collections import Counter

import numpy as np
import pytest

from tests.helpers.buffers import assert_same_state, contents_of, drawable_ids, fill, filled_buffer, make_buffer, probabilities
from tests.helpers.demonstrations import demonstrations


@pytest.mark.parametrize(
    "kind, kwargs",
    [
        ("plain", dict(recency=0.9995)),
        ("plain", dict(scheme="uniform", stratified=False, n_steps=3)),
        ("memory", dict(scheme="rank", stratified=False)),
        ("her", {}),
    ],
)
def test_a_unique_batch_has_no_repeats(kind, kwargs):
    """Whole buffers, too, although some masses are very small; a batch larger than the number of transitions is refused."""
    buffer = filled_buffer(kind, unique=True, **kwargs)
    ids = drawable_ids(buffer)
    for batch_size in (1, 2, len(ids) // 2, len(ids)):
        indices = buffer.sample(batch_size).indices
        assert len(set(indices.tolist())) == batch_size
        assert set(indices.tolist()) <= set(ids.tolist())
    before = contents_of(buffer)
    with pytest.raises(
        ValueError, match=f"batch of {len(ids) + 1} without repeats cannot be drawn from {len(ids)} transitions"
    ):
        buffer.sample(len(ids) + 1)
    assert_same_state(contents_of(buffer), before)


def test_a_unique_batch_repeats_no_demonstration():
    buffer = make_buffer(9, unique=True, stratified=False, demonstration_fraction=0.5)
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 8))
    fill([buffer], 9)
    for _ in range(10):
        assert len(set(buffer.sample(16).indices.tolist())) == 16


def test_a_unique_batch_takes_as_many_of_the_newest_as_it_needs():
    """Although `recency_min` is below the batch size."""
    buffer = make_buffer(100, unique=True, recency=0.99, recency_min=10)
    fill([buffer], 100)
    for _ in range(20):
        assert len(set(buffer.sample(64).indices.tolist())) == 64
    newest = buffer.sample(64, series_progress=1.0).indices
    assert sorted(newest.tolist()) == list(range(36, 100))


@pytest.mark.parametrize("scheme", ["proportional", "rank"])
def test_unique_draws_follow_successive_draws_without_replacement(scheme):
    """Count all 60 ordered draws of 3 out of 5, and compare with the product of conditional probabilities."""
    buffer = make_buffer(5, scheme=scheme, unique=True, stratified=False, alpha=1.0)
    fill([buffer], 5)
    buffer.update_priorities(np.arange(5), [1.0, 2.0, 4.0, 8.0, 1.0])
    p = probabilities(buffer, np.arange(5))
    np.random.seed(0)
    n = 3000
    drawn = Counter(tuple(buffer.sample(3).indices.tolist()) for _ in range(n))
    chi_square = 0.0
    for i, j, k in itertools.permutations(range(5), 3):
        expected = n * p[i] * p[j] / (1 - p[i]) * p[k] / (1 - p[i] - p[j])
        chi_square += (drawn[i, j, k] - expected) ** 2 / expected
    assert chi_square < 110  # 59 degrees of freedom: the probability of more is 6e-5


def test_stratified_unique_batches_replace_only_the_repeats():
    buffer = make_buffer(100, unique=True)
    fill([buffer], 100)
    np.random.seed(0)
    plain = make_buffer(100)
    fill([plain], 100)
    for each in (buffer, plain):
        each.update_priorities(np.arange(100), np.r_[np.full(99, 1.0), 50.0])
    for _ in range(20):
        state = np.random.get_state()
        expected = plain.sample(30).indices
        np.random.set_state(state)
        indices = buffer.sample(30).indices
        first = np.unique(expected, return_index=True)[1]
        np.testing.assert_array_equal(indices[first], expected[first])
        assert len(first) < 30 == len(set(indices.tolist()))


def test_transitions_beside_one_of_nearly_all_mass_are_drawn_in_proportion():
    """Draws repeat the large one again and again; the others then race for the rest of the batch."""
    buffer = make_buffer(4, alpha=1.0, unique=True)
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), [1.0, 1e12, 2.0, 5.0])
    np.random.seed(0)
    counts = np.zeros(4)
    for _ in range(1000):
        first, second = sorted(buffer.sample(2).indices.tolist(), key=lambda i: i != 1)
        assert first == 1
        counts[second] += 1
    np.testing.assert_allclose(counts / 1000, [1 / 8, 0, 2 / 8, 5 / 8], atol=0.06)
