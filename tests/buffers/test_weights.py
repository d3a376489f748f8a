"""Importance-sampling weights follow their definition, and beta its schedule."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch as th

from tests.helpers.buffers import MANY, drawable_ids, fill, filled_buffer, make_buffer, probabilities


def test_beta_anneals_over_the_number_of_draws():
    buffer = make_buffer(beta_start=0.3, beta_end=0.9, beta_anneal_steps=20)
    fill([buffer], 3)
    seen = []
    for _ in range(30):
        seen.append(buffer.beta)
        buffer.sample(2)
    np.testing.assert_allclose(seen, np.minimum(0.3 + 0.6 * np.arange(30) / 20, 0.9))
    assert buffer.beta == 0.9
    buffer.update_beta(0.5)  # beta_anneal_steps disables annealing by progress
    assert buffer.beta == 0.9


def test_beta_follows_training_progress_and_never_decreases():
    buffer = make_buffer(beta_start=0.2, beta_end=0.8)
    fill([buffer], 3)
    for progress_remaining, beta in [(1.0, 0.2), (0.5, 0.5), (0.9, 0.5), (0.25, 0.65), (0.0, 0.8), (-0.1, 0.8), (1.0, 0.8)]:
        buffer.update_beta(progress_remaining)
        assert buffer.beta == pytest.approx(beta)
        buffer.sample(2)
        assert buffer.beta == pytest.approx(beta)  # sampling does not change beta without beta_anneal_steps


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_n_in_the_weights_counts_transitions_of_all_environments(beta):
    """w = (N P(i))^-beta, divided by its maximum in the batch; N counts transitions, not slots."""
    buffer = make_buffer(20, n_envs=2, beta_start=beta, beta_end=1.0)
    fill([buffer], 7)
    buffer.update_priorities(np.arange(14), np.random.default_rng(0).exponential(size=14))
    batch = buffer.sample(64)
    masses = buffer.priorities.ravel()
    assert np.count_nonzero(masses) == 14
    expected = (14 * masses[batch.indices] / masses.sum()) ** -beta
    assert batch.weights.dtype == th.float32
    assert batch.weights.shape == (64, 1)
    assert batch.weights.max().item() == 1.0
    np.testing.assert_allclose(batch.weights[:, 0], expected / expected.max(), rtol=1e-6)


DRAWS = {
    "plain": {},
    "a uniform share": dict(uniform_fraction=0.2),
    "the newest": dict(recency=0.999, recency_min=4),
    "both": dict(uniform_fraction=0.3, recency=0.999, recency_min=4),
}


def drawn(normalization: str, kind: str, beta: float, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Draw many transitions. Return their weights, and N P by the definition, from a list of all that can be drawn."""
    buffer = filled_buffer(kind, beta_start=beta, beta_end=beta, weight_normalization=normalization, **kwargs)
    ids = drawable_ids(buffer)
    n_newest = max(kwargs.get("recency_min", 1), int(len(ids) * kwargs.get("recency", 1.0) ** 1000))
    ids = ids[-n_newest:]
    buffer.sampler.position = 1.0
    batch = buffer.sample(MANY)
    assert (batch.weights.dtype, batch.weights.shape) == (th.float32, (MANY, 1))
    n_p = len(ids) * probabilities(buffer, ids, kwargs.get("uniform_fraction", 0.0))
    return batch.weights[:, 0].numpy(), n_p[np.searchsorted(ids, batch.indices)]


@pytest.mark.parametrize(
    "kind, kwargs",
    [
        *itertools.product(["plain", "memory"], DRAWS.values()),
        ("her", {}),
        ("her", DRAWS["a uniform share"]),  # recency is refused with hindsight
    ],
)
@pytest.mark.parametrize("scheme, beta", [("proportional", 1.0), ("rank", 0.4)])
def test_weights_follow_their_definition(kind, scheme, kwargs, beta):
    """w = (N P)^-beta, unchanged or divided by its maximum or its mean in the batch."""
    for normalization, divisor in (("none", np.ones_like), ("max", np.max), ("mean", np.mean)):
        weights, n_p = drawn(normalization, kind, beta, scheme=scheme, **kwargs)
        expected = n_p**-beta
        np.testing.assert_allclose(weights, expected / divisor(expected), rtol=1e-4)


@pytest.mark.parametrize("kwargs", DRAWS.values(), ids=DRAWS)
def test_normalized_weights_have_a_largest_or_a_mean_of_1(kwargs):
    assert drawn("max", "plain", 0.7, **kwargs)[0].max() == 1.0
    assert drawn("mean", "plain", 0.7, **kwargs)[0].mean(dtype=np.float64) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("eta", [0.05, 0.4])
def test_a_uniform_share_bounds_the_weights(eta):
    assert drawn("none", "plain", 0.7, uniform_fraction=eta)[0].max() <= eta**-0.7 * 1.0001


@pytest.mark.parametrize("kind", ["plain", "memory", "her"])
def test_weights_with_beta_1_make_the_draw_unbiased(kind):
    """In a batch in which transition i occurs B P_i times, the weights of each transition add up to B / N."""
    buffer = filled_buffer(kind, beta_start=1.0, weight_normalization="none")
    ids = drawable_ids(buffer)
    batch = buffer.sample(MANY)
    sums = np.bincount(np.searchsorted(ids, batch.indices), batch.weights[:, 0].numpy(), minlength=len(ids))
    # Stratified draws are off by less than three, each with its weight.
    tolerance = 3 / (len(ids) * probabilities(buffer, ids, 0.0))
    assert (np.abs(sums - MANY / len(ids)) <= tolerance).all()


def test_extreme_weights_are_finite():
    for normalization in ("none", "mean"):
        buffer = make_buffer(4, alpha=60.0, beta_start=1.0, weight_normalization=normalization)
        fill([buffer], 4)
        buffer.update_priorities(np.arange(4), [1e-7, 1.0, 1e4, 1e4])
        for _ in range(3):
            assert th.isfinite(buffer.sample(64).weights).all()


@pytest.mark.parametrize("alpha, td_error", [(200.0, 0.0), (60.0, 1e-7), (50.0, 1e30)])
def test_extreme_exponents_neither_underflow_nor_overflow(alpha, td_error):
    """Every transition can still be drawn, and every weight is finite."""
    buffer = make_buffer(4, alpha=alpha)
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), np.full(4, td_error))
    assert (buffer.priorities > 0).all()
    assert np.isfinite(buffer.priorities.sum())
    batch = buffer.sample(8)
    assert (batch.weights == 1).all()
    buffer.update_priorities([0], [1.0])
    assert th.isfinite(buffer.sample(8).weights).all()
