"""Drawing batches: rows equal SB3's rows, and each is drawn in proportion to its mass."""

import copy
from typing import Any

import numpy as np
import pytest

from sb3_per import PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same,
    assert_same_batches,
    assert_same_state,
    contents_of,
    fill,
    filled_buffer,
    make_buffer,
    normalizer,
    stock_like,
    stock_rows,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The buffer has .* demonstrations"),
    pytest.mark.filterwarnings("ignore:frames="),
]


# VecNormalize can normalize only Box observations.
@pytest.mark.parametrize(
    "obs_space, normalize, n_envs, n_rows_added",
    [
        ("box", True, 3, 4),
        ("box64", True, 1, 17),
        ("image", False, 3, 17),
        ("discrete", False, 1, 4),
        ("multi_discrete", False, 3, 17),
        ("multi_binary", False, 1, 17),
        ("dict", False, 3, 17),
    ],
)
def test_sample_equals_stock(obs_space, n_envs, n_rows_added, normalize, monkeypatch):
    buffer = make_buffer(n_envs=n_envs, obs_space=obs_space, alpha=0.0)
    stock = stock_like(buffer)
    fill([buffer, stock], n_rows_added)
    env = normalizer(buffer.observation_space, buffer.action_space) if normalize else None
    batch = buffer.sample(50, env=env)
    expected = stock_rows(stock, batch.indices, env, monkeypatch)
    assert expected._fields == batch._fields[:6]
    assert_same_batches(batch, expected)
    assert (batch.weights == 1).all()
    assert buffer.size() == stock.size()


def test_actions_equal_stock(monkeypatch):
    for action_space in ACTION_SPACES:
        buffer = make_buffer(n_envs=2, action_space=action_space)
        stock = stock_like(buffer)
        fill([buffer, stock], 14)
        batch = buffer.sample(30)
        assert_same(batch.actions, stock_rows(stock, batch.indices, None, monkeypatch).actions)


@pytest.mark.parametrize("stratified, n_envs", [(True, 4), (False, 1)])
def test_draws_follow_the_priorities(stratified, n_envs):
    """Every slot of every environment is drawn in proportion to its mass."""
    np.random.seed(0)
    buffer = make_buffer(8, n_envs, stratified=stratified, alpha=0.7)
    fill([buffer], 8)
    td_errors = np.random.default_rng(1).exponential(size=8 * n_envs)
    buffer.update_priorities(np.arange(8 * n_envs), td_errors)
    expected = buffer.masses.ravel() / buffer.masses.sum()
    n_batches, batch_size = 200, 64
    counts = np.zeros(8 * n_envs)
    for _ in range(n_batches):
        drawn = np.bincount(buffer.sample(batch_size).indices, minlength=8 * n_envs)
        if stratified:
            assert (np.abs(drawn - batch_size * expected) < 2).all()
        counts += drawn
    n_draws = n_batches * batch_size
    deviation = np.sqrt(n_draws * expected * (1 - expected))
    assert (np.abs(counts - n_draws * expected) < 5 * deviation).all()


def test_same_seed_gives_same_draws():
    batches = []
    for _ in range(2):
        np.random.seed(11)
        buffer = make_buffer(6, n_envs=2)
        fill([buffer], 6)
        batches.append(buffer.sample(32).indices)
    np.testing.assert_array_equal(*batches)


def test_sample_returns_copies():
    buffer = make_buffer(4)
    fill([buffer], 4)
    buffer.sample(1)
    before = contents_of(buffer)
    batch = buffer.sample(8)
    for tensor in (batch.observations, batch.next_observations, batch.actions, batch.rewards, batch.dones, batch.weights):
        tensor += 1
    batch.indices[:] = -1
    assert_same_state(contents_of(buffer), before)


def test_a_buffer_of_one_row_draws_the_newest_step():
    buffer = make_buffer(1)
    for step in range(4):
        fill([buffer], 1)
        np.testing.assert_array_equal(buffer.sample(3).indices, [step] * 3)


def test_batches_have_exactly_the_requested_size():
    """A batch may be larger than the buffer."""
    buffer = make_buffer(3)
    fill([buffer], 2)
    for batch_size in (1, 2, 5, np.int64(33), 1000):
        batch = buffer.sample(batch_size)
        assert all(len(part) == batch_size for part in batch if part is not None)


