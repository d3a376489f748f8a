"""
Keep the ids and the tree of a buffer in step with the rows that SB3 writes.

SB3 writes a row and moves ``pos`` and ``full``. A tracker counts the row, and gives it its mass before the next draw or
update. It notices an ``add`` that was interrupted, a user's ``add`` that does not call ours, and a ``pos``, ``full`` or
``buffer_size`` that somebody has set.
"""

from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from sb3_per.buffers.inputs import require_finite_rewards
from sb3_per.utils.origin import is_overridden

if TYPE_CHECKING:
    from sb3_per.buffers.replay import PrioritizedReplayBuffer

BufferT = TypeVar("BufferT", bound="PrioritizedReplayBuffer")


class RowTracker(Generic[BufferT]):
    """
    Count rows and insert them into the tree. Here each row can be drawn once it is written. Where only some transitions can
    be drawn, a subclass overrides :meth:`insert`, :meth:`start_tree_over` and :meth:`drawable_slots`, and perhaps
    :meth:`catch_up`, :meth:`note_rows_of_users_add` and :meth:`continue_from`.

    Methods take the buffer, whose arrays and position anybody may set at any time.
    """

    def __init__(self) -> None:
        #: the tree has the rows before this step: all of them if it is ``numbering.next_step``. Below
        #: ``numbering.first_step``: the tree is to be cleared first
        self.inserted_until = 0
        #: whether SB3's ``add`` may have written a row that is not counted yet, because of an interrupt
        self.is_adding = False
        #: tree values that transitions came with, shape (buffer_size, n_envs), NaN for none; ``None``: no transition has come
        #: with any
        self.given_values: np.ndarray | None = None
        #: whether rows have truncation flags that SB3's ``add`` does not clear, because it writes none without
        #: ``handle_timeout_termination``. ``append_rows``, ``end_episodes`` and files bring them
        self.clears_timeouts = False

    # ---- count

    def catch_up(self, buffer: BufferT) -> None:
        """
        Catch up with SB3's ``pos``, ``full`` and ``buffer_size``: count the row of an ``add`` that was interrupted, and take
        all rows for new if somebody has set them by hand.

        :param buffer: the buffer
        :raises ValueError: for a row outside of the buffer, or a reward that is NaN or infinite
        """
        is_resized = buffer.buffer_size != buffer.numbering.n_rows
        if is_resized:
            self._make_parts_again(buffer)
        numbering = buffer.numbering
        if buffer.pos == buffer.buffer_size:  # an interrupt in SB3's `add`, before it goes back to row 0
            buffer.full = True
            buffer.pos = 0
        if self.is_adding:
            if buffer.pos == (numbering.next_step + 1) % numbering.n_rows:
                numbering.next_step += 1
            self.is_adding = False
        if numbering.agree(buffer.pos, buffer.full) and not is_resized:
            return
        if not 0 <= buffer.pos < buffer.buffer_size:
            raise ValueError(
                f"pos must be a row in [0, {buffer.buffer_size}), not {buffer.pos}: a full buffer has full=True, too"
            )
        if not is_resized and self._count_rows_of_users_add(buffer):
            return
        require_finite_rewards(buffer.rewards[: buffer.size()])
        self.given_values = None
        self.inserted_until = -1  # first, so that after an interrupt the tree starts over at the next call
        numbering.start_over(buffer.pos + buffer.buffer_size if buffer.full else buffer.pos)
        self.start_tree_over(buffer)

    def _make_parts_again(self, buffer: BufferT) -> None:
        """Fit the parts to arrays of another size, which somebody has assigned. What does not depend on the size stays."""
        self.inserted_until = -1  # first, so that after an interrupt the tree starts over at the next call
        self.is_adding = False
        self.given_values = None
        kept = {name: vars(buffer)[name] for name in buffer.lasting_parts}
        next_step, max_priority = buffer.numbering.next_step, buffer.priority_sampler.max_priority
        buffer.make_parts()
        vars(buffer).update(kept)
        if buffer.draw_record is not None:
            buffer.draw_record = buffer.draw_record.emptied(buffer.numbering.capacity)
        buffer.numbering.next_step = next_step
        buffer.priority_sampler.max_priority = max_priority

    def _count_rows_of_users_add(self, buffer: BufferT) -> bool:
        """
        Count the rows that a user's method has written without calling ours, if there is such a method.

        :return: whether they explain SB3's ``pos`` and ``full``
        :raises ValueError: for a reward that is NaN or infinite
        """
        if not (is_overridden(buffer, "add") or is_overridden(buffer, "extend")):
            return False
        numbering = buffer.numbering
        n = numbering.rows_until(buffer.pos, buffer.full)
        if n is None:
            return False
        rows = np.arange(numbering.next_step, numbering.next_step + n)[-buffer.buffer_size :] % buffer.buffer_size
        require_finite_rewards(buffer.rewards[rows])
        if self.given_values is not None:
            self.given_values[rows] = np.nan
        numbering.next_step += n
        self.note_rows_of_users_add(buffer, n)
        return True

    def note_rows_of_users_add(self, buffer: BufferT, n: int) -> None:
        """
        Take note of what a user's method has overwritten. Here :meth:`insert` knows.

        :param buffer: the buffer, in which the rows are counted
        :param n: number of rows that it has written
        """

    # ---- insert

    def note_change(self, buffer: BufferT) -> None:
        """
        Let the next draw or update call :meth:`insert`, also if no row is written until then, because other transitions of the
        same rows can be drawn. Call it before the change, so that an interrupt cannot come in between. For subclasses whose
        :meth:`insert` finds out what has changed.

        :param buffer: the buffer
        """
        self.inserted_until = min(self.inserted_until, buffer.numbering.first_step)

    def insert(self, buffer: BufferT) -> None:
        """
        Give the rows that the tree lacks their masses.

        :param buffer: the buffer, whose rows are counted
        """
        numbering = buffer.numbering
        if self.inserted_until < numbering.first_step:
            self.start_tree_over(buffer)
        sampler = buffer.priority_sampler
        sampler.insert(numbering.slots_of_newest_rows(numbering.next_step - self.inserted_until), self.given_values)
        if numbering.shares_next_obs and buffer.full:
            sampler.remove(np.arange(buffer.pos * buffer.n_envs, (buffer.pos + 1) * buffer.n_envs))
        self.inserted_until = numbering.next_step  # last, so that after an interrupt the rows are inserted once more

    def start_tree_over(self, buffer: BufferT) -> None:
        """
        Take all masses away, because all transitions are new.

        :param buffer: the buffer
        """
        buffer.priority_sampler.clear()
        self.inserted_until = buffer.numbering.first_step

    def drawable_slots(self, buffer: BufferT) -> np.ndarray:
        """
        List all slots that can be drawn.

        :param buffer: the buffer, whose rows are counted
        :return: int64 of shape (n,)
        """
        return buffer.numbering.slots()

    def keep_given_values(self, buffer: BufferT, values: np.ndarray | None, row: int | np.ndarray) -> None:
        """
        Keep the tree values that transitions come with until the tree gets them.

        :param buffer: the buffer
        :param values: tree values, shape (n_envs,), of several rows (n, n_envs); ``None``: they come with none
        :param row: of the transitions, or several
        """
        if self.given_values is None:
            self.given_values = np.full((buffer.buffer_size, buffer.n_envs), np.nan)
        self.given_values[row] = np.nan if values is None else values

    # ---- rows that are in the arrays already

    def stand_at(self, buffer: BufferT, first_step: int, next_step: int) -> None:
        """
        Stand after rows that are in the arrays already. All of their transitions are new.

        :param buffer: the buffer
        :param first_step: first step since the buffer was last emptied, a multiple of the number of rows
        :param next_step: step that is stored next
        :raises ValueError: for steps that cannot be
        """
        n_rows = buffer.buffer_size
        if not 0 <= first_step <= next_step < 2**60 or first_step % n_rows != 0:
            raise ValueError(f"steps from {first_step} to {next_step} cannot be in {n_rows} rows")
        buffer.numbering.first_step = self.inserted_until = first_step
        buffer.numbering.next_step = next_step
        buffer.pos = next_step % n_rows
        buffer.full = next_step - first_step >= n_rows
        self.clears_timeouts = not buffer.handle_timeout_termination and bool(buffer.timeouts.any())

    def continue_from(self, buffer: BufferT, other: "PrioritizedReplayBuffer", keeps_masses: bool) -> None:
        """
        Stand where another buffer stands, in arrays that hold its rows already.

        :param buffer: the buffer
        :param other: of the same kind, and as large, or smaller and never full
        :param keeps_masses: whether it has the same scheme; otherwise every transition is a new one
        """
        other.insert_new_rows()
        buffer.pos = other.pos
        buffer.full = other.full
        buffer.numbering.first_step = other.numbering.first_step
        buffer.numbering.next_step = other.numbering.next_step
        self.clears_timeouts = other.row_tracker.clears_timeouts
        buffer.priority_sampler.max_priority = other.priority_sampler.max_priority
        self.inserted_until = other.numbering.first_step
        if keeps_masses:
            buffer.priority_sampler.continue_from(other.priority_sampler)
            self.inserted_until = other.numbering.next_step
            if other.row_tracker.given_values is not None:
                self.given_values = other.row_tracker.given_values
