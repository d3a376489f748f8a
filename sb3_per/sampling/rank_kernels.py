"""
Kernels of the rank tree: a B-tree of two levels, a directory of blocks of sorted slots.

A block keeps vacant places between its entries, so that a change moves a few neighbours and not half a block. With a million
slots, most of the time goes into cache misses, not into comparisons. A change takes O(log N) comparisons. After many changes a
block is divided or joined, which moves the N / 256 entries of the directory.
"""

from typing import NamedTuple

import numpy as np

from sb3_per.sampling.sum_tree import ALL_WRITTEN
from sb3_per.utils.compiled import kernel, prefetch

# Places of a block, and its words of 64 bits that say which are taken. Small blocks make a long directory, whose entries
# move when a block is opened or closed. Large blocks take longer to search.
_N_WORDS = 4
_BLOCK_SIZE = 64 * _N_WORDS

# Place of a slot that is not in the order.
_NONE = -1

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# Positions in the array of counters: blocks in use, and slots in the order.
_N_BLOCKS, _N_RANKED = 0, 1


class Order(NamedTuple):
    """Slots sorted by priority, the largest first."""

    #: of shape (n_blocks, _BLOCK_SIZE), descending; a vacant place keeps a priority that fits in, so that a binary search
    #: need not know that it is vacant
    priorities: np.ndarray
    #: in the same shape
    slots: np.ndarray
    #: bits of the places that are not vacant, of shape (n_blocks, _N_WORDS)
    taken: np.ndarray
    #: blocks by priority, those in use first
    directory: np.ndarray
    #: by position in the directory: no priority of this block is larger, none of an earlier block is smaller
    bounds: np.ndarray
    #: by position in the directory: number of slots in the block
    sizes: np.ndarray
    #: by block: position in the directory
    positions: np.ndarray
    #: by slot: block * _BLOCK_SIZE + place
    place_of: np.ndarray
    counters: np.ndarray


def empty_order(capacity: int) -> Order:
    """
    Make the arrays of an empty order.

    :param capacity: number of slots
    :return: empty order
    """
    # Two neighbouring blocks hold more than half a block together; otherwise they are joined.
    n_blocks = 4 * capacity // _BLOCK_SIZE + 2
    return Order(
        # The first block takes all priorities.
        priorities=np.zeros((n_blocks, _BLOCK_SIZE)),
        slots=np.zeros((n_blocks, _BLOCK_SIZE), dtype=np.int32),
        taken=np.zeros((n_blocks, _N_WORDS), dtype=np.uint64),
        directory=np.arange(n_blocks, dtype=np.int32),
        bounds=np.full(n_blocks, np.inf),
        sizes=np.zeros(n_blocks, dtype=np.int32),
        positions=np.arange(n_blocks, dtype=np.int32),
        place_of=np.full(capacity, _NONE, dtype=np.int32),
        counters=np.array([1, 0]),
    )


def n_ranked(order: Order) -> int:
    """Count the slots in the order."""
    return int(order.counters[_N_RANKED])


