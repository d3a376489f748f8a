"""
Sum tree: draw leaves in proportion to their mass (Schaul et al. 2016, appendix B.2.1).

The leaves hold the masses, and every other node holds the sum of its children. A node has eight children, which lie side by
side in one cache line. A search halves them three times, as if all levels of the paper's binary tree were stored. This takes
half of the memory and fewer cache misses.

The kernels move the whole batch down or up one level at a time. The loads of one level do not depend on each other, and the
next level is prefetched, so most of the memory latency is hidden.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from sb3_per.utils.compiled import kernel, prefetch

# Result of `write_masses` if all entries are good; otherwise, it is the position of the first bad one.
ALL_WRITTEN = -1

# Least mass of a leaf that can be drawn, because a product can underflow to 0.
LEAST_MASS = float(np.finfo(np.float64).tiny)

# Children of a node: as many as fit into a cache line.
_WIDTH = 8

# Inner loops use unsigned indices. An access with a signed one first checks whether it counts from the end.
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))


@kernel
def _sum_of_four(sums: np.ndarray, first: np.uint64) -> float:
    """Add four neighbours in pairs. Reads and writes add in the same order, so both round in the same way."""
    return float((sums[first] + sums[first + _ONE]) + (sums[first + _TWO] + sums[first + _THREE]))


@kernel
def write_masses(sums: np.ndarray, starts: np.ndarray, capacity: int, leaves: np.ndarray, masses: np.ndarray) -> int:
    """Set masses, or change nothing and return the position of the first bad entry."""
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
            # Neighbours share ancestors. Without runs of the same parent, one node is left at the root instead of a batch.
            if n_parents == 0 or parent != nodes[n_parents - 1]:
                # Recompute the sum from the children. With `+= delta`, rounding would add up until an empty leaf has mass.
                first = below + (parent << _THREE)
                sums[start + parent] = _sum_of_four(sums, first) + _sum_of_four(sums, first + _FOUR)
                nodes[n_parents] = parent
                n_parents += 1
        n_nodes = n_parents
    return ALL_WRITTEN


@kernel
def _go_down(sums: np.ndarray, start: np.uint64, below: np.uint64, nodes: np.ndarray, rests: np.ndarray, i: int) -> None:
    """
    Go from a node to the child that a prefix sum belongs to.

    :param start: where the level of the children begins
    :param below: where the level of their children begins
    :param nodes: positions in their levels; the i-th becomes the child
    :param rests: prefix sums among the leaves of each node; the i-th becomes what is left of it in the child
    """
    first = start + (nodes[i] << _THREE)
    node, rest = first, rests[i]
    # Choose a half of the eight, a half of the four, one of the two, without branches: the processor would mispredict half
    # of them.
    left = _sum_of_four(sums, node)
    node += np.uint64(left <= rest) << _TWO
    rest = rest - left if left <= rest else rest
    left = sums[node] + sums[node + _ONE]
    node += np.uint64(left <= rest) << _ONE
    rest = rest - left if left <= rest else rest
    left = sums[node]
    node += np.uint64(left <= rest)
    rest = rest - left if left <= rest else rest
    if sums[node] == 0.0:
        # Rounding, or a value at the end, has led past the last child with mass. Take that child.
        rest = np.inf
        while sums[node] == 0.0 and node > first:
            node -= _ONE
    nodes[i], rests[i] = node - start, rest
    prefetch(sums, below + (nodes[i] << _THREE))


@kernel
def _descend(sums: np.ndarray, starts: np.ndarray, nodes: np.ndarray, levels: np.ndarray | None, rests: np.ndarray) -> None:
    """
    Go down to the leaf of every prefix sum, among the leaves of its node.

    :param nodes: positions in their levels; each becomes the leaf
    :param levels: levels of the nodes; ``None``: all are the root, which saves a comparison at each step
    :param rests: prefix sums, changed
    """
    for level in range(starts.size - 2, -1, -1):
        start, below = starts[level], starts[max(level - 1, 0)]
        for i in range(nodes.size):
            if levels is None or levels[i] > level:
                _go_down(sums, start, below, nodes, rests, i)


@kernel
def _find(sums: np.ndarray, starts: np.ndarray, rests: np.ndarray, leaves: np.ndarray) -> None:
    """Find the leaf of every prefix sum; the prefix sums are changed."""
    leaves[:] = 0
    for i in range(rests.size):
        if not rests[i] < sums[-1]:
            rests[i] = np.inf
    _descend(sums, starts, leaves.view(np.uint64), None, rests)


@kernel
def _cover(n_levels: int, first: int, n: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Find the fewest nodes whose leaves are the n neighbours from ``first`` on. Leaf 0 follows the last one.

    :return: positions of the nodes in their levels, in the order of their leaves, and the level of each
    """
    # Two pieces with two borders each, and up to seven nodes per level and border.
    nodes, levels = np.empty(28 * n_levels, np.uint64), np.empty(28 * n_levels, np.int64)
    n_nodes = 0
    for leaf, end in ((first, min(first + n, capacity)), (0, first + n - capacity)):
        while leaf < end:
            level, size = 0, 1  # of the largest node that begins here and does not go beyond the end
            while leaf % (_WIDTH * size) == 0 and leaf + _WIDTH * size <= end:
                level, size = level + 1, _WIDTH * size
            nodes[n_nodes], levels[n_nodes] = leaf // size, level
            n_nodes += 1
            leaf += size
    return nodes[:n_nodes], levels[:n_nodes]


