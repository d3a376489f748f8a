"""
Kernels of the rank tree: a B-tree of two levels, a directory of blocks of sorted slots.

Places are left vacant between the entries of a block, so that a change moves a few neighbours and not half a block. With a
million slots the time goes into cache misses, not into comparisons. A change takes O(log N) comparisons. A block that is
divided or joined, which takes many changes, moves the N / 256 entries of the directory.
"""

import numpy as np

from sb3_per.sampling.kernels import kernel, prefetch
from sb3_per.sampling.sum_tree import ALL_WRITTEN

# Places of a block, and its words of 64 bits that say which are taken. Small blocks make a long directory, whose entries
# move when a block is opened or closed. Long blocks take longer to search.
_N_WORDS = 4
_BLOCK_SIZE = 64 * _N_WORDS

# Place of a slot that is not in the order.
_NONE = -1

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# Positions in the array of counters: blocks in use, and slots in the order.
_N_BLOCKS, _N_RANKED = 0, 1

# The arrays that the kernels work on, in this order:
#   priorities, slots:  places of every block, (n_blocks, _BLOCK_SIZE), priorities descending; a vacant place keeps a
#                       priority that fits in, so that a binary search can ignore that it is vacant
#   taken:              bits of every block, (n_blocks, _N_WORDS)
#   directory:          blocks in the order of their priorities, those in use first
#   bounds, sizes:      by position in the directory: every priority in this block is at most the bound, every priority in
#                       earlier blocks at least; and number of slots in the block
#   positions:          position in the directory, by block
#   place_of:           block * _BLOCK_SIZE + place, by slot
#   counters:           see above
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_arrays(capacity: int) -> Arrays:
    """
    :param capacity: number of slots
    :return: arrays of an order; call :func:`clear` first
    """
    # Two neighbouring blocks hold more than half a block together; otherwise they are joined.
    n_blocks = 4 * capacity // _BLOCK_SIZE + 2
    return (
        np.zeros((n_blocks, _BLOCK_SIZE)),
        np.zeros((n_blocks, _BLOCK_SIZE), dtype=np.int32),
        np.zeros((n_blocks, _N_WORDS), dtype=np.uint64),
        np.arange(n_blocks, dtype=np.int32),
        np.full(n_blocks, np.inf),
        np.zeros(n_blocks, dtype=np.int32),
        np.arange(n_blocks, dtype=np.int32),
        np.full(capacity, _NONE, dtype=np.int32),
        np.zeros(2, dtype=np.int64),
    )


def clear(arrays: Arrays) -> None:
    """Empty the order."""
    priorities, _, taken, directory, bounds, sizes, _, place_of, counters = arrays
    place_of.fill(_NONE)
    # One empty block, which takes all priorities.
    priorities[directory[0]] = 0.0
    taken[directory[0]] = 0
    bounds[0], sizes[0] = np.inf, 0
    counters[_N_BLOCKS], counters[_N_RANKED] = 1, 0


def n_ranked(arrays: Arrays) -> int:
    """Count the slots in the order."""
    return int(arrays[-1][_N_RANKED])


def priorities_of(arrays: Arrays, slots: np.ndarray) -> np.ndarray:
    """
    :param slots: slots in the order
    :return: their priorities
    """
    priorities: np.ndarray = arrays[0].reshape(-1)[arrays[7][slots]]
    return priorities


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
def _move_directory(arrays: Arrays, first: int, offset: int) -> None:
    """Shift the directory from this position on by one, to open (+1) or to close (-1) the position before."""
    _, _, _, directory, bounds, sizes, positions, _, counters = arrays
    n_blocks = counters[_N_BLOCKS]
    # Unused blocks follow those in use: open the first of them, or put the closed one there.
    block = directory[n_blocks] if offset > 0 else directory[first - 1]
    for i in range(n_blocks - first):
        source = n_blocks - 1 - i if offset > 0 else first + i
        directory[source + offset] = directory[source]
        bounds[source + offset] = bounds[source]
        sizes[source + offset] = sizes[source]
        positions[directory[source]] = source + offset
    position = first if offset > 0 else n_blocks - 1
    directory[position] = block
    positions[block] = position
    counters[_N_BLOCKS] += offset


