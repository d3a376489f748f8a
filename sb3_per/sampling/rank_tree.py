"""
Rank tree: who gets drawn when only the order of the priorities counts.

The leaves that can be drawn are kept sorted by priority, the largest first, and number r of that order is drawn with
probability proportional to r^-alpha (Schaul et al. 2016, section 3.3). The interface is the sum tree's, which is all that the
buffers know of either.

The paper keeps a heap as an approximately sorted array. Here the order is exact: a B-tree of two levels, a directory of blocks
of sorted slots. Slots are left vacant in between, so that a change rewrites a few neighbours and not half a block: at a
million leaves the time goes into cache misses, not into comparisons. A change takes O(log N) comparisons; a block that is
opened or closed, which takes many changes, moves the N / 256 entries of the directory.
"""

import numpy as np

from sb3_per.sampling.kernels import kernel, prefetch
from sb3_per.sampling.sum_tree import ALL_WRITTEN, SumTree, as_batch, spread

# Slots of a block, and words of 64 bits that tell which are taken. Small blocks make a long directory, whose entries
# move when a block is opened or closed; long ones take longer to search.
_N_WORDS = 4
_BLOCK_SIZE = 64 * _N_WORDS

# Slot of a leaf that is not in the order.
_NONE = -1

# Below so many changes at once, they are made one after the other.
_MANY = 4096

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# Positions in the array of counters: blocks in use, and leaves in the order.
_N_BLOCKS, _N_LEAVES = 0, 1

