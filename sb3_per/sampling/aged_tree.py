"""
Draws that favour recent transitions: P(i) is proportional to p_i^alpha exp(-c age_i / capacity).

Korniak et al. 2026 (arXiv 2605.10236) draw by age alone, from a truncated geometric distribution, which needs no tree. With
priorities, a sum tree holds p^alpha exp(c (id - ref) / capacity). Only differences of ids count, so nothing in it changes as
transitions grow older. Before float64 overflows, the reference ``ref`` moves to newer ids.

The age of a transition is the number of transitions that came after it. If environments have added different numbers of
steps, each counts its own steps, and the newest steps of all environments are equally young.
"""

import math
from typing import Any

import numpy as np

from sb3_per.sampling.sum_tree import ALL_WRITTEN, LEAST_MASS, SumTree, aligned_copy, draw_leaves, spread, write_masses
from sb3_per.storage.ring import Ring
from sb3_per.utils.compiled import kernel

#: Slot of age 0 for each environment, and the number of slots, int64 of shape (n_envs + 1,); the factor of age 0; a table of
#: exp(-rate age) for all ages below ``2 ** bits`` and for all multiples of this, because two reads are faster than ``exp``;
#: and bits.
Ages = tuple[np.ndarray, float, np.ndarray, int]

# Largest logarithm of a factor in the tree. The largest mass times this factor, times the number of slots, is finite.
_MOST = 20.0


@kernel
def _times_factors(slots: np.ndarray, masses: np.ndarray, is_divided: bool, ages: Ages) -> None:
    """
    Multiply masses by exp(rate (id - ref)), or divide them. Masses above 0 stay above 0.

    :param slots: int64 of shape (batch_size,)
    :param masses: changed, float64 in the same shape
    :param is_divided: whether to divide
    :param ages: see :data:`Ages`
    """
    cursors, height, table, bits = ages
    n_envs, capacity, n_fine = cursors.size - 1, cursors[-1], 1 << bits
    for i in range(slots.size):
        age = cursors[slots[i] % n_envs if n_envs > 1 else 0] - slots[i]
        age = age if age >= 0 else age + capacity
        if masses[i] > 0.0:
            factor = max(height * (table[age & (n_fine - 1)] * table[n_fine + (age >> bits)]), LEAST_MASS)
            masses[i] = max(masses[i] / factor if is_divided else masses[i] * factor, LEAST_MASS)


@kernel
def _write_aged(
    sums: np.ndarray,
    factor_sums: np.ndarray,
    starts: np.ndarray,
    slots: np.ndarray,
    masses: np.ndarray,
    has_new_factors: bool,
    ages: Ages,
) -> int:
    """
    Write masses times factors, and the factors of the same slots where they change, see :func:`write_masses`. One kernel does
    both, so that no interrupt comes in between.

    :param sums: tree of the masses times factors
    :param factor_sums: tree of the factors of the slots that can be drawn
    :param has_new_factors: whether slots have other factors than before; otherwise factors change only where a slot becomes
        drawable, or no longer is
    """
    aged, capacity = masses.copy(), ages[0][-1]
    for i in range(slots.size):
        if not 0 <= slots[i] < capacity:
            return i
        has_new_factors |= (sums[slots[i]] > 0.0) != (masses[i] > 0.0)
    _times_factors(slots, aged, False, ages)
    result = write_masses(sums, starts, capacity, slots, aged)
    if has_new_factors and result == ALL_WRITTEN:
        factors = np.sign(masses)
        _times_factors(slots, factors, False, ages)
        write_masses(factor_sums, starts, capacity, slots, factors)
    return result


@kernel
def _draw_aged(
    sums: np.ndarray,
    starts: np.ndarray,
    uniforms: np.ndarray,
    stratified: bool,
    scale: float,
    slots: np.ndarray,
    masses: np.ndarray,
    ages: Ages,
) -> None:
    """Find the slots of uniform numbers, and read the masses without their factors."""
    draw_leaves(sums, starts, uniforms, stratified, scale, slots, masses)
    _times_factors(slots, masses, True, ages)