@kernel
def _lay_out(arrays: Arrays, position: int, entry_priorities: np.ndarray, entry_slots: np.ndarray) -> None:
    """Spread sorted entries evenly over a block, with vacant places in between."""
    priorities, slots, taken, directory, _, sizes, _, place_of, _ = arrays
    block = directory[position]
    n_entries = entry_slots.size
    taken[block, :] = _ZERO
    place = 0
    for i in range(n_entries):
        end = (i + 1) * _BLOCK_SIZE // n_entries
        slots[block, place] = entry_slots[i]
        priorities[block, place:end] = entry_priorities[i]
        _flip(taken, block, place)
        place_of[entry_slots[i]] = block * _BLOCK_SIZE + place
        place = end
    sizes[position] = n_entries


@kernel
def lay_out_all(arrays: Arrays, sorted_priorities: np.ndarray, sorted_slots: np.ndarray) -> None:
    """Write sorted entries into an empty order, with room for more in each block."""
    bounds, counters = arrays[4], arrays[8]
    size = _BLOCK_SIZE * 3 // 4
    counters[_N_RANKED] = sorted_slots.size
    counters[_N_BLOCKS] = max(-(-sorted_slots.size // size), 1)
    for position in range(-(-sorted_slots.size // size)):
        first = position * size
        if position > 0:
            bounds[position] = sorted_priorities[first]
        _lay_out(arrays, position, sorted_priorities[first : first + size], sorted_slots[first : first + size])


@kernel
def _entries(arrays: Arrays, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Collect the priorities and slots of a block, without vacant places."""
    priorities, slots, taken, directory, _, sizes, _, _, _ = arrays
    block = directory[position]
    entry_priorities, entry_slots = np.empty(sizes[position]), np.empty(sizes[position], np.int64)
    n_entries = 0
    for place in range(_BLOCK_SIZE):
        if _is_taken(taken, block, place):
            entry_priorities[n_entries] = priorities[block, place]
            entry_slots[n_entries] = slots[block, place]
            n_entries += 1
    return entry_priorities, entry_slots


@kernel
def _remove(arrays: Arrays, slot: int) -> None:
    """Vacate the place of a slot, and join its block with a neighbour if both fit into half a block."""
    _, _, taken, _, _, sizes, positions, place_of, counters = arrays
    block, place = divmod(place_of[slot], _BLOCK_SIZE)
    _flip(taken, block, place)
    place_of[slot] = _NONE
    counters[_N_RANKED] -= 1
    position = positions[block]
    sizes[position] -= 1
    for first in range(position - 1, position + 1):
        if 0 <= first and first + 1 < counters[_N_BLOCKS] and sizes[first] + sizes[first + 1] <= _BLOCK_SIZE // 2:
            upper_priorities, upper_slots = _entries(arrays, first)
            lower_priorities, lower_slots = _entries(arrays, first + 1)
            _move_directory(arrays, first + 2, -1)
            _lay_out(
                arrays,
                first,
                np.concatenate((upper_priorities, lower_priorities)),
                np.concatenate((upper_slots, lower_slots)),
            )
            return


@kernel
def _locate(arrays: Arrays, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Find where priorities belong: the last block in the directory whose bound is above, and its first place that is not above.

    Two binary searches move the whole batch one level at a time, so that cache misses overlap.
    """
    priorities, _, _, directory, bounds, _, _, _, counters = arrays
    found_positions, found_places = np.zeros(new.size, np.int64), np.zeros(new.size, np.int64)
    step = 1
    while 2 * step < counters[_N_BLOCKS]:
        step *= 2
    while step > 0:
        for i in range(new.size):
            there = found_positions[i] + step
            if there < counters[_N_BLOCKS]:
                found_positions[i] = there if bounds[there] > new[i] else found_positions[i]
        step //= 2

    # Positions shift when a block is opened, blocks do not.
    blocks, all_priorities = found_positions, priorities.reshape(-1)
    for i in range(new.size):
        blocks[i] = directory[found_positions[i]]
        prefetch(all_priorities, np.uint64((blocks[i] + 1) * _BLOCK_SIZE - 1))
    step = _BLOCK_SIZE
    while step > 0:
        for i in range(new.size):
            there = found_places[i] + step
            if there <= _BLOCK_SIZE:
                above = all_priorities[blocks[i] * _BLOCK_SIZE + there - 1] > new[i]
                found_places[i] = there if above else found_places[i]
            prefetch(all_priorities, np.uint64(blocks[i] * _BLOCK_SIZE + found_places[i] + step // 2 - 1))
        step //= 2
    return blocks, found_places


@kernel
def _belongs(arrays: Arrays, priority: float, block: int, place: int) -> bool:
    """Whether :func:`_locate` would still find this place."""
    priorities, _, _, _, bounds, _, positions, _, counters = arrays
    position = positions[block]
    if position >= counters[_N_BLOCKS] or (position > 0 and bounds[position] <= priority):
        return False
    if position + 1 < counters[_N_BLOCKS] and bounds[position + 1] > priority:
        return False
    return (place == 0 or priorities[block, place - 1] > priority) and (
        place == _BLOCK_SIZE or priorities[block, place] <= priority
    )


@kernel
def _insert(arrays: Arrays, slot: int, priority: float, block: int, place: int) -> None:
    """Insert a slot after all larger priorities and before all equal ones."""
    priorities, slots, taken, _, bounds, sizes, positions, place_of, counters = arrays
    position = positions[block]
    if sizes[position] == _BLOCK_SIZE:
        half = _BLOCK_SIZE // 2
        entry_priorities, entry_slots = _entries(arrays, position)
        _move_directory(arrays, position + 1, 1)
        bounds[position + 1] = entry_priorities[half]
        _lay_out(arrays, position, entry_priorities[:half], entry_slots[:half])
        _lay_out(arrays, position + 1, entry_priorities[half:], entry_slots[half:])
        blocks, places = _locate(arrays, np.full(1, priority))
        block, place = blocks[0], places[0]

    # Take the nearest vacant place, at or after this one, or before it. Entries in between move by one.
    after, before = place, place - 1
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
        priorities[block, i] = priorities[block, i + offset]
        slots[block, i] = slots[block, i + offset]
        place_of[slots[block, i]] = block * _BLOCK_SIZE + i
    priorities[block, place] = priority
    slots[block, place] = slot
    place_of[slot] = block * _BLOCK_SIZE + place
    sizes[positions[block]] += 1
    counters[_N_RANKED] += 1


@kernel
def _prefetch(arrays: Arrays, changed: np.ndarray, blocks: np.ndarray, places: np.ndarray) -> None:
    """Start to load what :func:`_remove` and :func:`_insert` read, which take one slot after the other."""
    _, slots, taken, _, _, _, positions, place_of, _ = arrays
    all_slots, all_taken = slots.reshape(-1), taken.reshape(-1)
    for i in range(changed.size):
        prefetch(place_of, np.uint64(changed[i]))
        prefetch(all_taken, np.uint64(blocks[i] * _N_WORDS))
        prefetch(all_slots, np.uint64(blocks[i] * _BLOCK_SIZE + places[i]))
    for i in range(changed.size):
        block = max(place_of[changed[i]], 0) // _BLOCK_SIZE
        prefetch(all_taken, np.uint64(block * _N_WORDS))
        prefetch(positions, np.uint64(block))
        # Neighbours that may move by a place.
        place = blocks[i] * _BLOCK_SIZE + places[i]
        for neighbour in range(max(place - 1, 0), min(place + 2, all_slots.size)):
            prefetch(place_of, np.uint64(all_slots[neighbour]))


@kernel
def write(arrays: Arrays, changed: np.ndarray, new: np.ndarray) -> int:
    """Set priorities one after the other, or change nothing and return the position of the first bad entry."""
    place_of = arrays[7]
    for i in range(changed.size):
        if not (0 <= changed[i] < place_of.size and 0.0 <= new[i]):  # a NaN fails the comparison as well
            return i
    # Places before the first change, most of which stay right.
    blocks, places = _locate(arrays, new)
    _prefetch(arrays, changed, blocks, places)
    for i in range(changed.size):
        if place_of[changed[i]] != _NONE:
            _remove(arrays, changed[i])
        if new[i] > 0.0:
            if not _belongs(arrays, new[i], blocks[i], places[i]):
                now_blocks, now_places = _locate(arrays, new[i : i + 1])
                blocks[i], places[i] = now_blocks[0], now_places[0]
            _insert(arrays, changed[i], new[i], blocks[i], places[i])
    return ALL_WRITTEN


@kernel
def ranks_at(cumulative: np.ndarray, n: int, alpha: float, prefix_sums: np.ndarray) -> np.ndarray:
    """
    Find the rank of every prefix sum, from 0: the largest r with cumulative[r] <= prefix sum.

    The inverse of the integral of x^-alpha is about one rank off. A search from there saves the cache misses of a binary
    search from the root.
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
        value = prefix_sums[i]
        low, rank, high = 0, ranks[i], n - 1
        # Steps from the guess that double, and then a binary search in between. Right for any guess.
        step = 1
        while low < high:
            if cumulative[rank] <= value:
                low = rank
                if low == high or cumulative[low + 1] > value:
                    break
                low += 1
                rank = min(low + step, high) if step > 0 else (low + high + 1) // 2
            else:
                high = rank - 1
                rank = max(high - step, low) if step > 0 else (low + high + 1) // 2
            step = step * 2 if step < 16 else 0
        ranks[i] = low
    return ranks


@kernel
def slots_at(arrays: Arrays, ranks: np.ndarray) -> np.ndarray:
    """Find the slots at these ranks, from 0."""
    _, slots, taken, directory, _, sizes, _, _, counters = arrays
    n_blocks = counters[_N_BLOCKS]
    ends = np.empty(n_blocks, np.int64)
    end = 0
    for position in range(n_blocks):
        end += sizes[position]
        ends[position] = end

    # Number of blocks that end at or before the rank, for the whole batch one level at a time.
    n_before = np.zeros(ranks.size, np.int64)
    step = 1
    while 2 * step <= n_blocks:
        step *= 2
    while step > 0:
        for i in range(ranks.size):
            there = n_before[i] + step
            n_before[i] = there if there <= n_blocks and ends[there - 1] <= ranks[i] else n_before[i]
        step //= 2

    # From the rank in the block to its word of bits, and from there to the place. Each is prefetched before it is read.
    all_slots, all_taken = slots.reshape(-1), taken.reshape(-1)
    blocks, found = n_before, np.empty(ranks.size, np.int64)
    for i in range(ranks.size):
        position = n_before[i]
        found[i] = ranks[i] - (ends[position] - sizes[position])
        blocks[i] = directory[position]
        prefetch(all_taken, np.uint64(blocks[i] * _N_WORDS))
    for i in range(ranks.size):
        word = np.uint64(blocks[i] * _N_WORDS)
        n_left = found[i]
        while n_left >= _n_bits(all_taken[word]):
            n_left -= _n_bits(all_taken[word])
            word += _ONE
        bits = all_taken[word]
        for _ in range(n_left):
            bits &= bits - _ONE  # without its lowest bit
        found[i] = word * np.uint64(64) + np.uint64(_n_bits(~bits & (bits - _ONE)))  # zeros below the lowest bit
        prefetch(all_slots, np.uint64(found[i]))
    for i in range(ranks.size):
        found[i] = all_slots[np.uint64(found[i])]
    return found


@kernel
def ranks_of(arrays: Arrays, slots: np.ndarray) -> np.ndarray:
    """Find the ranks of slots, from 0; -1 for those that are not in the order."""
    _, _, taken, _, _, sizes, positions, place_of, counters = arrays
    n_before = np.zeros(counters[_N_BLOCKS], np.int64)
    for position in range(1, n_before.size):
        n_before[position] = n_before[position - 1] + sizes[position - 1]
    ranks = np.full(slots.size, -1, np.int64)
    for i in range(slots.size):
        if place_of[slots[i]] != _NONE:
            block, place = divmod(place_of[slots[i]], _BLOCK_SIZE)
            rank = n_before[positions[block]]
            for word in range(place // 64):
                rank += _n_bits(taken[block, word])
            before = (_ONE << np.uint64(place % 64)) - _ONE
            ranks[i] = rank + _n_bits(taken[block, place // 64] & before)
    return ranks
