"""The sum tree: prefix sums equal NumPy's cumsum for any capacity, and errors change nothing."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per import SumTree
from sb3_per.sampling.rank_tree import RankTree
from sb3_per.sampling.subsets import SlotRange, draw_from


def reference_find(masses: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the first slot whose cumulative sum exceeds each value, or the last slot with mass if there is none."""
    return np.searchsorted(np.cumsum(masses), values, side="right").clip(max=np.flatnonzero(masses)[-1])


def edges_of(masses: np.ndarray) -> np.ndarray:
    """Return every boundary of integer masses, its neighbors one ulp away, points in between, and values past the end."""
    edges = np.arange(masses.sum() + 1)
    return np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges[1:], 0), edges + 0.5, [1e300, np.inf]])


def integer_masses(rng: np.random.Generator, capacity: int) -> np.ndarray:
    """Draw small integers, many of them 0 and at least one positive; exact sums allow a check of every boundary."""
    masses = rng.integers(0, 4, capacity) * (rng.random(capacity) < 0.6)
    masses[rng.integers(capacity)] += 1
    return masses.astype(np.float64)


def filled(masses: np.ndarray) -> SumTree:
    tree = SumTree(len(masses))
    tree.update(np.arange(len(masses)), masses)
    return tree


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.one_of(st.integers(1, 130), st.sampled_from([255, 256, 257, 511, 512, 513, 1024, 4095, 4096, 4097])),
    seed=st.integers(0, 1000),
)
def test_find_equals_cumsum(capacity, seed):
    masses = integer_masses(np.random.default_rng(seed), capacity)
    tree = filled(masses)
    assert (len(tree), tree.total) == (capacity, masses.sum())
    found = tree.find(edges_of(masses))
    np.testing.assert_array_equal(found, reference_find(masses, edges_of(masses)))
    assert set(found) == set(np.flatnonzero(masses))  # every slot with mass can be drawn, the first and the last too


def test_scalars_and_arrays_are_accepted():
    capacity = 9
    masses = integer_masses(np.random.default_rng(0), capacity)
    tree = SumTree(capacity)
    for slot, mass in enumerate(masses):
        tree.update(slot, mass)
    assert isinstance(tree[0], float)
    assert isinstance(tree.find(0.0), int)
    assert isinstance(tree.total, float)
    np.testing.assert_array_equal(tree[:], masses)
    np.testing.assert_array_equal(tree[np.arange(capacity).reshape(1, -1)], masses.reshape(1, -1))
    np.testing.assert_array_equal(tree.find([[0.0], [0.5]]), reference_find(masses, np.array([[0.0], [0.5]])))
    tree.update(np.arange(capacity), 2.0)
    assert tree.total == 2.0 * capacity
    assert tree[[]].shape == tree.find([]).shape == (0,)
    tree.update([], [])
    assert tree.total == 2.0 * capacity


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 40),
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 1e-300, 1e-6, 0.1, 1 / 3, 1.0, 7.0, 1e12])), max_size=12
        ),
        max_size=15,
    ),
    fractions=st.lists(st.floats(0, 1.5), min_size=1, max_size=10),
)
def test_sums_do_not_drift_after_any_updates(capacity, batches, fractions):
    """After any updates, slots hold the last values, the total equals a new tree's, and no empty slot is drawn."""
    tree, masses = SumTree(capacity), np.zeros(capacity)
    for batch in batches:
        slots = np.array([slot % capacity for slot, _ in batch], dtype=np.int64)
        values = np.array([mass for _, mass in batch])
        tree.update(slots, values)
        for slot, value in zip(slots, values, strict=True):
            masses[slot] = value
        np.testing.assert_array_equal(tree[:], masses)
        # The sums have not drifted if they equal those of a tree that is built at once from the same slots.
        assert tree.total == filled(masses).total
        assert tree.total == pytest.approx(masses.sum(), rel=1e-12)
        if tree.total > 0:
            found = tree.find(np.array(fractions) * tree.total)
            assert (masses[found] > 0).all()
            assert (np.diff(found[np.argsort(fractions)]) >= 0).all()  # larger prefix sums give later slots


