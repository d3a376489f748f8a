"""Say which transitions can be drawn: all complete ones in plain buffers, those with a mark in other buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_per.sampling.eligibility import Eligibility
from sb3_per.sampling.sampler import Sampler
from sb3_per.storage.arrays import flat
from sb3_per.storage.ring import Ring


class HeldTransitions(Eligibility):
    """
    All complete transitions of the ring, see :class:`~sb3_per.sampling.eligibility.Eligibility`.

    :param ring: position of every environment
    """

    unit = "transition"
    are_newest = True

    def __init__(self, ring: Ring):
        self.ring = ring
        # By environment, the number of steps that the tree has, shape (n_envs,).
        self._known = ring.added

    @property
    def n(self) -> int:
        """Number of complete transitions."""
        return self.ring.n_whole

    def changes(self) -> tuple[np.ndarray, np.ndarray]:
        """Slots of new transitions, and slots that have become incomplete."""
        ring, known = self.ring, self._known
        if known is ring.added:
            return NO_SLOTS, NO_SLOTS
        oldest = ring.oldest
        new = ring.slots_between(np.maximum(known, oldest), ring.added)
        gone = ring.slots_between(ring.first, oldest) if ring.n_spoilt else NO_SLOTS
        return new, gone

    def confirm_changes(self) -> None:
        """All transitions are known."""
        self._known = self.ring.added  # the ring replaces this array, and never writes to it

    def forget_changes(self) -> None:
        """Report all transitions as new."""
        self._known = np.full(self.ring.n_envs, self.ring.begin)

    def newest(self, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """See :meth:`~sb3_per.storage.ring.Ring.newest`."""
        return self.ring.newest(n)

    def stock_draw(self, n: int) -> np.ndarray:
        """SB3's draw: rows, then environments."""
        ring = self.ring
        if not ring.is_even:
            return ring.newest(ring.n_whole)(np.random.randint(0, ring.n_whole, size=n))
        if ring.n_spoilt and ring.full:
            rows = (np.random.randint(1, ring.n_rows, size=n) + ring.pos) % ring.n_rows
        else:
            rows = np.random.randint(0, ring.n_rows_used, size=n)
        return rows * ring.n_envs + np.random.randint(0, high=ring.n_envs, size=n)

    def state(self) -> dict[str, Any]:
        """Number of steps that the tree has."""
        return {"known": self._known}

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """See :class:`~sb3_per.sampling.eligibility.Eligibility`."""
        if not keeps_masses:
            self.forget_changes()
            return
        known, added = np.array(state["known"]), self.ring.added
        if known.shape != added.shape or known.dtype != np.int64 or (known > added).any():
            raise ValueError(f"steps {known} are known of {added}")
        self._known = known if (known != added).any() else added


class MarkedTransitions(Eligibility):
    """
    Transitions with a mark, see :class:`~sb3_per.sampling.eligibility.Eligibility`.

    :param ring: position; all environments stand at the same step
    :param marks: above 0 where the transition can be drawn, shape (n_rows, n_envs)
    """

    are_newest = False

    def __init__(self, ring: Ring, marks: np.ndarray):
        self.ring, self._marks = ring, marks
        # Below 0 after an interrupt while marks changed: they are counted anew.
        self._n_marked = 0
        # Where the ring began when this was last emptied.
        self._begin = ring.begin

    @property
    def n(self) -> int:
        """Number of marks."""
        if self._n_marked < 0:
            self._n_marked = int(np.count_nonzero(self._marks))
        return self._n_marked

    def _mark(self, slots: np.ndarray, mark: int) -> None:
        """
        Set marks. Twice is as good as once.

        :param slots: different slots, int64 of shape (n,)
        :param mark: above 0; 0 removes the marks
        """
        marks = flat(self._marks)
        n_marked = self.n - int(np.count_nonzero(marks[slots]))
        if mark > 0:
            n_marked += len(slots)
        self._n_marked = -1
        marks[slots] = mark
        self._n_marked = n_marked

    def among(self, slots: np.ndarray) -> np.ndarray:
        """Tell which slots have a mark."""
        return flat(self._marks).take(slots).astype(np.bool_, copy=False)

    def newest(self, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """Give numbers to all of them, because these buffers refuse to emphasize the newest."""
        return np.flatnonzero(self._marks).__getitem__


#: what a draw or a change of no slots returns
NO_SLOTS = np.empty(0, np.int64)


def state_of(sampler: Sampler) -> dict[str, Any]:
    """
    Return the state of a sampler, and of the ring whose transitions it draws.

    :param sampler: of a buffer, or of its demonstrations
    :return: numbers and arrays, in dictionaries. Arrays by slot end at the last slot that holds anything
    """
    sampler.settle()
    eligible, ring = sampler.eligible, sampler.eligible.ring
    n_slots = ring.n_rows_used * ring.n_envs
    return {"ring": ring.state(), "eligible": eligible.state(), "sampler": sampler.state(n_slots)}


def restore(sampler: Sampler, state: dict[str, Any], keeps_masses: bool) -> None:
    """
    Restore a sampler, and the ring whose transitions it draws.

    :param sampler: new, of the same kind and capacity
    :param state: from :func:`state_of`
    :param keeps_masses: whether it is of the same scheme; otherwise all transitions get the largest priority
    :raises ValueError: if the state contradicts itself. Discard the sampler after this error
    """
    ring = sampler.eligible.ring
    ring.load(state["ring"])
    sampler.eligible.load(state["eligible"], keeps_masses)
    sampler.load(state["sampler"], keeps_masses)
    if not ring.full and sampler.tree.written()[ring.ids_at(np.arange(ring.capacity)) < 0].any():
        raise ValueError("an empty slot has a mass")
