"""Draw slots: by mass, partly uniformly, from the newest transitions only, or without repeats."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.rank_tree import RankTree
from sb3_per.sampling.schemes import PriorityScheme, Uniform
from sb3_per.sampling.sum_tree import SumTree, spread

# How often the missing part of a batch without repeats is drawn again, before a race among all remaining slots.
_ROUNDS = 4


class Newest(NamedTuple):
    """The newest transitions, which a batch is drawn from."""

    #: how many
    n: int
    #: sum of their masses
    total: float
    #: finds their slots by prefix sums of the masses, float64 of shape (batch_size,)
    find: Callable[[np.ndarray], np.ndarray]


class Draw:
    """
    Draw slots, without changing the tree.

    :param tree: tree of the sampling masses
    :param scheme: scheme of the masses
    :param eligible: says which slots can be drawn
    :param stratified: whether to draw once from each of ``batch_size`` equal slices
    :param uniform_fraction: share eta of uniform draws, in [0, 1)
    :param unique: whether a batch holds no slot twice
    :param recency: factor in (0, 1], see :meth:`_newest`; 1: off
    :param recency_min: least number of transitions to draw from with ``recency``
    """

    def __init__(
        self,
        tree: SumTree,
        scheme: PriorityScheme,
        eligible: Eligibility,
        stratified: bool,
        uniform_fraction: float,
        unique: bool,
        recency: float,
        recency_min: int,
    ):
        self.tree, self.eligible = tree, eligible
        self.stratified, self.unique, self.recency, self.recency_min = stratified, unique, recency, recency_min
        self.eta = 0.0 if scheme.draws_uniformly else uniform_fraction
        #: whether probabilities are in proportion to the masses
        self.is_by_mass = self.eta == 0.0 and recency == 1.0
        #: whether it draws the random numbers that SB3's own buffer draws
        is_plain = recency == 1.0 and not unique and type(tree) is SumTree
        self.is_stock = isinstance(scheme, Uniform) and not stratified and is_plain

    def __call__(self, batch_size: int, position: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw slots by mass, with all settings of the draw.

        :param batch_size: number of slots
        :param position: k / K of the k-th of K draws, for ``recency``; ``None``: a random number
        :return: slots, int64 of shape (batch_size,), and numbers in proportion to their probabilities, float64 in the same
            shape: masses, or N P where probabilities are not in proportion to the masses
        :raises ValueError: with ``unique``, if fewer slots than ``batch_size`` can be drawn
        """
        if self.is_stock:
            return self.eligible.stock_draw(batch_size), np.ones(batch_size)
        if self.is_by_mass and not self.unique:
            return self.tree.draw(np.random.random_sample(batch_size), self.stratified)
        newest = self._newest(position)
        if self.unique and newest.n < batch_size:
            raise ValueError(f"A batch of {batch_size} without repeats cannot be drawn from {newest.n} transitions")
        slots = self._find(np.random.random_sample(batch_size), self.stratified, newest)
        if self.unique:
            slots = self._without_repeats(slots, newest)
        return slots, self.tree.without_age(slots) if self.is_by_mass else self._chances(slots, newest)

    def uniform(self, batch_size: int) -> np.ndarray:
        """
        Draw uniformly.

        :param batch_size: number of slots
        :return: slots, int64 of shape (batch_size,)
        """
        return self._find_uniformly(spread(np.random.random_sample(batch_size), 1.0, self.stratified), self.eligible.n)

    def n_p(self, relative: np.ndarray) -> np.ndarray:
        """
        Turn results of a draw into N P.

        :param relative: numbers in proportion to the probabilities, from a draw
        :return: N P of the same slots
        """
        return relative * (self.tree.count(self.eligible.n) / self.tree.total) if self.is_by_mass else relative

    def _newest(self, position: float | None) -> Newest:
        """
        Choose the newest max(N recency^(1000 k / K), recency_min) transitions, which emphasizes recent experience (ERE, Wang &
        Ross 2019, arXiv 1906.04009).
        """
        n = self.eligible.n
        if self.recency < 1.0:
            position = float(np.random.random_sample()) if position is None else position
            n = min(max(int(n * self.recency ** (1000.0 * position)), self.recency_min), n)
        if n == self.eligible.n:
            return Newest(n, self.tree.total, self.tree.find)
        # Prefix sums of a rank tree run over ranks, and not over neighbours.
        first = None if isinstance(self.tree, RankTree) else self.eligible.first_of_range(n)
        if first is not None:
            return Newest(n, *self.tree.part(first, n))
        slots = self.eligible.newest(n)(np.arange(n))
        sums = np.cumsum(self.tree[slots])
        return Newest(n, float(sums[-1]), lambda values: slots[np.searchsorted(sums, values, side="right").clip(max=n - 1)])

    def _find(self, uniforms: np.ndarray, stratified: bool, newest: Newest) -> np.ndarray:
        """
        Find the slots of uniform numbers.

        :param uniforms: numbers in [0, 1), shape (batch_size,)
        :param stratified: whether each is for its own of ``batch_size`` equal slices
        :param newest: transitions to draw from
        :return: slots, drawn with probability (1 - eta) m / sum m + eta / n
        """
        fractions = spread(uniforms, 1.0, stratified)
        if self.eta == 0.0:
            return newest.find(fractions * newest.total)
        is_uniform = fractions < self.eta
        slots = np.empty(len(fractions), np.int64)
        slots[is_uniform] = self._find_uniformly(fractions[is_uniform] / self.eta, newest.n)
        slots[~is_uniform] = newest.find((fractions[~is_uniform] - self.eta) / (1.0 - self.eta) * newest.total)
        return slots

    def _find_uniformly(self, fractions: np.ndarray, n: int) -> np.ndarray:
        """
        Find slots that are equally likely.

        :param fractions: numbers in [0, 1), shape (batch_size,)
        :param n: number of the newest transitions to draw from
        :return: slots in the same shape
        """
        return self.eligible.newest(n)((fractions * n).astype(np.int64).clip(max=n - 1))

    def _chances(self, slots: np.ndarray, newest: Newest) -> np.ndarray:
        """
        Return numbers in proportion to the probabilities of slots.

        :param slots: drawn slots, of any shape
        :param newest: transitions that they were drawn from
        :return: masses, or N P where probabilities are not in proportion to the masses
        """
        masses: np.ndarray = self.tree[slots]
        return masses if self.is_by_mass else (1.0 - self.eta) * masses * (newest.n / newest.total) + self.eta

    # ---- without repeats

    def _without_repeats(self, slots: np.ndarray, newest: Newest) -> np.ndarray:
        """
        Replace repeated slots by draws from the others. Drawing from all slots and keeping only new ones is the same.

        :param slots: drawn slots; stratified ones keep their places
        :param newest: transitions to draw from
        :return: as many slots, all different
        """
        is_first = _first_occurrences(slots)
        chosen = slots[is_first]
        for _ in range(_ROUNDS):
            if len(chosen) == len(slots):
                break
            chosen = np.append(chosen, self._find(np.random.random_sample(len(slots)), False, newest))
            chosen = chosen[_first_occurrences(chosen)][: len(slots)]
        if len(chosen) < len(slots):
            chosen = np.append(chosen, self._successive(len(slots) - len(chosen), chosen, newest))
        if self.stratified:
            slots[~is_first] = chosen[is_first.sum() :]
        return slots if self.stratified else chosen

    def _successive(self, n: int, chosen: np.ndarray, newest: Newest) -> np.ndarray:
        """
        Draw without replacement as a race: each slot arrives after an exponential time whose rate is its probability, and the
        first n to arrive are drawn.

        :param n: number of slots
        :param chosen: slots that were drawn before
        :param newest: transitions to draw from
        :return: slots in the order of the draws
        """
        slots = self.eligible.newest(newest.n)(np.arange(newest.n))
        candidates = np.setdiff1d(slots, chosen, assume_unique=True)
        with np.errstate(divide="ignore"):
            arrivals = np.random.exponential(size=len(candidates)) / self._chances(candidates, newest)
        drawn: np.ndarray = candidates[np.argsort(arrivals, kind="stable")[:n]]
        return drawn


def _first_occurrences(slots: np.ndarray) -> np.ndarray:
    """Find the first occurrence of each slot: bool in the same shape."""
    is_first = np.zeros(len(slots), dtype=bool)
    is_first[np.unique(slots, return_index=True)[1]] = True
    return is_first