def test_an_emptied_tree_has_a_total_of_zero():
    rng = np.random.default_rng(0)
    tree = SumTree(1000)
    for _ in range(500):
        tree.update(rng.integers(0, 1000, 64), rng.random(64) * 10.0 ** rng.integers(-12, 12))
    tree.update(np.arange(1000), 0.0)
    assert tree.total == 0.0
    tree.update(5, 1e-12)
    assert (tree.find(rng.random(1000) * 1e-12) == 5).all()


def test_draw_finds_the_prefix_sums():
    rng = np.random.default_rng(0)
    for capacity in (1, 1000):
        masses = integer_masses(rng, capacity)
        tree = filled(masses)
        uniforms = rng.random(33)
        for stratified in (True, False):
            slots, relative_probabilities = tree.draw(uniforms.copy(), stratified, 7)
            prefix_sums = (np.arange(33) + uniforms) * (tree.total / 33) if stratified else uniforms * tree.total
            np.testing.assert_array_equal(slots, reference_find(masses, prefix_sums))
            np.testing.assert_allclose(relative_probabilities, 7 * masses[slots] / masses.sum(), rtol=1e-12)
            np.testing.assert_allclose(tree.relative_probabilities(slots, 7), relative_probabilities, rtol=1e-12)


@pytest.mark.parametrize("capacity", [1, 65])
def test_find_in_a_part_equals_cumsum_of_its_leaves(capacity):
    """Check every boundary to the ulp, in any range of slots, including ranges that wrap around to slot 0."""
    rng = np.random.default_rng(capacity)
    masses = integer_masses(rng, capacity)
    tree = filled(masses)
    ranges = [(first, n) for first in range(capacity) for n in range(1, capacity + 1)]
    for i in rng.permutation(len(ranges))[:200]:
        first, n = ranges[i]
        slots = (first + np.arange(n)) % capacity
        total = masses[slots].sum()
        subset = SlotRange(tree, first, n)
        assert (subset.n, subset.total) == (n, total)
        if total == 0:
            with pytest.raises(ValueError, match=f"Cannot draw from {n} slots"):
                draw_from(subset, 1, stratified=True)
            continue
        values = edges_of(masses[slots])
        found = subset.find(values)
        np.testing.assert_array_equal(found, slots[reference_find(masses[slots], values)])
        np.testing.assert_allclose(subset.relative_probabilities(found), n * masses[found] / total, rtol=1e-12)


def test_masses_outside_of_a_part_have_no_influence():
    rng = np.random.default_rng(0)
    inside = rng.random(300)
    for first, outside in itertools.product((0, 77, 900), (0.0, 1e-300, 1e17, 1e290)):
        slots = (first + np.arange(300)) % 1000
        masses = np.full(1000, outside)
        masses[slots] = inside
        tree = filled(masses)
        subset = SlotRange(tree, first, 300)
        assert subset.total == pytest.approx(inside.sum(), rel=1e-14)
        values = rng.random(1000) * inside.sum()
        np.testing.assert_array_equal(subset.find(values), slots[np.searchsorted(np.cumsum(inside), values, side="right")])


def test_the_largest_uniform_number_draws_the_last_leaf_with_mass():
    """The largest number below 1 may round to the total, but must still draw a slot with mass."""
    for capacity in range(1, 70):
        tree = filled(np.r_[np.full(capacity, 0.1), np.zeros(3)])
        for size in (1, 2, 3, 7, 64):
            for stratified in (True, False):
                slots, relative_probabilities = tree.draw(np.full(size, np.nextafter(1.0, 0.0)), stratified, capacity)
                assert slots[-1] == capacity - 1
                np.testing.assert_allclose(relative_probabilities, 1.0)


def test_the_last_value_of_a_repeated_index_counts():
    tree = SumTree(6)
    tree.update([2, 4, 2, 2], [5.0, 1.0, 9.0, 3.0])
    np.testing.assert_array_equal(tree[:], [0, 0, 3, 0, 1, 0])
    assert tree.total == 4.0


