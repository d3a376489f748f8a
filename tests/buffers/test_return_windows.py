"""The windows of n-step returns, against a loop over steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sb3_per.buffers.n_step import return_windows


@given(n_rows=st.integers(1, 6), n_envs=st.integers(1, 3), n_steps=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_a_window_ends_at_an_end_of_any_kind_and_at_the_newest_step(n_rows, n_envs, n_steps, seed):
    """A truncation may stand without a ``done``, in arrays that a user has filled."""
    rng = np.random.default_rng(seed)
    dones, timeouts = (rng.random((2, n_rows, n_envs)) < 0.2).astype(np.float32)
    next_step = int(rng.integers(1, 3 * n_rows + 1))
    slots, expected = [], []
    for env in range(n_envs):
        for first in range(max(0, next_step - n_rows), next_step):
            window = [first]
            while len(window) < n_steps and window[-1] + 1 < next_step:
                row = window[-1] % n_rows
                if dones[row, env] or timeouts[row, env]:
                    break
                window.append(window[-1] + 1)
            slots.append(first % n_rows * n_envs + env)
            expected.append([step % n_rows * n_envs + env for step in window])
    windows = return_windows(np.array(slots), dones, timeouts, next_step % n_rows, n_steps)
    assert windows.slots.shape == (len(slots), n_steps)
    assert windows.lengths.tolist() == list(map(len, expected))
    assert windows.last_slots.tolist() == [each[-1] for each in expected]
    for found, length, each in zip(windows.slots.tolist(), windows.lengths.tolist(), expected, strict=True):
        assert found[:length] == each