def test_sampling_from_an_empty_buffer_changes_nothing():
    buffer = make_buffer(5, 2, "dict", beta_anneal_steps=7)
    before = contents_of(buffer)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)
    assert_same_state(contents_of(buffer), before)


@pytest.mark.parametrize(
    "kind, kwargs",
    [
        ("memory", dict(scheme="rank")),
        ("her", dict(scheme="uniform", stratified=False)),
        ("plain", dict(recency=0.999, recency_min=3)),
        ("her", dict(age_decay=3.0, unique=True)),
    ],
    ids=str,
)
def test_a_draw_changes_nothing(kwargs, kind):
    """The first draw updates the tree with new transitions; later draws only read."""
    buffer = filled_buffer(kind, **kwargs)
    buffer.sample(2)
    before = contents_of(buffer)
    buffer.sample(5)
    buffer.sample_observations(5)
    assert_same_state(contents_of(buffer), before)


def test_stratified_uniform_draws_do_not_repeat_transitions():
    """Stratified draws take one transition from each of 256 slices, so none of 256 transitions repeats; nor for an actor."""
    for stratified, n_distinct in ((True, [256]), (False, range(130, 200))):
        buffer = make_buffer(256, scheme="uniform", stratified=stratified)
        fill([buffer], 256)
        np.random.seed(0)
        assert len(set(buffer.sample(256).indices)) in n_distinct
        assert len(np.unique(buffer.sample_observations(256), axis=0)) in n_distinct


@pytest.mark.parametrize("kind", ["transitions", "windows"])
def test_a_changed_batch_keeps_what_is_beside_the_tuple(kind):
    kwargs: dict[str, Any] = {}
    if kind == "windows":
        cls: Any = PrioritizedSequenceReplayBuffer
        kwargs.update(sequence_length=2, burn_in=0)
    else:
        cls = PrioritizedReplayBuffer
        kwargs.update(demonstration_fraction=0.5)
    buffer = cls(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", **kwargs)
    fill([buffer], 20)
    if kind == "transitions":
        buffer.add_demonstrations_from(copy.deepcopy(buffer))
    batch = buffer.sample(8)
    assert len(batch) == len(batch._fields)
    changed = batch._replace(weights=2 * batch.weights)
    assert type(changed) is type(batch) and changed.rewards is batch.rewards
    np.testing.assert_array_equal(changed.weights, 2 * batch.weights)
    if kind == "transitions":
        assert batch.is_demonstration.sum() == 4
        np.testing.assert_array_equal(changed.is_demonstration, batch.is_demonstration)
        with pytest.raises(ValueError, match="is_demonstration of 8 transitions does not fit a batch of 3: replace it, too"):
            batch._replace(indices=batch.indices[:3])
    with pytest.raises(ValueError, match="unknown"):
        batch._replace(unknown=1)


def test_a_buffer_says_what_it_holds():
    buffer = make_buffer(2_000, n_envs=2, obs_space="image", n_steps=3, frames=2, scheme="lap")
    fill([buffer], 600)
    assert repr(buffer) == (
        f"PrioritizedReplayBuffer(1,200 of 4,000 transitions, n_envs=2, {buffer.scheme!r}, n_steps=3, frames=2)"
    )
    buffer.add_demonstrations_from(copy.deepcopy(buffer))
    assert "1,200 demonstrations" in repr(buffer)
    windows = PrioritizedSequenceReplayBuffer(50, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", burn_in=7)
    assert "sequence_length=80, burn_in=7" in repr(windows) and "0 of 50 transitions" in repr(windows)


def test_one_row_is_drawn_and_updated():
    buffer: PrioritizedReplayBuffer = make_buffer(1, 2, n_steps=3)
    for step in range(3):
        fill([buffer], 1, seed=step)
        ids = buffer.sample(8).indices
        assert set(ids.tolist()) == {2 * step, 2 * step + 1}
        assert buffer.update_priorities(np.arange(2 * step + 2), np.ones(2 * step + 2)) == 2
