"""
Draws that favour recent transitions, with priorities: P(i) is proportional to p_i^alpha exp(-c age_i / capacity).

Two sum trees hold p^alpha exp(c (id - ref) / capacity) and the factors alone. Only differences of ids count, so nothing in
them changes as transitions grow older. Before float64 overflows, the reference ``ref`` moves to newer ids.

The age of a transition is the number of transitions that came after it. If environments have added different numbers of
steps, each counts its own steps, and the newest steps of all environments are equally young.
"""

import math

import numpy as np

from sb3_per.sampling.mass_tree import ALL_WRITTEN, LEAST_MASS, MassTree
from sb3_per.sampling.sum_tree import SumTree, draw_slots, write_masses
from sb3_per.storage.ring import Ring
from sb3_per.utils.compiled import kernel

# What the factors of age follow from. A plain tuple, because a kernel takes 2 us longer to read a named one.
# - newest: the slot of age 0 of each environment, int64 of shape (n_envs,)
# - capacity: the number of slots
# - factor_of_newest: the factor of age 0
# - table: exp(-rate age) for all ages below ``2 ** bits``, then for all multiples of this: two reads are faster than ``exp``
# - bits: see the table
Ages = tuple[np.ndarray, int, float, np.ndarray, int]


# Largest logarithm of a factor in the tree. The largest mass times this factor, times the number of slots, is finite.
_MOST = 20.0


