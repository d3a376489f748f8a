"""
Draws by age alone, in closed form: P(i) is proportional to exp(-c age_i / capacity).

Korniak et al. 2026 (arXiv 2605.10236) draw from this truncated geometric distribution, which needs no tree.
"""

from typing import Any

import numpy as np

from sb3_per.sampling.mass_tree import LEAST_MASS, MassTree
from sb3_per.sampling.sum_tree import prefix_sums_of
from sb3_per.storage.ring import Ring
from sb3_per.utils.compiled import kernel


@kernel
def _runs_of_ages(
    next_steps: np.ndarray, oldest: np.ndarray, all_at_same_step: bool, rate: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cumulative sums of the factors of runs, their newest ids, and their lengths, see :class:`AgeDraw`."""
    n_runs = 1 if all_at_same_step else next_steps.size
    ends, newest, counts, total = np.empty(n_runs), np.empty(n_runs, np.int64), np.empty(n_runs, np.int64), 0.0
    for k in range(n_runs):
        least_age = n_runs - 1 - k
        newest[k] = next_steps[k] * next_steps.size - 1 - least_age
        counts[k] = (next_steps - oldest).sum() if all_at_same_step else next_steps[k] - oldest[k]
        total += np.exp(-rate * least_age) * np.expm1(-rate * n_runs * counts[k]) / np.expm1(-rate * n_runs)
        ends[k] = total
    return ends, newest, counts


@kernel
def _find_by_age(
    fractions: np.ndarray, ends: np.ndarray, newest: np.ndarray, counts: np.ndarray, rate: float, capacity: int
) -> np.ndarray:
    """Invert the cumulative distribution over runs of ages, see :class:`AgeDraw`."""
    slots, stride = np.empty(fractions.size, np.int64), ends.size
    for i in range(fractions.size):
        value, k = fractions[i] * ends[-1], 0
        # Rounding may lead to the end, but not past the last run that has a transition.
        while value >= ends[k] and ends[k] < ends[-1]:
            k += 1
        begin = 0.0 if k == 0 else ends[k - 1]
        rest = min((value - begin) / (ends[k] - begin), 1.0)
        number = np.log1p(rest * np.expm1(-rate * stride * counts[k])) / (-rate * stride)
        slots[i] = (newest[k] - stride * int(min(number, counts[k] - 1.0))) % capacity
    return slots


class AgeDraw(MassTree):
    """
    Draw by age alone: all p^alpha are 1. Nothing is written, and nothing is stored.

    The ages of the transitions are runs: 0, 1, ... for all environments together, or, if these stand at different steps, every
    ``n_envs``-th for each of them.

    :param decay: c, above 0
    :param ring: whose complete transitions can be drawn
    """

    depends_on_age = True

    def __init__(self, decay: float, ring: Ring):
        super().__init__(ring.capacity)
        self.ring = ring
        self.rate = decay / ring.capacity
        self.clear()

    def clear(self) -> None:
        """Compute the runs anew at the next draw; nothing else is stored."""
        self._version = -1

    def _follow_ring(self) -> None:
        ring = self.ring
        if self._version != ring.version:
            self._runs = _runs_of_ages(ring.next_steps, ring.oldest_complete, ring.all_at_same_step, self.rate)
            self._version = ring.version

    @property
    def nbytes(self) -> int:
        """Nothing is stored by slot."""
        return 0

    @property
    def total(self) -> float:
        """Sum of exp(-c age / capacity) over the slots that can be drawn."""
        self._follow_ring()
        return float(self._runs[0][-1])

    def write(self, slots: np.ndarray, values: np.ndarray) -> None:
        """Do nothing: the ring says which slots can be drawn."""

    def masses_at(self, slots: np.ndarray) -> np.ndarray:
        """See :meth:`MassTree.masses_at`."""
        self._follow_ring()
        ends, newest, counts = self._runs
        runs = slots % len(ends)
        since = (newest[runs] - slots) % self.capacity
        factors = np.maximum(np.exp(-self.rate * (since + len(ends) - 1 - runs)), LEAST_MASS)
        return np.where(since < len(ends) * counts[runs], factors, 0.0)

    def values(self) -> np.ndarray:
        """1 for every slot that can be drawn, see :meth:`MassTree.values`."""
        return np.asarray(np.sign(self.masses_at(np.arange(self.capacity))))

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """See :meth:`MassTree.find`."""
        return _find_by_age(prefix_sums / self.total, *self._runs, self.rate, self.capacity)

    def draw(self, uniforms: np.ndarray, stratified: bool, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`MassTree.draw`. N P is 1: weights do not correct for age."""
        self._require_mass()
        return self.find(prefix_sums_of(uniforms, self.total, stratified)), np.ones(len(uniforms))

    def relative_probabilities(self, slots: np.ndarray, n_candidates: int) -> np.ndarray:
        """Ones, see :meth:`draw`."""
        return np.ones(slots.shape)

    def state(self, n_slots: int) -> dict[str, np.ndarray]:
        """See :meth:`MassTree.state`."""
        return {"masses": self.values()[:n_slots]}

    def load(self, state: dict[str, Any]) -> None:
        """Do nothing, see :meth:`write`."""
