"""
Rank tree: draw slots by the rank of their priority (Schaul et al. 2016, section 3.3).

The slots that can be drawn are sorted by priority, the largest first. The r-th slot in this order is drawn with probability
proportional to r^-alpha. The paper approximates the order by a heap; here it is exact.
"""

import numpy as np

from sb3_per.sampling import rank_kernels
from sb3_per.sampling.mass_tree import ALL_WRITTEN, LEAST_MASS, MassTree
from sb3_per.sampling.rank_kernels import empty_order, n_ranked, ranks_of
from sb3_per.sampling.sum_tree import prefix_sums_of


class RankTree(MassTree):
    """
    Exact ranks of priorities, and draws by rank (Schaul et al. 2016, section 3.3).

    A value is a priority, not a mass. Only their order counts. Infinity is allowed, and a slot of priority 0 cannot
    be drawn. The mass of a slot is rank^-alpha, with rank 1 for the largest priority. Of equal priorities, the newest ranks
    first. Prefix sums run over ranks, not over slots.

    Memory: about 42 bytes per slot.

    :param capacity: number of slots, at least 1
    :param alpha: prioritization exponent, at least 0
    :raises ValueError: if the capacity is below 1
    """

    def __init__(self, capacity: int, alpha: float):
        super().__init__(capacity)
        self.alpha = alpha
        self.clear()
        # Sum of the masses of the first r ranks, which depends on alpha alone.
        self._cumulative = np.concatenate([[0.0], np.cumsum(np.arange(1.0, self.capacity + 1) ** -alpha)])

    @property
    def nbytes(self) -> int:
        """Bytes of the order, and of the sums of the masses."""
        return sum(part.nbytes for part in self._order) + self._cumulative.nbytes

    @property
    def total(self) -> float:
        """Sum of rank^-alpha over the slots that can be drawn."""
        return float(self._cumulative[n_ranked(self._order)])

    def clear(self) -> None:
        """Empty every slot."""
        self._order = empty_order(self.capacity)

    def write(self, slots: np.ndarray, values: np.ndarray) -> None:
        """
        Set priorities, see :meth:`MassTree.write`.

        :param slots: int64 of shape (n,)
        :param values: priorities of at least 0, which may be infinite, float64 of shape (n,)
        """
        bad = rank_kernels.write(self._order, slots, values)
        if bad != ALL_WRITTEN:
            self._refuse_value(slots[bad], values[bad])

    def masses_at(self, slots: np.ndarray) -> np.ndarray:
        """Read rank^-alpha, see :meth:`MassTree.masses_at`."""
        ranks = ranks_of(self._order, slots.reshape(-1)).reshape(slots.shape)
        masses = np.maximum((ranks + 1.0).clip(min=1.0) ** -self.alpha, LEAST_MASS)  # a power may underflow
        return np.where(ranks >= 0, masses, 0.0)

    def values(self) -> np.ndarray:
        """Return the priorities, see :meth:`MassTree.values`."""
        slots, priorities = rank_kernels.entries(self._order)
        by_slot = np.zeros(self.capacity)
        by_slot[slots] = priorities
        return by_slot

    def state(self) -> dict[str, np.ndarray]:
        """See :meth:`MassTree.state`. Equal priorities have an order, so ``ranks`` say it: int64, -1 for no rank."""
        slots, _ = rank_kernels.entries(self._order)
        ranks = np.full(self.capacity, -1)
        ranks[slots] = np.arange(len(slots))
        return {"values": self.values(), "ranks": ranks}

    def load(self, state: dict[str, np.ndarray], slots: np.ndarray) -> None:
        """See :meth:`MassTree.load`. Of equal priorities, the one that is written last ranks first."""
        ranks = state["ranks"][slots]
        if len(np.unique(ranks)) != len(slots):
            raise ValueError("each slot must have a rank of its own")
        super().load(state, slots[np.argsort(-ranks, kind="stable")])

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """See :meth:`MassTree.find`. Prefix sums run over ranks."""
        return np.asarray(rank_kernels.find(self._order, self._cumulative, self.alpha, prefix_sums)[0])

    def draw(self, uniforms: np.ndarray, stratified: bool, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`MassTree.draw`. N P is the number of candidates times the probability P of a slot."""
        self._require_mass()
        prefix_sums = prefix_sums_of(uniforms, self.total, stratified)
        slots, ranks = rank_kernels.find(self._order, self._cumulative, self.alpha, prefix_sums)
        return slots, (ranks + 1.0) ** -self.alpha * (n_candidates / self.total)

    def relative_probabilities(self, slots: np.ndarray, n_candidates: int) -> np.ndarray:
        """See :meth:`MassTree.relative_probabilities`."""
        return np.asarray(np.maximum(self.masses_at(slots) * (n_candidates / self.total), LEAST_MASS))
