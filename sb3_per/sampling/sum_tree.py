"""
Sum tree: draw slots in proportion to their mass (Schaul et al. 2016, appendix B.2.1).

The lowest level holds the masses of the slots, and every other node holds the sum of its children. A node has eight children,
which lie side by side in one cache line. A search halves them three times, as if all levels of the paper's binary tree were
stored. This takes half of the memory and fewer cache misses.

The kernels move the whole batch down or up one level at a time. The loads of one level do not depend on each other, and the
next level is prefetched, so most of the memory latency is hidden.
"""

from typing import Any

import numpy as np

from sb3_per.sampling.mass_tree import ALL_WRITTEN, LEAST_MASS, MassTree
from sb3_per.utils.compiled import kernel, prefetch

# Children of a node: as many as fit into a cache line.
_WIDTH = 8

# Inner loops use unsigned indices. An access with a signed one first checks whether it counts from the end.
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))


@kernel
def _sum_of_four(sums: np.ndarray, first: np.uint64) -> float:
    """Add four neighbours in pairs. Reads and writes add in the same order, so both round in the same way."""
    return float((sums[first] + sums[first + _ONE]) + (sums[first + _TWO] + sums[first + _THREE]))


@kernel
def write_masses(sums: np.ndarray, starts: np.ndarray, capacity: int, slots: np.ndarray, masses: np.ndarray) -> int:
    """Set masses, or change nothing and return the position of the first bad entry."""
    for i in range(slots.size):
        if not (0 <= slots[i] < capacity and 0.0 <= masses[i] < np.inf):  # a NaN fails the comparison as well
            return i
    nodes = np.empty(slots.size, np.uint64)
    for i in range(slots.size):
        nodes[i] = np.uint64(slots[i])
        sums[nodes[i]] = masses[i]
    n_nodes = slots.size
    for level in range(1, starts.size):
        below, start = starts[level - 1], starts[level]
        n_parents = 0
        for i in range(n_nodes):
            parent = nodes[i] >> _THREE
            # Neighbours share ancestors. Without runs of the same parent, one node is left at the root instead of a batch.
            if n_parents == 0 or parent != nodes[n_parents - 1]:
                # Recompute the sum from the children. With `+= delta`, rounding would add up until an empty slot has mass.
                first = below + (parent << _THREE)
                sums[start + parent] = _sum_of_four(sums, first) + _sum_of_four(sums, first + _FOUR)
                nodes[n_parents] = parent
                n_parents += 1
        n_nodes = n_parents
    return ALL_WRITTEN


@kernel
def _go_down(sums: np.ndarray, start: np.uint64, below: np.uint64, nodes: np.ndarray, remainders: np.ndarray, i: int) -> None:
    """
    Go from a node to the child that a prefix sum belongs to.

    :param start: where the level of the children begins
    :param below: where the level of their children begins
    :param nodes: positions in their levels; the i-th becomes the child
    :param remainders: prefix sums among the slots of each node; the i-th becomes what is left of it in the child
    """
    first = start + (nodes[i] << _THREE)
    node, rest = first, remainders[i]
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
        rest = np.inf  # on the levels below, too, the last child
        while sums[node] == 0.0 and node > first:
            node -= _ONE
    nodes[i], remainders[i] = node - start, rest
    prefetch(sums, below + (nodes[i] << _THREE))


@kernel
def descend(
    sums: np.ndarray, starts: np.ndarray, nodes: np.ndarray, levels: np.ndarray | None, remainders: np.ndarray
) -> None:
    """
    Go down to the slot of every prefix sum, among the slots of its node.

    :param nodes: positions in their levels; each becomes the slot
    :param levels: levels of the nodes; ``None``: all are the root, which saves a comparison at each step
    :param remainders: prefix sums, changed
    """
    for level in range(starts.size - 2, -1, -1):
        start, below = starts[level], starts[max(level - 1, 0)]
        for i in range(nodes.size):
            if levels is None or levels[i] > level:
                _go_down(sums, start, below, nodes, remainders, i)


@kernel
def _find_prefix_sums(sums: np.ndarray, starts: np.ndarray, remainders: np.ndarray, slots: np.ndarray) -> None:
    """Find the slot of every prefix sum; the prefix sums are changed."""
    slots[:] = 0
    for i in range(remainders.size):
        if not remainders[i] < sums[-1]:
            remainders[i] = np.inf
    descend(sums, starts, slots.view(np.uint64), None, remainders)


