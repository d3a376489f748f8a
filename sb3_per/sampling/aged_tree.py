"""
Draws that favour recent transitions: P(i) is proportional to p_i^alpha exp(-c age_i / capacity).

Korniak et al. 2026 (arXiv 2605.10236) draw by age alone, from a truncated geometric distribution, which needs no tree. With
priorities, a sum tree holds p^alpha exp(c (id - ref) / capacity). Only differences of ids count, so nothing in it changes as
transitions grow older. Before float64 overflows, all of it is multiplied by a constant.

The age of a transition is the number of transitions that came after it. Where environments stand at different steps, each
counts for itself, and the newest steps of all of them are equally young.
"""

import math
from typing import Any

import numpy as np

from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.sum_tree import ALL_WRITTEN, LEAST_MASS, SumTree, draw_leaves, spread, write_masses
from sb3_per.utils.compiled import kernel

# Largest logarithm of a factor in the tree, that of the newest transition: 100 capacities at c = 3.
_MOST = 300.0

# Largest mass in the tree, so that sums are finite.
_LARGEST_MASS = 1e300

# What `_write_with_age` returns if a mass would be larger.
_TOO_LARGE = -2


@kernel
def _times_factors(
    slots: np.ndarray,
    masses: np.ndarray,
    is_divided: bool,
    cursors: np.ndarray,
    lifts: np.ndarray,
    coarse: np.ndarray,
    fine: np.ndarray,
    bits: int,
    capacity: int,
) -> float:
    """
    Multiply masses by exp(rate (id - ref)), or divide them by it, within their bounds. Return the largest.

    :param slots: int64 of shape (n,)
    :param masses: changed, float64 of shape (n,)
    :param is_divided: whether to divide
    :param cursors: slot of the newest id, shape (n_envs,), or (1,) for all environments
    :param lifts: rate (newest id - ref), in the same shape
    :param coarse: exp(-rate age) of the ages that are multiples of ``2 ** bits``: two reads are faster than ``exp``
    :param fine: exp(-rate age) of all ages below
    :param bits: see ``coarse``
    :param capacity: number of slots
    """
    heights, largest, env = np.exp(lifts), 0.0, 0
    for i in range(slots.size):
        if cursors.size > 1:
            env = slots[i] % cursors.size
        age = cursors[env] - slots[i]
        if age < 0:
            age += capacity
        if masses[i] > 0.0 and age >= 0:
            factor = max(heights[env] * (coarse[age >> bits] * fine[age & (fine.size - 1)]), LEAST_MASS)
            masses[i] = max(masses[i] / factor if is_divided else masses[i] * factor, LEAST_MASS)
            largest = max(largest, masses[i])
    return largest


@kernel
def _write_with_age(
    sums: np.ndarray,
    starts: np.ndarray,
    leaves: np.ndarray,
    masses: np.ndarray,
    cursors: np.ndarray,
    lifts: np.ndarray,
    coarse: np.ndarray,
    fine: np.ndarray,
    bits: int,
    capacity: int,
) -> int:
    """Write p^alpha times the factor of age, see :func:`write_masses`. If a product is too large, write nothing."""
    raised = masses.copy()
    if not _times_factors(leaves, raised, False, cursors, lifts, coarse, fine, bits, capacity) <= _LARGEST_MASS:
        return _TOO_LARGE
    return write_masses(sums, starts, capacity, leaves, raised)


@kernel
def _draw_with_age(
    sums: np.ndarray,
    starts: np.ndarray,
    uniforms: np.ndarray,
    stratified: bool,
    scale: float,
    leaves: np.ndarray,
    masses: np.ndarray,
    cursors: np.ndarray,
    lifts: np.ndarray,
    coarse: np.ndarray,
    fine: np.ndarray,
    bits: int,
    capacity: int,
) -> None:
    """Find the leaves of uniform numbers, and read p^alpha times ``scale``."""
    draw_leaves(sums, starts, uniforms, stratified, 1.0, leaves, masses)
    _times_factors(leaves, masses, True, cursors, lifts, coarse, fine, bits, capacity)
    for i in range(masses.size):
        masses[i] = max(masses[i] * scale, LEAST_MASS)


