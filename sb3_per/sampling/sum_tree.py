"""
Sum tree: who gets drawn.

The leaves hold the masses, every node above them the sum of its children (Schaul et al. 2016, appendix B.2.1). It knows
numbers and their positions, nothing of transitions, rewards or priorities.

A node has eight children, which lie side by side and are halved three times when a leaf is searched: the sums are those of
the paper's binary tree, of which two levels in three are not stored. That costs fewer cache misses and half of the memory.

The compiled kernels move the whole batch down (or up) one level at a time: the loads of one level do not depend on each
other, and those of the next one are under way before they are needed, so the latency of the memory is all but hidden.
"""

from typing import Any, ClassVar

import numpy as np

from sb3_per.sampling.kernels import kernel, prefetch

# What `_write` answers when the batch was fine; anything else is the position of the first bad entry.
ALL_WRITTEN = -1

# Children of a node: as many as a cache line holds.
_WIDTH = 8

# Indices are unsigned in the inner loops: with signed ones, every access first asks whether it counts from the end.
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))


@kernel
def _sum(sums: np.ndarray, first: np.uint64) -> float:
    """Sum of eight neighbours, in pairs, pairs of pairs and halves, as :func:`_find` takes them apart."""
    second = first + _FOUR
    total: float = ((sums[first] + sums[first + _ONE]) + (sums[first + _TWO] + sums[first + _THREE])) + (
        (sums[second] + sums[second + _ONE]) + (sums[second + _TWO] + sums[second + _THREE])
    )
    return total


@kernel
def _write(sums: np.ndarray, starts: np.ndarray, capacity: int, leaves: np.ndarray, masses: np.ndarray) -> int:
    """Set the leaves, or change nothing and return the position of the first bad entry."""
    for i in range(leaves.size):
        if not (0 <= leaves[i] < capacity and 0.0 <= masses[i] < np.inf):  # a NaN fails the comparison as well
            return i
    nodes = np.empty(leaves.size, np.uint64)
    for i in range(leaves.size):
        nodes[i] = np.uint64(leaves[i])
        sums[nodes[i]] = masses[i]
    n_nodes = leaves.size
    for level in range(1, starts.size):
        below, start = starts[level - 1], starts[level]
        n_parents = 0
        for i in range(n_nodes):
            parent = nodes[i] >> _THREE
            # Neighbours share ancestors: dropping runs of the same parent leaves one node at the root instead of a batch.
            if n_parents == 0 or parent != nodes[n_parents - 1]:
                # Recomputed from the children, never `+= delta`: rounding cannot accumulate until an empty leaf has mass.
                sums[start + parent] = _sum(sums, below + (parent << _THREE))
                nodes[n_parents] = parent
                n_parents += 1
        n_nodes = n_parents
    return ALL_WRITTEN


@kernel
def _fill(sums: np.ndarray, starts: np.ndarray, first: int, last: int, mass: float) -> None:
    """Give all leaves from the first to the last one the same mass."""
    sums[first : last + 1] = mass
    low, high = np.uint64(first), np.uint64(last)
    for level in range(1, starts.size):
        low >>= _THREE
        high >>= _THREE
        for node in range(low, high + _ONE):
            sums[starts[level] + node] = _sum(sums, starts[level - 1] + (node << _THREE))


@kernel
def _child(sums: np.ndarray, first: np.uint64, rest: float) -> tuple[np.uint64, float]:
    """Which of eight siblings a prefix sum of theirs belongs to, and what is left of it there."""
    node = first
    # Which half of the eight, which half of those, which of the two. No branches: one that goes either way half of the time
    # costs more than it saves.
    left = (sums[node] + sums[node + _ONE]) + (sums[node + _TWO] + sums[node + _THREE])
    node += np.uint64(left <= rest) << _TWO
    rest = rest - left if left <= rest else rest
    left = sums[node] + sums[node + _ONE]
    node += np.uint64(left <= rest) << _ONE
    rest = rest - left if left <= rest else rest
    left = sums[node]
    node += np.uint64(left <= rest)
    rest = rest - left if left <= rest else rest
    if sums[node] == 0.0:
        # Rounding, or a value at the end, has led behind the last child with mass: that is the one.
        rest = np.inf
        while sums[node] == 0.0 and node > first:
            node -= _ONE
    return node, rest