# What the kernels work on, in this order:
#   priorities, leaves: slots of every block, (n_blocks, _BLOCK_SIZE), priorities descending; a vacant slot keeps a
#                       priority that fits in, so that a binary search need not know of it
#   taken:              bits of every block, (n_blocks, _N_WORDS)
#   directory:          numbers of the blocks in the order of their priorities, the blocks in use first
#   bounds, sizes:      by position in the directory: no priority in this block is above the bound and none in the
#                       blocks before is below; number of leaves in the block
#   positions:          position in the directory, by number of the block
#   slot_of:            number of the block * _BLOCK_SIZE + slot, by leaf
#   counters:           see above
_Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@kernel
def _is_taken(taken: np.ndarray, block: int, slot: int) -> bool:
    return bool((taken[block, slot // 64] >> np.uint64(slot % 64)) & _ONE)


@kernel
def _flip(taken: np.ndarray, block: int, slot: int) -> None:
    taken[block, slot // 64] ^= _ONE << np.uint64(slot % 64)


@kernel
def _n_bits(word: np.uint64) -> int:
    """Number of bits that are set: sums of ever wider groups of bits."""
    word -= (word >> _ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _move_directory(arrays: _Arrays, first: int, offset: int) -> None:
    """Shift the directory from this position on by one, to open (+1) or to close (-1) the position before."""
    _, _, _, directory, bounds, sizes, positions, _, counters = arrays
    n_blocks = counters[_N_BLOCKS]
    # A block that is opened comes from behind those in use, and one that is closed goes there.
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
def _lay_out(arrays: _Arrays, position: int, entry_priorities: np.ndarray, entry_leaves: np.ndarray) -> None:
    """Write sorted entries into a block, evenly, with the vacant slots in between."""
    priorities, leaves, taken, directory, _, sizes, _, slot_of, _ = arrays
    block = directory[position]
    n_entries = entry_leaves.size
    taken[block, :] = _ZERO
    slot = 0
    for i in range(n_entries):
        behind = (i + 1) * _BLOCK_SIZE // n_entries
        leaves[block, slot] = entry_leaves[i]
        priorities[block, slot:behind] = entry_priorities[i]
        _flip(taken, block, slot)
        slot_of[entry_leaves[i]] = block * _BLOCK_SIZE + slot
        slot = behind
    sizes[position] = n_entries


@kernel
def _lay_out_all(arrays: _Arrays, sorted_priorities: np.ndarray, sorted_leaves: np.ndarray) -> None:
    """Write sorted entries into an empty order, the blocks as full as many changes leave them: there is room for more."""
    bounds, counters = arrays[4], arrays[8]
    size = _BLOCK_SIZE * 3 // 4
    counters[_N_LEAVES] = sorted_leaves.size
    counters[_N_BLOCKS] = max(-(-sorted_leaves.size // size), 1)
    for position in range(-(-sorted_leaves.size // size)):
        first = position * size
        if position > 0:
            bounds[position] = sorted_priorities[first]
        _lay_out(arrays, position, sorted_priorities[first : first + size], sorted_leaves[first : first + size])


@kernel
def _entries(arrays: _Arrays, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Priorities and leaves of a block without its vacant slots."""
    priorities, leaves, taken, directory, _, sizes, _, _, _ = arrays
    block = directory[position]
    entry_priorities, entry_leaves = np.empty(sizes[position]), np.empty(sizes[position], np.int64)
    n_entries = 0
    for slot in range(_BLOCK_SIZE):
        if _is_taken(taken, block, slot):
            entry_priorities[n_entries] = priorities[block, slot]
            entry_leaves[n_entries] = leaves[block, slot]
            n_entries += 1
    return entry_priorities, entry_leaves


@kernel
def _remove(arrays: _Arrays, leaf: int) -> None:
    """Vacate the slot of a leaf; join its block with a neighbour if both fit into half a block."""
    _, _, taken, _, _, sizes, positions, slot_of, counters = arrays
    block, slot = divmod(slot_of[leaf], _BLOCK_SIZE)
    _flip(taken, block, slot)
    slot_of[leaf] = _NONE
    counters[_N_LEAVES] -= 1
    position = positions[block]
    sizes[position] -= 1
    for first in range(position - 1, position + 1):
        if 0 <= first and first + 1 < counters[_N_BLOCKS] and sizes[first] + sizes[first + 1] <= _BLOCK_SIZE // 2:
            upper_priorities, upper_leaves = _entries(arrays, first)
            lower_priorities, lower_leaves = _entries(arrays, first + 1)
            _move_directory(arrays, first + 2, -1)
            _lay_out(
                arrays,
                first,
                np.concatenate((upper_priorities, lower_priorities)),
                np.concatenate((upper_leaves, lower_leaves)),
            )
            return


@kernel
def _locate(arrays: _Arrays, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Where priorities belong: block, the last in the directory whose bound is above; slot, the first that is not above.

    Two binary searches that move the whole batch one level at a time, so that their cache misses overlap.
    """
    priorities, _, _, directory, bounds, _, _, _, counters = arrays
    found_positions, found_slots = np.zeros(new.size, np.int64), np.zeros(new.size, np.int64)
    step = 1
    while 2 * step < counters[_N_BLOCKS]:
        step *= 2
    while step > 0:
        for i in range(new.size):
            there = found_positions[i] + step
            if there < counters[_N_BLOCKS]:
                found_positions[i] = there if bounds[there] > new[i] else found_positions[i]
        step //= 2

    # Blocks keep their number where positions shift when another block is opened.
    blocks, all_priorities = found_positions, priorities.reshape(-1)
    for i in range(new.size):
        blocks[i] = directory[found_positions[i]]
        prefetch(all_priorities, np.uint64((blocks[i] + 1) * _BLOCK_SIZE - 1))
    step = _BLOCK_SIZE
    while step > 0:
        for i in range(new.size):
            there = found_slots[i] + step
            if there <= _BLOCK_SIZE:
                above = all_priorities[blocks[i] * _BLOCK_SIZE + there - 1] > new[i]
                found_slots[i] = there if above else found_slots[i]
            prefetch(all_priorities, np.uint64(blocks[i] * _BLOCK_SIZE + found_slots[i] + step // 2 - 1))
        step //= 2
    return blocks, found_slots


@kernel
def _belongs(arrays: _Arrays, priority: float, block: int, slot: int) -> bool:
    """Whether this is what :func:`_locate` would find now."""
    priorities, _, _, _, bounds, _, positions, _, counters = arrays
    position = positions[block]
    if position >= counters[_N_BLOCKS] or (position > 0 and bounds[position] <= priority):
        return False
    if position + 1 < counters[_N_BLOCKS] and bounds[position + 1] > priority:
        return False
    return (slot == 0 or priorities[block, slot - 1] > priority) and (
        slot == _BLOCK_SIZE or priorities[block, slot] <= priority
    )


@kernel
def _insert(arrays: _Arrays, leaf: int, priority: float, block: int, slot: int) -> None:
    """Put a leaf where it belongs: behind all larger priorities and before all that are equal."""
    priorities, leaves, taken, _, bounds, sizes, positions, slot_of, counters = arrays
    position = positions[block]
    if sizes[position] == _BLOCK_SIZE:
        half = _BLOCK_SIZE // 2
        entry_priorities, entry_leaves = _entries(arrays, position)
        _move_directory(arrays, position + 1, 1)
        bounds[position + 1] = entry_priorities[half]
        _lay_out(arrays, position, entry_priorities[:half], entry_leaves[:half])
        _lay_out(arrays, position + 1, entry_priorities[half:], entry_leaves[half:])
        blocks, slots = _locate(arrays, np.full(1, priority))
        block, slot = blocks[0], slots[0]

    # Nearest vacant slot, at or behind this one, or before it; what stands in between moves by one.
    behind, before = slot, slot - 1
    while (behind == _BLOCK_SIZE or _is_taken(taken, block, behind)) and (before == -1 or _is_taken(taken, block, before)):
        behind = min(behind + 1, _BLOCK_SIZE)
        before = max(before - 1, -1)
    if behind < _BLOCK_SIZE and not _is_taken(taken, block, behind):
        vacant, offset = behind, -1
    else:
        slot -= 1
        vacant, offset = before, 1
    _flip(taken, block, vacant)
    for i in range(vacant, slot, offset):
        priorities[block, i] = priorities[block, i + offset]
        leaves[block, i] = leaves[block, i + offset]
        slot_of[leaves[block, i]] = block * _BLOCK_SIZE + i
    priorities[block, slot] = priority
    leaves[block, slot] = leaf
    slot_of[leaf] = block * _BLOCK_SIZE + slot
    sizes[positions[block]] += 1
    counters[_N_LEAVES] += 1


@kernel
def _prefetch(arrays: _Arrays, changed: np.ndarray, blocks: np.ndarray, slots: np.ndarray) -> None:
    """Have under way what :func:`_remove` and :func:`_insert` read, which take one leaf after the other."""
    _, leaves, taken, _, _, _, positions, slot_of, _ = arrays
    all_leaves, all_taken = leaves.reshape(-1), taken.reshape(-1)
    for i in range(changed.size):
        prefetch(slot_of, np.uint64(changed[i]))
        prefetch(all_taken, np.uint64(blocks[i] * _N_WORDS))
        prefetch(all_leaves, np.uint64(blocks[i] * _BLOCK_SIZE + slots[i]))
    for i in range(changed.size):
        block = max(slot_of[changed[i]], 0) // _BLOCK_SIZE
        prefetch(all_taken, np.uint64(block * _N_WORDS))
        prefetch(positions, np.uint64(block))
        # Those that may move by a slot.
        slot = blocks[i] * _BLOCK_SIZE + slots[i]
        for neighbour in range(max(slot - 1, 0), min(slot + 2, all_leaves.size)):
            prefetch(slot_of, np.uint64(all_leaves[neighbour]))


@kernel
def _write(arrays: _Arrays, changed: np.ndarray, new: np.ndarray) -> int:
    """Set the priorities one after the other, or change nothing and return the position of the first bad entry."""
    slot_of = arrays[7]
    for i in range(changed.size):
        if not (0 <= changed[i] < slot_of.size and 0.0 <= new[i]):  # a NaN fails the comparison as well
            return i
    # Where they belong before the first change; mostly that stays true.
    blocks, slots = _locate(arrays, new)
    _prefetch(arrays, changed, blocks, slots)
    for i in range(changed.size):
        if slot_of[changed[i]] != _NONE:
            _remove(arrays, changed[i])
        if new[i] > 0.0:
            if not _belongs(arrays, new[i], blocks[i], slots[i]):
                now_blocks, now_slots = _locate(arrays, new[i : i + 1])
                blocks[i], slots[i] = now_blocks[0], now_slots[0]
            _insert(arrays, changed[i], new[i], blocks[i], slots[i])
    return ALL_WRITTEN


@kernel
def _ranks(cumulative: np.ndarray, n_leaves: int, alpha: float, prefix_sums: np.ndarray) -> np.ndarray:
    """
    Rank of every prefix sum, from 0: the largest r with cumulative[r] <= prefix sum.

    The sum of the first r masses is close to an integral of x^-alpha, whose inverse is known. That is a rank or so off, which
    saves the cache misses of a binary search; the exact rank is looked up from there.
    """
    power = 1.0 - alpha
    logarithmic = abs(power) < 1e-9
    end = n_leaves + 0.5
    offset = cumulative[n_leaves] - (np.log(end) if logarithmic else end**power / power)
    ranks = np.empty(prefix_sums.size, np.int64)
    for i in range(ranks.size):
        value = prefix_sums[i]
        if logarithmic:
            guess = np.exp(min(value - offset, 700.0))
        else:
            guess = max((value - offset) * power, 0.0) ** (1.0 / power)
        ranks[i] = int(min(max(guess - 0.5, 0.0), n_leaves - 1.0))
        prefetch(cumulative, np.uint64(ranks[i]))
    for i in range(ranks.size):
        value = prefix_sums[i]
        low, rank, high = 0, ranks[i], n_leaves - 1
        # Steps around the guess that double, and then a binary search in between: right wherever the guess was.
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
def _leaves_at(arrays: _Arrays, ranks: np.ndarray) -> np.ndarray:
    """Leaves at these ranks, from 0."""
    _, leaves, taken, directory, _, sizes, _, _, counters = arrays
    n_blocks = counters[_N_BLOCKS]
    ends = np.empty(n_blocks, np.int64)
    end = 0
    for position in range(n_blocks):
        end += sizes[position]
        ends[position] = end

    # How many blocks end at or before the rank, the whole batch one level at a time.
    n_before = np.zeros(ranks.size, np.int64)
    step = 1
    while 2 * step <= n_blocks:
        step *= 2
    while step > 0:
        for i in range(ranks.size):
            there = n_before[i] + step
            n_before[i] = there if there <= n_blocks and ends[there - 1] <= ranks[i] else n_before[i]
        step //= 2

    # The rank in its block tells the word of bits, and that the slot; each is under way before it is read.
    all_leaves, all_taken = leaves.reshape(-1), taken.reshape(-1)
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
        prefetch(all_leaves, np.uint64(found[i]))
    for i in range(ranks.size):
        found[i] = all_leaves[np.uint64(found[i])]
    return found


@kernel
def _ranks_of(arrays: _Arrays, leaves: np.ndarray) -> np.ndarray:
    """Ranks of leaves, from 0; -1 for those that are not in the order."""
    _, _, taken, _, _, sizes, positions, slot_of, counters = arrays
    n_before = np.zeros(counters[_N_BLOCKS], np.int64)
    for position in range(1, n_before.size):
        n_before[position] = n_before[position - 1] + sizes[position - 1]
    ranks = np.full(leaves.size, -1, np.int64)
    for i in range(leaves.size):
        if slot_of[leaves[i]] != _NONE:
            block, slot = divmod(slot_of[leaves[i]], _BLOCK_SIZE)
            rank = n_before[positions[block]]
            for word in range(slot // 64):
                rank += _n_bits(taken[block, word])
            before = (_ONE << np.uint64(slot % 64)) - _ONE
            ranks[i] = rank + _n_bits(taken[block, slot // 64] & before)
    return ranks


class RankTree(SumTree):
    """
    Exact ranks of priorities, and draws by rank (Schaul et al. 2016, section 3.3).

    Where a :class:`~sb3_per.sampling.sum_tree.SumTree` holds masses, this one is given priorities: only their order counts,
    infinity is allowed, and a leaf of priority 0 cannot be drawn. The mass of a leaf is rank^-alpha, with rank 1 for the
    largest priority; of equal priorities, the one that was set last ranks first. Prefix sums run over the ranks, not over the
    leaves.

    Memory: 12 bytes per leaf and 12 per slot; between a quarter and all of the slots are taken.

    :param capacity: number of leaves, at least 1
    :param alpha: prioritization exponent, at least 0
    :raises ValueError: if the capacity is below 1
    """

    _BOUNDS = "at least 0"

    def __init__(self, capacity: int, alpha: float):
        if capacity < 1:
            raise ValueError(f"The capacity of a RankTree must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        self.alpha = alpha
        # Two neighbouring blocks hold more than half a block between them, or they would have been joined.
        n_blocks = 4 * self.capacity // _BLOCK_SIZE + 2
        self._arrays: _Arrays = (
            np.zeros((n_blocks, _BLOCK_SIZE)),
            np.zeros((n_blocks, _BLOCK_SIZE), dtype=np.int32),
            np.zeros((n_blocks, _N_WORDS), dtype=np.uint64),
            np.arange(n_blocks, dtype=np.int32),
            np.full(n_blocks, np.inf),
            np.zeros(n_blocks, dtype=np.int32),
            np.arange(n_blocks, dtype=np.int32),
            np.full(self.capacity, _NONE, dtype=np.int32),
            np.zeros(2, dtype=np.int64),
        )
        # Mass of the first r ranks; it depends on alpha alone.
        self._cumulative = np.concatenate([[0.0], np.cumsum(np.arange(1.0, self.capacity + 1) ** -alpha)])
        self.clear()

    @property
    def total(self) -> float:
        """Sum of rank^-alpha over the leaves that can be drawn."""
        return float(self._cumulative[self._n_leaves])

    def clear(self) -> None:
        """Empty every leaf."""
        priorities, _, taken, directory, bounds, sizes, _, slot_of, counters = self._arrays
        slot_of.fill(_NONE)
        # One empty block, which takes all priorities.
        priorities[directory[0]] = 0.0
        taken[directory[0]] = 0
        bounds[0], sizes[0] = np.inf, 0
        counters[_N_BLOCKS], counters[_N_LEAVES] = 1, 0

    @property
    def _n_leaves(self) -> int:
        return int(self._arrays[-1][_N_LEAVES])

    @classmethod
    def takes(cls, mass: float) -> bool:
        """See :meth:`SumTree.takes`; infinity is allowed."""
        return mass >= 0.0

    def _masses(self) -> np.ndarray:
        masses = np.zeros(self.capacity)
        ranks = np.arange(self._n_leaves)
        masses[_leaves_at(self._arrays, ranks)] = (ranks + 1.0) ** -self.alpha
        return masses

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        ranks = _ranks_of(self._arrays, leaves.reshape(-1).astype(np.int64)).reshape(leaves.shape)
        masses: np.ndarray = np.where(ranks >= 0, (ranks + 1.0).clip(min=1.0) ** -self.alpha, 0.0)
        return masses

    def ranked(self) -> tuple[np.ndarray, np.ndarray]:
        """
        :return: the leaves that can be drawn, int64, those of the largest priorities first, and their priorities, float64
        """
        leaves = _leaves_at(self._arrays, np.arange(self._n_leaves))
        return leaves, self._arrays[0].reshape(-1)[self._arrays[7][leaves]]

    def rank(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """
        Put all leaves in an order, and forget the one before; what :meth:`ranked` gave.

        :param leaves: that can be drawn, each of them once, integers
        :param priorities: above 0, of each, the largest first
        :raises IndexError: for a leaf outside ``[0, capacity)``, or twice
        :raises ValueError: if the priorities are not in order. Nothing is changed in either case.
        """
        leaves, priorities = as_batch(leaves, np.int64), as_batch(priorities, np.float64)
        for leaf in (leaves.min(initial=0), leaves.max(initial=0)):
            self._require_leaf(leaf)
        if len(np.unique(leaves)) != len(leaves):
            raise IndexError("A leaf has one rank, and is there twice")
        if len(leaves) != len(priorities) or not (priorities > 0.0).all() or (priorities[1:] > priorities[:-1]).any():
            raise ValueError("Priorities must be above 0, one for each leaf, the largest first")
        self.clear()
        _lay_out_all(self._arrays, priorities, leaves)

    def sum_range(self, first: int, n: int) -> float:
        """Not here, nor :meth:`find_range`: the leaves are in the order of their priorities."""
        raise NotImplementedError("The prefix sums of a RankTree run over ranks, not over leaves")

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        if leaves.size < max(self._n_leaves // 4, _MANY):
            return _write(self._arrays, leaves, masses)
        bad = (leaves < 0) | (leaves >= self.capacity) | ~(masses >= 0.0)
        if bad.any():
            return int(bad.argmax())
        self._rebuild(leaves, masses)
        return ALL_WRITTEN

    def _rebuild(self, changed: np.ndarray, new: np.ndarray) -> None:
        """
        Set priorities by laying out the whole order anew: many changes one after the other would move the directory over and
        over again, which is quadratic where all of them belong to the same place, as those of new transitions do.
        """
        order, order_priorities = self.ranked()
        # The last one of repeated leaves counts, and of equal priorities the one that was set last ranks first.
        changed, first = np.unique(changed[::-1], return_index=True)
        latest_first = np.argsort(first, kind="stable")
        changed, new = changed[latest_first], new[::-1][first[latest_first]]
        is_kept = np.ones(self.capacity, dtype=bool)
        is_kept[changed] = False
        kept = is_kept[order]
        leaves = np.concatenate((changed[new > 0.0], order[kept]))
        masses = np.concatenate((new[new > 0.0], order_priorities[kept]))
        by_priority = np.argsort(-masses, kind="stable")

        self.clear()
        _lay_out_all(self._arrays, masses[by_priority], leaves[by_priority])

    def _fill(self, first: int, last: int, mass: float) -> None:
        self._write(np.arange(first, last + 1), np.full(last + 1 - first, mass))

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return _leaves_at(self._arrays, _ranks(self._cumulative, self._n_leaves, self.alpha, prefix_sums))

    def _draw(self, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
        ranks = _ranks(self._cumulative, self._n_leaves, self.alpha, spread(uniforms, self.total, stratified))
        return _leaves_at(self._arrays, ranks), (ranks + 1.0) ** -self.alpha
