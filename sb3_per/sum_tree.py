"""
Sum tree: who gets drawn.

A complete binary tree whose leaves hold the masses and whose inner nodes hold the sum of their two children
(Schaul et al. 2016, appendix B.2.1). It knows numbers and their positions, nothing of transitions, rewards or priorities.

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
    return cast(_Kernel, njit(cache=True, nogil=True)(function))


# What `_write` answers when the batch was fine; anything else is the position of the first bad entry.
ALL_WRITTEN = -1


@kernel
def _write(nodes: np.ndarray, capacity: int, leaves: np.ndarray, masses: np.ndarray) -> int:
    """Set the leaves and recompute their ancestors, or change nothing and return the position of the first bad entry."""
    for i in range(leaves.size):
        if not (0 <= leaves[i] < capacity and 0.0 <= masses[i] < np.inf):  # a NaN fails the comparison as well
            return i

    first_leaf = nodes.size // 2
    parents = np.empty(leaves.size, np.int64)
    for i in range(leaves.size):
        nodes[first_leaf + leaves[i]] = masses[i]
        parents[i] = first_leaf + leaves[i]

    n_parents = leaves.size
    level = first_leaf
    while level > 1:
        level //= 2
        n_distinct = 0
        previous = 0
        for i in range(n_parents):
            parent = parents[i] // 2
            # Neighbours share ancestors: dropping runs of the same parent leaves one node at the root instead of a batch.
            if parent != previous:
                # Recomputed from the children, never `+= delta`: rounding cannot accumulate until an empty leaf has mass.
                nodes[parent] = nodes[2 * parent] + nodes[2 * parent + 1]
                parents[n_distinct] = parent
                n_distinct += 1
                previous = parent
        n_parents = n_distinct
    return ALL_WRITTEN


@kernel
def _descend(nodes: np.ndarray, prefix_sums: np.ndarray) -> np.ndarray:
    """Leaf of every prefix sum. ``prefix_sums`` is used up as the scratch space of what is left to walk past."""
    total = nodes[1]
    first_leaf = nodes.size // 2
    found = np.ones(prefix_sums.size, np.int64)
    for i in range(prefix_sums.size):
        if prefix_sums[i] >= total:
            # Rounding on the way down could still turn left of the last leaf; infinity cannot.
            prefix_sums[i] = np.inf

    level = 1
    while level < first_leaf:
        level *= 2
        for i in range(found.size):
            left = 2 * found[i]
            # An empty right subtree is never entered, however rounding has left the remainder.
            turn_right = (prefix_sums[i] >= nodes[left]) & (nodes[left + 1] > 0.0)
            found[i] = left + turn_right
            prefix_sums[i] -= nodes[left] * turn_right

    for i in range(found.size):
        found[i] -= first_leaf
    return found


@kernel
def spread(uniforms: np.ndarray, total: float, stratified: bool) -> np.ndarray:
    """Turn uniform numbers into prefix sums: over ``[0, total)``, or each over its own slice of it."""
    prefix_sums = np.empty(uniforms.size)
    stratum = total / uniforms.size
    for i in range(uniforms.size):
        prefix_sums[i] = (i + uniforms[i]) * stratum if stratified else uniforms[i] * total
    return prefix_sums


@kernel
def _draw(nodes: np.ndarray, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
    """Find the leaves of uniform numbers and read the masses."""
    leaves = _descend(nodes, spread(uniforms, nodes[1], stratified))
    masses = np.empty(uniforms.size)
    for i in range(uniforms.size):
        masses[i] = nodes[nodes.size // 2 + leaves[i]]
    return leaves, masses


def as_batch(values: Any, dtype: type) -> np.ndarray:
    """
    Contiguous, writable 1-D array, copied only where it is something else.

    The kernels are compiled anew for every memory layout they meet, so they are shown a single one.
    """
    array = np.asarray(values)
    if array.dtype != dtype or array.ndim != 1 or not array.flags.carray:
        array = np.array(array, dtype=dtype, order="C").reshape(-1)
    return array


class SumTree:
    """
    Fixed number of non-negative masses with their prefix sums (Schaul et al. 2016, appendix B.2.1).

    Float64 throughout: float32 sums were seen to return leaves of mass 0. The leaf level is padded to a power of two,
    so leaves stay in the order of their indices for any capacity. Memory: 16 bytes times the padded capacity.

    :param capacity: number of leaves, at least 1
    :raises ValueError: if the capacity is below 1
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"The capacity of a SumTree must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        n_padded = 1 << (self.capacity - 1).bit_length()
        # Node 1 is the root, the children of node k are 2k and 2k + 1, the leaves are the second half; node 0 is unused.
        self._nodes = np.zeros(2 * n_padded, dtype=np.float64)

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
        values = np.array(prefix_sums, dtype=np.float64)
        if not (values >= 0.0).all():
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

    def clear(self) -> None:
        """Empty every leaf."""
        self._nodes.fill(0.0)

    def _require_mass(self) -> None:
        if not self.total > 0.0:
            raise ValueError(f"Cannot draw from a {type(self).__name__}: all of its {self.capacity} leaves are empty")

    # ---- what a tree of another kind replaces; the arguments are known to be good

    def _masses(self) -> np.ndarray:
        """Mass of every leaf, shape (capacity,)."""
        return self._nodes[len(self._nodes) // 2 :][: self.capacity]

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        """Set masses; ``ALL_WRITTEN``, or the position of the first bad entry, and then nothing is changed."""
        return _write(self._nodes, self.capacity, leaves, masses)

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Leaves of prefix sums, shape (batch_size,), which may be overwritten."""
        return _descend(self._nodes, prefix_sums)

    def _draw(self, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
        """Leaves and masses of uniform numbers, shape (batch_size,)."""
        return _draw(self._nodes, uniforms, stratified)

    @staticmethod
    def _integers(indices: Any) -> np.ndarray:
        array = np.asarray(indices)
        if array.dtype.kind in "iu":
            return array
        if array.size:
            raise IndexError(f"Leaves are integers, not {array.dtype}: {array.flat[0]}")
        return array.astype(np.int64)  # an empty list
