"""
Draws that favour recent transitions: P(i) is proportional to p_i^alpha exp(-c age_i / capacity).

Korniak et al. 2026 (arXiv 2605.10236) draw by age alone, from a truncated geometric distribution, which needs no tree. With
priorities, a sum tree holds p^alpha exp(c (id - ref) / capacity). Only differences of ids count, so nothing in it changes as
transitions grow older. Before float64 overflows, the reference ``ref`` moves to newer ids.

The age of a transition is the number of transitions that came after it. If environments have added different numbers of
steps, each counts its own steps, and the newest steps of all environments are equally young.
"""

import math

import numpy as np

from sb3_per.sampling.sum_tree import ALL_WRITTEN, LEAST_MASS, SumTree, draw_leaves, spread, write_masses
from sb3_per.storage.ring import Ring
from sb3_per.utils.compiled import kernel

#: Slot of age 0 for each environment, and the number of slots, int64 of shape (n_envs + 1,); the factor of age 0; a table of
#: exp(-rate age) for all ages below ``2 ** bits`` and for all multiples of this, because two reads are faster than ``exp``;
#: and bits.
Ages = tuple[np.ndarray, float, np.ndarray, int]

# Largest logarithm of a factor in the tree. The largest mass times this factor, times the number of slots, is finite.
_MOST = 20.0

# Result of `_write_aged` if it changes which slots can be drawn.
_OTHERS_ARE_DRAWABLE = -2


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
def _write_aged(sums: np.ndarray, starts: np.ndarray, slots: np.ndarray, masses: np.ndarray, ages: Ages) -> int:
    """Write masses times factors, see :func:`write_masses`."""
    aged, capacity, are_others = masses.copy(), ages[0][-1], False
    for i in range(slots.size):
        if not 0 <= slots[i] < capacity:
            return i
        are_others |= (sums[slots[i]] > 0.0) != (masses[i] > 0.0)
    _times_factors(slots, aged, False, ages)
    result = write_masses(sums, starts, capacity, slots, aged)
    return _OTHERS_ARE_DRAWABLE if are_others and result == ALL_WRITTEN else result


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
        # exp(c (id - ref) / capacity) of every slot that can be drawn.
        self._factors = SumTree(ring.capacity)
        bits = (ring.capacity.bit_length() + 1) // 2
        ages = np.append(np.arange(1 << bits), np.arange(0, ring.capacity + 1, 1 << bits))
        self._table = np.exp(-self.rate * ages), bits
        self._cursors = np.full(ring.n_envs + 1, ring.capacity)
        super().__init__(ring.capacity)

    def clear(self) -> None:
        """Empty every slot, after the ring was emptied."""
        super().clear()
        self._factors.clear()
        self._count_ages(0)

    def _count_ages(self, lead: int) -> None:
        """Count ages from the newest step of each environment, ``lead`` steps after the one with factor 1."""
        added, n_envs = self.ring.added, self.ring.n_envs
        self._added, self._refs, self._shrink = added, added - lead, math.exp(-self.rate * (lead * n_envs))
        self._cursors[:-1] = (added * n_envs - 1) % self.capacity
        self._ages: Ages = self._cursors, 1.0 / self._shrink, *self._table

    def _follow_ring(self) -> None:
        """Count ages from the newest ids on. Write masses anew where their reference moves."""
        if self.ring.added is self._added:
            return
        leads = (self.ring.added - self._refs).tolist()
        lead = min(leads) if self.rate * (min(leads) * len(leads)) <= _MOST else 0
        if max(leads) == lead:
            self._count_ages(lead)
            return
        slots = np.arange(self.capacity).reshape(-1, len(leads))[:, np.not_equal(leads, lead)].reshape(-1)
        masses = self.without_age(slots)
        self._count_ages(lead)
        self._write(slots, masses, are_moved=True)

    @property
    def nbytes(self) -> int:
        """Bytes of both trees."""
        return super().nbytes + self._factors.nbytes

    # ---- masses

    @property
    def total(self) -> float:
        """Sum of p^alpha exp(-c age / capacity) over the slots that can be drawn."""
        return float(self._sums[-1]) * self._shrink

    def count(self, n: int) -> float:
        """Sum of exp(-c age / capacity) over the slots that can be drawn, see :meth:`SumTree.count`."""
        return self._factors.total * self._shrink

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

    def _write(self, leaves: np.ndarray, masses: np.ndarray, are_moved: bool = False) -> int:
        """Write masses, and the factors of slots that become drawable, no longer are, or have another reference."""
        self._follow_ring()
        result = _write_aged(self._sums, self._starts, leaves, masses, self._ages)
        if result == _OTHERS_ARE_DRAWABLE or are_moved:
            factors, result = np.sign(masses), ALL_WRITTEN
            _times_factors(leaves, factors, False, self._ages)
            self._factors.update(leaves, factors)
        return result

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

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        return ALL_WRITTEN

    def written(self) -> np.ndarray:
        """1 for every slot that can be drawn, see :meth:`SumTree.written`."""
        return np.sign(self[:])

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return _find_by_age(prefix_sums / self.total, *self._runs, self.rate, self.capacity)

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots, see :meth:`SumTree.draw`."""
        return self._find(spread(uniforms, self.total, stratified)), np.full(len(uniforms), scale)