@kernel
def _find_by_age(
    fractions: np.ndarray,
    ends: np.ndarray,
    cursors: np.ndarray,
    firsts: np.ndarray,
    counts: np.ndarray,
    stride: int,
    rate: float,
    capacity: int,
    slots: np.ndarray,
) -> None:
    """Invert the cumulative distribution over runs of ages, see :class:`Ages`."""
    for i in range(fractions.size):
        value, k = fractions[i] * ends[-1], 0
        # Rounding may lead to the end, but not past the last run that has a transition.
        while value >= ends[k] and ends[k] < ends[-1]:
            k += 1
        begin = 0.0 if k == 0 else ends[k - 1]
        rest = min((value - begin) / (ends[k] - begin), 1.0)
        number = np.log1p(rest * np.expm1(-rate * stride * counts[k])) / (-rate * stride)
        slot = cursors[k] - firsts[k] - stride * int(min(number, counts[k] - 1.0))
        slots[i] = slot if slot >= 0 else slot + capacity


class Ages:
    """
    Factors exp(-rate age) of the transitions of a ring.

    If the transitions that can be drawn are the newest ones, their ages are runs: 0, 1, ... for all environments together, or,
    if these stand at different steps, every ``n_envs``-th for each of them.

    :param eligible: says which slots can be drawn
    :param rate: decay for each transition that came after
    """

    def __init__(self, eligible: Eligibility, rate: float):
        self.eligible, self.ring, self.rate = eligible, eligible.ring, rate
        self._added: np.ndarray | None = None
        self.follow()

    def follow(self) -> bool:
        """Look where the ring stands now, and return whether it has moved."""
        ring = self.ring
        if ring.added is self._added:
            return False
        self._added = ring.added
        #: newest id, shape (1,), or that of each environment, from which ages are counted, shape (n_envs,)
        self.tops = (ring.added[:1] if ring.is_even else ring.added) * ring.n_envs - 1
        #: slots of these ids
        self.cursors = self.tops % ring.capacity
        if self.eligible.are_newest:
            if ring.is_even:
                firsts, counts, stride = [0], [self.eligible.n], 1
            else:
                firsts, counts, stride = [*range(ring.n_envs)][::-1], (ring.added - ring.oldest).tolist(), ring.n_envs
            step, ends = -self.rate * stride, [0.0]
            for first, count in zip(firsts, counts, strict=True):
                ends.append(ends[-1] + math.exp(-self.rate * first) * math.expm1(step * count) / math.expm1(step))
            # Cumulative sums of the factors, youngest ages, numbers of transitions, and distance of two ages in a run.
            self._runs = np.array(ends[1:]), np.array(firsts), np.array(counts), stride
            #: sum of the factors of all transitions that can be drawn
            self.total = ends[-1]
        return True

    # ---- where the transitions that can be drawn are the newest ones

    def find(self, fractions: np.ndarray) -> np.ndarray:
        """
        Invert the cumulative distribution of the draw by age, from the newest transition on.

        :param fractions: numbers in [0, 1], shape (batch_size,)
        :return: slots, int64 in the same shape
        """
        slots = np.empty(len(fractions), np.int64)
        ends, firsts, counts, stride = self._runs
        _find_by_age(fractions, ends, self.cursors, firsts, counts, stride, self.rate, self.ring.capacity, slots)
        return slots

    def factors(self, slots: np.ndarray) -> np.ndarray:
        """
        Return the factors of slots.

        :param slots: int64 of any shape
        :return: exp(-rate age), 0 for slots that cannot be drawn, float64 in the same shape
        """
        _, firsts, counts, stride = self._runs
        envs = slots % len(self.tops)
        ages = (self.cursors[envs] - slots) % self.ring.capacity
        factors = np.maximum(np.exp(-self.rate * ages), LEAST_MASS)
        held: np.ndarray = np.where(ages < (firsts + stride * counts)[envs], factors, 0.0)
        return held


