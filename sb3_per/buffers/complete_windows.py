"""
Eligibility of sequence buffers: windows that are complete.

Every ``period``-th step of an episode is an **anchor**, the first step of a window. Only anchors have mass; all other slots
have mass 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th

from sb3_per.buffers.eligibility import NO_SLOTS, MarkedTransitions
from sb3_per.buffers.recurrent_states import RecurrentStates
from sb3_per.buffers.windows import IS_UNROLLED_FROM, LEAVES_OPEN, find_complete, number_by_dones, number_next
from sb3_per.storage.arrays import ArrayStorage
from sb3_per.storage.ring import Ring


class CompleteWindows(MarkedTransitions):
    """
    See :class:`~sb3_per.sampling.eligibility.Eligibility`.

    :param ring: position; all environments stand at the same step
    :param storage: of the steps, which knows the ends of episodes
    :param states: recurrent states at the starts of the prefixes; they hold the period and the length of a prefix
    :param n_recorded: steps of a complete window: the learned ones, and those of the last n-step return
    """

    def __init__(self, ring: Ring, storage: ArrayStorage, states: RecurrentStates, n_recorded: int):
        self.storage, self.states, self.n_recorded = storage, states, n_recorded
        self.period, self.burn_in = states.period, states.burn_in
        #: number of each step within its episode, int32 of shape (n_rows, n_envs)
        self.episode_steps = np.zeros((ring.n_rows, ring.n_envs), np.int32)
        #: anchors of windows that can be drawn, bool of shape (n_rows, n_envs)
        self.is_ready = np.zeros((ring.n_rows, ring.n_envs), np.bool_)
        super().__init__(ring, self.is_ready)
        #: oldest step that may be an anchor
        self.oldest_admitted = 0
        # By environment, the first step that has not been looked at yet.
        self._n_looked_at = np.zeros(ring.n_envs, np.int64)
        # Number of steps that the tree has; -1 if ends of episodes were written since.
        self._known = 0
        # What `changes` has found: slots of new windows, of windows that are gone, the next `_n_looked_at` and
        # `oldest_admitted`.
        self._found = NO_SLOTS, NO_SLOTS, self._n_looked_at, 0
        self._no_starts = np.zeros(ring.n_envs, np.bool_)

    @property
    def nbytes(self) -> int:
        """Bytes of the marks and of the recurrent states."""
        return self.episode_steps.nbytes + self.is_ready.nbytes + sum(array.nbytes for array in self.states.arrays)

    # ---- writing

    def before_write(self, starts: np.ndarray | None = None, states: Sequence[np.ndarray | th.Tensor] | None = None) -> Any:
        """
        Number the next step of each environment within its episode. In a ring of a single row, the write itself overwrites
        the step before, which the number depends on.

        :param starts: where an episode starts although the one before has not ended, bool of shape (n_envs,)
        :param states: recurrent states before the step, see :meth:`~sb3_per.buffers.recurrent_states.RecurrentStates.store`
        :return: numbers of the step within the episodes, the environments whose open episode ends before it, and the states
            to store; ``None`` for none
        """
        ring, storage = self.ring, self.storage
        starts = self._no_starts if starts is None else starts
        numbers, row_before = np.empty(ring.n_envs, np.int32), (ring.pos - 1) % ring.n_rows
        before = (self.episode_steps[row_before], storage.dones[row_before], storage.timeouts[row_before])
        found = number_next(numbers, *before, ring.most == ring.begin, starts, self.period, self.burn_in)
        cut = None
        if found & LEAVES_OPEN and ring.n_rows > 1:
            cut = np.flatnonzero(starts & (storage.dones[row_before] == 0))
        return numbers, cut, self.states.as_arrays(states) if found & IS_UNROLLED_FROM else None

    def after_write(self, rows: int, prepared: Any) -> None:
        """Store the numbers of the step and the recurrent states, and end the episodes that it does not continue."""
        numbers, cut, states = prepared
        self.episode_steps[rows] = numbers
        if cut is not None:
            self.end_episodes()
            self.storage.truncate(rows - 1, cut)
        if states is not None:
            self.states.store(rows, numbers, states)

    def end_episodes(self) -> None:
        """Ends of episodes are about to be written, so windows may become complete."""
        self._known = -1

    # ---- which windows can be drawn

    @property
    def unit(self) -> str:
        """Windows of these lengths."""
        return f"windows every {self.period} steps after {self.burn_in}, {self.n_recorded} recorded"

    @property
    def oldest_anchor(self) -> int:
        """
        Oldest step whose window may be drawn. In a full ring, its prefix must still be there, and the recurrent state before
        the prefix, which shares its slot with up to ``period`` - 1 earlier rows.
        """
        ring = self.ring
        oldest = max(ring.most - ring.n_rows, ring.begin)
        if ring.full:
            oldest += self.burn_in + self.period - 1
        return max(oldest, self.oldest_admitted)

    def changes(self) -> tuple[np.ndarray, np.ndarray]:
        """Anchors of windows that became complete, and of those whose beginning is being overwritten."""
        ring = self.ring
        if self._begin != ring.begin:
            self.clear()
        if self._known == ring.most:
            return NO_SLOTS, NO_SLOTS
        retired, oldest = self.oldest_admitted, min(self.oldest_anchor, ring.most)
        arrays = (self._n_looked_at, self.episode_steps, self.storage.dones, self.storage.timeouts)
        new, n_looked_at = find_complete(*arrays, oldest, ring.most, self.period, self.n_recorded)
        gone = np.arange(max(retired, oldest - ring.n_rows) * ring.n_envs, oldest * ring.n_envs) % ring.capacity
        self._found = new, gone, n_looked_at, oldest
        if not new.size and not gone.size:
            self.confirm_changes()  # there is nothing that the tree could lack
        return new, gone

    def confirm_changes(self) -> None:
        """Admit the new windows, and retire the others."""
        new, gone, n_looked_at, oldest = self._found
        self._mark(gone, 0)
        self._mark(new, 1)
        n_steps = self.ring.most
        # Plain assignments only, so that an interrupt comes before all of them or after.
        self._n_looked_at = n_looked_at
        self.oldest_admitted = oldest
        self._known = n_steps

    def forget_changes(self) -> None:
        """Report all complete windows as new."""
        self.is_ready.fill(False)
        self._n_looked_at.fill(self.oldest_admitted)
        self._n_marked, self._known = 0, -1

    def clear(self) -> None:
        """The ring was emptied. The ends of episodes say what belongs together of the steps that are there already."""
        ring, storage = self.ring, self.storage
        number_by_dones(self.episode_steps, storage.dones, storage.timeouts, ring.begin, ring.most)
        if ring.most > ring.begin:
            self.states.clear()  # those that are stored belong to other steps
        self.oldest_admitted = ring.begin
        self.forget_changes()
        self._begin = ring.begin

    def stock_draw(self, n: int) -> np.ndarray:
        """SB3 has no sequences: any uniform draw."""
        slots = np.flatnonzero(self.is_ready)
        return np.asarray(slots[(np.random.random_sample(n) * len(slots)).astype(np.int64)])

    # ---- saving

    def state(self) -> dict[str, Any]:
        """Step numbers within episodes, how far windows are known, and recurrent states."""
        n = self.ring.n_rows_used
        return {
            "episode_steps": self.episode_steps[:n],
            "oldest_admitted": self.oldest_admitted,
            "n_looked_at": self._n_looked_at,
            "n_recorded": self.n_recorded,
            "recurrent_states": self.states.state(n),
        }

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """See :class:`~sb3_per.sampling.eligibility.Eligibility`; also of a buffer without sequences."""
        ring, first = self.ring, int(self.ring.first[0])
        ring.require_even()
        self._begin = ring.begin
        if "episode_steps" not in state:
            # Only the ends of episodes are known: each start follows an end.
            number_by_dones(self.episode_steps, self.storage.dones, self.storage.timeouts, first, ring.most)
            self.states.clear()
            self.oldest_admitted = first
            self.forget_changes()
            return
        steps, oldest = np.asarray(state["episode_steps"]), int(state["oldest_admitted"])
        if steps.shape != (ring.n_rows_used, ring.n_envs) or steps.min(initial=0) < 0 or not 0 <= oldest <= ring.most:
            raise ValueError("the steps of an episode are not numbered")
        in_order = steps[np.arange(first, ring.most) % ring.n_rows]
        if ((in_order[1:] != 0) & (in_order[1:] != in_order[:-1] + 1)).any():
            raise ValueError("steps of an episode do not follow one another")
        self.episode_steps[: len(steps)] = steps
        self.oldest_admitted = oldest
        self.states.load(state["recurrent_states"])
        self.forget_changes()
        if keeps_masses and state["n_recorded"] == self.n_recorded:
            looked_at = np.array(state["n_looked_at"])
            if looked_at.shape != (ring.n_envs,) or looked_at.max() > ring.most:
                raise ValueError(f"windows are known up to the steps {looked_at} of {ring.most}")
            held = np.arange(max(first, oldest), ring.most)
            rows = held % ring.n_rows
            self.is_ready[rows] = (held[:, None] < looked_at) & (self.episode_steps[rows] % self.period == 0)
            self._n_marked, self._n_looked_at = int(np.count_nonzero(self.is_ready)), looked_at

    def copy_rows(self, source: "CompleteWindows", rows: np.ndarray, old_rows: np.ndarray) -> None:
        """See :class:`~sb3_per.sampling.eligibility.Eligibility`."""
        ring = self.ring
        self._begin = ring.begin
        self.episode_steps[rows] = source.episode_steps[old_rows]
        self.oldest_admitted = max(source.oldest_admitted + ring.most - source.ring.most, ring.most - len(rows))
        self.states.copy_rows(source.states, rows, old_rows, self.episode_steps[rows])
        self.forget_changes()
