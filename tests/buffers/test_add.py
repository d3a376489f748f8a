"""Adding steps: ids, resets, and several steps at once."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.buffers import (
    add_one,
    assert_same_state,
    contents_of,
    fill,
    make_buffer,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The buffer has .* demonstrations"),
    pytest.mark.filterwarnings("ignore:frames="),
    pytest.mark.filterwarnings("ignore:The newest episodes"),
]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_id_always_names_the_same_transition(data):
    """Mix adds, updates and resets at random; the stored transitions always have consecutive ids."""
    n_rows, n_envs = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    buffer = make_buffer(n_rows, n_envs, scheme=data.draw(st.sampled_from(["proportional", "rank"])))
    seen: dict[int, float] = {}
    number = 0.0
    for operation in data.draw(st.lists(st.sampled_from(["add", "add", "extend", "reset", "look"]), max_size=40)):
        number += 1
        if operation == "add":
            add_one(buffer, number)
        elif operation == "extend":
            vectors = np.zeros((1, n_envs, 3))
            scalars = np.zeros((1, n_envs))
            buffer.extend(vectors, vectors, vectors[..., :2], scalars + number, scalars, [[{}] * n_envs])
        elif operation == "reset":
            buffer.reset()
        elif buffer.size():
            batch = buffer.sample(16)
            assert buffer.update_priorities(batch.indices, np.ones(16)) == 16
            ids, held = buffer.transition_ids, buffer.masses > 0
            assert held.sum() == buffer.size() * n_envs
            np.testing.assert_array_equal(ids[held] % held.size, np.flatnonzero(held))
            newest_first = np.sort(ids[held])[::-1]
            np.testing.assert_array_equal(newest_first, newest_first[0] - np.arange(held.sum()))
            for id_, reward in zip(ids[held].tolist(), buffer.rewards[held].tolist(), strict=True):
                assert seen.setdefault(id_, reward) == reward


def test_setting_pos_or_full_makes_all_transitions_new():
    """SB3's own tests write into the arrays and then set `pos` or `full`."""
    for n_added, change, n_rows in ((1, dict(full=True), 4), (4, dict(pos=3), 4), (1, dict(full=False, pos=2), 2)):
        buffer = make_buffer(4, n_envs=2)
        fill([buffer], n_added)
        ids = buffer.sample(4).indices
        buffer.update_priorities(ids, np.full(4, 9.0))
        for name, value in change.items():
            setattr(buffer, name, value)
        assert (buffer.size(), (buffer.masses > 0).sum()) == (n_rows, n_rows * 2)
        assert (buffer.masses[:n_rows] == buffer.scheme.new_mass(buffer.max_priority)).all()
        assert buffer.update_priorities(ids, np.ones(4)) == 0
        assert set(buffer.sample(100).indices) <= set(buffer.transition_ids[buffer.transition_ids >= 0])


def test_reset_makes_old_ids_stale():
    buffer = make_buffer(5, n_envs=2)
    fill([buffer], 13)
    old = buffer.sample(16).indices
    buffer.update_priorities(old, np.full(16, 7.0))
    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full) == (0, 0, False)
    assert (buffer.masses == 0).all()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)
    assert buffer.update_priorities(old, np.ones(16)) == 0
    fill([buffer], 2)
    new = buffer.sample(50).indices
    assert set(new).isdisjoint(old)
    assert len(set(new)) == 4
    assert buffer.update_priorities(old, np.full(16, 99.0)) == 0
    assert buffer.update_priorities(new, np.full(50, 2.0)) == 50
    np.testing.assert_allclose(buffer.masses[:2], (2.0 + 1e-6) ** 0.6)
    assert (buffer.masses[2:] == 0).all()


