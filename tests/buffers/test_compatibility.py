"""Our buffers accept what SB3's buffers accept, and their uniform independent draws equal SB3's."""

from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per import PrioritizedReplayBuffer
from tests.helpers.buffers import assert_same, assert_same_batches, fill, make_buffer, stock_like, stock_rows

COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def as_memory_map(array: np.ndarray, folder: Any, name: str) -> np.ndarray:
    mapped = np.memmap(folder / name, dtype=array.dtype, mode="w+", shape=array.shape)
    mapped[:] = array
    return mapped


LAYOUTS = {
    "strided": lambda array, folder, name: np.repeat(array, 2, axis=0)[::2],
    "fortran": lambda array, folder, name: np.asfortranarray(array),
    "every second environment": lambda array, folder, name: np.repeat(array, 2, axis=1)[:, ::2],
    "memory map": as_memory_map,
    "read-only": lambda array, folder, name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
}


def test_arrays_of_any_layout_are_read(tmp_path):
    stock = stock_like(make_buffer(10, n_envs=3, n_steps=3))
    fill([stock], 10)
    stored = {name: getattr(stock, name) for name in COLUMNS}
    np.random.seed(0)
    expected = PrioritizedReplayBuffer.from_replay_buffer(stock, n_steps=3).sample(40)
    for layout, arranged in LAYOUTS.items():
        for name, array in stored.items():
            setattr(stock, name, arranged(array, tmp_path, f"{layout}, {name}"))
        np.random.seed(0)
        assert_same_batches(PrioritizedReplayBuffer.from_replay_buffer(stock, n_steps=3).sample(40), expected)


def test_dones_of_any_type_are_read(monkeypatch):
    for dtype in (bool, np.uint8, np.float32):
        stock = stock_like(make_buffer(10, n_envs=2))
        fill([stock], 14, p_end=0.5)
        stock.dones = stock.dones.astype(dtype)
        batch = PrioritizedReplayBuffer.from_replay_buffer(stock).sample(30)
        assert 0 < batch.dones.sum() < 30
        assert_same(batch.dones, stock_rows(stock, batch.indices, None, monkeypatch).dones)


class HalfPrecision(PrioritizedReplayBuffer):
    """A user's buffer with its own `to_torch`, which takes fewer arguments than SB3's."""

    def to_torch(self, array: np.ndarray) -> th.Tensor:  # type: ignore[override]
        return th.tensor(array, dtype=th.float16)


def test_a_user_defined_to_torch_is_used():
    plain = make_buffer(6)
    buffer = HalfPrecision(6, plain.observation_space, plain.action_space, "cpu")
    fill([plain, buffer], 6)
    batches = []
    for each in (plain, buffer):
        np.random.seed(0)
        batches.append(each.sample(8))
    for name in ("observations", "actions", "next_observations", "dones", "rewards", "weights"):
        actual, expected = (getattr(batch, name) for batch in reversed(batches))
        assert actual.dtype == th.float16
        assert th.equal(actual, expected.half())


def test_a_device_may_be_set_by_its_name():
    """SB3's buffer works with a string, too."""
    buffer = make_buffer(6)
    fill([buffer], 6)
    buffer.device = "cpu"
    assert buffer.sample(8).observations.device == th.device("cpu")


def test_rows_outside_of_the_buffer_are_refused():
    buffer = make_buffer(10, n_envs=2)
    fill([buffer], 10)
    for rows in ([-11], [3, 10], [3, 2**62]):
        with pytest.raises(IndexError, match=str(rows[-1])):
            buffer._get_samples(np.array(rows))


def test_negative_rows_count_from_the_end(monkeypatch):
    buffer = make_buffer(10, n_envs=2)
    stock = stock_like(buffer)
    fill([buffer, stock], 10)
    samples = []
    for each in (buffer, stock):
        np.random.seed(0)
        samples.append(each._get_samples(np.array([-1, -10, 9, 0])))
    for name in samples[1]._fields[:5]:
        assert_same(getattr(samples[0], name), getattr(samples[1], name))


@pytest.mark.parametrize(
    "n_envs, kwargs, n_rows_added",
    [
        (1, {}, 4),
        (3, dict(obs_space="dict"), 17),
        (3, dict(optimize_memory_usage=True, handle_timeout_termination=False), 17),
    ],
)
def test_uniform_independent_draws_equal_stock(n_envs, kwargs, n_rows_added):
    """The same seed gives the same batch, bit for bit."""
    buffer = make_buffer(n_envs=n_envs, scheme="uniform", stratified=False, **kwargs)
    stock = stock_like(buffer)
    fill([buffer, stock], n_rows_added)
    batches = []
    for each in (buffer, stock):
        np.random.seed(0)
        batches.append(each.sample(50))
    for name in batches[1]._fields:
        assert_same(getattr(batches[0], name), getattr(batches[1], name))
    ids = batches[0].indices
    np.testing.assert_array_equal(ids, buffer.transition_ids.ravel()[ids % (10 * n_envs)])
    assert buffer.update_priorities(ids, np.ones(50)) == 50
