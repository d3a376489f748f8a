"""Emphasizing recent experience: only the newest transitions are drawn, wherever they are in the ring."""

import numpy as np
import pytest

from tests.helpers.buffers import MANY, counts_of, drawable_ids, fill, filled_buffer, make_buffer, probabilities


def n_newest(n: int, recency: float, recency_min: int, position: float) -> int:
    """Return how many of n transitions can be drawn at k / K = position."""
    return min(max(int(n * recency ** (1000 * position)), recency_min), n)


@pytest.mark.parametrize("eta", [0.0, 0.25])
@pytest.mark.parametrize("scheme", ["proportional", "rank", "uniform"])
@pytest.mark.parametrize("n_added", [5, 9, 16])
@pytest.mark.filterwarnings("ignore:uniform_fraction")
def test_only_the_newest_transitions_are_drawn(n_added, scheme, eta):
    """Among the newest transitions, draws follow the masses."""
    buffer = filled_buffer(n_added=n_added, scheme=scheme, uniform_fraction=eta, recency=0.998, recency_min=3)
    everything = drawable_ids(buffer)
    for position in (0.1, 0.5, 1.0):
        ids = everything[-n_newest(len(everything), 0.998, 3, position) :]
        expected = MANY * probabilities(buffer, ids, 0.0 if scheme in ("uniform",) else eta)
        buffer.sampler.position = position
        counts = counts_of(buffer.sample(MANY).indices, ids)
        assert (np.abs(counts - expected) <= 3).all()


def test_rounding_never_draws_an_older_transition():
    """Masses on both sides of the border differ by many orders of magnitude."""
    buffer = make_buffer(1000, recency=0.999, recency_min=1, alpha=1.0)
    fill([buffer], 1500)
    rng = np.random.default_rng(0)
    for _ in range(100):
        ids = drawable_ids(buffer)
        buffer.update_priorities(ids, 10.0 ** rng.integers(-12, 12, len(ids)))
        position = rng.random()
        n = n_newest(1000, 0.999, 1, position)
        buffer.sampler.position = position
        assert buffer.sample(64).indices.min() >= ids[-n]


@pytest.mark.parametrize("eta", [0.0, 0.25])
@pytest.mark.parametrize("n_added", [1000, 1040], ids=["newest at the end of the ring", "newest across the end of the ring"])
@pytest.mark.parametrize("alpha, old_error", [(0.6, 1e16), (1.0, 1e280)])
def test_large_masses_of_old_transitions_do_not_disturb_the_newest(alpha, old_error, n_added, eta):
    """The newest transitions have equal masses, so they are drawn equally often and get equal weights."""
    settings = dict(recency=0.99, recency_min=100, uniform_fraction=eta, weight_normalization="none", beta_start=1.0)
    buffer = make_buffer(1000, alpha=alpha, **settings)
    fill([buffer], n_added)
    ids = drawable_ids(buffer)
    buffer.update_priorities(ids, np.where(ids < n_added - 100, old_error, 0.0))
    buffer.sampler.position = 1.0
    batch = buffer.sample(10_000)
    counts = counts_of(batch.indices, ids[-100:])
    assert counts.min() >= 98 and counts.max() <= 102
    np.testing.assert_allclose(batch.weights, 1.0, rtol=1e-6)


def test_sampling_without_a_position_draws_it_at_random():
    buffer = make_buffer(1000, recency=0.995, recency_min=1, scheme="uniform")
    fill([buffer], 1000)
    np.random.seed(0)
    # The oldest transition that can be drawn has age N recency^(1000 u), with u uniform in [0, 1].
    oldest = np.array([1000 - buffer.sample(500).indices.min() for _ in range(400)])
    assert np.mean(oldest <= 82) == pytest.approx(0.5, abs=0.08)  # u > 1/2
    assert oldest.max() > 900 and oldest.min() < 10


def test_recency_with_her_is_refused():
    with pytest.raises(NotImplementedError, match=r"recency=0\.99 with hindsight"):
        filled_buffer("her", recency=0.99)