class AgedTree(SumTree):
    """
    Sum tree of p^alpha exp(-c age / capacity), with the ages at the last write. Write masses p^alpha; reads, searches and sums
    include the factor of age.

    :param decay: c, above 0
    :param ring: says how old the slots are
    """

    def __init__(self, decay: float, ring: Ring):
        self.ring, self.rate = ring, decay / ring.capacity
        bits = (ring.capacity.bit_length() + 1) // 2
        ages = np.append(np.arange(1 << bits), np.arange(0, ring.capacity + 1, 1 << bits))
        self._table = np.exp(-self.rate * ages), bits
        super().__init__(ring.capacity)

    def clear(self) -> None:
        """Empty every slot, after the ring was emptied."""
        super().clear()
        # Sums of exp(c (id - ref) / capacity) of the slots that can be drawn, in the layout of the masses.
        self._factor_sums = aligned_copy(self._sums)
        self._count_ages(0, self._sums, self._factor_sums)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_factor_sums" in state:
            self._factor_sums = aligned_copy(state["_factor_sums"])

    def _ages_from(self, lead: int) -> tuple[float, Ages]:
        """
        Count ages from the newest step of each environment, ``lead`` steps after the one with factor 1.

        :return: the factor of the step ``lead`` steps before the newest, in units of that of the newest; and the ages
        """
        added, n_envs = self.ring.added, self.ring.n_envs
        cursors = np.empty(n_envs + 1, np.int64)
        cursors[:-1] = (added * n_envs - 1) % self.capacity
        cursors[-1] = self.capacity
        shrink = math.exp(-self.rate * (lead * n_envs))
        return shrink, (cursors, 1.0 / shrink, *self._table)

    def _count_ages(self, lead: int, sums: np.ndarray, factor_sums: np.ndarray) -> None:
        """
        Use other ages from now on.

        :param lead: see :meth:`_ages_from`
        :param sums: tree of masses times their factors with these ages
        :param factor_sums: tree of the factors
        """
        shrink, ages = self._ages_from(lead)
        added = self.ring.added
        refs = added - lead
        # Plain assignments only, so that an interrupt comes before all of them or after.
        self._sums = sums
        self._factor_sums = factor_sums
        self._shrink = shrink
        self._ages = ages
        self._refs = refs
        self._added = added

    def _follow_ring(self) -> None:
        """Count ages from the newest ids on. Write masses anew where their reference moves."""
        if self.ring.added is self._added:
            return
        leads = (self.ring.added - self._refs).tolist()
        lead = min(leads) if self.rate * (min(leads) * len(leads)) <= _MOST else 0
        if max(leads) == lead:
            self._count_ages(lead, self._sums, self._factor_sums)
            return
        slots = np.arange(self.capacity).reshape(-1, len(leads))[:, np.not_equal(leads, lead)].reshape(-1)
        # Into copies, so that after an interrupt the old masses go with the old references.
        sums, factor_sums = aligned_copy(self._sums), aligned_copy(self._factor_sums)
        _write_aged(sums, factor_sums, self._starts, slots, self.without_age(slots), True, self._ages_from(lead)[1])
        self._count_ages(lead, sums, factor_sums)

    @property
    def nbytes(self) -> int:
        """Bytes of both trees."""
        return super().nbytes + self._factor_sums.nbytes

    # ---- masses

    @property
    def total(self) -> float:
        """Sum of p^alpha exp(-c age / capacity) over the slots that can be drawn."""
        return float(self._sums[-1]) * self._shrink

    def count(self, n: int) -> float:
        """Sum of exp(-c age / capacity) over the slots that can be drawn, see :meth:`SumTree.count`."""
        return float(self._factor_sums[-1]) * self._shrink

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        masses = super()._masses_at(leaves)
        return np.where(masses > 0.0, np.maximum(masses * self._shrink, LEAST_MASS), 0.0)

    def without_age(self, slots: np.ndarray) -> np.ndarray:
        """Read p^alpha, see :meth:`SumTree.without_age`."""
        masses = super()._masses_at(slots)
        _times_factors(slots, masses, True, self._ages)
        return masses

    def written(self) -> np.ndarray:
        """p^alpha of every slot, see :meth:`SumTree.written`."""
        return self.without_age(np.arange(self.capacity))

    def _write(self, leaves: np.ndarray, masses: np.ndarray, are_new: bool) -> int:
        self._follow_ring()
        return _write_aged(self._sums, self._factor_sums, self._starts, leaves, masses, are_new, self._ages)

    # ---- drawing

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return super()._find(prefix_sums / self._shrink)

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots, and read p^alpha times ``scale``, see :meth:`SumTree.draw`."""
        slots, masses = np.empty(len(uniforms), np.int64), np.empty(len(uniforms))
        _draw_aged(self._sums, self._starts, uniforms, stratified, scale, slots, masses, self._ages)
        return slots, masses


@kernel
def _runs_of_ages(
    added: np.ndarray, oldest: np.ndarray, is_even: bool, rate: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cumulative sums of the factors of runs, their newest ids, and their lengths, see :class:`AgeDraw`."""
    n_runs = 1 if is_even else added.size
    ends, newest, counts, total = np.empty(n_runs), np.empty(n_runs, np.int64), np.empty(n_runs, np.int64), 0.0
    for k in range(n_runs):
        least_age = n_runs - 1 - k
        newest[k] = added[k] * added.size - 1 - least_age
        counts[k] = (added - oldest).sum() if is_even else added[k] - oldest[k]
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


