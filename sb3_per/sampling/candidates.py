"""Which slots can be drawn. Each kind of buffer has its own class of candidates, beside its set of transitions."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from sb3_per.storage.nested import flat
from sb3_per.storage.ring import Ring

#: what a method returns that finds no slot
NO_SLOTS = np.empty(0, np.int64)


class Candidates(ABC):
    """
    Say which slots can be drawn. Whoever changes them tells the sampler.

    :param ring: which transition is in which slot
    """

    #: whether these are exactly the complete transitions of the ring: a draw by age needs no tree then, and new rows of all
    #: environments need no other word than that of the ring
    are_all_complete: ClassVar[bool] = False

    def __init__(self, ring: Ring):
        self.ring = ring

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of slots that can be drawn."""

    @property
    @abstractmethod
    def mass_owner(self) -> str:
        """What a mass belongs to, e.g. a transition. Masses move between two buffers only if this is the same."""

    @abstractmethod
    def slots(self) -> np.ndarray:
        """List all slots that can be drawn, int64 of shape (n,), from old to new where the ring knows the order."""

    @abstractmethod
    def newest(self, positions: np.ndarray, n: int) -> np.ndarray:
        """
        Find some of the newest n slots that can be drawn by their position.

        :param positions: among the newest n from old to new, integers in [0, n), shape (batch_size,)
        :param n: number of the newest slots that can be drawn
        :return: slots, int64 in the same shape; each position has a slot of its own
        """

    def start_of_newest(self, n: int) -> int | None:
        """
        Find the first of the newest n slots that can be drawn, if they lie side by side.

        :param n: number of the newest slots that can be drawn
        :return: the first slot; ``None`` if they do not lie side by side
        """
        return None

    def only_candidates(self, slots: np.ndarray, abs_td_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Leave out the slots that cannot be drawn.

        :param slots: slots of complete transitions, int64 of shape (n,)
        :param abs_td_errors: one row for each, shape (n, n_critics)
        :return: both for the slots that can be drawn
        """
        return slots, abs_td_errors

    @abstractmethod
    def draw_as_sb3(self, n: int) -> np.ndarray:
        """
        Draw uniformly, with the random numbers that SB3's buffer of this kind draws.

        :param n: number of slots
        :return: slots, int64 of shape (n,)
        """

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept by slot."""
        return 0

    # ---- saving; what the ring knows needs none of this

    def state(self) -> dict[str, Any]:
        """Return numbers and arrays, see :meth:`load`. Arrays by row end at the last row that holds anything."""
        return {}

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:  # noqa: B027 - the ring knows it
        """
        Restore a state.

        :param state: from :meth:`state`, of a ring with the same position; empty: only the ring and the storage are known
        :param keeps_masses: whether the sampler has the masses that go with it
        :raises ValueError: if it is not such a state
        """

    def copy_rows(self, other: Any, rows: np.ndarray, other_rows: np.ndarray) -> None:  # noqa: B027 - see above
        """
        Copy what is known of steps that were copied from another buffer.

        :param other: candidates of the other buffer, of the same class
        :param rows: of the steps, from old to new, shape (n,)
        :param other_rows: of the same steps in the other buffer, shape (n,)
        """

    def start_over(self) -> None:  # noqa: B027 - see above
        """Forget everything after the ring was emptied, or its rows were written by hand."""


class Marked(Candidates):
    """
    Slots with a mark.

    :param ring: all environments stand at the same step
    :param marks: above 0 where the slot can be drawn, shape (n_rows, n_envs)
    """

    def __init__(self, ring: Ring, marks: np.ndarray):
        super().__init__(ring)
        self._marks = marks
        # Below 0 after an interrupt while marks changed: they are counted anew.
        self._n_marked = 0
        # Where the ring began when these candidates did.
        self._first_step = ring.first_step

    @property
    def are_from_before_reset(self) -> bool:
        """Whether the ring was emptied, and :meth:`start_over` was not called since."""
        return self._first_step != self.ring.first_step

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

    def are_marked(self, slots: np.ndarray) -> np.ndarray:
        """
        Tell which slots have a mark.

        :param slots: int64 of any shape
        :return: bool in the same shape
        """
        return flat(self._marks).take(slots).astype(np.bool_, copy=False)

    def slots(self) -> np.ndarray:
        """See :meth:`Candidates.slots`."""
        return np.flatnonzero(self._marks)

    def newest(self, positions: np.ndarray, n: int) -> np.ndarray:
        """Find them among all that can be drawn: these buffers refuse ``recency``, so n is the number of these."""
        return np.flatnonzero(self._marks)[positions]

    def only_candidates(self, slots: np.ndarray, abs_td_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`Candidates.only_candidates`."""
        can_be_drawn = self.are_marked(slots)
        return slots[can_be_drawn], abs_td_errors[can_be_drawn]
