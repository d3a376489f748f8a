"""`uniform_fraction`: a share of the draws is uniform over all transitions that can be drawn."""

import numpy as np
import pytest

from tests.helpers.buffers import MANY, counts_of, drawable_ids, filled_buffer, probabilities


@pytest.mark.parametrize("eta", [0.05, 0.9])
@pytest.mark.parametrize("scheme", ["proportional", "rank"])
@pytest.mark.parametrize("kind", ["plain", "memory", "her"])
def test_draws_follow_the_mixture_with_a_uniform_share(kind, scheme, eta):
    """Slots of unfinished HER episodes and of overwritten rows are never drawn."""
    buffer = filled_buffer(kind, scheme=scheme, uniform_fraction=eta)
    ids = drawable_ids(buffer)
    assert len(ids) == 18 if kind == "plain" else 0 < len(ids) < 18
    expected = MANY * probabilities(buffer, ids, eta)
    assert (np.abs(counts_of(buffer.sample(MANY).indices, ids) - expected) <= 3).all()
    assert (expected >= MANY * eta / len(ids)).all()
    buffer = filled_buffer(kind, scheme=scheme, uniform_fraction=eta, stratified=False)
    np.random.seed(0)
    counts = counts_of(buffer.sample(MANY).indices, ids)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 3).all()


@pytest.mark.parametrize("scheme", ["uniform", "pal"])
@pytest.mark.filterwarnings("ignore:uniform_fraction")
def test_schemes_that_draw_uniformly_ignore_uniform_fraction(scheme):
    """The setting only causes a warning, and the draws stay the same."""
    batches = []
    for eta in (0.0, 0.5):
        buffer = filled_buffer(scheme=scheme, uniform_fraction=eta)
        np.random.seed(0)
        batches.append(buffer.sample(40).indices)
    np.testing.assert_array_equal(*batches)
