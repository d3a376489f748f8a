"""Draw slots: by mass, partly uniformly, from the newest transitions only, or without repeats."""

import numpy as np

from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.rank_tree import RankTree
from sb3_per.sampling.schemes import PriorityScheme, Uniform
from sb3_per.sampling.sum_tree import SumTree, spread

# How often the missing part of a batch without repeats is drawn again, before a race among all remaining slots.
_ROUNDS = 4


class Draw:
    """
    Draw slots, without changing the tree.

    :param tree: tree of the sampling masses
    :param scheme: scheme of the masses
    :param eligible: says which slots can be drawn
    :param stratified: whether to draw once from each of ``batch_size`` equal slices
    :param uniform_fraction: share eta of uniform draws, in [0, 1)
    :param unique: whether a batch holds no slot twice
    :param recency: factor in (0, 1], see :meth:`_n_newest`; 1: off
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
        self.is_stock = isinstance(scheme, Uniform) and not stratified and recency == 1.0 and not unique

    def __call__(self, batch_size: int, position: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """
        :param batch_size: number of slots
        :param position: k / K of the k-th of K draws, for ``recency``; ``None``: a random number
        :return: slots, int64 of shape (batch_size,), and numbers in proportion to their probabilities, float64 in the same
            shape: masses, or N P where probabilities are not in proportion to the masses
        """
        if self.is_stock:
            return self.eligible.stock_draw(batch_size), np.ones(batch_size)
        if self.is_by_mass and not self.unique:
            return self.tree.draw(np.random.random_sample(batch_size), self.stratified)
        n_newest = self._n_newest(position)
        if self.unique and n_newest < batch_size:
            raise ValueError(f"A batch of {batch_size} without repeats cannot be drawn from {n_newest} transitions")
        slots = self._find(np.random.random_sample(batch_size), self.stratified, n_newest)
        if self.unique:
            slots = self._without_repeats(slots, n_newest)
        return slots, self._relative(slots, n_newest)

    def uniform(self, batch_size: int) -> np.ndarray:
        """
        Draw uniformly.

        :param batch_size: number of slots
        :return: slots, int64 of shape (batch_size,)
        """
        n = self.eligible.n
        numbers = (spread(np.random.random_sample(batch_size), 1.0, self.stratified) * n).astype(np.int64)
        return self.eligible.newest(n)(numbers.clip(max=n - 1))

    def n_p(self, relative: np.ndarray) -> np.ndarray:
        """
        :param relative: numbers in proportion to the probabilities, from a draw
        :return: N P of the same slots
        """
        return relative * (self.eligible.n / self.tree.total) if self.is_by_mass else relative

    def _n_newest(self, position: float | None) -> int:
        """
        Count the newest transitions to draw from: max(N recency^(1000 k / K), recency_min), which emphasizes recent experience
        (ERE, Wang & Ross 2019, arXiv 1906.04009).
        """
        n = self.eligible.n
        if self.recency == 1.0:
            return n
        position = float(np.random.random_sample()) if position is None else position
        return min(max(int(n * self.recency ** (1000.0 * position)), self.recency_min), n)

    def _find(self, uniforms: np.ndarray, stratified: bool, n_newest: int) -> np.ndarray:
        """
        :param uniforms: numbers in [0, 1), shape (batch_size,)
        :param stratified: whether each is for its own of ``batch_size`` equal slices
        :param n_newest: number of the newest transitions to draw from
        :return: slots, drawn with probability (1 - eta) m / sum m + eta / n
        """
        fractions = spread(uniforms, 1.0, stratified)
        if self.eta == 0.0:
            return self._find_by_mass(fractions, n_newest)
        is_uniform = fractions < self.eta
        slots = np.empty(len(fractions), np.int64)
        numbers = (fractions[is_uniform] / self.eta * n_newest).astype(np.int64).clip(max=n_newest - 1)
        slots[is_uniform] = self.eligible.newest(n_newest)(numbers)
        slots[~is_uniform] = self._find_by_mass((fractions[~is_uniform] - self.eta) / (1.0 - self.eta), n_newest)
        return slots

    def _find_by_mass(self, fractions: np.ndarray, n_newest: int) -> np.ndarray:
        """
        :param fractions: prefix sums over the sum of the masses, in [0, 1), shape (n,)
        :param n_newest: number of the newest transitions to draw from
        :return: slots, shape (n,)
        """
        if n_newest == self.eligible.n:
            return self.tree.find(fractions * self.tree.total)  # type: ignore[no-any-return]
        first = self._first_of_range(n_newest)
        if first is not None:
            return self.tree.find_range(fractions * self.tree.sum_range(first, n_newest), first, n_newest)
        candidates = self.eligible.newest(n_newest)(np.arange(n_newest))
        sums = np.cumsum(self.tree[candidates])
        found = np.searchsorted(sums, fractions * sums[-1], side="right")
        return np.asarray(candidates[found.clip(max=n_newest - 1)])

    def _relative(self, slots: np.ndarray, n_newest: int) -> np.ndarray:
        """
        :param slots: drawn slots, of any shape
        :param n_newest: number of the newest transitions that they were drawn from
        :return: see :meth:`__call__`
        """
        masses: np.ndarray = self.tree[slots]
        if self.is_by_mass:
            return masses
        return np.asarray((1.0 - self.eta) * masses * (n_newest / self._total_of(n_newest)) + self.eta)

    def _total_of(self, n_newest: int) -> float:
        """Sum the masses of the newest transitions."""
        if n_newest == self.eligible.n:
            return self.tree.total
        first = self._first_of_range(n_newest)
        if first is not None:
            return self.tree.sum_range(first, n_newest)
        return float(self.tree[self.eligible.newest(n_newest)(np.arange(n_newest))].sum())

    def _first_of_range(self, n_newest: int) -> int | None:
        """Find the first slot of the newest transitions, ``None`` if they are not neighbours in the tree."""
        return None if isinstance(self.tree, RankTree) else self.eligible.first_of_range(n_newest)

    # ---- without repeats

    def _without_repeats(self, slots: np.ndarray, n_newest: int) -> np.ndarray:
        """
        Replace repeated slots by draws from the others. Drawing from all slots and keeping only new ones is the same.

        :param slots: drawn slots; stratified ones keep their places
        :param n_newest: number of the newest transitions to draw from
        :return: as many slots, all different
        """
        is_first = _first_occurrences(slots)
        chosen = slots[is_first]
        for _ in range(_ROUNDS):
            if len(chosen) == len(slots):
                break
            more = self._find(np.random.random_sample(len(slots)), False, n_newest)
            chosen = np.concatenate((chosen, more))
            chosen = chosen[_first_occurrences(chosen)][: len(slots)]
        if len(chosen) < len(slots):
            chosen = np.concatenate((chosen, self._successive(len(slots) - len(chosen), chosen, n_newest)))
        if not self.stratified:
            return np.asarray(chosen)
        result = slots.copy()
        result[~is_first] = chosen[is_first.sum() :]
        return result

    def _successive(self, n: int, chosen: np.ndarray, n_newest: int) -> np.ndarray:
        """
        Draw without replacement as a race: each slot arrives after an exponential time whose rate is its probability, and the
        first n to arrive are drawn.

        :param n: number of slots
        :param chosen: slots that were drawn before
        :param n_newest: number of the newest transitions to draw from
        :return: slots in the order of the draws
        """
        candidates = self.eligible.newest(n_newest)(np.arange(n_newest))
        candidates = candidates[~np.isin(candidates, chosen)]
        with np.errstate(divide="ignore"):
            arrivals = np.random.exponential(size=len(candidates)) / self._relative(candidates, n_newest)
        drawn: np.ndarray = candidates[np.argsort(arrivals, kind="stable")[:n]]
        return drawn


def _first_occurrences(slots: np.ndarray) -> np.ndarray:
    """Find the first occurrence of each slot: bool in the same shape."""
    is_first = np.zeros(len(slots), dtype=bool)
    is_first[np.unique(slots, return_index=True)[1]] = True
    return is_first