@kernel
def _find(sums: np.ndarray, starts: np.ndarray, prefix_sums: np.ndarray) -> np.ndarray:
    """Leaf of every prefix sum."""
    total = sums[-1]
    found = np.zeros(prefix_sums.size, np.uint64)
    remainders = np.empty(prefix_sums.size)
    for i in range(prefix_sums.size):
        remainders[i] = prefix_sums[i] if prefix_sums[i] < total else np.inf
    for level in range(starts.size - 2, -1, -1):
        start, below = starts[level], starts[max(level - 1, 0)]
        for i in range(found.size):
            node, remainders[i] = _child(sums, start + (found[i] << _THREE), remainders[i])
            found[i] = node - start
            prefetch(sums, below + (found[i] << _THREE))
    return found.view(np.int64)


@kernel
def _cover(starts: np.ndarray, first: int, n: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """
    The fewest nodes whose leaves are the n from the first one on; after the last leaf of all, the first follows.

    :return: positions of the nodes, in the order of their leaves, and the level of each
    """
    # Of two pieces with two borders, up to seven nodes a level each.
    nodes, levels = np.empty(28 * starts.size, np.uint64), np.empty(28 * starts.size, np.int64)
    n_nodes = 0
    for leaf, end in ((first, min(first + n, capacity)), (0, first + n - capacity)):
        while leaf < end:
            level, size = 0, 1  # of the largest node that begins here and does not go beyond the end
            while leaf % (_WIDTH * size) == 0 and leaf + _WIDTH * size <= end:
                level, size = level + 1, _WIDTH * size
            nodes[n_nodes], levels[n_nodes] = starts[level] + np.uint64(leaf // size), level
            n_nodes += 1
            leaf += size
    return nodes[:n_nodes], levels[:n_nodes]


@kernel
def _sum_range(sums: np.ndarray, starts: np.ndarray, first: int, n: int, capacity: int) -> float:
    """See :meth:`SumTree.sum_range`."""
    total = 0.0
    for node in _cover(starts, first, n, capacity)[0]:
        total += sums[node]
    return total


@kernel
def _find_range(
    sums: np.ndarray, starts: np.ndarray, prefix_sums: np.ndarray, first: int, n: int, capacity: int
) -> np.ndarray:
    """See :meth:`SumTree.find_range`."""
    nodes, levels = _cover(starts, first, n, capacity)
    ends, last = np.empty(nodes.size), 0
    total = 0.0
    for i in range(nodes.size):
        total += sums[nodes[i]]
        ends[i] = total
        last = i if sums[nodes[i]] > 0.0 else last
    found = np.empty(prefix_sums.size, np.uint64)
    for i in range(found.size):
        k = min(np.searchsorted(ends, prefix_sums[i], side="right"), last)
        node = nodes[k]
        rest = prefix_sums[i] - ends[k - 1] if k > 0 else prefix_sums[i]
        for level in range(levels[k] - 1, -1, -1):
            node, rest = _child(sums, starts[level] + ((node - starts[level + 1]) << _THREE), rest)
        found[i] = node
    return found.view(np.int64)


@kernel
def spread(uniforms: np.ndarray, total: float, stratified: bool) -> np.ndarray:
    """Turn uniform numbers into prefix sums: over ``[0, total)``, or each over its own slice of it."""
    prefix_sums = np.empty(uniforms.size)
    stratum = total / uniforms.size
    for i in range(uniforms.size):
        prefix_sums[i] = (i + uniforms[i]) * stratum if stratified else uniforms[i] * total
    return prefix_sums


@kernel
def _draw(sums: np.ndarray, starts: np.ndarray, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
    """Find the leaves of uniform numbers and read the masses."""
    leaves = _find(sums, starts, spread(uniforms, sums[-1], stratified))
    masses = np.empty(uniforms.size)
    for i in range(uniforms.size):
        masses[i] = sums[leaves[i]]
    return leaves, masses


def as_batch(values: Any, dtype: type) -> np.ndarray:
    """
    Contiguous, writable 1-D array, copied only where it is something else.

    The kernels are compiled anew for every memory layout they meet, so they are shown a single one.
    """
    array = np.asarray(values)
    if array.dtype.type is not dtype or array.ndim != 1 or not array.flags.carray:
        array = np.array(array, dtype=dtype, order="C").reshape(-1)
    return array


def _aligned_zeros(size: int) -> np.ndarray:
    """Zeros, 1-D float64, that begin with a cache line: siblings across two lines make an update take twice as long."""
    memory = np.zeros(size + _WIDTH)
    first = -memory.ctypes.data // memory.itemsize % _WIDTH
    return memory[first : first + size]


class SumTree:
    """
    Fixed number of non-negative masses with their prefix sums (Schaul et al. 2016, appendix B.2.1).

    Float64 throughout: float32 sums were seen to return leaves of mass 0. Leaves stay in the order of their indices for any
    capacity. Memory: 9.2 bytes per leaf.

    :param capacity: number of leaves, at least 1
    :raises ValueError: if the capacity is below 1
    """

    # What :meth:`takes` asks for, in words.
    _BOUNDS: ClassVar[str] = "finite and at least 0"

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"The capacity of a {type(self).__name__} must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        # Sizes of the levels from the leaves up to the root, all but the root in whole groups of siblings.
        sizes = [self.capacity]
        while sizes[-1] > 1:
            n_parents = -(-sizes[-1] // _WIDTH)
            sizes[-1] = n_parents * _WIDTH
            sizes.append(n_parents)
        # One level after the other, the root last; and where each begins.
        self._sums = _aligned_zeros(sum(sizes))
        self._starts = np.cumsum([0, *sizes[:-1]]).astype(np.uint64)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_sums" in state:
            self._sums = _aligned_zeros(len(state["_sums"]))
            self._sums[:] = state["_sums"]

    def __len__(self) -> int:
        return self.capacity

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._sums[-1])

    @property
    def masses(self) -> np.ndarray:
        """Mass of every leaf, shape (capacity,). Not to be written to: it may be a view."""
        return self._masses()

    def __getitem__(self, indices: Any) -> Any:
        """
        :param indices: a leaf, an array of leaves of any shape, or a slice
        :return: the mass of each, float64 in the shape of ``indices``; a copy, never a view
        :raises IndexError: for a leaf outside ``[0, capacity)``; negative indices do not wrap
        """
        if isinstance(indices, slice):
            return self._masses()[indices].copy()
        indices = self._integers(indices)
        outside = (indices < 0) | (indices >= self.capacity)
        if outside.any():
            self._require_leaf(indices[outside].flat[0])
        found = self._masses_at(indices)
        return found if indices.ndim else float(found)

    def update(self, indices: Any, priorities: Any) -> None:
        """
        Set the mass of leaves. Of repeated indices the last one counts.

        :param indices: a leaf, or an array of leaves
        :param priorities: their masses, finite and at least 0, in the shape of ``indices``; or one mass for all of them
        :raises IndexError: for a leaf outside ``[0, capacity)``
        :raises ValueError: for a negative or non-finite mass, or if the shapes differ. Nothing is changed in either case.
        """
        indices = self._integers(indices)
        masses = np.asarray(priorities, dtype=np.float64)
        if masses.shape != indices.shape:
            if masses.ndim:
                raise ValueError(f"{masses.shape} priorities do not fit {indices.shape} indices")
            masses = np.full(indices.shape, masses)
        leaves, masses = as_batch(indices, np.int64), as_batch(masses, np.float64)
        bad = self._write(leaves, masses)
        if bad != ALL_WRITTEN:
            self._require_leaf(leaves[bad])
            raise ValueError(f"A priority must be {self._BOUNDS}, not {masses[bad]} (leaf {leaves[bad]})")

    def find(self, prefix_sums: Any) -> Any:
        """
        Leaf ``i`` with ``cumsum[i - 1] <= v < cumsum[i]``: the inverse of the cumulative distribution.

        :param prefix_sums: a value ``v >= 0``, or an array of them, in the unit of the masses
        :return: the leaf of each, int64 in the shape of ``prefix_sums``; never an empty leaf, and the last
            non-empty leaf for ``v >= total``
        :raises ValueError: if all leaves are empty, or for a negative or NaN value
        """
        values = np.array(prefix_sums, dtype=np.float64)  # a copy: contiguous and writable, whatever comes in
        if values.size and not values.min() >= 0.0:
            raise ValueError(f"A prefix sum must be at least 0, not {values[~(values >= 0.0)].flat[0]}")
        self._require_mass()
        leaves = self._find(values.reshape(-1)).reshape(values.shape)
        return leaves if values.ndim else int(leaves)

    def draw(self, uniforms: np.ndarray, stratified: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw one leaf for each uniform number, with probability proportional to its mass.

        :param uniforms: numbers in [0, 1), float64 of shape (batch_size,); the tree has no generator of its own
        :param stratified: cut ``[0, total)`` into ``batch_size`` equal parts and draw once in each
            (Schaul et al. 2016, appendix B.2.1), instead of ``batch_size`` independent draws
        :return: leaves, int64, and their masses, float64, both of shape (batch_size,)
        :raises ValueError: if all leaves are empty
        """
        self._require_mass()
        return self._draw(uniforms, stratified)

    def sum_range(self, first: int, n: int) -> float:
        """
        Sum of the masses of neighbouring leaves; leaf 0 follows the last one. What lies outside has no influence, not even by
        rounding. In time logarithmic in the capacity.

        :param first: first leaf
        :param n: how many, from 1 to ``capacity``
        :return: the sum
        :raises IndexError: for a leaf outside ``[0, capacity)``
        :raises ValueError: for another number
        """
        self._require_leaf(first)
        if not 1 <= n <= self.capacity:
            raise ValueError(f"A range has 1 to {self.capacity} leaves, not {n}")
        return float(_sum_range(self._sums, self._starts, first, n, self.capacity))

    def find_range(self, prefix_sums: np.ndarray, first: int, n: int) -> np.ndarray:
        """
        :meth:`find` in the range of :meth:`sum_range`, as if it were all there is.

        :param prefix_sums: at least 0, in the unit of the masses, shape (batch_size,)
        :param first: first leaf
        :param n: how many
        :return: the leaf of each, int64 of shape (batch_size,); never an empty leaf
        :raises ValueError: if all leaves of the range are empty
        """
        if not self.sum_range(first, n) > 0.0:
            raise ValueError(f"Cannot draw from {n} leaves of a {type(self).__name__}: all of them are empty")
        values = as_batch(prefix_sums, np.float64)
        found: np.ndarray = _find_range(self._sums, self._starts, values, first, n, self.capacity)
        return found

    def fill(self, first: int, last: int, mass: float) -> None:
        """
        Set the mass of neighbouring leaves, as ``tree[first : last + 1] = mass`` would.

        :param first: first leaf
        :param last: last leaf, at least the first
        :param mass: mass of all of them, finite and at least 0
        :raises IndexError: for a leaf outside ``[0, capacity)``
        :raises ValueError: for a negative or non-finite mass. Nothing is changed in either case.
        """
        if not (0 <= first <= last < self.capacity and self.takes(mass)):
            self._require_leaf(first)
            self._require_leaf(last)
            raise ValueError(f"A priority must be {self._BOUNDS}, not {mass} (leaves {first} to {last})")
        self._fill(first, last, mass)

    def clear(self) -> None:
        """Empty every leaf."""
        self._sums.fill(0.0)

    def written(self) -> np.ndarray:
        """
        :return: by leaf, what :meth:`update` takes to give it its mass, float64 of shape (capacity,); not to be written to
        """
        return self._masses()

    def state(self, n_leaves: int) -> dict[str, np.ndarray]:
        """
        :param n_leaves: number of leaves, from 0 on, that may have a mass
        :return: arrays, see :meth:`load`
        """
        return {"masses": self.masses[:n_leaves]}

    def load(self, state: dict[str, Any]) -> None:
        """
        Fill an empty tree.

        :param state: from :meth:`state` of a tree of the same capacity
        :raises ValueError: if it is not such a state
        """
        masses = np.asarray(state["masses"])
        self.update(np.arange(len(masses)), masses)
        if not self.total < np.inf:
            raise ValueError("the sum of all masses is infinite")

    @classmethod
    def takes(cls, mass: float) -> bool:
        """
        :param mass: any number
        :return: whether a leaf can have it: finite and at least 0
        """
        return 0.0 <= mass < np.inf  # a NaN fails the comparison as well

    def _require_leaf(self, leaf: int) -> None:
        if not 0 <= leaf < self.capacity:
            raise IndexError(f"Leaf {leaf} is outside a {type(self).__name__} of {self.capacity} leaves")

    def _require_mass(self) -> None:
        if not self.total > 0.0:
            raise ValueError(f"Cannot draw from a {type(self).__name__}: all of its {self.capacity} leaves are empty")

    # ---- what a tree of another kind replaces; the arguments are known to be good

    def _masses(self) -> np.ndarray:
        """Mass of every leaf, shape (capacity,)."""
        return self._sums[: self.capacity]

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        """Mass of these leaves, of any shape; a copy."""
        masses: np.ndarray = self._sums[leaves]
        return masses

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        """Set masses; ``ALL_WRITTEN``, or the position of the first bad entry, and then nothing is changed."""
        return _write(self._sums, self._starts, self.capacity, leaves, masses)

    def _fill(self, first: int, last: int, mass: float) -> None:
        """Set the mass of neighbouring leaves."""
        _fill(self._sums, self._starts, first, last, mass)

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Leaves of prefix sums, shape (batch_size,)."""
        return _find(self._sums, self._starts, prefix_sums)

    def _draw(self, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
        """Leaves and masses of uniform numbers, shape (batch_size,)."""
        return _draw(self._sums, self._starts, uniforms, stratified)

    @staticmethod
    def _integers(indices: Any) -> np.ndarray:
        array = np.asarray(indices)
        if array.dtype.kind in "iu":
            return array
        if array.size:
            raise IndexError(f"Leaves are integers, not {array.dtype}: {array.flat[0]}")
        return array.astype(np.int64)  # an empty list
