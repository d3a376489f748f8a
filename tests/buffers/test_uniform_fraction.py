"""A share of uniform draws: every transition that can be drawn gets its part."""

import numpy as np
import pytest

from tests.utils import MANY, counts_of, drawable_ids, filled_buffer, probabilities


@pytest.mark.parametrize("eta", [0.05, 0.9])
@pytest.mark.parametrize("scheme", ["proportional", "rank"])
@pytest.mark.parametrize("kind", ["plain", "memory", "her"])
def test_draws_have_the_mixed_probabilities(kind, scheme, eta):
    """Slots of unfinished episodes (HER) and of lost next observations get nothing."""
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
def test_schemes_that_draw_uniformly_ignore_it(scheme):
    """Apart from a warning."""
    batches = []
    for eta in (0.0, 0.5):
        buffer = filled_buffer(scheme=scheme, uniform_fraction=eta)
        np.random.seed(0)
        batches.append(buffer.sample(40).indices)
    np.testing.assert_array_equal(*batches)