@kernel
def _times_factors(slots: np.ndarray, masses: np.ndarray, is_divided: bool, ages: Ages) -> None:
    """
    Multiply masses by exp(rate (id - ref)), or divide them. Masses above 0 stay above 0.

    :param slots: int64 of shape (batch_size,)
    :param masses: changed, float64 in the same shape
    :param is_divided: whether to divide
    :param ages: says the age of each slot
    """
    newest, capacity, factor_of_newest, table, bits = ages
    n_envs = newest.size
    n_fine = 1 << bits
    for i in range(slots.size):
        age = newest[slots[i] % n_envs if n_envs > 1 else 0] - slots[i]
        age = age if age >= 0 else age + capacity
        if masses[i] > 0.0:
            of_age = table[age & (n_fine - 1)] * table[n_fine + (age >> bits)]
            factor = max(factor_of_newest * of_age, LEAST_MASS)
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
        a candidate, or no longer is
    """
    capacity = ages[1]
    aged = masses.copy()
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
    draw_slots(sums, starts, uniforms, stratified, scale, slots, masses)
    _times_factors(slots, masses, True, ages)


class AgedTree(MassTree):
    """
    Masses p^alpha exp(-c age / capacity), with the ages at the last write. Write p^alpha; reads, searches and sums include the
    factor of age.

    :param decay: c, above 0
    :param ring: says how old the slots are
    """

    depends_on_age = True

    def __init__(self, decay: float, ring: Ring):
        super().__init__(ring.capacity)
        self.ring = ring
        self.rate = decay / ring.capacity
        bits = (ring.capacity.bit_length() + 1) // 2
        ages = np.append(np.arange(1 << bits), np.arange(0, ring.capacity + 1, 1 << bits))
        self._table = np.exp(-self.rate * ages), bits
        self.clear()

    def clear(self) -> None:
        """Empty every slot, after the ring was emptied."""
        # Sums of exp(c (id - ref) / capacity) of the slots that can be drawn, beside the masses.
        self._count_ages(0, SumTree(self.capacity), SumTree(self.capacity))

    def _ages_from(self, lead: int) -> tuple[float, Ages]:
        """
        Count ages from the newest step of each environment.

        :param lead: number of steps from the one whose factor is 1, the reference, to the newest. So masses that were written
            before stay as they are while the ring moves on
        :return: factor of the reference if that of the newest step were 1, ``exp(-rate * lead * n_envs)``; and the ages
        """
        n_envs = self.ring.n_envs
        newest = (self.ring.next_steps * n_envs - 1) % self.capacity
        shrink = math.exp(-self.rate * (lead * n_envs))
        return shrink, (newest, self.capacity, 1.0 / shrink, *self._table)

    def _count_ages(self, lead: int, masses: SumTree, factors: SumTree) -> None:
        """
        Use other ages from now on.

        :param lead: see :meth:`_ages_from`
        :param masses: masses times their factors with these ages
        :param factors: the factors
        """
        shrink, ages = self._ages_from(lead)
        version = self.ring.version
        refs = self.ring.next_steps - lead
        # Plain assignments only: see Invariants in the developer guide.
        self._masses = masses
        self._factors = factors
        self._shrink = shrink
        self._ages = ages
        self._refs = refs
        self._version = version

    def _follow_ring(self) -> None:
        """Count ages from the newest ids on. Write masses anew where their reference moves."""
        if self._version == self.ring.version:
            return
        leads = (self.ring.next_steps - self._refs).tolist()
        lead = min(leads)
        if self.rate * (lead * len(leads)) > _MOST:
            lead = 0
        if max(leads) == lead:
            self._count_ages(lead, self._masses, self._factors)
            return
        slots = np.arange(self.capacity).reshape(-1, len(leads))[:, np.not_equal(leads, lead)].reshape(-1)
        # Into copies, so that after an interrupt the old masses go with the old references.
        masses = self._masses.copy()
        factors = self._factors.copy()
        ages = self._ages_from(lead)[1]
        _write_aged(masses.sums, factors.sums, masses.starts, slots, self._without_age(slots), True, ages)
        self._count_ages(lead, masses, factors)

    @property
    def nbytes(self) -> int:
        """Bytes of both trees."""
        return self._masses.nbytes + self._factors.nbytes

    # ---- masses

    @property
    def total(self) -> float:
        """Sum of p^alpha exp(-c age / capacity) over the slots that can be drawn."""
        return self._masses.total * self._shrink

    def masses_at(self, slots: np.ndarray) -> np.ndarray:
        """See :meth:`MassTree.masses_at`."""
        masses = self._masses.masses_at(slots)
        return np.where(masses > 0.0, np.maximum(masses * self._shrink, LEAST_MASS), 0.0)

    def _without_age(self, slots: np.ndarray) -> np.ndarray:
        """Read p^alpha of slots, shape (n,)."""
        masses = self._masses.masses_at(slots)
        _times_factors(slots, masses, True, self._ages)
        return masses

    def values(self) -> np.ndarray:
        """p^alpha of every slot, see :meth:`MassTree.values`."""
        return self._without_age(np.arange(self.capacity))

    def write(self, slots: np.ndarray, values: np.ndarray) -> None:
        """See :meth:`MassTree.write`."""
        self._write(slots, values, are_new=False)

    def insert(self, slots: np.ndarray, values: np.ndarray) -> None:
        """See :meth:`MassTree.insert`: new transitions have other factors than those before."""
        self._write(slots, values, are_new=True)

    def _write(self, slots: np.ndarray, masses: np.ndarray, are_new: bool) -> None:
        self._follow_ring()
        starts = self._masses.starts
        bad = _write_aged(self._masses.sums, self._factors.sums, starts, slots, masses, are_new, self._ages)
        if bad != ALL_WRITTEN:
            self._refuse_value(slots[bad], masses[bad])

    def state(self, n_slots: int) -> dict[str, np.ndarray]:
        """p^alpha of the slots, see :meth:`MassTree.state`."""
        return {"masses": self.values()[:n_slots]}

    # ---- drawing

    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """See :meth:`MassTree.find`."""
        return np.asarray(self._masses.find(prefix_sums / self._shrink))

    def _scale(self) -> float:
        """What p^alpha is multiplied by for N P: the sum of all factors of age over the sum of all masses."""
        return self._factors.total * self._shrink / self.total

    def draw(self, uniforms: np.ndarray, stratified: bool, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`MassTree.draw`. N P leaves out the factor of age."""
        masses = self._masses
        if not masses.sums[-1] > 0.0:
            self._require_mass()
        slots = np.empty(len(uniforms), np.int64)
        relative_probabilities = np.empty(len(uniforms))
        _draw_aged(masses.sums, masses.starts, uniforms, stratified, self._scale(), slots, relative_probabilities, self._ages)
        return slots, relative_probabilities

    def relative_probabilities(self, slots: np.ndarray, n_candidates: int) -> np.ndarray:
        """See :meth:`MassTree.relative_probabilities`."""
        return np.asarray(np.maximum(self._without_age(slots) * self._scale(), LEAST_MASS))