@kernel
def _is_taken(taken: np.ndarray, block: int, place: int) -> bool:
    return bool((taken[block, place // 64] >> np.uint64(place % 64)) & _ONE)


@kernel
def _flip(taken: np.ndarray, block: int, place: int) -> None:
    taken[block, place // 64] ^= _ONE << np.uint64(place % 64)


@kernel
def _n_bits(word: np.uint64) -> int:
    """Count the bits that are set, by sums of ever wider groups of bits."""
    word -= (word >> _ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _move_directory(order: Order, first: int, offset: int) -> None:
    """Shift the directory from this position on by one, to open (+1) or to close (-1) the position before."""
    end = order.counters[_N_BLOCKS]
    # Unused blocks follow those in use: open the first of them, or put the closed one there.
    block = order.directory[end] if offset > 0 else order.directory[first - 1]
    order.directory[first + offset : end + offset] = order.directory[first:end]
    order.bounds[first + offset : end + offset] = order.bounds[first:end]
    order.sizes[first + offset : end + offset] = order.sizes[first:end]
    order.directory[first if offset > 0 else end - 1] = block
    order.counters[_N_BLOCKS] += offset
    for position in range(first - 1, max(end, end + offset)):
        order.positions[order.directory[position]] = position


@kernel
def _lay_out(order: Order, position: int, priorities: np.ndarray, slots: np.ndarray) -> None:
    """Spread sorted entries evenly over a block, with vacant places in between."""
    block = order.directory[position]
    order.taken[block, :] = _ZERO
    place = 0
    for i in range(slots.size):
        end = (i + 1) * _BLOCK_SIZE // slots.size
        order.slots[block, place] = slots[i]
        order.priorities[block, place:end] = priorities[i]
        _flip(order.taken, block, place)
        order.place_of[slots[i]] = block * _BLOCK_SIZE + place
        place = end
    order.sizes[position] = slots.size


@kernel
def _entries(order: Order, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Collect the priorities and slots of a block, without vacant places."""
    block = order.directory[position]
    places = np.array([place for place in range(_BLOCK_SIZE) if _is_taken(order.taken, block, place)])
    return order.priorities[block][places], order.slots[block][places]


@kernel
def _remove(order: Order, slot: int) -> None:
    """Vacate the place of a slot, and join its block with a neighbour if both fit into half a block."""
    block, place = divmod(order.place_of[slot], _BLOCK_SIZE)
    _flip(order.taken, block, place)
    order.place_of[slot] = _NONE
    order.counters[_N_RANKED] -= 1
    position = order.positions[block]
    order.sizes[position] -= 1
    for first in range(max(position - 1, 0), min(position + 1, order.counters[_N_BLOCKS] - 1)):
        if order.sizes[first] + order.sizes[first + 1] <= _BLOCK_SIZE // 2:
            upper_priorities, upper_slots = _entries(order, first)
            lower_priorities, lower_slots = _entries(order, first + 1)
            _move_directory(order, first + 2, -1)
            priorities, slots = np.append(upper_priorities, lower_priorities), np.append(upper_slots, lower_slots)
            _lay_out(order, first, priorities, slots)
            return


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
def _locate(order: Order, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find where priorities belong: in the last block whose bound is larger, before the first that is not larger."""
    blocks, places = _search(order.bounds[: order.counters[_N_BLOCKS]], new), np.zeros(new.size, np.int64)
    # Positions shift when a block is opened, blocks do not.
    priorities = order.priorities.reshape(-1)
    for i in range(new.size):
        blocks[i] = order.directory[blocks[i]]
        prefetch(priorities, np.uint64((blocks[i] + 1) * _BLOCK_SIZE - 1))
    step = _BLOCK_SIZE
    while step > 0:
        for i in range(new.size):
            there = places[i] + step
            if there <= _BLOCK_SIZE:
                places[i] = there if priorities[blocks[i] * _BLOCK_SIZE + there - 1] > new[i] else places[i]
            prefetch(priorities, np.uint64(blocks[i] * _BLOCK_SIZE + places[i] + step // 2 - 1))
        step //= 2
    return blocks, places


@kernel
def _belongs(order: Order, priority: float, block: int, place: int) -> bool:
    """Tell whether :func:`_locate` would still find this place."""
    position, n_blocks = order.positions[block], order.counters[_N_BLOCKS]
    if position >= n_blocks or (position > 0 and order.bounds[position] <= priority):
        return False
    if position + 1 < n_blocks and order.bounds[position + 1] > priority:
        return False
    is_below = place == 0 or order.priorities[block, place - 1] > priority
    return is_below and (place == _BLOCK_SIZE or order.priorities[block, place] <= priority)


@kernel
def _insert(order: Order, slot: int, priority: float, block: int, place: int) -> None:
    """Insert a slot after all larger priorities and before all equal ones."""
    position = order.positions[block]
    if order.sizes[position] == _BLOCK_SIZE:
        half = _BLOCK_SIZE // 2
        priorities, slots = _entries(order, position)
        _move_directory(order, position + 1, 1)
        order.bounds[position + 1] = priorities[half]
        _lay_out(order, position, priorities[:half], slots[:half])
        _lay_out(order, position + 1, priorities[half:], slots[half:])
        blocks, places = _locate(order, np.full(1, priority))
        block, place = blocks[0], places[0]

    # Take the nearest vacant place, at or after this one, or before it. Entries in between move by one.
    taken, after, before = order.taken, place, place - 1
    while (after == _BLOCK_SIZE or _is_taken(taken, block, after)) and (before == -1 or _is_taken(taken, block, before)):
        after = min(after + 1, _BLOCK_SIZE)
        before = max(before - 1, -1)
    if after < _BLOCK_SIZE and not _is_taken(taken, block, after):
        vacant, offset = after, -1
    else:
        place -= 1
        vacant, offset = before, 1
    _flip(taken, block, vacant)
    for i in range(vacant, place, offset):
        order.priorities[block, i] = order.priorities[block, i + offset]
        order.slots[block, i] = order.slots[block, i + offset]
        order.place_of[order.slots[block, i]] = block * _BLOCK_SIZE + i
    order.priorities[block, place] = priority
    order.slots[block, place] = slot
    order.place_of[slot] = block * _BLOCK_SIZE + place
    order.sizes[order.positions[block]] += 1
    order.counters[_N_RANKED] += 1


@kernel
def _prefetch(order: Order, changed: np.ndarray, blocks: np.ndarray, places: np.ndarray) -> None:
    """Start to load what :func:`_remove` and :func:`_insert` read, which take one slot after the other."""
    slots, taken = order.slots.reshape(-1), order.taken.reshape(-1)
    for i in range(changed.size):
        prefetch(order.place_of, np.uint64(changed[i]))
        prefetch(taken, np.uint64(blocks[i] * _N_WORDS))
        prefetch(slots, np.uint64(blocks[i] * _BLOCK_SIZE + places[i]))
    for i in range(changed.size):
        block = max(order.place_of[changed[i]], 0) // _BLOCK_SIZE
        prefetch(taken, np.uint64(block * _N_WORDS))
        prefetch(order.positions, np.uint64(block))
        # Neighbours that may move by a place.
        place = blocks[i] * _BLOCK_SIZE + places[i]
        for neighbour in range(max(place - 1, 0), min(place + 2, slots.size)):
            prefetch(order.place_of, np.uint64(slots[neighbour]))


@kernel
def write(order: Order, changed: np.ndarray, new: np.ndarray) -> int:
    """Set priorities one after the other, or change nothing and return the position of the first bad entry."""
    for i in range(changed.size):
        if not (0 <= changed[i] < order.place_of.size and 0.0 <= new[i]):  # a NaN fails the comparison as well
            return i
    # Places before the first change, most of which stay right.
    blocks, places = _locate(order, new)
    _prefetch(order, changed, blocks, places)
    for i in range(changed.size):
        if order.place_of[changed[i]] != _NONE:
            _remove(order, changed[i])
        if new[i] > 0.0:
            if not _belongs(order, new[i], blocks[i], places[i]):
                now_blocks, now_places = _locate(order, new[i : i + 1])
                blocks[i], places[i] = now_blocks[0], now_places[0]
            _insert(order, changed[i], new[i], blocks[i], places[i])
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
        value = prefix_sums[i]
        if logarithmic:
            guess = np.exp(min(value - offset, 700.0))
        else:
            guess = max((value - offset) * power, 0.0) ** (1.0 / power)
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
def slots_at(order: Order, ranks: np.ndarray) -> np.ndarray:
    """Find the slots at these ranks, from 0."""
    n_from, n = _n_from(order), order.counters[_N_RANKED]
    positions = _search(n_from, n - 1 - ranks)

    # From the rank in the block to its word of bits, and from there to the place. Each is prefetched before it is read.
    slots, taken = order.slots.reshape(-1), order.taken.reshape(-1)
    blocks, found = np.empty(ranks.size, np.int64), np.empty(ranks.size, np.int64)
    for i in range(ranks.size):
        blocks[i] = order.directory[positions[i]]
        found[i] = ranks[i] - (n - n_from[positions[i]])
        prefetch(taken, np.uint64(blocks[i] * _N_WORDS))
    for i in range(ranks.size):
        word = np.uint64(blocks[i] * _N_WORDS)
        n_left = found[i]
        while n_left >= _n_bits(taken[word]):
            n_left -= _n_bits(taken[word])
            word += _ONE
        bits = taken[word]
        for _ in range(n_left):
            bits &= bits - _ONE  # without its lowest bit
        found[i] = word * np.uint64(64) + np.uint64(_n_bits(~bits & (bits - _ONE)))  # zeros below the lowest bit
        prefetch(slots, np.uint64(found[i]))
    for i in range(ranks.size):
        found[i] = slots[np.uint64(found[i])]
    return found


@kernel
def find(order: Order, cumulative: np.ndarray, alpha: float, prefix_sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the slots of prefix sums, and their ranks, from 0."""
    ranks = _ranks_at(cumulative, order.counters[_N_RANKED], alpha, prefix_sums)
    return slots_at(order, ranks), ranks


@kernel
def ranks_of(order: Order, slots: np.ndarray) -> np.ndarray:
    """Find the ranks of slots, from 0; -1 for those that are not in the order."""
    n_from = _n_from(order)
    ranks = np.full(slots.size, -1, np.int64)
    for i in range(slots.size):
        if order.place_of[slots[i]] != _NONE:
            block, place = divmod(order.place_of[slots[i]], _BLOCK_SIZE)
            ranks[i] = order.counters[_N_RANKED] - n_from[order.positions[block]]
            for word in range(place // 64):
                ranks[i] += _n_bits(order.taken[block, word])
            before = (_ONE << np.uint64(place % 64)) - _ONE
            ranks[i] += _n_bits(order.taken[block, place // 64] & before)
    return ranks
