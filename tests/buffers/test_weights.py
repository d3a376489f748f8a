"""Importance-sampling weights follow their definition, and beta its schedule."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per import Proportional
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
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


@pytest.mark.parametrize("before, after", [(20, 20), (20, 8), (20, 50), (None, 20), (20, None)])
@pytest.mark.parametrize("way", ["from_replay_buffer", "directory"])
def test_beta_goes_on_where_it_was_in_a_schedule_of_another_length(before, after, way, tmp_path):
    buffer = make_buffer(beta_start=0.4, beta_end=0.8, beta_anneal_steps=before)
    fill([buffer], 3)
    for _ in range(5):
        buffer.sample(2)
    if before is None:
        buffer.update_beta(0.75)
    assert buffer.beta == pytest.approx(0.5)
    if way == "directory":
        save_buffer(buffer, tmp_path / "x.buffer")
        found = load_buffer(make_buffer(beta_start=0.4, beta_end=0.8, beta_anneal_steps=after), tmp_path / "x.buffer")
    else:
        found = type(buffer).from_replay_buffer(buffer, beta_anneal_steps=after)
    seen = []
    for _ in range(3):
        seen.append(found.beta)
        found.sample(2)
    by_draw = 0.0 if after is None else 0.4 / after
    np.testing.assert_allclose(seen, 0.5 + by_draw * np.arange(3), atol=0.5 * by_draw)  # a whole number of draws


def test_beta_follows_training_progress_and_never_decreases():
    buffer = make_buffer(beta_start=0.2, beta_end=0.8)
    fill([buffer], 3)
    for progress_remaining, beta in [(1.0, 0.2), (0.5, 0.5), (0.9, 0.5), (0.25, 0.65), (0.0, 0.8), (-0.1, 0.8), (1.0, 0.8)]:
        buffer.update_beta(progress_remaining)
        assert buffer.beta == pytest.approx(beta)
        buffer.sample(2)
        assert buffer.beta == pytest.approx(beta)  # sampling does not change beta without beta_anneal_steps


@pytest.mark.parametrize(
    "kind, beta, kwargs",
    [
        ("plain", 0.0, {}),
        ("plain", 0.4, dict(scheme="rank", recency=0.999, recency_min=4)),
        ("memory", 1.0, dict(stratified=False)),
        ("her", 0.7, {}),
        ("her", 0.7, dict(scheme="rank", unique=True)),
    ],
)
def test_weights_follow_their_definition(kind: str, beta: float, kwargs: dict[str, Any]):
    """w = (N P(i))^-beta, divided by its maximum in the batch; all weights of a batch have the same N."""
    buffer = filled_buffer(kind, beta_start=beta, beta_end=1.0, **kwargs)
    ids = drawable_ids(buffer)
    if "recency" in kwargs:
        ids = ids[-max(4, int(len(ids) * 0.999**1000)) :]
    n = len(ids) if "unique" in kwargs else 200
    batch = buffer.sample(n, series_progress=1.0)
    weights = (len(ids) * probabilities(buffer, ids)[np.searchsorted(ids, batch.indices)]) ** -beta
    assert (batch.weights.dtype, batch.weights.shape) == (th.float32, (n, 1))
    assert batch.weights.max() == 1.0
    np.testing.assert_allclose(batch.weights[:, 0], weights / weights.max(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["memory", "her"])
def test_weights_with_beta_1_make_the_draw_unbiased(kind):
    """In a large batch, the weights of each transition add up to the same number."""
    buffer = filled_buffer(kind, beta_start=1.0)
    ids = drawable_ids(buffer)
    batch = buffer.sample(MANY)
    p = probabilities(buffer, ids)
    least = p[np.searchsorted(ids, batch.indices)].min()
    sums = np.bincount(np.searchsorted(ids, batch.indices), batch.weights[:, 0].numpy(), minlength=len(ids))
    # Stratified draws are off by less than three, each with its weight.
    assert (np.abs(sums - MANY * least) <= 3 * least / p).all()


def test_extreme_exponents_neither_underflow_nor_overflow():
    """Every transition can still be drawn, and every weight is finite."""
    for alpha, td_error in ((200.0, 0.0), (60.0, 1e-7), (50.0, 1e30)):
        buffer = make_buffer(4, alpha=alpha, beta_start=1.0)
        fill([buffer], 4)
        buffer.update_priorities(np.arange(4), np.full(4, td_error))
        assert (buffer.masses > 0).all()
        assert np.isfinite(buffer.masses.sum())
        batch = buffer.sample(8)
        assert (batch.weights == 1).all()
        buffer.update_priorities([0], [1.0])
        assert th.isfinite(buffer.sample(8).weights).all()


def test_after_the_largest_error_new_transitions_can_still_be_drawn():
    """Bounds of p^alpha are rounded: p^(1/alpha)^alpha may be a little above p."""
    for alpha in np.arange(1, 200) / 10:
        buffer = make_buffer(4, alpha=float(alpha))
        fill([buffer], 2)
        buffer.update_priorities([0], [1e300])
        fill([buffer], 1)
        assert set(buffer.sample(30).indices.tolist()) >= {0, 2}
        again = (array[:1] for array in (buffer.observations, buffer.next_observations, buffer.actions))
        buffer.extend(*again, np.zeros((1, 1)), np.zeros((1, 1)), [[{}]], masses=buffer.masses[:1])


def test_a_weight_below_the_numbers_of_float32_is_a_power_of_float64():
    weights = Proportional().weights(np.array([1e-50, 1e-20, 1.0]), 0.5)
    np.testing.assert_allclose(weights[:, 0], [1.0, 1e-15, 1e-25], rtol=1e-6)


def test_beta_does_not_follow_what_is_no_progress():
    buffer = make_buffer(4)
    buffer.update_beta(float("nan"))
    assert buffer.beta == 0.4
