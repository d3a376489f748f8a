"""The rank tree gives the same ranks as a sorted list."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.sampling.rank_tree import RankTree


class SortedList:
    """Sorts slots by priority, largest first; among equal priorities, the slot that was set last comes first."""

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


@settings(max_examples=30)
@given(
    capacity=st.integers(1, 60),
    alpha=st.sampled_from([0.0, 0.7, 1.0, 2.5]),
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 1e-300, 0.1, 1.0, 7.0, np.inf])), max_size=20),
        max_size=12,
    ),
)
def test_ranks_equal_a_sorted_list_after_any_updates(capacity, alpha, batches):
    tree, reference = RankTree(capacity, alpha), SortedList()
    for batch in batches:
        slots = np.array([slot % capacity for slot, _ in batch], dtype=np.int64)
        priorities = np.array([priority for _, priority in batch])
        tree.update(slots, priorities)
        reference.update(slots, priorities)
        assert_same_ranks(tree, reference, np.linspace(0, 1, 23))


@pytest.mark.parametrize("kind", ["ties", "newest first", "descending", "shrinking"])
def test_ranks_over_many_blocks_equal_a_sorted_list(kind):
    """The tree is large enough that blocks are split and merged."""
    rng = np.random.default_rng(0)
    capacity = 3000
    tree, reference = RankTree(capacity, 0.7), SortedList()
    for step in range(40):
        size = int(rng.integers(1, 300))
        slots = rng.integers(0, capacity, size)
        if kind == "ties":
            priorities = rng.choice([0.0, 0.5, 1.0, 1.0, np.inf], size)
        elif kind == "newest first":
            slots, priorities = np.arange(step * 100, (step + 1) * 100) % capacity, np.full(100, np.inf)
        elif kind == "descending":
            slots, priorities = np.arange(step * 100, (step + 1) * 100) % capacity, np.full(100, 1.0 / (step + 1))
        else:
            priorities = rng.exponential(size=size) * (rng.random(size) < (0.9 if step < 20 else 0.05))
        tree.update(slots, priorities)
        reference.update(slots, priorities)
        assert_same_ranks(tree, reference, rng.random(50))
    tree.clear()
    assert tree.total == 0.0
    assert (tree[:] == 0).all()
    tree.update(5, 2.0)
    assert tree.find(np.zeros(1)) == [5]


def test_every_ranked_slot_has_a_mass_whatever_the_exponent():
    tree = RankTree(3000, 100.0)  # 3000^-100 is below the numbers of float64
    tree.update(np.arange(2999), np.linspace(2.0, 1.0, 2999))
    assert (tree[:2999] > 0.0).all() and tree[2999] == 0.0


def test_draws_follow_the_ranks():
    rng = np.random.default_rng(0)
    tree, reference = RankTree(500, 0.7), SortedList()
    priorities = rng.exponential(size=500)
    tree.update(np.arange(500), priorities)
    reference.update(np.arange(500), priorities)
    uniforms = rng.random(64)
    for stratified in (True, False):
        slots, relative_probabilities = tree.draw(uniforms.copy(), stratified, 500)
        prefix_sums = (np.arange(64) + uniforms) * (tree.total / 64) if stratified else uniforms * tree.total
        np.testing.assert_array_equal(slots, tree.find(prefix_sums))
        np.testing.assert_allclose(relative_probabilities, 500 / tree.total * reference.masses(500, 0.7)[slots])
        np.testing.assert_allclose(tree.relative_probabilities(slots, 500), relative_probabilities)


def test_loading_a_state_restores_the_order():
    """Ties span several blocks; a state in which two slots have the same rank is refused."""
    rng = np.random.default_rng(0)
    tree, loaded = RankTree(2000, 0.7), RankTree(2000, 0.7)
    tree.update(rng.integers(0, 2000, 1500), rng.choice([0.5, 1.0, 2.0, np.inf], 1500))
    state = tree.state()
    ranked = np.flatnonzero(state["values"])
    assert 0 < len(ranked) < 2000
    loaded.load(state, ranked)
    np.testing.assert_array_equal(loaded[:], tree[:])
    np.testing.assert_array_equal(loaded.values(), tree.values())
    ranks = state["ranks"].copy()
    ranks[ranked[0]] = ranks[ranked[1]]
    with pytest.raises(ValueError, match="rank of its own"):
        loaded.load({**state, "ranks": ranks}, ranked)
