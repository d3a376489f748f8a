"""
Which windows of a sequence buffer can be drawn: those that are complete.

Every ``period``-th step of an episode is an **anchor**, the first step of a window. Only anchors have mass; all other slots
have mass 0.
"""

from typing import Any, NamedTuple

import numpy as np

from sb3_per.buffers.recurrent_states import RecurrentStates
from sb3_per.buffers.window_kernels import find_complete, number_by_dones, number_next
from sb3_per.sampling.candidates import NO_SLOTS, Marked
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Storage


class Changes(NamedTuple):
    """Windows that can be drawn from now on, and that no longer can, until :meth:`CompleteWindows.confirm`."""

    #: anchors of windows that became complete, int64 of shape (n,)
    new: np.ndarray
    #: slots whose windows lose their beginning, int64 of shape (n,)
    gone: np.ndarray
    #: first step of each environment that has not been looked at yet, afterwards
    n_looked_at: np.ndarray
    #: oldest step that may be an anchor, afterwards
    oldest_admitted: int
    #: step before which all were looked at
    looked_at_until: int


class CompleteWindows(Marked):
    """
    Candidates of a sequence buffer: the anchors of complete windows.

    :param ring: all environments stand at the same step
    :param storage: of the steps, which knows the ends of episodes
    :param states: recurrent states at the starts of the prefixes; they hold the period and the length of a prefix
    :param n_recorded: steps of a complete window: the learned ones, and those of the last n-step return
    """

    def __init__(self, ring: Ring, storage: Storage, states: RecurrentStates, n_recorded: int):
        self.storage = storage
        self.states = states
        self.n_recorded = n_recorded
        self.period = states.period
        self.burn_in = states.burn_in
        #: number of each step within its episode, int32 of shape (n_rows, n_envs)
        self.episode_steps = np.zeros((ring.n_rows, ring.n_envs), np.int32)
        #: anchors of windows that can be drawn, bool of shape (n_rows, n_envs)
        self.is_ready = np.zeros((ring.n_rows, ring.n_envs), np.bool_)
        super().__init__(ring, self.is_ready)
        #: oldest step that may be an anchor
        self.oldest_admitted = 0
        # By environment, the first step that has not been looked at yet.
        self._n_looked_at = np.zeros(ring.n_envs, np.int64)
        # Number of steps after which windows were looked for; -1 if ends of episodes were written since.
        self._n_known = 0
        self._no_starts = np.zeros(ring.n_envs, np.bool_)

    @property
    def nbytes(self) -> int:
        """Bytes of the marks and of the recurrent states."""
        return self.episode_steps.nbytes + self.is_ready.nbytes + sum(array.nbytes for array in self.states.arrays)

    # ---- writing

    def next_step(self, row: int, starts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, bool]:
        """
        Number the next step of each environment within its episode. Call it before the step is written: in a ring of a single
        row, it overwrites the step before, which the number depends on.

        :param row: row of the step
        :param starts: where an episode starts although the one before has not ended, bool of shape (n_envs,);
            ``None``: nowhere
        :return: numbers of the step within the episodes, int32 of shape (n_envs,); environments whose episode the step cuts
            off, int64 of shape (k,); and whether a window of any environment is unrolled from the step
        """
        ring = self.ring
        storage = self.storage
        if starts is None:
            starts = self._no_starts
        numbers = np.empty(ring.n_envs, np.int32)
        row_before = (row - 1) % ring.n_rows
        leaves_open, is_unrolled_from = number_next(
            numbers,
            self.episode_steps[row_before],
            storage.dones[row_before],
            storage.timeouts[row_before],
            ring.max_next_step == ring.first_step,
            starts,
            self.period,
            self.burn_in,
        )
        cut = NO_SLOTS
        if leaves_open and ring.n_rows > 1:
            cut = np.flatnonzero(starts & (storage.dones[row_before] == 0))
        return numbers, cut, is_unrolled_from

    def add_row(self, row: int, numbers: np.ndarray, cut: np.ndarray) -> None:
        """
        Take note of a step that was written, and end the episodes that it does not continue.

        :param row: row of the step
        :param numbers: from :meth:`next_step`
        :param cut: from :meth:`next_step`
        """
        self.episode_steps[row] = numbers
        if cut.size:
            self.reopen_last_step()
            self.storage.truncate(row - 1, cut)

    def reopen_last_step(self) -> None:
        """Look for windows once more, because ends of episodes are about to be written."""
        self._n_known = -1

    # ---- which windows can be drawn

    @property
    def mass_owner(self) -> str:
        """Windows of these lengths."""
        return f"windows every {self.period} steps after {self.burn_in}, {self.n_recorded} recorded"

    @property
    def oldest_anchor(self) -> int:
        """
        Oldest step whose window may be drawn. In a full ring, its prefix must still be there, and the recurrent state before
        the prefix, which shares its slot with up to ``period`` - 1 earlier rows.
        """
        ring = self.ring
        oldest = max(ring.max_next_step - ring.n_rows, ring.first_step)
        if ring.full:
            oldest += self.burn_in + self.period - 1
        return max(oldest, self.oldest_admitted)

    @property
    def is_behind(self) -> bool:
        """Whether steps or ends of episodes were written since windows were last looked for."""
        return self._n_known != self.ring.max_next_step

    def changes(self) -> Changes:
        """Find the windows that became complete, and those whose beginning is being overwritten. None is marked yet."""
        ring = self.ring
        retired = self.oldest_admitted
        oldest = min(self.oldest_anchor, ring.max_next_step)
        new, n_looked_at = find_complete(
            self._n_looked_at,
            self.episode_steps,
            self.storage.dones,
            self.storage.timeouts,
            oldest,
            ring.max_next_step,
            self.period,
            self.n_recorded,
        )
        first_gone = max(retired, oldest - ring.n_rows)
        gone = np.arange(first_gone * ring.n_envs, oldest * ring.n_envs) % ring.capacity
        return Changes(new, gone, n_looked_at, oldest, ring.max_next_step)

    def confirm(self, changes: Changes) -> None:
        """
        Admit the new windows, and retire the others.

        :param changes: from :meth:`changes`
        """
        self._mark(changes.gone, 0)
        self._mark(changes.new, 1)
        # Plain assignments only: see Invariants in the developer guide.
        self._n_looked_at = changes.n_looked_at
        self.oldest_admitted = changes.oldest_admitted
        self._n_known = changes.looked_at_until

    def _forget_windows(self) -> None:
        """Look for all complete windows anew."""
        self.is_ready.fill(False)
        self._n_looked_at = np.full(self.ring.n_envs, self.oldest_admitted)
        self._n_marked = 0
        self._n_known = -1
        self._first_step = self.ring.first_step

    def start_over(self) -> None:
        """The ends of episodes say what belongs together of the steps that are there already."""
        ring = self.ring
        storage = self.storage
        number_by_dones(self.episode_steps, storage.dones, storage.timeouts, ring.first_step, ring.max_next_step)
        if ring.max_next_step > ring.first_step:
            self.states.clear()  # those that are stored belong to other steps
        self.oldest_admitted = ring.first_step
        self._forget_windows()

    def draw_as_sb3(self, n: int) -> np.ndarray:
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
        """See :meth:`Candidates.load`; also of a buffer without sequences."""
        ring = self.ring
        ring.require_same_step()
        first = int(ring.oldest_held[0])
        if "episode_steps" not in state:
            # Only the ends of episodes are known: each start follows an end.
            number_by_dones(self.episode_steps, self.storage.dones, self.storage.timeouts, first, ring.max_next_step)
            self.states.clear()
            self.oldest_admitted = first
            self._forget_windows()
            return
        steps = np.asarray(state["episode_steps"])
        oldest = int(state["oldest_admitted"])
        if steps.shape != (ring.n_rows_used, ring.n_envs) or steps.min(initial=0) < 0 or not 0 <= oldest <= ring.max_next_step:
            raise ValueError("the steps of an episode are not numbered")
        in_order = steps[np.arange(first, ring.max_next_step) % ring.n_rows]
        if ((in_order[1:] != 0) & (in_order[1:] != in_order[:-1] + 1)).any():
            raise ValueError("steps of an episode do not follow one another")
        self.episode_steps[: len(steps)] = steps
        self.oldest_admitted = oldest
        self.states.load(state["recurrent_states"])
        self._forget_windows()
        if keeps_masses and state["n_recorded"] == self.n_recorded:
            looked_at = np.array(state["n_looked_at"])
            if looked_at.shape != (ring.n_envs,) or looked_at.max() > ring.max_next_step:
                raise ValueError(f"windows are known up to the steps {looked_at} of {ring.max_next_step}")
            held = np.arange(max(first, oldest), ring.max_next_step)
            rows = held % ring.n_rows
            self.is_ready[rows] = (held[:, None] < looked_at) & (self.episode_steps[rows] % self.period == 0)
            self._n_marked = int(np.count_nonzero(self.is_ready))
            self._n_looked_at = looked_at

    def copy_rows(self, other: "CompleteWindows", rows: np.ndarray, other_rows: np.ndarray) -> None:
        """See :meth:`Candidates.copy_rows`."""
        ring = self.ring
        self.episode_steps[rows] = other.episode_steps[other_rows]
        n_ahead = ring.max_next_step - other.ring.max_next_step
        self.oldest_admitted = max(other.oldest_admitted + n_ahead, ring.max_next_step - len(rows))
        self.states.copy_rows(other.states, rows, other_rows, self.episode_steps[rows])
        self._forget_windows()
