"""Emphasizing recent experience: only the newest transitions are drawn, wherever they are in the ring."""

import numpy as np
import pytest

from tests.helpers.buffers import MANY, counts_of, drawable_ids, fill, filled_buffer, make_buffer, probabilities


def n_newest(n: int, recency: float, recency_min: int, position: float) -> int:
    """Return how many of n transitions can be drawn at k / K = position."""
    return min(max(int(n * recency ** (1000 * position)), recency_min), n)


@pytest.mark.parametrize("n_added, scheme", [(5, "uniform"), (9, "rank"), (16, "proportional")])
def test_only_the_newest_transitions_are_drawn(n_added, scheme):
    """Among the newest transitions, draws follow the masses."""
    buffer = filled_buffer(n_added=n_added, scheme=scheme, recency=0.998, recency_min=3)
    everything = drawable_ids(buffer)
    for position in (0.1, 0.5, 1.0):
        ids = everything[-n_newest(len(everything), 0.998, 3, position) :]
        expected = MANY * probabilities(buffer, ids)
        counts = counts_of(buffer.sample(MANY, series_progress=position).indices, ids)
        assert (np.abs(counts - expected) <= 3).all()


def test_rounding_never_draws_an_older_transition():
    """Masses on both sides of the border differ by many orders of magnitude."""
    buffer = make_buffer(1000, recency=0.999, recency_min=1, alpha=1.0)
    fill([buffer], 1500)
    rng = np.random.default_rng(0)
    for _ in range(40):
        ids = drawable_ids(buffer)
        buffer.update_priorities(ids, 10.0 ** rng.integers(-12, 12, len(ids)))
        position = rng.random()
        n = n_newest(1000, 0.999, 1, position)
        assert buffer.sample(64, series_progress=position).indices.min() >= ids[-n]


@pytest.mark.parametrize(
    "n_added, alpha, old_error",
    [(1000, 0.6, 1e16), (1040, 1.0, 1e280)],
    ids=["newest at the end of the ring", "newest across the end of the ring"],
)
def test_large_masses_of_old_transitions_do_not_disturb_the_newest(alpha, old_error, n_added):
    """The newest transitions have equal masses, so they are drawn equally often and get equal weights."""
    buffer = make_buffer(1000, alpha=alpha, recency=0.99, recency_min=100, beta_start=1.0)
    fill([buffer], n_added)
    ids = drawable_ids(buffer)
    buffer.update_priorities(ids, np.where(ids < n_added - 100, old_error, 0.0))
    batch = buffer.sample(10_000, series_progress=1.0)
    counts = counts_of(batch.indices, ids[-100:])
    assert counts.min() >= 98 and counts.max() <= 102
    np.testing.assert_allclose(batch.weights, 1.0, rtol=1e-6)


def test_a_draw_outside_of_a_series_takes_a_random_place_in_it():
    buffer = make_buffer(1000, recency=0.995, recency_min=1, scheme="uniform")
    fill([buffer], 1000)
    np.random.seed(0)
    # The oldest transition that can be drawn has age N recency^(1000 u), with u uniform in [0, 1].
    oldest = np.array([1000 - buffer.sample(500).indices.min() for _ in range(200)])
    assert np.mean(oldest <= 82) == pytest.approx(0.5, abs=0.1)  # u > 1/2
    assert oldest.max() > 900 and oldest.min() < 10


def test_recency_with_her_is_refused():
    with pytest.raises(NotImplementedError, match=r"recency=0\.99 with hindsight"):
        filled_buffer("her", recency=0.99)
