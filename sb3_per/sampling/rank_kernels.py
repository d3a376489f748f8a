"""
Kernels of the rank tree, a B-tree of two levels: blocks of sorted slots, and a directory of the blocks.

A change moves entries of one or two blocks. A full block is divided, which moves the entries of the directory. If no block is
left for the second half, all entries are laid out anew, which takes N / 4 changes or more.
"""

from typing import NamedTuple

import numpy as np

from sb3_per.sampling.mass_tree import ALL_WRITTEN
from sb3_per.utils.compiled import kernel, prefetch

# Slots of a block. Small blocks make a long directory, large blocks take longer to search and to move.
_BLOCK_SIZE = 256

# Block of a slot that is not in the order.
_NONE = -1

# Positions in the array of counters: blocks in use, and slots in the order.
_N_BLOCKS, _N_RANKED = 0, 1


class Order(NamedTuple):
    """Slots sorted by priority, the largest first."""

    #: of shape (n_blocks, _BLOCK_SIZE), descending
    priorities: np.ndarray
    #: in the same shape
    slots: np.ndarray
    #: blocks by priority, those in use first
    directory: np.ndarray
    #: by position in the directory: no priority of this block is larger, none of an earlier block is smaller
    bounds: np.ndarray
    #: by position in the directory: number of slots in the block
    sizes: np.ndarray
    #: by block: position in the directory
    positions: np.ndarray
    #: by slot: block
    block_of: np.ndarray
    counters: np.ndarray


def empty_order(capacity: int) -> Order:
    """
    Make the arrays of an empty order.

    :param capacity: number of slots
    :return: empty order
    """
    # About twice as many as :func:`_lay_out` fills.
    n_blocks = 5 * capacity // (2 * _BLOCK_SIZE) + 2
    return Order(
        priorities=np.zeros((n_blocks, _BLOCK_SIZE)),
        slots=np.zeros((n_blocks, _BLOCK_SIZE), dtype=np.int32),
        directory=np.arange(n_blocks, dtype=np.int32),
        bounds=np.full(n_blocks, np.inf),  # the first block takes all priorities
        sizes=np.zeros(n_blocks, dtype=np.int32),
        positions=np.arange(n_blocks, dtype=np.int32),
        block_of=np.full(capacity, _NONE, dtype=np.int32),
        counters=np.array([1, 0]),
    )


def n_ranked(order: Order) -> int:
    """Count the slots in the order."""
    return int(order.counters[_N_RANKED])


