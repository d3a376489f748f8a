"""Ranks of the rank tree equal those of a sorted list."""

import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.sampling.rank_tree import RankTree


class SortedList:
    """Slots by priority, the largest first; of equal ones, the one that was set last first."""

    def __init__(self) -> None:
        self.key_of: dict[int, tuple[float, int]] = {}
        self.clock = 0

    def update(self, slots, priorities) -> None:
        for slot, priority in zip(slots, priorities, strict=True):
            self.clock += 1
            self.key_of.pop(int(slot), None)
            if priority > 0:
                self.key_of[int(slot)] = (-priority, -self.clock)

    def order(self) -> list[int]:
        return sorted(self.key_of, key=self.key_of.__getitem__)

    def masses(self, capacity: int, alpha: float) -> np.ndarray:
        masses = np.zeros(capacity)
        masses[self.order()] = np.arange(1.0, len(self.key_of) + 1) ** -alpha
        return masses


def assert_same_ranks(tree: RankTree, reference: SortedList, uniforms: np.ndarray) -> None:
    masses = reference.masses(len(tree), tree.alpha)
    np.testing.assert_allclose(tree[:], masses, rtol=1e-12)
    assert tree.total == pytest.approx(masses.sum(), rel=1e-12)
    order = np.array(reference.order())
    if len(order) > 0:
        cumulative = np.cumsum(np.arange(1.0, len(order) + 1) ** -tree.alpha)
        values = np.append(uniforms * tree.total, [0.0, tree.total, np.inf])
        expected = order[np.minimum(np.searchsorted(cumulative, values, side="right"), len(order) - 1)]
        np.testing.assert_array_equal(tree.find(values), expected)


@settings(max_examples=100)
@given(
    capacity=st.integers(1, 60),
    alpha=st.sampled_from([0.0, 0.7, 1.0, 2.5]),
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 1e-300, 0.1, 1.0, 7.0, np.inf])), max_size=20),
        max_size=12,
    ),
)
def test_any_sequence_of_updates_gives_the_ranks_of_a_sorted_list(capacity, alpha, batches):
    tree, reference = RankTree(capacity, alpha), SortedList()
    for batch in batches:
        slots = np.array([slot % capacity for slot, _ in batch], dtype=np.int64)
        priorities = np.array([priority for _, priority in batch])
        tree.update(slots, priorities)
        reference.update(slots, priorities)
        assert_same_ranks(tree, reference, np.linspace(0, 1, 23))


@pytest.mark.parametrize("kind", ["distinct", "ties", "newest first", "descending", "shrinking"])
def test_ranks_over_many_blocks(kind):
    """Large enough that blocks are divided and joined."""
    rng = np.random.default_rng(0)
    capacity = 3000
    tree, reference = RankTree(capacity, 0.7), SortedList()
    for step in range(60):
        size = int(rng.integers(1, 300))
        slots = rng.integers(0, capacity, size)
        if kind == "distinct":
            priorities = rng.exponential(size=size)
        elif kind == "ties":
            priorities = rng.choice([0.0, 0.5, 1.0, 1.0, np.inf], size)
        elif kind == "newest first":
            slots, priorities = np.arange(step * 100, (step + 1) * 100) % capacity, np.full(100, np.inf)
        elif kind == "descending":
            slots, priorities = np.arange(step * 100, (step + 1) * 100) % capacity, np.full(100, 1.0 / (step + 1))
        else:
            priorities = rng.exponential(size=size) * (rng.random(size) < (0.9 if step < 30 else 0.05))
        tree.update(slots, priorities)
        reference.update(slots, priorities)
        assert_same_ranks(tree, reference, rng.random(50))
    tree.clear()
    assert tree.total == 0.0
    assert (tree[:] == 0).all()
    tree.update(5, 2.0)
    assert tree.find(0.0) == 5


@pytest.mark.parametrize("stratified", [True, False])
def test_draws_follow_the_ranks(stratified):
    rng = np.random.default_rng(0)
    tree, reference = RankTree(500, 0.7), SortedList()
    priorities = rng.exponential(size=500)
    tree.update(np.arange(500), priorities)
    reference.update(np.arange(500), priorities)
    uniforms = rng.random(64)
    slots, masses = tree.draw(uniforms.copy(), stratified)
    prefix_sums = (np.arange(64) + uniforms) * (tree.total / 64) if stratified else uniforms * tree.total
    np.testing.assert_array_equal(slots, tree.find(prefix_sums))
    np.testing.assert_allclose(masses, reference.masses(500, 0.7)[slots])


@pytest.mark.parametrize(
    "call, error, value",
    [
        (lambda tree: tree.update([0, 5], [1.0, 1.0]), IndexError, "5"),
        (lambda tree: tree.update([0, 1], [1.0, -0.5]), ValueError, "-0.5"),
        (lambda tree: tree.update([0, 1], [1.0, np.nan]), ValueError, "nan"),
        (lambda tree: tree[5], IndexError, "5"),
        (lambda tree: RankTree(0, 0.7), ValueError, "0"),
    ],
)
def test_errors_change_nothing(call, error, value):
    tree = RankTree(5, 0.7)
    tree.update(np.arange(5), [0.5, 0.0, 2.0, 0.25, 1.0])
    before = pickle.dumps(tree)
    with pytest.raises(error, match=value):
        call(tree)
    assert pickle.dumps(tree) == before


@settings(max_examples=40)
@given(data=st.data())
def test_changes_at_once_equal_changes_one_by_one(data):
    """With ties, repeated slots, infinity and empty slots."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    capacity = data.draw(st.integers(1, 900))
    at_once, one_by_one = RankTree(capacity, 0.7), RankTree(capacity, 0.7)
    for _ in range(data.draw(st.integers(1, 6))):
        n = int(rng.integers(1, 2 * capacity + 1))
        slots = rng.integers(0, capacity, n)
        priorities = rng.choice([0.0, 1.0, 2.0, np.inf, *rng.random(3)], n)
        with mock.patch("sb3_per.sampling.rank_tree._MANY", int(rng.choice([1, 100, 10**9]))):
            at_once.update(slots, priorities)
        with mock.patch("sb3_per.sampling.rank_tree._MANY", 10**9):
            one_by_one.update(slots, priorities)
        np.testing.assert_array_equal(at_once[:], one_by_one[:])
        prefix_sums = rng.random(20) * at_once.total
        if at_once.total > 0:
            np.testing.assert_array_equal(at_once.find(prefix_sums), one_by_one.find(prefix_sums))


def test_many_changes_lay_out_the_order_at_once(monkeypatch):
    """One after the other would take quadratic time."""
    tree = RankTree(200_000, 0.7)
    moved = []
    monkeypatch.setattr("sb3_per.sampling.rank_tree.write", lambda *args: moved.append(args) or -1)
    tree.update(np.arange(200_000), np.inf)
    assert not moved  # not one after the other
    np.testing.assert_array_equal(np.argsort(-tree[:])[:3], [199_999, 199_998, 199_997])
    monkeypatch.undo()
    tree = RankTree(6000, 0.7)
    bad = np.full(5000, 1.0)
    bad[17] = np.nan
    before = tree[:]
    with pytest.raises(ValueError, match=r"nan \((leaf|slot) 17\)"):
        tree.update(np.arange(5000), bad)
    np.testing.assert_array_equal(tree[:], before)
