"""What SB3's buffers accept, ours accept; and beside stock algorithms ours are stock, or say that they are not."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, SAC

from sb3_per import PERDQN, PERSAC, PrioritizedReplayBuffer
from tests.test_buffers import assert_same, stock_like, stock_rows
from tests.utils import STOCK, fill, make_buffer

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


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_the_arrays(layout, n_steps, tmp_path):
    buffer = make_buffer(10, n_envs=3, n_steps=n_steps)
    fill([buffer], 13)
    other = copy.deepcopy(buffer)
    for name in COLUMNS:
        setattr(other, name, LAYOUTS[layout](getattr(other, name), tmp_path, name))
    batches = []
    for each in (buffer, other):
        np.random.seed(0)
        batches.append(each.sample(40))
    for actual, expected in zip(batches[1][:7], batches[0][:7], strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_types_of_dones(dtype, n_steps, monkeypatch):
    buffer = make_buffer(10, n_envs=2, n_steps=n_steps, alpha=0.0)
    stock = stock_like(buffer)
    fill([buffer, stock], 14, p_end=0.5)
    for each in (buffer, stock):
        each.dones = each.dones.astype(dtype)
    batch = buffer.sample(30)
    assert batch.dones.dtype == th.float32
    assert 0 < batch.dones.sum() < 30
    if n_steps == 1:
        assert_same(batch.dones, stock_rows(stock, batch.indices, None, monkeypatch).dones)


class HalfPrecision(PrioritizedReplayBuffer):
    """A user's buffer with a `to_torch` of its own, with SB3's arguments or fewer."""

    def to_torch(self, array: np.ndarray) -> th.Tensor:  # type: ignore[override]
        return th.tensor(array, dtype=th.float16)


def test_a_users_own_to_torch():
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


@pytest.mark.parametrize("rows", [[10**10], [10], [-11], [3, 2**62]])
def test_rows_outside_of_the_buffer(rows):
    buffer = make_buffer(10, n_envs=2)
    fill([buffer], 10)
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


# ---- the stock draw


@pytest.mark.parametrize("n_rows_added", [4, 10, 17])
@pytest.mark.parametrize(
    "kwargs", [{}, dict(obs_space="dict"), dict(optimize_memory_usage=True, handle_timeout_termination=False)]
)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_uniform_independent_draws_are_those_of_stock(n_envs, kwargs, n_rows_added):
    """For the same seed the same batch to the bit."""
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


@pytest.mark.parametrize("cls", STOCK)
def test_a_uniform_run_is_a_stock_run(cls):
    """A whole `learn()` with several environments: parameters to the bit."""
    env = "CartPole-v1" if issubclass(cls, DQN) or "DQN" in cls.__name__ else "Pendulum-v1"
    found = []
    for each, kwargs in ((cls, dict(scheme="uniform", stratified=False)), (STOCK[cls], None)):
        model = each(
            "MlpPolicy",
            env,
            buffer_size=70,
            learning_starts=20,
            batch_size=16,
            policy_kwargs=dict(net_arch=[16]),
            replay_buffer_kwargs=kwargs,
            seed=0,
        ).learn(100)
        found.append((model.policy.state_dict(), np.random.get_state()[1]))
    for key, value in found[1][0].items():
        th.testing.assert_close(found[0][0][key], value, rtol=1e-4, atol=1e-6, msg=key)
    np.testing.assert_array_equal(found[0][1], found[1][1])  # as many random numbers


def test_stratified_uniform_draws_are_spread():
    """The default: one from each slice, so that no transition comes twice while there are enough."""
    for stratified, n_distinct in ((True, [256]), (False, range(130, 200))):
        buffer = make_buffer(256, scheme="uniform", stratified=stratified)
        fill([buffer], 256)
        np.random.seed(0)
        assert len(set(buffer.sample(256).indices)) in n_distinct


# ---- in a stock algorithm


@pytest.mark.parametrize("cls, env", [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
@pytest.mark.parametrize(
    "kwargs, complains",
    [({}, True), (dict(scheme="rank"), True), (dict(scheme="uniform"), False), (dict(alpha=0.0), False)],
)
def test_a_stock_algorithm_with_a_prioritized_buffer(cls, env, kwargs, complains):
    """It draws by priorities that nobody updates: said once."""
    settings: dict[str, Any] = dict(learning_starts=5, batch_size=4, train_freq=1, policy_kwargs=dict(net_arch=[4]))
    model = cls("MlpPolicy", env, replay_buffer_class=PrioritizedReplayBuffer, replay_buffer_kwargs=kwargs, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(60)
    said = [str(w.message) for w in caught if "update_priorities() was not called" in str(w.message)]
    assert len(said) == complains
    assert all("PERSAC for SAC" in text for text in said)


@pytest.mark.parametrize("cls, env", [(PERDQN, "CartPole-v1"), (PERSAC, "Pendulum-v1")])
def test_our_algorithms_do_not_complain(cls, env, tmp_path, recwarn):
    model = cls("MlpPolicy", env, learning_starts=5, batch_size=4, train_freq=1, policy_kwargs=dict(net_arch=[4]))
    model.learn(60)
    assert not [w for w in recwarn if "update_priorities" in str(w.message)]