class AgedTree(SumTree):
    """
    Sum tree of p^alpha exp(-c age / capacity). It takes masses p^alpha; what is read, found and added up has the factor of
    age.

    :param decay: c, above 0
    :param eligible: says which slots can be drawn, and how old they are
    """

    def __init__(self, decay: float, eligible: Eligibility):
        self.eligible, self.rate = eligible, decay / eligible.ring.capacity
        capacity = eligible.ring.capacity
        bits = (capacity.bit_length() + 1) // 2
        coarse, fine = np.arange((capacity >> bits) + 1) << bits, np.arange(1 << bits)
        self._tables = np.exp(-self.rate * coarse), np.exp(-self.rate * fine), bits
        super().__init__(capacity)

    def clear(self) -> None:
        """Empty every slot, after the ring was emptied."""
        super().clear()
        self._ages = Ages(self.eligible, self.rate)
        # Ids with factor 1 in the tree, by environment, and the logarithms of the factors of the newest ids.
        self._refs, self._lifts = self._ages.tops, np.zeros(len(self._ages.tops))
        # exp(c (id - ref) / capacity) of every slot that can be drawn, where no closed form has their sum.
        self._factors = None if self.eligible.are_newest else SumTree(self.capacity)
        self._count = 0.0

    def _follow_ring(self) -> None:
        """Count ages from the newest ids on. Masses in the tree change only before it overflows, or if environments part."""
        if self._ages.follow():
            tops = self._ages.tops
            since = (tops - self._refs).tolist()  # of each environment, if there was or is one id for each
            least = 0 if min(since) * self.rate > _MOST else min(since)
            if max(since) > least:
                self._set_refs(tops - least)
            self._refs, self._lifts = tops - least, np.array([least * self.rate] * len(tops))
            if self._factors is None:
                self._count = self._ages.total

    def _set_refs(self, refs: np.ndarray) -> None:
        """Let factors be 1 at other ids: multiply all masses of an environment by a constant."""
        constants = np.exp(-self.rate * (refs - self._refs))
        changed = np.flatnonzero(constants != 1.0)
        slots = np.arange(self.capacity).reshape(-1, len(constants))[:, changed]
        super()._write(slots.reshape(-1), _times(constants[changed], super()._masses_at(slots)).reshape(-1))
        if self._factors is not None:
            self._factors.update(slots, _times(constants[changed], self._factors[slots]))
        self._refs, self._lifts = refs, self.rate * (self._ages.tops - refs)

    # ---- masses

    @property
    def total(self) -> float:
        """Sum of p^alpha exp(-c age / capacity) over the slots that can be drawn."""
        return super().total * float(np.exp(-self._lifts[0]))

    def count(self, n: int) -> float:
        """Sum of exp(-c age / capacity) over the slots that can be drawn, see :meth:`SumTree.count`."""
        return self._count

    @property
    def masses(self) -> np.ndarray:
        """p^alpha exp(-c age / capacity) of every slot, float64 of shape (capacity,)."""
        return _times(np.exp(-self._lifts[:1]), super().masses)

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        return _times(np.exp(-self._lifts[:1]), super()._masses_at(leaves))

    def without_age(self, slots: np.ndarray) -> np.ndarray:
        """p^alpha, see :meth:`SumTree.without_age`."""
        masses = super()._masses_at(slots)
        _times_factors(slots, masses, True, *self._factor_arguments())
        return masses

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        self._follow_ring()
        bad = int(_write_with_age(self._sums, self._starts, leaves, masses, *self._factor_arguments()))
        if bad == _TOO_LARGE:
            self._set_refs(self._ages.tops)
            raised = masses.copy()
            _times_factors(leaves, raised, False, *self._factor_arguments())
            bad = super()._write(leaves, raised)
        if self._factors is not None and bad == ALL_WRITTEN:
            factors = (masses > 0.0).astype(np.float64)
            _times_factors(leaves, factors, False, *self._factor_arguments())
            self._factors.update(leaves, factors)
            self._count = self._factors.total * float(np.exp(-self._lifts[0]))
        return bad

    def written(self) -> np.ndarray:
        """p^alpha of every slot, see :meth:`SumTree.written`."""
        return self.without_age(np.arange(self.capacity))

    def state(self, n_leaves: int) -> dict[str, np.ndarray]:
        """p^alpha, see :meth:`SumTree.state`: the same whatever the decay."""
        return {"masses": self.without_age(np.arange(n_leaves))}

    # ---- drawing

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return super()._find(prefix_sums * float(np.exp(self._lifts[0])))

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw slots, see :meth:`SumTree.draw`.

        :param uniforms: numbers in [0, 1), float64 of shape (batch_size,)
        :param stratified: whether each is for its own of ``batch_size`` equal slices
        :param scale: factor of the masses that are returned
        :return: slots, int64, and p^alpha times ``scale``, float64, both of shape (batch_size,)
        """
        self._require_mass()
        slots, masses = np.empty(len(uniforms), np.int64), np.empty(len(uniforms))
        arguments = (self._sums, self._starts, uniforms, stratified, scale, slots, masses)
        _draw_with_age(*arguments, *self._factor_arguments())
        return slots, masses

    def _factor_arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int]:
        """Last arguments of :func:`_times_factors`."""
        return self._ages.cursors, self._lifts, *self._tables, self.capacity


def _times(constants: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Multiply masses by constants. Those above 0 stay above 0."""
    return np.where(masses > 0.0, np.maximum(constants * masses, LEAST_MASS), 0.0)


