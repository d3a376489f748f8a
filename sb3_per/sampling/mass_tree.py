"""The base class of the trees: masses by slot, and draws in proportion to them."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

#: Least mass of a slot that can be drawn, because a product can underflow to 0.
LEAST_MASS = float(np.finfo(np.float64).tiny)

# Result of a kernel that writes, if all values are good; otherwise, it is the position of the first bad one.
ALL_WRITTEN = -1


class NothingToDrawError(ValueError):
    """No slot has a mass."""


class MassTree(ABC):
    """
    One mass for every slot, and draws in proportion to it. A slot of mass 0 cannot be drawn.

    :param capacity: number of slots, at least 1
    :raises ValueError: if the capacity is below 1
    """

    #: whether draws depend on the age of a slot, too
    depends_on_age: ClassVar[bool] = False

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"The capacity of a {type(self).__name__} must be at least 1, not {capacity}")
        self.capacity = int(capacity)

    # ---- each kind of tree has its own

    @abstractmethod
    def clear(self) -> None:
        """Set all masses to 0."""

    @property
    @abstractmethod
    def total(self) -> float:
        """Sum of all masses."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all masses and sums."""

    @abstractmethod
    def write(self, slots: np.ndarray, values: np.ndarray) -> None:
        """
        Set the mass of slots. Of repeated slots the last one counts.

        :param slots: int64 of shape (n,), contiguous
        :param values: tree values, at least 0: the mass of each slot, finite, or in a tree of ranks its priority, which may be
            infinite; float64 of shape (n,), contiguous
        :raises IndexError: for a slot outside ``[0, capacity)``
        :raises ValueError: for a value that is not allowed. Nothing is changed in either case
        """

    @abstractmethod
    def masses_at(self, slots: np.ndarray) -> np.ndarray:
        """
        Read the masses that draws follow.

        :param slots: int64 of any shape
        :return: float64 in the same shape, a copy
        """

    @abstractmethod
    def values(self) -> np.ndarray:
        """
        Return the tree value of every slot, as :meth:`write` takes it.

        :return: float64 of shape (capacity,); 0 for a slot that cannot be drawn. Read only
        """

    @abstractmethod
    def find(self, prefix_sums: np.ndarray) -> np.ndarray:
        """
        Find slots by prefix sums of the masses, never one of mass 0.

        :param prefix_sums: numbers in [0, total), float64 of shape (n,)
        :return: slots, int64 in the same shape
        """

    @abstractmethod
    def draw(self, uniforms: np.ndarray, stratified: bool, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw one slot for each uniform number, with probability proportional to its mass.

        :param uniforms: numbers in [0, 1), float64 of shape (batch_size,); the tree has no generator of its own
        :param stratified: cut ``[0, total)`` into ``batch_size`` equal parts and draw once in each
            (Schaul et al. 2016, appendix B.2.1), instead of ``batch_size`` independent draws
        :param n_candidates: number of slots that can be drawn, N
        :return: slots, int64, and their N P, see :meth:`relative_probabilities`, float64, both of shape (batch_size,)
        :raises NothingToDrawError: if no slot has a mass
        """

    @abstractmethod
    def relative_probabilities(self, slots: np.ndarray, n_candidates: int) -> np.ndarray:
        """
        Compute N P of slots in a draw from all of them: the number N times the probability P of each, which is how many times
        as likely it is as in a uniform draw.

        :param slots: drawn slots, int64 of shape (batch_size,)
        :param n_candidates: number of slots that can be drawn, N
        :return: float64 in the same shape, above 0; without a factor of age, which weights do not correct for
        """

    # ---- the same for all, or almost all

    def state(self) -> dict[str, np.ndarray]:
        """
        Return what a file or another tree needs. A tree whose values do not say everything overrides this and the next one.

        :return: arrays of shape (capacity,): ``values``, see :meth:`values`, and in a tree of ranks ``ranks``. Read only
        """
        return {"values": self.values()}

    def load(self, state: dict[str, np.ndarray], slots: np.ndarray) -> None:
        """
        Write saved values into slots that have none.

        :param state: from :meth:`state` of a tree of any capacity
        :param slots: different slots with a value above 0 in the state, int64 of shape (n,)
        :raises ValueError: if the state contradicts itself. Discard the tree after this error
        """
        self.write(slots, state["values"][slots])

    def insert(self, slots: np.ndarray, values: np.ndarray) -> None:
        """
        Set the mass of slots that new transitions have taken. Only a tree with a factor of age treats them otherwise than
        :meth:`write`: it counts their age anew.

        :param slots: as in :meth:`write`
        :param values: as in :meth:`write`
        """
        self.write(slots, values)

    def __len__(self) -> int:
        return self.capacity

    def __getitem__(self, indices: Any) -> Any:
        """
        Read masses.

        :param indices: a slot, an array of slots of any shape, or a slice
        :return: mass of each slot, float64 in the shape of ``indices``; always a copy
        :raises IndexError: for a slot outside ``[0, capacity)``; negative indices do not wrap
        """
        if isinstance(indices, slice):
            indices = np.arange(self.capacity)[indices]
        slots = _integers(indices).astype(np.int64, copy=False)
        outside = slots.view(np.uint64) >= self.capacity  # where they are negative, too
        if outside.any():
            self._require_slot(int(slots[outside].flat[0]))
        found = self.masses_at(slots)
        return found if slots.ndim else float(found)

    def update(self, indices: Any, priorities: Any) -> None:
        """
        Check what comes from outside, and set the mass of slots, see :meth:`write`. Of repeated indices the last one counts.

        :param indices: a slot, or an array of slots
        :param priorities: their masses, which a user of the tree alone calls priorities, finite and at least 0, in the shape
            of ``indices``; or one mass for all of them
        :raises IndexError: for a slot outside ``[0, capacity)``
        :raises ValueError: for a negative or non-finite mass, or if the shapes differ. Nothing is changed in either case.
        """
        indices = _integers(indices)
        masses = np.asarray(priorities, dtype=np.float64)
        if masses.shape != indices.shape:
            if masses.ndim:
                raise ValueError(f"Masses of shape {masses.shape} do not fit indices of shape {indices.shape}")
            masses = np.full(indices.shape, masses)
        self.write(as_batch(indices, np.int64), as_batch(masses, np.float64))

    def _refuse_value(self, slot: int, mass: float) -> None:
        """Raise the error for a bad slot or mass."""
        self._require_slot(int(slot))
        raise ValueError(f"The mass of a slot must be finite and at least 0, not {mass} (slot {slot})")

    def _require_slot(self, slot: int) -> None:
        if not 0 <= slot < self.capacity:
            raise IndexError(f"Slot {slot} is outside a {type(self).__name__} of {self.capacity} slots")

    def _require_mass(self) -> None:
        if not self.total > 0.0:
            raise NothingToDrawError(f"Cannot draw from a {type(self).__name__}: all of its {self.capacity} slots are empty")


def as_batch(values: Any, dtype: type) -> np.ndarray:
    """
    Return a contiguous, writable 1-D array, a copy only if ``values`` is something else.

    Numba compiles a kernel anew for every memory layout, so the kernels get only this one.
    """
    array = np.asarray(values)
    if array.dtype != dtype or array.ndim != 1 or not array.flags.carray:
        array = np.array(array, dtype=dtype, order="C").reshape(-1)
    return array


def _integers(indices: Any) -> np.ndarray:
    array = np.asarray(indices)
    if array.dtype.kind in "iu":
        return array
    if array.size:
        raise IndexError(f"Slots are integers, not {array.dtype}: {array.flat[0]}")
    return array.astype(np.int64)  # an empty list
