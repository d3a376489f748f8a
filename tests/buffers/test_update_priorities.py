"""Updating priorities: compared with a dictionary, with every form of TD errors, and with bad arguments."""

import pickle

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.buffers import add_one, assert_same_state, contents_of, fill, make_buffer


class ReferenceBuffer:
    """Keeps the masses of a ring in a dictionary from id to mass, one transition at a time."""

    def __init__(self, n_rows: int, n_envs: int, alpha: float, epsilon: float):
        self.n_rows, self.n_envs, self.alpha, self.epsilon = n_rows, n_envs, alpha, epsilon
        self.mass: dict[int, float] = {}
        self.max_priority = 1.0
        self.next_steps = 0

    def add(self) -> None:
        for e in range(self.n_envs):
            self.mass[self.next_steps * self.n_envs + e] = self.max_priority**self.alpha
            self.mass.pop((self.next_steps - self.n_rows) * self.n_envs + e, None)
        self.next_steps += 1

    def update(self, ids: list[int], td_errors: np.ndarray) -> int:
        written = 0
        for index, td_error in zip(ids, td_errors, strict=True):
            if index in self.mass:
                priority = float(np.mean(np.abs(td_error))) + self.epsilon
                self.mass[index] = priority**self.alpha
                self.max_priority = max(self.max_priority, priority)
                written += 1
        return written

    def priorities(self) -> np.ndarray:
        masses = np.zeros(self.n_rows * self.n_envs)
        for index, mass in self.mass.items():
            masses[index % len(masses)] = mass
        return masses.reshape(self.n_rows, self.n_envs)


@settings(max_examples=25)
@given(data=st.data())
def test_priorities_equal_a_reference_dictionary(data):
    """Mix adds, draws and updates with stale and repeated ids at random, over several laps."""
    n_rows, n_envs = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    alpha, epsilon = data.draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])), data.draw(st.sampled_from([1e-6, 0.1]))
    buffer = make_buffer(n_rows, n_envs, alpha=alpha, epsilon=epsilon)
    reference = ReferenceBuffer(n_rows, n_envs, alpha, epsilon)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    issued: list[int] = []
    for operation in data.draw(st.lists(st.sampled_from(["add", "add", "update", "sample"]), max_size=30)):
        if operation == "add":
            issued += [reference.next_steps * n_envs + e for e in range(n_envs)]
            add_one(buffer)
            reference.add()
        elif operation == "update" and issued:
            ids = rng.choice(issued, size=rng.integers(0, 9))
            td_errors = rng.normal(size=(len(ids), 2)) * 10.0 ** rng.integers(-6, 6)
            assert buffer.update_priorities(ids, td_errors) == reference.update(ids.tolist(), td_errors)
        elif operation == "sample" and issued:
            batch = buffer.sample(16)
            assert set(batch.indices) <= set(reference.mass)
            masses = np.array([reference.mass[i] for i in batch.indices])
            probabilities = masses / sum(reference.mass.values())
            weights = (len(reference.mass) * probabilities) ** -buffer.beta
            np.testing.assert_allclose(batch.weights[:, 0], weights / weights.max(), rtol=1e-5)
        np.testing.assert_allclose(buffer.masses, reference.priorities(), rtol=1e-12)
        assert buffer.max_priority == pytest.approx(reference.max_priority, rel=1e-12)
    clone = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(clone.priorities, buffer.masses)


