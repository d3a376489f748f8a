"""Draw slots from a distribution over the newest transitions, independently, from equal slices, or without repeats."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.sum_tree import LEAST_MASS, SumTree, spread

# How often the missing part of a batch without repeats is drawn again, before a race among all remaining slots.
_ROUNDS = 4


class Distribution(NamedTuple):
    """P = (1 - eta) m / sum m + eta / n over the newest n transitions, with masses m."""

    tree: SumTree
    eligible: Eligibility
    #: number of transitions
    n: int
    #: sum of their masses
    total: float
    #: finds their slots by prefix sums of the masses, float64 of shape (batch_size,)
    find_by_mass: Callable[[np.ndarray], np.ndarray]
    #: share of uniform draws
    eta: float

    def find(self, fractions: np.ndarray) -> np.ndarray:
        """
        Invert the cumulative distribution.

        :param fractions: numbers in [0, 1), shape (batch_size,)
        :return: slots, int64 in the same shape
        """
        if self.eta == 0.0:
            return self.find_by_mass(fractions * self.total)
        is_uniform = fractions < self.eta
        slots = np.empty(len(fractions), np.int64)
        slots[is_uniform] = find_uniformly(self.eligible, self.n, fractions[is_uniform] / self.eta)
        slots[~is_uniform] = self.find_by_mass((fractions[~is_uniform] - self.eta) / (1.0 - self.eta) * self.total)
        return slots

    def chances(self, slots: np.ndarray) -> np.ndarray:
        """Return numbers in proportion to the probabilities of slots, float64 in the same shape."""
        return (1.0 - self.eta) * self.tree[slots] * (self.n / self.total) + self.eta

    def n_p(self, slots: np.ndarray) -> np.ndarray:
        """
        Return N P, by which importance-sampling weights correct the draw.

        :param slots: drawn slots, int64 of any shape
        :return: float64 in the same shape; 1 where the draw is that of equal masses
        """
        scale = self.tree.count(self.n) / self.total
        return np.maximum((1.0 - self.eta) * self.tree.without_age(slots) * scale + self.eta, LEAST_MASS)


def newest_of(tree: SumTree, eligible: Eligibility, n: int, eta: float) -> Distribution:
    """
    Describe a draw from the newest transitions, by their own masses.

    :param tree: masses of all transitions
    :param eligible: says which transitions can be drawn
    :param n: number of the newest ones
    :param eta: share of uniform draws
    :return: the distribution
    """
    if n == eligible.n:
        return Distribution(tree, eligible, n, tree.total, tree.find, eta)
    ring = eligible.ring
    if tree.in_slot_order and eligible.are_newest and ring.is_even:  # their slots are neighbours
        return Distribution(tree, eligible, n, *tree.part((ring.next_id - n) % ring.capacity, n), eta)
    slots = eligible.newest(n)(np.arange(n))
    sums = np.cumsum(tree[slots])

    def find(values: np.ndarray) -> np.ndarray:
        return np.asarray(slots[np.searchsorted(sums, values, side="right").clip(max=n - 1)])

    return Distribution(tree, eligible, n, float(sums[-1]), find, eta)


def find_uniformly(eligible: Eligibility, n: int, fractions: np.ndarray) -> np.ndarray:
    """
    Find slots that are equally likely.

    :param eligible: says which transitions can be drawn
    :param n: number of the newest ones, which are drawn from
    :param fractions: numbers in [0, 1), shape (batch_size,)
    :return: slots, int64 in the same shape
    """
    return eligible.newest(n)((fractions * n).astype(np.int64).clip(max=n - 1))


def draw_from(distribution: Distribution, batch_size: int, stratified: bool, unique: bool) -> np.ndarray:
    """
    Draw slots.

    :param distribution: what to draw from
    :param batch_size: number of slots
    :param stratified: whether to draw once from each of ``batch_size`` equal slices
    :param unique: whether no slot may be drawn twice
    :return: slots, int64 of shape (batch_size,)
    :raises ValueError: with ``unique``, if fewer slots than ``batch_size`` can be drawn
    """
    if unique and distribution.n < batch_size:
        raise ValueError(f"A batch of {batch_size} without repeats cannot be drawn from {distribution.n} transitions")
    slots = distribution.find(spread(np.random.random_sample(batch_size), 1.0, stratified))
    return _without_repeats(slots, distribution, stratified) if unique else slots


def _without_repeats(slots: np.ndarray, distribution: Distribution, stratified: bool) -> np.ndarray:
    """
    Replace repeated slots by draws from the others: drawing from all slots and keeping only new ones has the same result.

    :param slots: drawn slots, changed
    :param distribution: what they were drawn from
    :param stratified: whether they keep their places
    :return: as many slots, all different
    """
    is_first = _first_occurrences(slots)
    chosen = slots[is_first]
    for _ in range(_ROUNDS):
        if len(chosen) == len(slots):
            break
        chosen = np.append(chosen, distribution.find(spread(np.random.random_sample(len(slots)), 1.0, False)))
        chosen = chosen[_first_occurrences(chosen)][: len(slots)]
    if len(chosen) < len(slots):
        chosen = np.append(chosen, _successive(len(slots) - len(chosen), chosen, distribution))
    if stratified:
        slots[~is_first] = chosen[is_first.sum() :]
    return slots if stratified else chosen


def _successive(n: int, chosen: np.ndarray, distribution: Distribution) -> np.ndarray:
    """
    Draw without replacement as a race: each slot arrives after an exponential time whose rate is its probability, and the
    first n to arrive are drawn.

    :param n: number of slots
    :param chosen: slots that were drawn before
    :param distribution: what to draw from
    :return: slots in the order of the draws
    """
    slots = distribution.eligible.newest(distribution.n)(np.arange(distribution.n))
    candidates = np.setdiff1d(slots, chosen, assume_unique=True)
    with np.errstate(divide="ignore"):
        arrivals = np.random.exponential(size=len(candidates)) / distribution.chances(candidates)
    return np.asarray(candidates[np.argsort(arrivals, kind="stable")[:n]])


def _first_occurrences(slots: np.ndarray) -> np.ndarray:
    """Find the first occurrence of each slot: bool in the same shape."""
    is_first = np.zeros(len(slots), dtype=bool)
    is_first[np.unique(slots, return_index=True)[1]] = True
    return is_first