def test_errors_change_nothing():
    """A kernel would write outside of its arrays with an index out of range, so arguments are checked first."""
    calls = [
        (lambda tree: tree.update([0, 5], 1.0), IndexError, "5"),
        (lambda tree: tree.update([0, -1], [1.0, 1.0]), IndexError, "-1"),
        (lambda tree: tree.update(10**12, 1.0), IndexError, "1000000000000"),
        (lambda tree: tree.update(np.array([2**63], dtype=np.uint64), 1.0), IndexError, "outside"),
        (lambda tree: tree.update([0.0, 1.5], [1.0, 2.0]), IndexError, "float64"),
        (lambda tree: tree.update([0, 1], [1.0, -0.5]), ValueError, "-0.5"),
        (lambda tree: tree.update([0, 1], [1.0, np.nan]), ValueError, "nan"),
        (lambda tree: tree.update([0, 1], [1.0, 2.0, 3.0]), ValueError, r"\(3,\)"),
        (lambda tree: tree[5], IndexError, "5"),
        (lambda tree: tree[np.array([0, -2])], IndexError, "-2"),
        (lambda tree: tree[1.5], IndexError, "1.5"),
    ]
    of_sums = [
        (lambda tree: tree.update([0, 1], [1.0, np.inf]), ValueError, "inf"),
        (lambda tree: tree.find(-0.1), ValueError, "-0.1"),
        (lambda tree: tree.find([0.5, np.nan]), ValueError, "nan"),
    ]
    for make_tree in (SumTree, lambda capacity: RankTree(capacity, 0.7)):
        tree = make_tree(5)
        tree.update(np.arange(5), [0.5, 0.0, 2.0, 0.25, 1.0])
        before = pickle.dumps(tree)
        for call, error, value in [*calls, *of_sums] if make_tree is SumTree else calls:
            with pytest.raises(error, match=value):
                call(tree)
        assert pickle.dumps(tree) == before


def test_a_capacity_below_one_is_refused():
    for make_tree in (SumTree, lambda capacity: RankTree(capacity, 0.7)):
        for capacity in (0, -3):
            with pytest.raises(ValueError, match=str(capacity)):
                make_tree(capacity)


def test_drawing_from_an_empty_tree_raises():
    tree = SumTree(3)
    for draw in (lambda: tree.find(0.0), lambda: tree.draw(np.zeros(2), True, 3)):
        with pytest.raises(ValueError, match="empty"):
            draw()
    tree.update(1, 1.0)
    assert tree.find(0.0) == 1
    tree.clear()
    assert tree.total == 0.0


def test_inputs_of_any_layout_and_type_are_accepted():
    """Inputs may be read-only, strided, float32 or integers, and the tree does not write to them."""
    slots, masses = np.arange(16, dtype=np.uint8)[::2], np.arange(16, dtype=np.float32)[::2]
    masses.setflags(write=False)
    tree = SumTree(16)
    tree.update(slots, masses)
    np.testing.assert_array_equal(tree[slots], masses)
    prefix_sums = np.array([0.0, 1.0, 5.0])
    prefix_sums.setflags(write=False)
    np.testing.assert_array_equal(tree.find(prefix_sums), [2, 2, 4])
    np.testing.assert_array_equal(prefix_sums, [0.0, 1.0, 5.0])


def test_a_leaf_takes_at_most_9_2_bytes():
    tree = SumTree(1_000_000)
    assert sum(array.nbytes for array in vars(tree).values() if isinstance(array, np.ndarray)) / 1_000_000 <= 9.2


def test_siblings_share_a_cache_line():
    """The sums are aligned to 64 bytes in a new tree, a copy, and an unpickled tree."""
    for capacity in (1, 7, 1000):
        tree = filled(np.arange(capacity) + 1.0)
        for same in (tree, copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
            assert same.sums.ctypes.data % 64 == 0
            np.testing.assert_array_equal(same[:], np.arange(capacity) + 1.0)
            assert same.total == tree.total


def test_overflowing_sums_still_find_leaves_inside_the_tree():
    """Infinite sums may not lead to an index out of range."""
    tree = SumTree(100)
    tree.update(np.arange(3, 90), np.finfo(np.float64).max)
    assert ((tree.find([0.0, 1.0, 1e308, np.inf]) >= 0) & (tree.find([0.0, 1.0, 1e308, np.inf]) < 100)).all()