@pytest.mark.parametrize("obs_space, n_steps", [("box", 0), ("dict", 9)])
def test_extend_equals_adding_step_by_step(obs_space, n_steps):
    one_by_one, at_once = (make_buffer(6, n_envs=2, obs_space=obs_space) for _ in range(2))
    rng = np.random.default_rng(0)

    def observations() -> Any:
        vec = rng.random((n_steps, 2, 3), dtype=np.float32)
        return {"vec": vec, "num": rng.integers(0, 5, (n_steps, 2))} if obs_space == "dict" else vec

    obs, next_obs = observations(), observations()
    actions, rewards, dones = rng.random((n_steps, 2, 2)), rng.random((n_steps, 2)), rng.random((n_steps, 2)) < 0.3
    infos = [[{"TimeLimit.truncated": bool(i % 2)}, {}] for i in range(n_steps)]
    at_once.extend(obs, next_obs, actions, rewards, dones, infos)
    for i in range(n_steps):
        step = [{key: part[i] for key, part in each.items()} if obs_space == "dict" else each[i] for each in (obs, next_obs)]
        one_by_one.add(*step, actions[i], rewards[i], dones[i], infos[i])
    assert_same_state(contents_of(at_once), contents_of(one_by_one))


@pytest.mark.parametrize("scheme, n_steps", [("rank", 2), ("proportional", 7)])
def test_extend_stores_given_masses(scheme, n_steps):
    """A given mass holds until the transition is updated or overwritten; a transition without one gets the maximum."""
    buffer = make_buffer(6, n_envs=2, scheme=scheme)
    fill([buffer], 4)
    buffer.update_priorities(buffer.sample(8).indices, np.full(8, 30.0))
    maximum = buffer.max_priority
    masses = np.random.default_rng(0).uniform(0.5, 2.0, (n_steps, 2))
    zeros = np.zeros((n_steps, 2, 3))
    buffer.extend(zeros, zeros, np.zeros((n_steps, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * n_steps, masses)
    ids = buffer.transition_ids
    n_given = min(n_steps, 6) * 2
    given = np.argsort(ids, axis=None)[-n_given:]
    expected = masses.ravel()[-n_given:]
    actual = buffer.masses.ravel()[given]
    if scheme == "rank":
        np.testing.assert_array_equal(np.argsort(actual), np.argsort(expected))  # masses of "rank" only keep the order
    else:
        np.testing.assert_array_equal(actual, expected)
    assert buffer.max_priority == maximum
    add_one(buffer)
    assert (buffer.masses[buffer.pos - 1] >= buffer.masses.max() * (0.5 if scheme == "rank" else 1)).all()
    clone = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(clone.priorities, buffer.masses)


def test_extend_with_bad_masses_or_shapes_stores_nothing():
    for masses, value in [
        (np.ones((3, 1)), r"\(3, 1\)"),
        (np.full((3, 2), -1.0), "-1"),
        ([[1, 1], [1, 0], [1, 1]], "0"),
        ([[1, 1], [1, np.nan], [1, 1]], "nan"),
    ]:
        buffer = make_buffer(6, n_envs=2)
        fill([buffer], 2)
        before = contents_of(buffer)
        zeros = np.zeros((3, 2, 3))
        with pytest.raises(ValueError, match=value):
            buffer.extend(zeros, zeros, np.zeros((3, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * 3, masses)
        with pytest.raises(ValueError):
            buffer.extend(zeros, zeros[:2], np.zeros((3, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * 3)
        assert_same_state(contents_of(buffer), before)


def test_infos_are_not_read_without_handle_timeout_termination():
    """Like SB3, `add` and `extend` then accept None as an info."""
    buffer = make_buffer(6, n_envs=2, handle_timeout_termination=False)
    zeros = np.zeros((1, 2, 3))
    buffer.add(zeros[0], zeros[0], np.zeros((2, 2)), np.zeros(2), np.zeros(2), [None, None])
    buffer.extend(zeros, zeros, np.zeros((1, 2, 2)), np.zeros((1, 2)), np.zeros((1, 2)), [[None, None]])
    assert buffer.size() == 2


def test_extend_takes_the_stored_arrays_of_a_buffer():
    """SB3's own tests do so, with infos whose `TimeLimit.truncated` is an array of one number."""
    stored, copied = make_buffer(6, 1), make_buffer(6, 1)
    vectors = np.ones((1, 3))
    for done in (False, True, False, True, False, True):
        infos = [{"TimeLimit.truncated": done}]
        stored.add(vectors, vectors, np.ones((1, 2)), np.ones(1), np.array([done]), infos)
    arrays = (stored.observations, stored.next_observations, stored.actions, stored.rewards, stored.dones)
    copied.extend(*arrays, [[{"TimeLimit.truncated": timeout}] for timeout in stored.timeouts])
    assert stored.timeouts.sum() == 3
    assert_same_state(contents_of(copied), contents_of(stored))
