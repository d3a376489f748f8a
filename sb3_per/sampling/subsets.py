"""Draw from some of the slots, the newest n, or without repeats. Only the settings ``recency`` and ``unique`` need this."""

from typing import Protocol

import numpy as np

from sb3_per.sampling.candidates import Candidates
from sb3_per.sampling.mass_tree import LEAST_MASS, MassTree, NothingToDrawError
from sb3_per.sampling.sum_tree import SumTree, cover, descend, prefix_sums_of

# How often the missing part of a batch without repeats is drawn again, before a race among all remaining slots.
_ROUNDS = 4


class Subset(Protocol):
    """Slots that are drawn in proportion to their mass among themselves."""

    #: number of slots
    n: int
    #: sum of their masses
    total: float

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """Find slots by prefix sums of their masses, float64 of shape (batch_size,)."""

    def relative_probabilities(self, slots: np.ndarray) -> np.ndarray:
        """Compute N P of drawn slots: how many times as likely as in a uniform draw from this subset."""


class WholeTree:
    """
    All slots that can be drawn.

    :param tree: masses of all slots
    :param n: number of slots that can be drawn
    """

    def __init__(self, tree: MassTree, n: int):
        self.n = n
        self.total = tree.total
        self._tree = tree

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """See :class:`Subset`."""
        return self._tree.find(prefix_sums)

    def relative_probabilities(self, slots: np.ndarray) -> np.ndarray:
        """See :class:`Subset`."""
        return self._tree.relative_probabilities(slots, self.n)


class SlotRange:
    """
    Slots side by side; slot 0 follows the last one. Other slots have no influence, not even by rounding.

    :param tree: masses of all slots
    :param first: first slot
    :param n: number of slots, from 1 to the capacity of the tree
    """

    def __init__(self, tree: SumTree, first: int, n: int):
        self.n = n
        self._tree = tree
        self._nodes, self._levels = cover(len(tree.starts), first, n, tree.capacity)
        self._ends = np.cumsum(tree.sums[tree.starts[self._levels] + self._nodes])
        self.total = float(self._ends[-1])

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """See :class:`Subset`."""
        last = self._ends.searchsorted(self._ends[-1])  # the last node with mass
        i = np.minimum(self._ends.searchsorted(prefix_sums, side="right"), last)
        found: np.ndarray = self._nodes[i]
        descend(self._tree.sums, self._tree.starts, found, self._levels[i], prefix_sums - np.append(0.0, self._ends)[i])
        return found.view(np.int64)

    def relative_probabilities(self, slots: np.ndarray) -> np.ndarray:
        """See :class:`Subset`."""
        return np.asarray(np.maximum(self._tree.masses_at(slots) * (self.n / self.total), LEAST_MASS))


class ListedSlots:
    """
    Slots that are listed one by one: of ranks, or where environments stand at different steps.

    :param tree: masses of all slots
    :param slots: int64 of shape (n,)
    """

    def __init__(self, tree: MassTree, slots: np.ndarray):
        self.n = len(slots)
        self._tree = tree
        self._slots = slots
        self._sums = np.cumsum(tree.masses_at(slots))
        self.total = float(self._sums[-1])

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """See :class:`Subset`."""
        positions = np.searchsorted(self._sums, prefix_sums, side="right")
        return np.asarray(self._slots[np.minimum(positions, self.n - 1)])

    def relative_probabilities(self, slots: np.ndarray) -> np.ndarray:
        """See :class:`Subset`."""
        return np.asarray(np.maximum(self._tree.masses_at(slots) * (self.n / self.total), LEAST_MASS))


def newest_subset(tree: MassTree, candidates: Candidates, n: int) -> Subset:
    """
    Choose the newest slots that can be drawn.

    :param tree: masses of all slots
    :param candidates: say which slots can be drawn
    :param n: number of the newest ones
    :return: these slots
    """
    if n == candidates.n:
        return WholeTree(tree, n)
    first = candidates.start_of_newest(n)
    if first is not None and isinstance(tree, SumTree):
        return SlotRange(tree, first, n)
    return ListedSlots(tree, candidates.newest(np.arange(n), n))


def draw_from(subset: Subset, batch_size: int, stratified: bool) -> np.ndarray:
    """
    Draw slots by mass, with replacement.

    :param subset: what to draw from
    :param batch_size: number of slots
    :param stratified: whether to draw once from each of ``batch_size`` equal slices
    :return: slots, int64 of shape (batch_size,)
    :raises NothingToDrawError: if no slot has a mass
    """
    if not subset.total > 0.0:
        raise NothingToDrawError(f"Cannot draw from {subset.n} slots: none of them has a mass")
    return subset.find(prefix_sums_of(np.random.random_sample(batch_size), 1.0, stratified) * subset.total)


def draw_without_repeats(
    subset: Subset, tree: MassTree, candidates: Candidates, batch_size: int, stratified: bool
) -> np.ndarray:
    """
    Draw slots by mass, none of them twice. A slot that comes again is replaced by a draw from the others: to draw from all
    slots and keep only new ones has the same result.

    :param subset: what to draw from, the newest slots
    :param tree: masses of all slots
    :param candidates: say which slots can be drawn
    :param batch_size: number of slots
    :param stratified: whether slots keep the places of their slices
    :return: slots, int64 of shape (batch_size,)
    :raises ValueError: if fewer slots than ``batch_size`` can be drawn
    """
    if subset.n < batch_size:
        raise ValueError(f"A batch of {batch_size} without repeats cannot be drawn from {subset.n} transitions")
    slots = draw_from(subset, batch_size, stratified)
    is_first = _first_occurrences(slots)
    chosen = slots[is_first]
    for _ in range(_ROUNDS):
        if len(chosen) == batch_size:
            break
        chosen = np.append(chosen, draw_from(subset, batch_size, stratified=False))
        chosen = chosen[_first_occurrences(chosen)][:batch_size]
    if len(chosen) < batch_size:
        remaining = np.setdiff1d(candidates.newest(np.arange(subset.n), subset.n), chosen, assume_unique=True)
        masses = tree.masses_at(remaining) * (subset.n / subset.total)
        chosen = np.append(chosen, _race(remaining, masses, batch_size - len(chosen)))
    if not stratified:
        return chosen
    slots[~is_first] = chosen[is_first.sum() :]
    return slots


def _race(slots: np.ndarray, masses: np.ndarray, n: int) -> np.ndarray:
    """
    Draw without replacement as a race: each slot arrives after an exponential time whose rate is its mass, and the first n to
    arrive are drawn.

    :param slots: different slots, int64 of shape (n_slots,)
    :param masses: their masses in any unit, float64 in the same shape
    :param n: number of slots to draw
    :return: slots in the order of the draws, int64 of shape (n,)
    """
    with np.errstate(divide="ignore"):
        arrivals = np.random.exponential(size=len(slots)) / masses
    return np.asarray(slots[np.argsort(arrivals, kind="stable")[:n]])


def _first_occurrences(slots: np.ndarray) -> np.ndarray:
    """Find the first occurrence of each slot: bool in the same shape."""
    is_first = np.zeros(len(slots), dtype=bool)
    is_first[np.unique(slots, return_index=True)[1]] = True
    return is_first