@kernel
def spread(uniforms: np.ndarray, total: float, stratified: bool) -> np.ndarray:
    """Scale uniform numbers to prefix sums in ``[0, total)``, or each to its own slice of it."""
    prefix_sums = np.empty(uniforms.size)
    stratum = total / uniforms.size
    for i in range(uniforms.size):
        prefix_sums[i] = (i + uniforms[i]) * stratum if stratified else uniforms[i] * total
    return prefix_sums


@kernel
def draw_leaves(
    sums: np.ndarray,
    starts: np.ndarray,
    uniforms: np.ndarray,
    stratified: bool,
    scale: float,
    leaves: np.ndarray,
    masses: np.ndarray,
) -> None:
    """Find the leaves of uniform numbers and read the masses."""
    _find(sums, starts, spread(uniforms, sums[-1], stratified), leaves)
    for i in range(uniforms.size):
        masses[i] = max(sums[leaves[i]] * scale, LEAST_MASS)


def as_batch(values: Any, dtype: type) -> np.ndarray:
    """
    Return a contiguous, writable 1-D array, a copy only if ``values`` is something else.

    Numba compiles a kernel anew for every memory layout, so the kernels get only this one.
    """
    array = np.asarray(values)
    if array.dtype.type is not dtype or array.ndim != 1 or not array.flags.carray:
        array = np.array(array, dtype=dtype, order="C").reshape(-1)
    return array


def _aligned_zeros(size: int) -> np.ndarray:
    """Allocate float64 zeros at the start of a cache line. An update takes twice as long if siblings lie in two lines."""
    memory = np.zeros(size + _WIDTH)
    first = -memory.ctypes.data // memory.itemsize % _WIDTH
    return memory[first : first + size]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """
    Copy the sums of a tree.

    :param array: float64 of shape (n,)
    :return: a copy that starts at a cache line, as the sums of a tree do
    """
    copy = _aligned_zeros(len(array))
    copy[:] = array
    return copy


