"""The windows of n-step returns, against a loop over steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sb3_per.storage.n_step import window_lengths


@given(n_rows=st.integers(1, 6), n_envs=st.integers(1, 3), n_steps=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_a_window_ends_at_an_end_of_any_kind_and_at_the_newest_step(n_rows, n_envs, n_steps, seed):
    """A truncation may stand without a ``done``, in arrays that a user has filled."""
    rng = np.random.default_rng(seed)
    dones, timeouts = (rng.random((2, n_rows, n_envs)) < 0.2).astype(np.float32)
    next_steps = rng.integers(1, 3 * n_rows + 1, n_envs)
    slots = []
    expected = []
    for env, next_step in enumerate(next_steps.tolist()):
        for first in range(max(0, next_step - n_rows), next_step):
            length = 1
            for step in range(first, min(first + n_steps, next_step) - 1):
                if dones[step % n_rows, env] or timeouts[step % n_rows, env]:
                    break
                length += 1
            slots.append(first % n_rows * n_envs + env)
            expected.append(length)
    lengths = window_lengths(np.array(slots), dones.ravel(), timeouts.ravel(), next_steps, n_steps)
    np.testing.assert_array_equal(lengths, expected)
