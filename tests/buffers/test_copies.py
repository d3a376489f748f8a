"""A copy of a buffer continues exactly as the original does."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from tests.helpers.buffers import assert_same_state, contents_of, fill, filled_buffer

SETTINGS: dict[str, dict[str, Any]] = {
    "dict": dict(obs_space="dict", beta_anneal_steps=10),
    "rank": dict(scheme="rank"),
    "td errors": dict(initial_priority="td_error", scheme="lap", unique=True),
}


def pickled(buffer: Any) -> Any:
    """Make a copy by a pickle."""
    return pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize(
    "name, clone", [(name, (pickled, copy.deepcopy)[i % 2]) for i, name in enumerate(SETTINGS)], ids=SETTINGS
)
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