class SumTree:
    """
    Fixed number of non-negative masses with their prefix sums (Schaul et al. 2016, appendix B.2.1).

    All sums are float64, because float32 sums were seen to return leaves of mass 0. Any capacity keeps the leaves in the order
    of their indices. Memory: 9.1 bytes per leaf.

    :param capacity: number of leaves, at least 1
    :raises ValueError: if the capacity is below 1
    """

    #: whether prefix sums run over neighbouring slots, so that :meth:`part` draws from some of them
    in_slot_order: ClassVar[bool] = True

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"The capacity of a {type(self).__name__} must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        self.clear()

    def clear(self) -> None:
        """Empty every leaf."""
        # Sizes of the levels from the leaves to the root. All but the root are whole groups of siblings.
        sizes = [self.capacity]
        while sizes[-1] > 1:
            n_parents = -(-sizes[-1] // _WIDTH)
            sizes[-1] = n_parents * _WIDTH
            sizes.append(n_parents)
        # All levels in a row, the root last, and the position where each begins.
        self._sums = _aligned_zeros(sum(sizes))
        self._starts = np.cumsum([0, *sizes[:-1]]).astype(np.uint64)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_sums" in state:
            self._sums = aligned_copy(state["_sums"])

    def __len__(self) -> int:
        return self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all masses and sums."""
        return self._sums.nbytes

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._sums[-1])

    def __getitem__(self, indices: Any) -> Any:
        """
        Read masses.

        :param indices: a leaf, an array of leaves of any shape, or a slice
        :return: mass of each leaf, float64 in the shape of ``indices``; always a copy
        :raises IndexError: for a leaf outside ``[0, capacity)``; negative indices do not wrap
        """
        if isinstance(indices, slice):
            indices = np.arange(self.capacity)[indices]
        leaves = self._integers(indices).astype(np.int64, copy=False)
        outside = leaves.view(np.uint64) >= self.capacity  # where they are negative, too
        if outside.any():
            self._require_leaf(int(leaves[outside].flat[0]))
        found = self._masses_at(leaves)
        return found if leaves.ndim else float(found)

    def update(self, indices: Any, priorities: Any, are_new: bool = False) -> None:
        """
        Set the mass of leaves. Of repeated indices the last one counts.

        :param indices: a leaf, or an array of leaves
        :param priorities: their masses, finite and at least 0, in the shape of ``indices``; or one mass for all of them
        :param are_new: whether new transitions have taken these leaves, which matters where masses have a factor of age
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
        bad = self._write(leaves, masses, are_new)
        if bad != ALL_WRITTEN:
            self._require_leaf(leaves[bad])
            raise ValueError(f"A priority must be finite and at least 0, not {masses[bad]} (leaf {leaves[bad]})")

    def find(self, prefix_sums: Any) -> Any:
        """
        Find the leaf ``i`` with ``cumsum[i - 1] <= v < cumsum[i]``: invert the cumulative distribution.

        :param prefix_sums: a value ``v >= 0``, or an array of them, in the unit of the masses
        :return: leaf of each value, int64 in the shape of ``prefix_sums``; never an empty leaf, and the last
            non-empty leaf for ``v >= total``
        :raises ValueError: if all leaves are empty, or for a negative or NaN value
        """
        values = np.array(prefix_sums, dtype=np.float64)  # a copy: contiguous and writable, whatever comes in
        flat = values.reshape(-1)
        least = flat[flat.argmin()] if flat.size else 0.0  # NaN, if there is one
        if not least >= 0.0:
            raise ValueError(f"A prefix sum must be at least 0, not {least}")
        self._require_mass()
        leaves = self._find(flat).reshape(values.shape)
        return leaves if values.ndim else int(leaves)

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw one leaf for each uniform number, with probability proportional to its mass.

        :param uniforms: numbers in [0, 1), float64 of shape (batch_size,); the tree has no generator of its own
        :param stratified: cut ``[0, total)`` into ``batch_size`` equal parts and draw once in each
            (Schaul et al. 2016, appendix B.2.1), instead of ``batch_size`` independent draws
        :param scale: factor of the masses that are returned
        :return: leaves, int64, and their masses times ``scale``, above 0, float64, both of shape (batch_size,)
        :raises ValueError: if all leaves are empty
        """
        if not self._sums[-1] > 0.0:  # first here, which saves every draw two calls
            self._require_mass()
        leaves, masses = np.empty(len(uniforms), np.int64), np.empty(len(uniforms))
        draw_leaves(self._sums, self._starts, uniforms, stratified, scale, leaves, masses)
        return leaves, masses

    def part(self, first: int, n: int) -> tuple[float, Callable[[np.ndarray], np.ndarray]]:
        """
        Draw from neighbouring leaves alone; leaf 0 follows the last one. Other leaves have no influence, not even by rounding.

        :param first: first leaf
        :param n: number of leaves, from 1 to ``capacity``
        :return: sum of their masses; and a function that does what :meth:`find` does, with prefix sums over these leaves,
            float64 of shape (batch_size,). It raises ``ValueError`` if all leaves are empty
        :raises IndexError: for a leaf outside ``[0, capacity)``
        :raises ValueError: for another number of leaves
        """
        self._require_leaf(first)
        if not 1 <= n <= self.capacity:
            raise ValueError(f"A part has 1 to {self.capacity} leaves, not {n}")
        nodes, levels = _cover(len(self._starts), first, n, self.capacity)
        ends = np.cumsum(self._sums[self._starts[levels] + nodes])

        def find(prefix_sums: np.ndarray) -> np.ndarray:
            if not ends[-1] > 0.0:
                raise ValueError(f"Cannot draw from {n} leaves of a {type(self).__name__}: all of them are empty")
            last = ends.searchsorted(ends[-1])  # the last node with mass
            i = np.minimum(ends.searchsorted(prefix_sums, side="right"), last)
            found: np.ndarray = nodes[i]
            _descend(self._sums, self._starts, found, levels[i], prefix_sums - np.append(0.0, ends)[i])
            return found.view(np.int64)

        return float(ends[-1]), find

    def count(self, n: int) -> float:
        """
        Return the number that :attr:`total` is divided by for the mean mass.

        :param n: number of slots that can be drawn
        :return: n; where masses have a factor of age, the sum of these factors
        """
        return n

    def without_age(self, slots: np.ndarray) -> np.ndarray:
        """
        Read the masses that importance-sampling weights correct for.

        :param slots: int64 of any shape
        :return: masses without a factor of age, float64 in the same shape
        """
        return self._masses_at(slots)

    def written(self) -> np.ndarray:
        """
        Return the masses that were written.

        :return: what :meth:`update` takes to give each leaf its mass, float64 of shape (capacity,); read only
        """
        return self._sums[: self.capacity]

    def state(self, n_leaves: int) -> dict[str, np.ndarray]:
        """
        Return the masses.

        :param n_leaves: number of leaves, from 0 on, that may have a mass
        :return: arrays, see :meth:`load`
        """
        return {"masses": self.written()[:n_leaves]}

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

    def _require_leaf(self, leaf: int) -> None:
        if not 0 <= leaf < self.capacity:
            raise IndexError(f"Leaf {leaf} is outside a {type(self).__name__} of {self.capacity} leaves")

    def _require_mass(self) -> None:
        if not self.total > 0.0:
            raise ValueError(f"Cannot draw from a {type(self).__name__}: all of its {self.capacity} leaves are empty")

    # ---- other kinds of trees override these; the arguments are checked

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        """Read the masses of leaves, an array of any shape; a copy."""
        return self._sums[leaves]

    def _write(self, leaves: np.ndarray, masses: np.ndarray, are_new: bool) -> int:
        """Set masses and return ``ALL_WRITTEN``, or change nothing and return the position of the first bad entry."""
        return write_masses(self._sums, self._starts, self.capacity, leaves, masses)

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Find the leaves of prefix sums, shape (batch_size,)."""
        leaves = np.empty(len(prefix_sums), np.int64)
        _find(self._sums, self._starts, prefix_sums, leaves)
        return leaves

    @staticmethod
    def _integers(indices: Any) -> np.ndarray:
        array = np.asarray(indices)
        if array.dtype.kind in "iu":
            return array
        if array.size:
            raise IndexError(f"Leaves are integers, not {array.dtype}: {array.flat[0]}")
        return array.astype(np.int64)  # an empty list
