"""A copy of a buffer continues exactly as the original does."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from tests.helpers.buffers import assert_same_state, contents_of, fill, filled_buffer

SETTINGS: dict[str, dict[str, Any]] = {
    "uniform_fraction": dict(uniform_fraction=0.1),
    "no weight normalization": dict(weight_normalization="none", uniform_fraction=0.2),
    "weighted actor batch": dict(actor_batch="weighted", beta_anneal_steps=10),
    "dict": dict(obs_space="dict"),
    "rank": dict(scheme="rank"),
    "initial_priority mean": dict(initial_priority="mean"),
    "initial_priority td_error": dict(initial_priority="td_error"),
    "max_priority_interval": dict(max_priority_interval=2),
    "recency": dict(recency=0.999, recency_min=3),
    "unique": dict(unique=True),
    "lap": dict(scheme="lap"),
}


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("name", SETTINGS)
def test_copies_continue_like_the_original(name, clone):
    buffer = filled_buffer(**SETTINGS[name])
    for _ in range(3):
        buffer.update_priorities(buffer.sample(6).indices, np.arange(6) * 3.0)
    twin = clone(buffer)
    assert type(twin) is type(buffer)
    for each in (buffer, twin):
        np.random.seed(3)
        for _ in range(3):
            fill([each], 2)
            batch = each.sample(7)
            each.update_priorities(batch.indices, np.arange(7.0))
    assert_same_state(twin, buffer)
    before = contents_of(buffer)
    twin.update_priorities(twin.sample(5).indices, np.full(5, 1e3))
    fill([twin], 1)
    assert_same_state(contents_of(buffer), before)  # an update of the copy leaves the original unchanged
