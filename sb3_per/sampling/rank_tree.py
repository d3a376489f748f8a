"""
Rank tree: draw slots by the rank of their priority (Schaul et al. 2016, section 3.3).

The slots that can be drawn are sorted by priority, the largest first. The r-th slot in this order is drawn with probability
proportional to r^-alpha. The paper approximates the order by a heap; here it is exact.
"""

from typing import Any

import numpy as np

from sb3_per.sampling.rank_kernels import (
    clear,
    lay_out_all,
    make_arrays,
    n_ranked,
    priorities_of,
    ranks_at,
    ranks_of,
    slots_at,
    write,
)
from sb3_per.sampling.sum_tree import ALL_WRITTEN, SumTree, as_batch, spread

# Least number of changes at once for which the whole order is laid out anew.
_MANY = 4096


class RankTree(SumTree):
    """
    Exact ranks of priorities, and draws by rank (Schaul et al. 2016, section 3.3).

    It has the methods of :class:`~sb3_per.sampling.sum_tree.SumTree`, but :meth:`update` takes priorities, not masses. Only
    their order counts. Infinity is allowed, and a slot of priority 0 cannot be drawn. The mass of a slot is rank^-alpha, with
    rank 1 for the largest priority. Of equal priorities, the newest ranks first. Prefix sums run over ranks, not over slots.

    Memory: about 60 bytes per slot.

    :param capacity: number of slots, at least 1
    :param alpha: prioritization exponent, at least 0
    :raises ValueError: if the capacity is below 1
    """

    _BOUNDS = "at least 0"

    def __init__(self, capacity: int, alpha: float):
        if capacity < 1:
            raise ValueError(f"The capacity of a RankTree must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        self.alpha = alpha
        self._arrays = make_arrays(self.capacity)
        # Sum of the masses of the first r ranks, which depends on alpha alone.
        self._cumulative = np.concatenate([[0.0], np.cumsum(np.arange(1.0, self.capacity + 1) ** -alpha)])
        self.clear()

    @property
    def total(self) -> float:
        """Sum of rank^-alpha over the slots that can be drawn."""
        return float(self._cumulative[n_ranked(self._arrays)])

    def clear(self) -> None:
        """Empty every slot."""
        clear(self._arrays)

    @classmethod
    def takes(cls, mass: float) -> bool:
        """See :meth:`SumTree.takes`; infinity is allowed."""
        return mass >= 0.0

    @property
    def masses(self) -> np.ndarray:
        """Mass of every slot, float64 of shape (capacity,)."""
        masses = np.zeros(self.capacity)
        ranks = np.arange(n_ranked(self._arrays))
        masses[slots_at(self._arrays, ranks)] = (ranks + 1.0) ** -self.alpha
        return masses

    def _masses_at(self, slots: np.ndarray) -> np.ndarray:
        ranks = ranks_of(self._arrays, slots.reshape(-1).astype(np.int64)).reshape(slots.shape)
        masses: np.ndarray = np.where(ranks >= 0, (ranks + 1.0).clip(min=1.0) ** -self.alpha, 0.0)
        return masses

    def written(self) -> np.ndarray:
        """
        :return: priority of every slot, 0 for those that cannot be drawn, float64 of shape (capacity,)
        """
        slots, priorities = self._ranked()
        written = np.zeros(self.capacity)
        written[slots] = priorities
        return written

    def state(self, n_leaves: int) -> dict[str, np.ndarray]:
        """
        :param n_leaves: without influence
        :return: slots that can be drawn, int64, those of the largest priorities first, and their priorities, float64
        """
        slots, priorities = self._ranked()
        return {"ranked_slots": slots, "ranked_priorities": priorities}

    def load(self, state: dict[str, Any]) -> None:
        """
        Set the order. All slots that are not in the state cannot be drawn then.

        :param state: from :meth:`state` of a tree of the same capacity
        :raises IndexError: for a slot outside ``[0, capacity)``, or a repeated one
        :raises ValueError: if the priorities are not in order. Nothing is changed in either case.
        """
        slots, priorities = as_batch(state["ranked_slots"], np.int64), as_batch(state["ranked_priorities"], np.float64)
        for slot in (slots.min(initial=0), slots.max(initial=0)):
            self._require_leaf(slot)
        is_ranked = np.zeros(self.capacity, np.bool_)  # `np.unique` takes 20 times as long
        is_ranked[slots] = True
        if np.count_nonzero(is_ranked) != len(slots):
            raise IndexError("Every slot must be there once")
        if len(slots) != len(priorities) or not (priorities > 0.0).all() or (priorities[1:] > priorities[:-1]).any():
            raise ValueError("Priorities must be above 0, one for each slot, the largest first")
        self.clear()
        lay_out_all(self._arrays, priorities, slots)

    def _ranked(self) -> tuple[np.ndarray, np.ndarray]:
        """Slots that can be drawn, those of the largest priorities first, and their priorities."""
        slots = slots_at(self._arrays, np.arange(n_ranked(self._arrays)))
        return slots, priorities_of(self._arrays, slots)

    def sum_range(self, first: int, n: int) -> float:
        """Refuse, as :meth:`find_range` does: prefix sums run over ranks."""
        raise NotImplementedError("The prefix sums of a RankTree run over ranks, not over slots")

    def _write(self, slots: np.ndarray, masses: np.ndarray) -> int:
        if slots.size < max(n_ranked(self._arrays) // 4, _MANY):
            return write(self._arrays, slots, masses)
        is_bad = (slots < 0) | (slots >= self.capacity) | ~(masses >= 0.0)
        if is_bad.any():
            return int(is_bad.argmax())
        self._rebuild(slots, masses)
        return ALL_WRITTEN

    def _rebuild(self, changed: np.ndarray, new: np.ndarray) -> None:
        """
        Set priorities by laying out the whole order anew.

        Many changes one after the other, such as those of new transitions, would move the directory over and over again.
        """
        order, order_priorities = self._ranked()
        # Of repeated slots the last one counts. Of equal priorities the one that was set last ranks first.
        changed, first = np.unique(changed[::-1], return_index=True)
        latest_first = np.argsort(first, kind="stable")
        changed, new = changed[latest_first], new[::-1][first[latest_first]]
        is_kept = np.ones(self.capacity, dtype=bool)
        is_kept[changed] = False
        kept = is_kept[order]
        slots = np.concatenate((changed[new > 0.0], order[kept]))
        masses = np.concatenate((new[new > 0.0], order_priorities[kept]))
        by_priority = np.argsort(-masses, kind="stable")

        self.clear()
        lay_out_all(self._arrays, masses[by_priority], slots[by_priority])

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return slots_at(self._arrays, ranks_at(self._cumulative, n_ranked(self._arrays), self.alpha, prefix_sums))

    def _draw(self, uniforms: np.ndarray, stratified: bool) -> tuple[np.ndarray, np.ndarray]:
        ranks = ranks_at(self._cumulative, n_ranked(self._arrays), self.alpha, spread(uniforms, self.total, stratified))
        return slots_at(self._arrays, ranks), (ranks + 1.0) ** -self.alpha