@kernel
def _search(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """
    Find the last of descending keys that is above each value; the first one is above all.

    The binary searches of the whole batch move one level at a time, so that cache misses overlap.
    """
    found = np.zeros(values.size, np.int64)
    step = 1
    while 2 * step < keys.size:
        step *= 2
    while step > 0:
        for i in range(values.size):
            there = found[i] + step
            if there < keys.size:
                found[i] = there if keys[there] > values[i] else found[i]
        step //= 2
    return found


@kernel
def _fill(order: Order, position: int, priorities: np.ndarray, slots: np.ndarray) -> None:
    """Put sorted entries into a block."""
    block = order.directory[position]
    order.priorities[block, : slots.size] = priorities
    order.slots[block, : slots.size] = slots
    order.sizes[position] = slots.size
    order.positions[block] = position
    for slot in slots:
        order.block_of[slot] = block


@kernel
def entries(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """Collect the slots, those of the largest priorities first, and their priorities."""
    slots, priorities = np.empty(order.counters[_N_RANKED], np.int64), np.empty(order.counters[_N_RANKED])
    n = 0
    for position in range(order.counters[_N_BLOCKS]):
        block, size = order.directory[position], order.sizes[position]
        slots[n : n + size] = order.slots[block, :size]
        priorities[n : n + size] = order.priorities[block, :size]
        n += size
    return slots, priorities


@kernel
def _lay_out(order: Order) -> None:
    """Distribute all entries over blocks, with room for more in each."""
    slots, priorities = entries(order)
    n, n_blocks = 3 * _BLOCK_SIZE // 4, 0
    for first in range(0, slots.size, n):
        order.bounds[n_blocks] = priorities[first] if first > 0 else np.inf
        _fill(order, n_blocks, priorities[first : first + n], slots[first : first + n])
        n_blocks += 1
    order.counters[_N_BLOCKS] = n_blocks


@kernel
def _divide(order: Order, position: int) -> None:
    """Move the second half of a block into a new one after it."""
    end = order.counters[_N_BLOCKS]
    after = position + 1
    half = _BLOCK_SIZE // 2
    if end == order.directory.size:
        _lay_out(order)
        return
    new = order.directory[end]
    for i in range(end, after, -1):
        order.directory[i] = order.directory[i - 1]
        order.bounds[i] = order.bounds[i - 1]
        order.sizes[i] = order.sizes[i - 1]
        order.positions[order.directory[i]] = i
    order.counters[_N_BLOCKS] += 1
    block = order.directory[position]
    order.directory[after] = new
    order.bounds[after] = order.priorities[block, half]
    order.sizes[position] = half
    _fill(order, after, order.priorities[block, half:], order.slots[block, half:])


@kernel
def _position_of(order: Order, block: int, priority: float) -> int:
    """Find the block where a priority belongs, from one that is the right one unless blocks were divided."""
    position: int = min(order.positions[block], order.counters[_N_BLOCKS] - 1)
    while position > 0 and order.bounds[position] <= priority:
        position -= 1
    while position + 1 < order.counters[_N_BLOCKS] and order.bounds[position + 1] > priority:
        position += 1
    return position


@kernel
def _insert(order: Order, slot: int, priority: float, block: int) -> None:
    """Insert a slot after all larger priorities and before all equal ones."""
    position = _position_of(order, block, priority)
    if order.sizes[position] == _BLOCK_SIZE:
        _divide(order, position)
        position = _position_of(order, order.directory[position], priority)
    block, size = order.directory[position], order.sizes[position]
    priorities, slots = order.priorities[block], order.slots[block]
    place = size
    while place > 0 and priorities[place - 1] <= priority:
        priorities[place], slots[place] = priorities[place - 1], slots[place - 1]
        place -= 1
    priorities[place], slots[place] = priority, slot
    order.block_of[slot] = block
    order.sizes[position] += 1
    order.counters[_N_RANKED] += 1


@kernel
def _place_of(order: Order, slot: int) -> int:
    """Find the place of a slot in its block."""
    slots, place = order.slots[order.block_of[slot]], 0
    while slots[place] != slot:
        place += 1
    return place


@kernel
def _remove(order: Order, slot: int) -> None:
    """Take a slot out of the order."""
    block, place = order.block_of[slot], _place_of(order, slot)
    position = order.positions[block]
    priorities, slots = order.priorities[block], order.slots[block]
    order.sizes[position] -= 1
    for i in range(place, order.sizes[position]):
        priorities[i], slots[i] = priorities[i + 1], slots[i + 1]
    order.block_of[slot] = _NONE
    order.counters[_N_RANKED] -= 1


@kernel
def _prefetch(order: Order, changed: np.ndarray, blocks: np.ndarray) -> None:
    """Start to load what :func:`_remove` and :func:`_insert` read, which take one slot after the other."""
    slots, priorities = order.slots.reshape(-1), order.priorities.reshape(-1)
    for i in range(changed.size):
        first = max(order.block_of[changed[i]], 0) * _BLOCK_SIZE
        for place in range(0, _BLOCK_SIZE, 16):
            prefetch(slots, np.uint64(first + place))
        for place in range(0, _BLOCK_SIZE, 8):
            prefetch(priorities, np.uint64(blocks[i] * _BLOCK_SIZE + place))


@kernel
def write(order: Order, changed: np.ndarray, new: np.ndarray) -> int:
    """Set priorities one after the other, or change nothing and return the position of the first bad entry."""
    for i in range(changed.size):
        if not (0 <= changed[i] < order.block_of.size and 0.0 <= new[i]):  # a NaN fails the comparison as well
            return i
    blocks = order.directory[_search(order.bounds[: order.counters[_N_BLOCKS]], new)]
    _prefetch(order, changed, blocks)
    for i in range(changed.size):
        if order.block_of[changed[i]] != _NONE:
            _remove(order, changed[i])
        if new[i] > 0.0:
            _insert(order, changed[i], new[i], blocks[i])
    return ALL_WRITTEN


@kernel
def _ranks_at(cumulative: np.ndarray, n: int, alpha: float, prefix_sums: np.ndarray) -> np.ndarray:
    """
    Find the rank of every prefix sum, from 0: the largest r < n with cumulative[r] <= prefix sum.

    The inverse of the integral of x^-alpha is at most one rank off but for rounding. Steps from there miss the cache less
    often than a binary search.
    """
    power = 1.0 - alpha
    logarithmic = abs(power) < 1e-9
    end = n + 0.5
    offset = cumulative[n] - (np.log(end) if logarithmic else end**power / power)
    ranks = np.empty(prefix_sums.size, np.int64)
    for i in range(ranks.size):
        value = prefix_sums[i] - offset
        guess = np.exp(value) if logarithmic else max(value * power, 0.0) ** (1.0 / power)
        ranks[i] = int(min(max(guess - 0.5, 0.0), n - 1.0))
        prefetch(cumulative, np.uint64(ranks[i]))
    for i in range(ranks.size):
        while ranks[i] > 0 and cumulative[ranks[i]] > prefix_sums[i]:
            ranks[i] -= 1
        while ranks[i] + 1 < n and cumulative[ranks[i] + 1] <= prefix_sums[i]:
            ranks[i] += 1
    return ranks


@kernel
def _n_from(order: Order) -> np.ndarray:
    """Count the slots in every block of the directory and in all later ones."""
    n_from = np.empty(order.counters[_N_BLOCKS], np.int64)
    n_left = order.counters[_N_RANKED]
    for position in range(n_from.size):
        n_from[position] = n_left
        n_left -= order.sizes[position]
    return n_from


@kernel
def find(order: Order, cumulative: np.ndarray, alpha: float, prefix_sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the slots of prefix sums, and their ranks, from 0."""
    n_from, n = _n_from(order), order.counters[_N_RANKED]
    ranks = _ranks_at(cumulative, n, alpha, prefix_sums)
    positions = _search(n_from, n - 1 - ranks)
    slots = np.empty(ranks.size, np.int64)
    for i in range(ranks.size):
        slots[i] = order.slots[order.directory[positions[i]], ranks[i] - (n - n_from[positions[i]])]
    return slots, ranks


@kernel
def ranks_of(order: Order, slots: np.ndarray) -> np.ndarray:
    """Find the ranks of slots, from 0; -1 for those that are not in the order."""
    n_from = _n_from(order)
    ranks = np.full(slots.size, -1, np.int64)
    for i in range(slots.size):
        if order.block_of[slots[i]] != _NONE:
            position = order.positions[order.block_of[slots[i]]]
            ranks[i] = order.counters[_N_RANKED] - n_from[position] + _place_of(order, slots[i])
    return ranks