class AgeDraw(SumTree):
    """
    Draw by age alone, in closed form: all p^alpha are 1. It has the methods of a tree, and stores nothing.

    :param decay: c, above 0
    :param eligible: says which slots can be drawn: the newest transitions of each environment
    """

    def __init__(self, decay: float, eligible: Eligibility):
        self._ages = Ages(eligible, decay / eligible.ring.capacity)
        super().__init__(eligible.ring.capacity)

    def clear(self) -> None:
        """Nothing is stored."""

    @property
    def total(self) -> float:
        """Sum of exp(-c age / capacity) over the slots that can be drawn."""
        self._ages.follow()
        return self._ages.total

    def count(self, n: int) -> float:
        """The total: the mean p^alpha is 1, see :meth:`SumTree.count`."""
        return self.total

    @property
    def masses(self) -> np.ndarray:
        """exp(-c age / capacity) of every slot, 0 where nothing can be drawn, float64 of shape (capacity,)."""
        return self._masses_at(np.arange(self.capacity))

    def _masses_at(self, leaves: np.ndarray) -> np.ndarray:
        self._ages.follow()
        return self._ages.factors(leaves)

    def without_age(self, slots: np.ndarray) -> np.ndarray:
        """Ones, see :meth:`SumTree.without_age`."""
        return np.ones(slots.shape)

    def _write(self, leaves: np.ndarray, masses: np.ndarray) -> int:
        return ALL_WRITTEN

    def written(self) -> np.ndarray:
        """1 for every slot that can be drawn, see :meth:`SumTree.written`."""
        written: np.ndarray = np.sign(self.masses)
        return written

    def state(self, n_leaves: int) -> dict[str, np.ndarray]:
        """1 for every slot that can be drawn, see :meth:`SumTree.state`."""
        return {"masses": self.written()[:n_leaves]}

    def load(self, state: dict[str, Any]) -> None:
        """Everything follows from the ring."""

    def _find(self, prefix_sums: np.ndarray) -> np.ndarray:
        return self._ages.find(prefix_sums / self.total)

    def draw(self, uniforms: np.ndarray, stratified: bool = True, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Draw slots, see :meth:`AgedTree.draw`."""
        self._ages.follow()
        return self._ages.find(spread(uniforms, 1.0, stratified)), np.full(len(uniforms), scale)