class AgeDraw(SumTree):
    """
    Draw by age alone, in closed form: all p^alpha are 1. It has the methods of a tree, and stores nothing.

    The ages of the transitions are runs: 0, 1, ... for all environments together, or, if these stand at different steps, every
    ``n_envs``-th for each of them.

    :param decay: c, above 0
    :param ring: of which the newest transitions of each environment can be drawn
    """

    def __init__(self, decay: float, ring: Ring):
        self.ring, self.rate = ring, decay / ring.capacity
        super().__init__(ring.capacity)

    def clear(self) -> None:
        """Compute the runs anew at the next draw; nothing else is stored."""
        self._added: np.ndarray | None = None

    def _follow_ring(self) -> None:
        ring = self.ring
        if ring.added is not self._added:
            self._added, self._runs = ring.added, _runs_of_ages(ring.added, ring.oldest, ring.is_even, self.rate)

    @property
    def nbytes(self) -> int:
        """Nothing is stored by slot."""
        return 0

    @property
    def total(self) -> float:
        """Sum of exp(-c age / capacity) over the slots that can be drawn."""
        self._follow_ring()
        return float(self._runs[0][-1])

    def count(self, n: int) -> float:
        """The total: the mean p^alpha is 1, see :meth:`SumTree.count`."""
        return self.total

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        self._follow_ring()
        ends, newest, counts = self._runs
        runs = leaves % len(ends)
        since = (newest[runs] - leaves) % self.capacity
        factors = np.maximum(np.exp(-self.rate * (since + len(ends) - 1 - runs)), LEAST_MASS)
        return np.where(since < len(ends) * counts[runs], factors, 0.0)

    def without_age(self, slots: np.ndarray) -> np.ndarray:
        """Ones, see :meth:`SumTree.without_age`."""
        return np.ones(slots.shape)

    def _write(self, leaves: np.ndarray, masses: np.ndarray, are_new: bool) -> int:
        return ALL_WRITTEN

    def written(self) -> np.ndarray:
        """1 for every slot that can be drawn, see :meth:`SumTree.written`."""
        return np.sign(self[:])

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return _find_by_age(prefix_sums / self.total, *self._runs, self.rate, self.capacity)

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots, see :meth:`SumTree.draw`."""
        return self._find(spread(uniforms, self.total, stratified)), np.full(len(uniforms), scale)
