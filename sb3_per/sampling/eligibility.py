"""Interface through which a buffer tells its sampler which transitions can be drawn."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from sb3_per.storage.ring import Ring


class Eligibility(Protocol):
    """Says which transitions can be drawn. Each kind of buffer has its own subclass; a method that it lacks does nothing."""

    #: whether exactly the complete transitions of the ring can be drawn: of each environment the newest ones
    are_newest: bool
    #: position of every environment
    ring: Ring

    @property
    def unit(self) -> str:
        """What a mass belongs to, e.g. a transition. Masses move between two buffers only if this is the same."""

    @property
    def n(self) -> int:
        """Number of transitions that can be drawn."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept by slot."""
        return 0

    def before_write(self, *about: Any) -> Any:
        """
        Prepare for a step that is about to be written, which may fail: nothing changes.

        :param about: what the caller of ``add`` says of the step, for some kinds of buffer
        :return: what :meth:`after_write` takes
        """
        return None

    def after_write(self, rows: Any, prepared: Any) -> None:
        """
        Take note of steps that were written. The ring counts them right after this call.

        :param rows: rows of the steps: an int for one step of all environments
        :param prepared: from :meth:`before_write`
        """
        return None

    def end_episodes(self) -> None:
        """Take note that the newest steps are about to be truncated, see ``end_episodes`` of the buffer."""
        return None

    def changes(self) -> tuple[np.ndarray, np.ndarray]:
        """
        Report what has changed since the last call of :meth:`confirm_changes`.

        :return: slots that can be drawn from now on, and slots that can no longer be drawn, int64. The new ones come last: a
            slot may be in both
        """

    def confirm_changes(self) -> None:
        """
        Take note that the tree has what :meth:`changes` has just reported. If an interrupt comes before this call, all of it
        is reported again.
        """

    def forget_changes(self) -> None:
        """Report everything that can be drawn as new at the next call of :meth:`changes`."""

    def clear(self) -> None:
        """Forget everything, after the ring was emptied."""
        return None

    def among(self, slots: np.ndarray) -> np.ndarray | None:
        """
        Tell which slots can be drawn.

        :param slots: slots of complete transitions, int64 of shape (n,)
        :return: which of them can be drawn, bool of shape (n,); ``None`` if all can
        """
        return None

    def newest(self, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """
        Number the newest transitions that can be drawn.

        :param n: number of the newest transitions that can be drawn
        :return: function from numbers in [0, n) to the slots of these transitions, in any order
        """

    def stock_draw(self, n: int) -> np.ndarray:
        """
        Draw uniformly, with the random numbers that SB3's buffer of this kind draws.

        :param n: number of slots
        :return: slots, int64 of shape (n,)
        """

    def state(self) -> dict[str, Any]:
        """Return numbers and arrays, see :meth:`load`. Arrays by row end at the last row that holds anything."""

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """
        Restore a state.

        :param state: from :meth:`state`, of a ring with the same position
        :param keeps_masses: whether the sampler has the masses that go with it; otherwise everything is reported as new
        :raises ValueError: if it is not such a state
        """

    def copy_rows(self, source: Any, rows: np.ndarray, old_rows: np.ndarray) -> None:
        """
        Copy what is known of steps that were copied from another buffer.

        :param source: the eligibility of the other buffer
        :param rows: of the steps, from old to new, shape (n,)
        :param old_rows: of the same steps in the other buffer, shape (n,)
        """
        return None