def test_updates_reach_the_transition_that_was_drawn():
    """A row of a batch, its id and the slot that is updated belong to the same transition."""
    buffer = make_buffer(9, n_envs=3)
    for step in range(14):
        obs = np.arange(3)[:, None] * 0.1 + np.full((3, 3), step)
        infos = [{}] * 3
        buffer.add(obs, obs, np.zeros((3, 2)), step * 3.0 + np.arange(3), np.zeros(3), infos)
    batch = buffer.sample(100)
    # The reward of each transition is its id.
    np.testing.assert_array_equal(batch.rewards[:, 0].numpy(), batch.indices)
    buffer.update_priorities(batch.indices, batch.indices + 1.0)
    for index in np.unique(batch.indices):
        row, env = (index // 3) % 9, index % 3
        assert buffer.rewards[row, env] == index
        assert buffer.masses[row, env] == pytest.approx((index + 1.0 + 1e-6) ** 0.6)


def test_stale_ids_are_skipped_any_number_of_laps_later():
    buffer = make_buffer(4, n_envs=2)
    fill([buffer], 4)
    first = buffer.sample(8)
    add_one(buffer)
    before = buffer.masses
    # Ids 0 and 1 were overwritten, so only the other six are updated.
    assert buffer.update_priorities(np.arange(8), np.full(8, 3.0)) == 6
    np.testing.assert_array_equal(buffer.masses[0], before[0])
    np.testing.assert_allclose(buffer.masses[1:], (3.0 + 1e-6) ** 0.6)
    fill([buffer], 41)
    before, max_priority = buffer.masses, buffer.max_priority
    assert buffer.update_priorities(first.indices, np.full(8, 1e9)) == 0
    np.testing.assert_array_equal(buffer.masses, before)
    assert buffer.max_priority == max_priority
    assert buffer.sample(8).indices.min() >= (46 - 4) * 2


TD_ERRORS = np.array([[0.5, -1.5], [-2.0, 2.0], [0.0, 1.0]])


def test_td_errors_may_be_arrays_tensors_or_lists():
    for td_errors in [
        TD_ERRORS,
        -TD_ERRORS,
        np.abs(TD_ERRORS).astype(np.float32),
        th.tensor(TD_ERRORS),
        th.tensor(TD_ERRORS, dtype=th.float32, requires_grad=True),
        th.tensor(TD_ERRORS, dtype=th.bfloat16),
        TD_ERRORS.tolist(),
        TD_ERRORS.astype(">f4"),
        np.abs(TD_ERRORS).mean(axis=1),
        np.abs(TD_ERRORS).mean(axis=1, keepdims=True),
    ]:
        buffer = make_buffer(3)
        fill([buffer], 3)
        if isinstance(td_errors, np.ndarray):
            td_errors.setflags(write=False)
        ids = np.arange(3, dtype=np.int32)
        assert buffer.update_priorities(ids.astype(">i8"), np.ones(3)) == buffer.update_priorities(ids, td_errors) == 3
        np.testing.assert_allclose(buffer.masses[:, 0], (np.array([1.0, 2.0, 0.5]) + 1e-6) ** 0.6, rtol=1e-6)


def test_td_errors_of_several_critics_are_reduced():
    for reduction, expected in [("mean", [1.0, 2.0, 0.5]), ("max", [1.5, 2.0, 1.0]), ("min", [0.5, 2.0, 0.0])]:
        buffer = make_buffer(3, td_error_reduction=reduction, alpha=1.0, epsilon=0.25)
        fill([buffer], 3)
        buffer.update_priorities(np.arange(3), TD_ERRORS)
        np.testing.assert_allclose(buffer.masses[:, 0], np.array(expected) + 0.25)


def test_a_bad_update_changes_nothing():
    for call, error, value in [
        (lambda b: b.update_priorities([0, 1], [1.0]), ValueError, r"\(1,\)"),
        (lambda b: b.update_priorities([0, 1], np.ones((1, 2))), ValueError, r"\(1, 2\)"),
        (lambda b: b.update_priorities([0, 1], np.ones((2, 2, 1))), ValueError, r"\(2, 2, 1\)"),
        (lambda b: b.update_priorities([0, 1], np.ones((2, 0))), ValueError, r"\(2, 0\)"),
        (lambda b: b.update_priorities([0, 1], 1.0), ValueError, r"\(\)"),
        (lambda b: b.update_priorities([0, 1], [1.0, np.nan]), ValueError, "nan"),
        (lambda b: b.update_priorities([0, 1], [[1.0, -np.inf], [0.0, 0.0]]), ValueError, "-inf"),
        (lambda b: b.update_priorities([0, 1], th.tensor([np.inf, 1.0])), ValueError, "inf"),
        (lambda b: b.update_priorities([4, 14], [9.0, 9.0]), IndexError, "14"),
        (lambda b: b.update_priorities([4, -1], [9.0, 9.0]), IndexError, "-1"),
        (lambda b: b.update_priorities([4.0, 5.0], [9.0, 9.0]), IndexError, "float64"),
        (lambda b: b.update_priorities([[4, 5]], [[9.0, 9.0]]), ValueError, r"\(1, 2\)"),
    ]:
        buffer = make_buffer(5, n_envs=2)
        fill([buffer], 7)
        before = contents_of(buffer)
        random_state = np.random.get_state()[1].copy()
        with pytest.raises(error, match=value):
            call(buffer)
        assert_same_state(contents_of(buffer), before)
        np.testing.assert_array_equal(np.random.get_state()[1], random_state)
