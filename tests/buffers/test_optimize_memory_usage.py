"""With optimize_memory_usage, the newest next observation overwrites the oldest row, which then cannot be drawn."""

import numpy as np
import pytest

from tests.helpers.buffers import assert_same_batches, fill, make_buffer, stock_like, stock_rows


def test_the_overwritten_row_cannot_be_drawn_or_updated(monkeypatch):
    """The overwritten row has mass 0 and moves with the write position; all other rows equal SB3's."""
    n_envs = 2
    buffer = make_buffer(n_envs=n_envs, optimize_memory_usage=True, handle_timeout_termination=False)
    stock = stock_like(buffer)
    for _ in range(23):
        fill([buffer, stock], 1, seed=buffer.pos, p_end=0.0)
        if buffer.full:
            assert (buffer.masses[buffer.pos] == 0).all()
        rows_with_mass = (buffer.masses > 0).sum()
        assert rows_with_mass == (buffer.size() - buffer.full) * n_envs
        everything = np.arange(buffer.transition_ids.max() + 1)
        written = buffer.update_priorities(everything, np.ones(len(everything)))
        assert written == rows_with_mass
        assert (buffer.masses > 0).sum() == rows_with_mass
        batch = buffer.sample(40)
        rows = (batch.indices // n_envs) % buffer.buffer_size
        assert not (buffer.full and buffer.pos in rows)
        expected = stock_rows(stock, batch.indices, None, monkeypatch)
        assert_same_batches(batch, expected)


def test_a_mass_survives_until_its_row_is_overwritten():
    buffer = make_buffer(5, optimize_memory_usage=True, handle_timeout_termination=False, alpha=1.0)
    fill([buffer], 5)
    buffer.update_priorities(np.arange(1, 5), np.arange(1.0, 5.0))
    np.testing.assert_allclose(buffer.masses[:, 0], [0, 1, 2, 3, 4], atol=1e-5)
    fill([buffer], 1)
    np.testing.assert_allclose(buffer.masses[:, 0], [4, 0, 2, 3, 4], atol=1e-5)


def test_dict_observations_are_refused():
    with pytest.raises(NotImplementedError, match=r"optimize_memory_usage.*Dict"):
        make_buffer(obs_space="dict", optimize_memory_usage=True, handle_timeout_termination=False)
