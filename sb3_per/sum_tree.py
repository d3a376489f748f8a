"""
Sum tree: who gets drawn.

A complete binary tree over blocks of leaves: the leaves hold the masses, the nodes of the lowest level the sum of their block,
and all others the sum of their two children (Schaul et al. 2016, appendix B.2.1). It knows numbers and their positions,
nothing of transitions, rewards or priorities.

The compiled kernels move the whole batch down (or up) one level at a time: the loads of one level do not depend on each
other, so the memory latency of a level is paid once for the batch and not once for every sample.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def kernel(function: _Kernel) -> _Kernel:
    """Compile at the first call, keep the machine code on disk, release the GIL."""
    try:
        return cast(_Kernel, njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No folder for the machine code can be written to: compile in every process.
        return cast(_Kernel, njit(nogil=True)(function))


# What `_write` answers when the batch was fine; anything else is the position of the first bad entry.
ALL_WRITTEN = -1


# Leaves under one node of the lowest level: as many as a cache line holds. The levels that they replace would take almost
# half of the memory.
_BLOCK_SIZE = np.uint64(8)

# Indices are unsigned in the inner loops: with signed ones, every access first asks whether it counts from the end.
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@kernel
def _sum_up(nodes: np.ndarray, masses: np.ndarray, parents: np.ndarray) -> None:
    """Recompute these blocks, given as nodes of the lowest level, and all of their ancestors. ``parents`` is used up."""
    first_block = np.uint64(nodes.size // 2)
    n_parents = 0
    previous = _ZERO
    for i in range(parents.size):
        # Neighbours share ancestors: dropping runs of the same parent leaves one node at the root instead of a batch.
        if parents[i] != previous:
            previous = parents[i]
            begin = (previous - first_block) * _BLOCK_SIZE
            total = 0.0
            for leaf in range(begin, begin + _BLOCK_SIZE):
                total += masses[leaf]
            nodes[previous] = total
            parents[n_parents] = previous
            n_parents += 1

    level = first_block
    while level > _ONE:
        level >>= _ONE
        n_distinct = 0
        previous = _ZERO
        for i in range(n_parents):
            parent = parents[i] >> _ONE
            if parent != previous:
                # Recomputed from the children, never `+= delta`: rounding cannot accumulate until an empty leaf has mass.
                left = parent << _ONE
                nodes[parent] = nodes[left] + nodes[left | _ONE]
                parents[n_distinct] = parent
                n_distinct += 1
                previous = parent
        n_parents = n_distinct


@kernel
def _write(nodes: np.ndarray, masses: np.ndarray, capacity: int, leaves: np.ndarray, new: np.ndarray) -> int:
    """Set the leaves, or change nothing and return the position of the first bad entry."""
    for i in range(leaves.size):
        if not (0 <= leaves[i] < capacity and 0.0 <= new[i] < np.inf):  # a NaN fails the comparison as well
            return i
    first_block = np.uint64(nodes.size // 2)
    parents = np.empty(leaves.size, np.uint64)
    for i in range(leaves.size):
        leaf = np.uint64(leaves[i])
        masses[leaf] = new[i]
        parents[i] = first_block + leaf // _BLOCK_SIZE
    _sum_up(nodes, masses, parents)
    return ALL_WRITTEN


@kernel
def _fill(nodes: np.ndarray, masses: np.ndarray, first: int, last: int, mass: float) -> None:
    """Give all leaves from the first to the last one the same mass."""
    masses[first : last + 1] = mass
    first_block = np.uint64(nodes.size // 2)
    low, high = np.uint64(first) // _BLOCK_SIZE, np.uint64(last) // _BLOCK_SIZE
    parents = np.empty(high - low + _ONE, np.uint64)
    for i in range(parents.size):
        parents[i] = first_block + low + np.uint64(i)
    _sum_up(nodes, masses, parents)


@kernel
def _find_in_block(masses: np.ndarray, begin: np.uint64, remainder: float) -> np.uint64:
    """Leaf of a block that the remainder falls on; the last one with mass if it lies behind. Without a branch to guess."""
    found = begin
    total = 0.0
    for leaf in range(begin, begin + _BLOCK_SIZE):
        total += masses[leaf]
        found += np.uint64(total <= remainder)
    if found == begin + _BLOCK_SIZE:
        found -= _ONE
        while masses[found] == 0.0:
            found -= _ONE
    return found


@kernel
def _find_carefully(nodes: np.ndarray, masses: np.ndarray, prefix_sum: float) -> np.uint64:
    """Leaf of a prefix sum; an empty subtree is never entered, however rounding has left the remainder."""
    first_block = np.uint64(nodes.size // 2)
    node = _ONE
    while node < first_block:
        node <<= _ONE
        if prefix_sum >= nodes[node] and nodes[node | _ONE] > 0.0:
            prefix_sum -= nodes[node]
            node |= _ONE
    return _find_in_block(masses, (node - first_block) * _BLOCK_SIZE, prefix_sum)


@kernel
def _find(nodes: np.ndarray, masses: np.ndarray, prefix_sums: np.ndarray) -> np.ndarray:
    """Leaf of every prefix sum."""
    total = nodes[1]
    first_block = np.uint64(nodes.size // 2)
    found = np.ones(prefix_sums.size, np.uint64)
    remainders = prefix_sums.copy()
    level = _ONE
    while level < first_block:
        level <<= _ONE
        for i in range(found.size):
            left = found[i] << _ONE
            turn_right = remainders[i] >= nodes[left]
            found[i] = left | np.uint64(turn_right)
            remainders[i] -= nodes[left] * turn_right

    leaves = np.empty(found.size, np.int64)
    for i in range(found.size):
        if nodes[found[i]] > 0.0 and prefix_sums[i] < total:
            leaves[i] = _find_in_block(masses, (found[i] - first_block) * _BLOCK_SIZE, remainders[i])
        else:
            # The fast way has no eye for empty subtrees: rounding, or a value at the end, can lead it into one.
            leaves[i] = _find_carefully(nodes, masses, prefix_sums[i] if prefix_sums[i] < total else np.inf)
    return leaves


@kernel
def spread(uniforms: np.ndarray, total: float, stratified: bool) -> np.ndarray:
    """Turn uniform numbers into prefix sums: over ``[0, total)``, or each over its own slice of it."""
    prefix_sums = np.empty(uniforms.size)
    stratum = total / uniforms.size
    for i in range(uniforms.size):
        prefix_sums[i] = (i + uniforms[i]) * stratum if stratified else uniforms[i] * total
    return prefix_sums


@kernel
def _draw(nodes: np.ndarray, masses: np.ndarray, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
    """Find the leaves of uniform numbers and read the masses."""
    leaves = _find(nodes, masses, spread(uniforms, nodes[1], stratified))
    drawn = np.empty(uniforms.size)
    for i in range(uniforms.size):
        drawn[i] = masses[leaves[i]]
    return leaves, drawn


def as_batch(values: Any, dtype: type) -> np.ndarray:
    """
    Contiguous, writable 1-D array, copied only where it is something else.

    The kernels are compiled anew for every memory layout they meet, so they are shown a single one.
    """
    array = np.asarray(values)
    if array.dtype.type is not dtype or array.ndim != 1 or not array.flags.carray:
        array = np.array(array, dtype=dtype, order="C").reshape(-1)
    return array


class SumTree:
    """
    Fixed number of non-negative masses with their prefix sums (Schaul et al. 2016, appendix B.2.1).

    Float64 throughout: float32 sums were seen to return leaves of mass 0. The lowest level is padded to a power of two,
    so leaves stay in the order of their indices for any capacity. Memory: 10 to 12 bytes per leaf.

    :param capacity: number of leaves, at least 1
    :raises ValueError: if the capacity is below 1
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"The capacity of a SumTree must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        n_blocks = -(-self.capacity // int(_BLOCK_SIZE))
        self._leaves = np.zeros(n_blocks * int(_BLOCK_SIZE))
        # Node 1 is the root, the children of node k are 2k and 2k + 1, the second half belongs to the blocks, padded to a
        # power of two; node 0 is unused.
        self._nodes = np.zeros(2 << (n_blocks - 1).bit_length())

    def __len__(self) -> int:
        return self.capacity

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._nodes[1])

    def __getitem__(self, indices: Any) -> Any:
        """
        :param indices: a leaf, an array of leaves of any shape, or a slice
        :return: the mass of each, float64 in the shape of ``indices``; a copy, never a view
        :raises IndexError: for a leaf outside ``[0, capacity)``; negative indices do not wrap
        """
        masses = self._masses()
        if isinstance(indices, slice):
            return masses[indices].copy()
        indices = self._integers(indices)
        outside = (indices < 0) | (indices >= self.capacity)
        if outside.any():
            raise IndexError(f"Leaf {indices[outside].flat[0]} is outside a {type(self).__name__} of {self.capacity} leaves")
        found = masses[indices]
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
            if not 0 <= leaves[bad] < self.capacity:
                raise IndexError(f"Leaf {leaves[bad]} is outside a {type(self).__name__} of {self.capacity} leaves")
            raise ValueError(f"A priority must be finite and at least 0, not {masses[bad]} (leaf {leaves[bad]})")

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

    def fill(self, first: int, last: int, mass: float) -> None:
        """
        Set the mass of neighbouring leaves, as ``tree[first : last + 1] = mass`` would.

        :param first: first leaf, which must exist, as all up to the last
        :param last: last leaf
        :param mass: mass of all of them, finite and at least 0
        """
        _fill(self._nodes, self._leaves, first, last, mass)

    def clear(self) -> None:
        """Empty every leaf."""
        self._nodes.fill(0.0)
        self._leaves.fill(0.0)

    def _require_mass(self) -> None:
        if not self.total > 0.0:
            raise ValueError(f"Cannot draw from a {type(self).__name__}: all of its {self.capacity} leaves are empty")

    # ---- what a tree of another kind replaces; the arguments are known to be good

    def _masses(self) -> np.ndarray:
        """Mass of every leaf, shape (capacity,)."""
        return self._leaves[: self.capacity]

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        """Set masses; ``ALL_WRITTEN``, or the position of the first bad entry, and then nothing is changed."""
        return _write(self._nodes, self._leaves, self.capacity, leaves, masses)

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Leaves of prefix sums, shape (batch_size,)."""
        return _find(self._nodes, self._leaves, prefix_sums)

    def _draw(self, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
        """Leaves and masses of uniform numbers, shape (batch_size,)."""
        return _draw(self._nodes, self._leaves, uniforms, stratified)

    @staticmethod
    def _integers(indices: Any) -> np.ndarray:
        array = np.asarray(indices)
        if array.dtype.kind in "iu":
            return array
        if array.size:
            raise IndexError(f"Leaves are integers, not {array.dtype}: {array.flat[0]}")
        return array.astype(np.int64)  # an empty list
