"""Which transitions of a buffer with hindsight can be drawn: those of finished episodes that are still complete."""

from typing import TYPE_CHECKING

import numpy as np

from sb3_per.buffers.rows import RowTracker

if TYPE_CHECKING:
    from sb3_per.buffers.her import PrioritizedHerReplayBuffer
    from sb3_per.buffers.replay import PrioritizedReplayBuffer

_NO_SLOTS = np.empty(0, np.int64)


class EpisodeTracker(RowTracker["PrioritizedHerReplayBuffer"]):
    """
    Insert the transitions of an episode when it ends, and remove them when SB3 overwrites its first row. SB3's ``ep_length``
    marks what can be drawn; this class notes where the marks change.
    """

    def __init__(self) -> None:
        super().__init__()
        #: slots of episodes that SB3 has begun to overwrite, which the tree still has
        self.overwritten: list[np.ndarray] = []
        #: slots of episodes that SB3 has finished, which the tree lacks
        self.finished: list[np.ndarray] = []
        #: number of slots that can be drawn
        self.n_drawable = 0

    def note_overwritten(self, buffer: "PrioritizedHerReplayBuffer", slots: np.ndarray) -> None:
        """
        Note an episode whose first row is overwritten next.

        :param buffer: the buffer
        :param slots: of the episode, int64 of shape (n,)
        """
        self.note_change(buffer)
        self.overwritten.append(slots)

    def note_finished(self, buffer: "PrioritizedHerReplayBuffer", slots: np.ndarray) -> None:
        """
        Note an episode that ends.

        :param buffer: the buffer
        :param slots: of the episode, int64 of shape (n,)
        """
        self.note_change(buffer)
        self.finished.append(slots)

    def catch_up(self, buffer: "PrioritizedHerReplayBuffer") -> None:
        """See :meth:`RowTracker.catch_up`."""
        was_adding = self.is_adding
        super().catch_up(buffer)
        if was_adding:  # an interrupt in SB3's `add` may have come before the end of an episode was noted
            self.note_change(buffer)

    def note_rows_of_users_add(self, buffer: "PrioritizedHerReplayBuffer", n: int) -> None:
        """Compare all episodes with the tree, see :meth:`RowTracker.note_rows_of_users_add`."""
        has_mass = buffer.priority_sampler.masses() > 0.0
        has_mass[buffer.numbering.slots_of_newest_rows(n)] = False
        can_be_drawn = buffer.ep_length.reshape(-1) > 0
        self.note_overwritten(buffer, np.flatnonzero(~can_be_drawn))
        self.note_finished(buffer, np.flatnonzero(can_be_drawn & ~has_mass))

    def start_tree_over(self, buffer: "PrioritizedHerReplayBuffer") -> None:
        """See :meth:`RowTracker.start_tree_over`. It is done once :meth:`insert` has counted what can be drawn."""
        buffer.priority_sampler.clear()
        if buffer.size() == 0:  # SB3's `reset` leaves its marks
            buffer.forget_episodes()
        self.overwritten = []
        self.finished = [self.drawable_slots(buffer)]

    def insert(self, buffer: "PrioritizedHerReplayBuffer") -> None:
        """Give the transitions of finished episodes their masses, and take away those of overwritten ones."""
        numbering = buffer.numbering
        if self.inserted_until < numbering.first_step:
            self.start_tree_over(buffer)
        if self.inserted_until <= numbering.first_step:  # an interrupt may have come between a change and SB3's marks
            buffer.finish_episodes(np.flatnonzero(buffer.dones[buffer.pos - 1]))
        if self.finished or self.overwritten:
            marks = buffer.ep_length.reshape(-1)
            overwritten = np.concatenate([_NO_SLOTS, *self.overwritten])
            finished = np.concatenate([_NO_SLOTS, *self.finished])
            buffer.priority_sampler.remove(overwritten[marks[overwritten] == 0])
            buffer.priority_sampler.insert(finished[marks[finished] > 0], self.given_values)
            self.n_drawable = int(np.count_nonzero(marks))
            # Last, so that after an interrupt all is done once more.
            self.overwritten = []
            self.finished = []
        self.inserted_until = numbering.next_step

    def drawable_slots(self, buffer: "PrioritizedHerReplayBuffer") -> np.ndarray:
        """See :meth:`RowTracker.drawable_slots`."""
        return np.flatnonzero(buffer.ep_length)

    def continue_from(
        self, buffer: "PrioritizedHerReplayBuffer", other: "PrioritizedReplayBuffer", keeps_masses: bool
    ) -> None:
        """See :meth:`RowTracker.continue_from`."""
        super().continue_from(buffer, other, keeps_masses)
        self.count_drawable(buffer, keeps_masses)

    def count_drawable(self, buffer: "PrioritizedHerReplayBuffer", keeps_masses: bool) -> None:
        """
        Count what SB3's marks in the arrays say, when the buffer continues with the episodes of another one.

        :param buffer: the buffer
        :param keeps_masses: whether the tree has the masses; otherwise every transition is a new one
        """
        drawable = self.drawable_slots(buffer)
        self.n_drawable = len(drawable)
        self.overwritten = []
        self.finished = [] if keeps_masses else [drawable]