@kernel
def cover(n_levels: int, first: int, n: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Find the fewest nodes whose slots are the n neighbours from ``first`` on. Slot 0 follows the last one.

    :return: positions of the nodes in their levels, in the order of their slots, and the level of each
    """
    # Two pieces with two borders each, and up to seven nodes per level and border.
    nodes, levels = np.empty(28 * n_levels, np.uint64), np.empty(28 * n_levels, np.int64)
    n_nodes = 0
    for slot, end in ((first, min(first + n, capacity)), (0, first + n - capacity)):
        while slot < end:
            level, size = 0, 1  # of the largest node that begins here and does not go beyond the end
            while slot % (_WIDTH * size) == 0 and slot + _WIDTH * size <= end:
                level, size = level + 1, _WIDTH * size
            nodes[n_nodes], levels[n_nodes] = slot // size, level
            n_nodes += 1
            slot += size
    return nodes[:n_nodes], levels[:n_nodes]


@kernel
def prefix_sums_of(uniforms: np.ndarray, total: float, stratified: bool) -> np.ndarray:
    """Scale uniform numbers to prefix sums in ``[0, total)``, or each to its own slice of it."""
    prefix_sums = np.empty(uniforms.size)
    stratum = total / uniforms.size
    for i in range(uniforms.size):
        prefix_sums[i] = (i + uniforms[i]) * stratum if stratified else uniforms[i] * total
    return prefix_sums


@kernel
def draw_from_sums(
    sums: np.ndarray,
    starts: np.ndarray,
    uniforms: np.ndarray,
    stratified: bool,
    n_over_total: float,
    slots: np.ndarray,
    relative_probabilities: np.ndarray,
) -> None:
    """
    Find the slots of uniform numbers, and compute their N P, the probability P of each times the number N of candidates: the
    mass times N over the total.
    """
    _find_prefix_sums(sums, starts, prefix_sums_of(uniforms, sums[-1], stratified), slots)
    for i in range(uniforms.size):
        relative_probabilities[i] = max(sums[slots[i]] * n_over_total, LEAST_MASS)


def _aligned_zeros(size: int) -> np.ndarray:
    """Allocate float64 zeros at the start of a cache line. An update takes twice as long if siblings lie in two lines."""
    memory = np.zeros(size + _WIDTH)
    first = -memory.ctypes.data // memory.itemsize % _WIDTH
    return memory[first : first + size]


class SumTree(MassTree):
    """
    Fixed number of non-negative masses with their prefix sums (Schaul et al. 2016, appendix B.2.1).

    All sums are float64, because float32 sums were seen to return slots of mass 0. Any capacity keeps the slots in the order
    of their indices. Memory: 9.1 bytes per slot.

    :param capacity: number of slots, at least 1
    :raises ValueError: if the capacity is below 1
    """

    def __init__(self, capacity: int):
        super().__init__(capacity)
        self.clear()

    def clear(self) -> None:
        """Empty every slot."""
        # Sizes of the levels from the slots to the root. All but the root are whole groups of siblings.
        sizes = [self.capacity]
        while sizes[-1] > 1:
            n_parents = -(-sizes[-1] // _WIDTH)
            sizes[-1] = n_parents * _WIDTH
            sizes.append(n_parents)
        #: all levels in a row, from the slots to the root
        self.sums = _aligned_zeros(sum(sizes))
        #: position where each level begins
        self.starts = np.cumsum([0, *sizes[:-1]]).astype(np.uint64)

    def copy(self) -> "SumTree":
        """Return a copy."""
        twin = SumTree(self.capacity)
        twin.sums[:] = self.sums
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.sums = _aligned_zeros(len(state["sums"]))
        self.sums[:] = state["sums"]

    @property
    def nbytes(self) -> int:
        """Bytes of all masses and sums."""
        return self.sums.nbytes

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self.sums[-1])

    def write(self, slots: np.ndarray, values: np.ndarray) -> None:
        """See :meth:`MassTree.write`."""
        bad = write_masses(self.sums, self.starts, self.capacity, slots, values)
        if bad != ALL_WRITTEN:
            self._refuse_value(slots[bad], values[bad])

    insert = write  # the same as in the base class, without a call in between

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "write" in vars(cls) and "insert" not in vars(cls):  # a user's tree: not past its own `write`
            cls.insert = cls.write

    def masses_at(self, slots: np.ndarray) -> np.ndarray:
        """See :meth:`MassTree.masses_at`."""
        return self.sums[slots]

    def values(self) -> np.ndarray:
        """Return the masses, see :meth:`MassTree.values`."""
        return self.sums[: self.capacity]

    def find(self, prefix_sums: Any) -> Any:
        """
        Find the slot ``i`` with ``cumsum[i - 1] <= v < cumsum[i]``: invert the cumulative distribution.

        :param prefix_sums: a value ``v >= 0``, or an array of them, in the unit of the masses
        :return: slot of each value, int64 in the shape of ``prefix_sums``; never an empty slot, and the last
            non-empty slot for ``v >= total``
        :raises ValueError: if all slots are empty, or for a negative or NaN value
        """
        values = np.array(prefix_sums, dtype=np.float64)  # a copy: contiguous and writable, whatever comes in
        flat = values.reshape(-1)
        least = flat[flat.argmin()] if flat.size else 0.0  # NaN, if there is one
        if not least >= 0.0:
            raise ValueError(f"A prefix sum must be at least 0, not {least}")
        self._require_mass()
        slots = np.empty(flat.size, np.int64)
        _find_prefix_sums(self.sums, self.starts, flat, slots)
        return slots.reshape(values.shape) if values.ndim else int(slots[0])

    def draw(self, uniforms: np.ndarray, stratified: bool, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`MassTree.draw`."""
        total = self.sums.item(-1)  # a float of Python: a kernel takes half a microsecond longer for one of NumPy
        if not total > 0.0:
            self._require_mass()
        slots = np.empty(len(uniforms), np.int64)
        relative_probabilities = np.empty(len(uniforms))
        draw_from_sums(self.sums, self.starts, uniforms, stratified, n_candidates / total, slots, relative_probabilities)
        return slots, relative_probabilities

    def relative_probabilities(self, slots: np.ndarray, n_candidates: int) -> np.ndarray:
        """See :meth:`MassTree.relative_probabilities`."""
        return np.asarray(np.maximum(self.sums[slots] * (n_candidates / self.total), LEAST_MASS))
